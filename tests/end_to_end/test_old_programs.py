"""Programs as users of Fluid 1.x wrote them: only the import differs. Each trains alike on every place."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid

PLACES = [str(place) for place in fluid.places()]
STEPS = 3
Feed = dict[str, np.ndarray[Any, Any]]
Built = tuple[list[Any], Callable[[np.random.RandomState], Feed]]
"""What a program fetches (the loss first), and a maker of one batch."""


@pytest.fixture(autouse=True)
def allow_fallback() -> None:
    """A place that has few kernels of its own runs these programs too."""
    fluid.set_fallback("allow")


def images(batch: int, *dims: int, classes: int = 4) -> Callable[[np.random.RandomState], Feed]:
    def make(rng: np.random.RandomState) -> Feed:
        label = rng.randint(0, classes, (batch, 1)).astype("int64")
        noise = rng.uniform(-0.5, 0.5, (batch, *dims))
        shift = label.reshape(batch, *[1] * len(dims)) / classes
        return {"img": (noise + shift).astype("float32"), "label": label}

    return make


# Convolutional nets ------------------------------------------------------------------------------------------------


def mnist_conv() -> Built:
    img = fluid.layers.data(name="img", shape=[1, 12, 12], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    conv_pool_1 = fluid.nets.simple_img_conv_pool(
        input=img, filter_size=5, num_filters=4, pool_size=2, pool_stride=2, act="relu"
    )
    conv_pool_1 = fluid.layers.batch_norm(conv_pool_1)
    conv_pool_2 = fluid.nets.simple_img_conv_pool(
        input=conv_pool_1, filter_size=3, num_filters=6, pool_size=2, pool_stride=2, act="relu"
    )
    prediction = fluid.layers.fc(input=conv_pool_2, size=4, act="softmax")
    cost = fluid.layers.cross_entropy(input=prediction, label=label)
    avg_cost = fluid.layers.mean(cost)
    acc = fluid.layers.accuracy(input=prediction, label=label)
    fluid.optimizer.Adam(learning_rate=0.01).minimize(avg_cost)
    return [avg_cost, acc], images(8, 1, 12, 12)


def lenet_5() -> Built:
    img = fluid.layers.data(name="img", shape=[1, 14, 14], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    conv1 = fluid.layers.conv2d(img, num_filters=4, filter_size=5, stride=1, padding=2, act="tanh")
    pool1 = fluid.layers.pool2d(conv1, pool_size=2, pool_type="avg", pool_stride=2)
    conv2 = fluid.layers.conv2d(pool1, 6, 3, padding=1, bias_attr=False)
    pool2 = fluid.layers.pool2d(conv2, pool_size=3, pool_type="max", pool_stride=2, pool_padding=1, ceil_mode=True)
    fc1 = fluid.layers.fc(pool2, size=16, act="sigmoid")
    logits = fluid.layers.fc(fc1, size=4)
    loss, softmax = fluid.layers.softmax_with_cross_entropy(logits, label, return_softmax=True)
    avg_loss = fluid.layers.mean(loss)
    fluid.optimizer.SGD(0.1).minimize(avg_loss)
    return [avg_loss, fluid.layers.accuracy(softmax, label, k=2)], images(6, 1, 14, 14)


def vgg() -> Built:
    img = fluid.layers.data("img", shape=[3, 8, 8])
    label = fluid.layers.data("label", shape=[1], dtype="int64")

    def conv_block(input: Any, num_filter: int, groups: int, dropouts: list[float]) -> Any:
        return fluid.nets.img_conv_group(
            input=input, pool_size=2, pool_stride=2, conv_num_filter=[num_filter] * groups, conv_filter_size=3,
            conv_act="relu", conv_with_batchnorm=True, conv_batchnorm_drop_rate=dropouts, pool_type="max",
        )  # fmt: skip

    conv1 = conv_block(img, 4, 2, [0.3, 0])
    conv2 = conv_block(conv1, 6, 2, [0.4, 0])
    drop = fluid.layers.dropout(x=conv2, dropout_prob=0.5)
    fc1 = fluid.layers.fc(input=drop, size=12, act=None)
    bn = fluid.layers.batch_norm(input=fc1, act="relu", data_layout="NHWC")
    drop2 = fluid.layers.dropout(x=bn, dropout_prob=0.5, dropout_implementation="upscale_in_train")
    predict = fluid.layers.fc(input=drop2, size=4, act="softmax")
    avg_cost = fluid.layers.mean(x=fluid.layers.cross_entropy(input=predict, label=label))
    fluid.optimizer.Momentum(learning_rate=0.05, momentum=0.9, regularization=fluid.regularizer.L2Decay(1e-3)).minimize(
        avg_cost
    )
    return [avg_cost], images(6, 3, 8, 8)


def resnet() -> Built:
    img = fluid.layers.data(name="img", shape=[3, 8, 8], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")

    def conv_bn_layer(input: Any, ch_out: int, filter_size: int, stride: int, padding: int, act: Any = "relu") -> Any:
        tmp = fluid.layers.conv2d(
            input=input, filter_size=filter_size, num_filters=ch_out, stride=stride, padding=padding, act=None,
            bias_attr=False, param_attr=fluid.ParamAttr(initializer=fluid.initializer.MSRA()),
        )  # fmt: skip
        return fluid.layers.batch_norm(input=tmp, act=act)

    def shortcut(input: Any, ch_in: int, ch_out: int, stride: int) -> Any:
        return conv_bn_layer(input, ch_out, 1, stride, 0, None) if ch_in != ch_out else input

    def basicblock(input: Any, ch_in: int, ch_out: int, stride: int) -> Any:
        tmp = conv_bn_layer(input, ch_out, 3, stride, 1)
        tmp = conv_bn_layer(tmp, ch_out, 3, 1, 1, act=None)
        return fluid.layers.elementwise_add(x=tmp, y=shortcut(input, ch_in, ch_out, stride), act="relu")

    conv = conv_bn_layer(img, ch_out=4, filter_size=3, stride=1, padding=1)
    res1 = basicblock(conv, 4, 4, 1)
    res2 = basicblock(res1, 4, 8, 2)
    pool = fluid.layers.pool2d(input=res2, pool_size=4, pool_type="avg", pool_stride=1, global_pooling=True)
    predict = fluid.layers.fc(input=pool, size=4, act="softmax")
    avg_cost = fluid.layers.mean(fluid.layers.cross_entropy(input=predict, label=label))
    rates = fluid.layers.piecewise_decay(boundaries=[2, 4], values=[0.1, 0.05, 0.01])
    fluid.optimizer.Momentum(rates, 0.9, regularization=fluid.regularizer.L2Decay(1e-4)).minimize(avg_cost)
    return [avg_cost, rates], images(6, 3, 8, 8)


def alexnet_with_lrn() -> Built:
    img = fluid.layers.data(name="img", shape=[3, 16, 16], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    conv1 = fluid.layers.conv2d(
        input=img, num_filters=8, filter_size=5, stride=2, padding=2, groups=1, act="relu",
        bias_attr=fluid.ParamAttr(learning_rate=2.0, regularizer=fluid.regularizer.L2Decay(0.0)),
        param_attr=fluid.ParamAttr(initializer=fluid.initializer.Normal(scale=0.1)),
    )  # fmt: skip
    lrn1 = fluid.layers.lrn(input=conv1, n=5, alpha=0.0001, beta=0.75)
    pool1 = fluid.layers.pool2d(input=lrn1, pool_size=3, pool_stride=2, pool_padding=0, pool_type="max")
    conv2 = fluid.layers.conv2d(input=pool1, num_filters=8, filter_size=3, padding=1, groups=2, act="relu")
    feature = fluid.layers.flatten(conv2)
    drop = fluid.layers.dropout(x=feature, dropout_prob=0.5, seed=7)
    out = fluid.layers.fc(
        input=drop, size=4, act="softmax", bias_attr=True,
        param_attr=fluid.initializer.Uniform(low=-0.2, high=0.2),
    )  # fmt: skip
    avg_cost = fluid.layers.mean(x=fluid.layers.cross_entropy(out, label))
    optimizer = fluid.optimizer.Momentum(
        learning_rate=fluid.layers.cosine_decay(learning_rate=0.1, step_each_epoch=2, epochs=4), momentum=0.9,
        regularization=fluid.regularizer.L1Decay(1e-3),
    )  # fmt: skip
    optimizer.minimize(avg_cost)
    return [avg_cost, fluid.layers.accuracy(input=out, label=label, k=1)], images(4, 3, 16, 16)


def mobilenet() -> Built:
    img = fluid.layers.data(name="img", shape=[4, 8, 8], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    depthwise = fluid.layers.conv2d(
        input=img, num_filters=8, filter_size=3, stride=2, padding=1, groups=4, use_cudnn=False, bias_attr=False
    )
    hidden = fluid.layers.relu6(fluid.layers.batch_norm(depthwise))
    pointwise = fluid.layers.conv2d(hidden, num_filters=8, filter_size=1)
    squeeze = fluid.layers.pool2d(pointwise, pool_type="avg", global_pooling=True)
    gate = fluid.layers.fc(fluid.layers.fc(squeeze, 4, act="relu"), 8, act="sigmoid")
    scaled = fluid.layers.elementwise_mul(x=pointwise, y=gate, axis=0)
    shuffled = fluid.layers.shuffle_channel(fluid.layers.hard_swish(scaled), group=2)
    logits = fluid.layers.fc(fluid.layers.adaptive_pool2d(shuffled, [2, 2], "avg"), size=4)
    avg_cost = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(logits, label))
    fluid.optimizer.RMSProp(learning_rate=0.01, momentum=0.9, centered=True).minimize(avg_cost)
    return [avg_cost], images(4, 4, 8, 8)


def auto_encoder() -> Built:
    img = fluid.layers.data(name="img", shape=[1, 12, 12], dtype="float32")
    code = fluid.layers.conv2d(input=img, num_filters=4, filter_size=3, stride=2, padding=1, act="relu")
    small = fluid.layers.conv2d(code, 6, 3, 2, 1, act="leaky_relu")
    up = fluid.layers.conv2d_transpose(small, num_filters=4, filter_size=4, stride=2, padding=1, act="relu")
    grown = fluid.layers.conv2d_transpose(up, num_filters=2, output_size=12, stride=2, padding=1)
    back = fluid.layers.image_resize(fluid.layers.image_resize(grown, out_shape=[9, 15]), out_shape=[12, 12])
    nearest = fluid.layers.resize_nearest(fluid.layers.pool2d(grown, 2, "avg", 2), scale=2.0)
    both = fluid.layers.concat([back, nearest], axis=1)
    decoded = fluid.layers.conv2d(both, 1, 1, act="sigmoid")
    loss = fluid.layers.mean(fluid.layers.square_error_cost(decoded, fluid.layers.sigmoid(img)))
    fluid.optimizer.AdamOptimizer(learning_rate=0.01, beta1=0.5).minimize(loss)
    return [loss], lambda rng: {"img": rng.rand(4, 1, 12, 12).astype("float32")}


def segmentation_with_group_norm() -> Built:
    img = fluid.layers.data(name="img", shape=[3, 8, 8], dtype="float32")
    label = fluid.layers.data(name="label", shape=[8, 8, 1], dtype="int64")
    hidden = fluid.layers.conv2d(img, 8, 3, padding=2, dilation=2, bias_attr=False)
    hidden = fluid.layers.group_norm(input=hidden, groups=4, act="relu")
    hidden = fluid.layers.instance_norm(fluid.layers.pad2d(hidden, [1, 1, 1, 1], mode="reflect"))
    logits = fluid.layers.conv2d(hidden, num_filters=3, filter_size=3)
    last = fluid.layers.transpose(logits, perm=[0, 2, 3, 1])
    predict = fluid.layers.softmax(last)
    dice = fluid.layers.dice_loss(input=predict, label=label)
    flat = fluid.layers.reshape(last, shape=[-1, 3])
    cost = fluid.layers.softmax_with_cross_entropy(flat, fluid.layers.reshape(label, [-1, 1]), ignore_index=2)
    loss = fluid.layers.elementwise_add(dice, fluid.layers.mean(cost))
    iou, _wrong, _correct = fluid.layers.mean_iou(
        fluid.layers.argmax(last, axis=-1), fluid.layers.squeeze(label, [3]), 3
    )
    fluid.optimizer.Adagrad(0.05).minimize(loss)

    def batch(rng: np.random.RandomState) -> Feed:
        return {
            "img": rng.randn(2, 3, 8, 8).astype("float32"), "label": rng.randint(0, 3, (2, 8, 8, 1)).astype("int64"),
        }  # fmt: skip

    return [loss, iou], batch


def video_of_conv3d() -> Built:
    img = fluid.layers.data(name="img", shape=[2, 6, 6, 6], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    conv = fluid.layers.conv3d(input=img, num_filters=4, filter_size=3, padding=1, act="relu")
    pool = fluid.layers.pool3d(input=conv, pool_size=2, pool_type="max", pool_stride=2)
    up = fluid.layers.conv3d_transpose(pool, num_filters=2, filter_size=2, stride=2)
    logits = fluid.layers.fc(fluid.layers.elementwise_add(up, img), size=4)
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(logits, label))
    fluid.optimizer.Adamax(learning_rate=0.01).minimize(loss)
    return [loss], images(4, 2, 6, 6, 6)


# Words, ratings, numbers ---------------------------------------------------------------------------------------------


def word2vec() -> Built:
    names = ("firstw", "secondw", "thirdw", "forthw")
    words = [fluid.layers.data(name=name, shape=[1], dtype="int64") for name in names]
    embedded = [
        fluid.layers.embedding(input=word, size=[20, 6], dtype="float32", is_sparse=False, param_attr="shared_w")
        for word in words
    ]
    concat_embed = fluid.layers.concat(input=embedded, axis=1)
    hidden1 = fluid.layers.fc(input=concat_embed, size=8, act="sigmoid")
    predict_word = fluid.layers.fc(input=hidden1, size=20, act="softmax")
    next_word = fluid.layers.data(name="nextw", shape=[1], dtype="int64")
    avg_cost = fluid.layers.mean(fluid.layers.cross_entropy(input=predict_word, label=next_word))
    fluid.optimizer.SGD(learning_rate=0.1).minimize(avg_cost)
    every = (*names, "nextw")
    return [avg_cost], lambda rng: {name: rng.randint(0, 20, (8, 1)).astype("int64") for name in every}


def recommender_system() -> Built:
    def feature(name: str, count: int, width: int, size: int) -> Any:
        ids = fluid.layers.data(name=name, shape=[1], dtype="int64")
        emb = fluid.layers.embedding(input=ids, size=[count, width], param_attr=name + "_table")
        return fluid.layers.fc(input=emb, size=size)

    usr = fluid.layers.concat([feature("user_id", 9, 8, 8), feature("gender_id", 2, 4, 4)], axis=1)
    usr_combined = fluid.layers.fc(input=usr, size=10, act="tanh")
    genres = fluid.layers.data("genres", [5], dtype="float32")
    mov_combined = fluid.layers.fc(input=[feature("movie_id", 11, 8, 8), genres], size=10, act="tanh")
    inference = fluid.layers.cos_sim(X=usr_combined, Y=mov_combined)
    scale_infer = fluid.layers.scale(x=inference, scale=5.0)
    label = fluid.layers.data(name="score", shape=[1], dtype="float32")
    avg_cost = fluid.layers.mean(fluid.layers.square_error_cost(input=scale_infer, label=label))
    fluid.optimizer.SGD(learning_rate=0.2).minimize(avg_cost)

    def batch(rng: np.random.RandomState) -> Feed:
        ids = {"user_id": 9, "gender_id": 2, "movie_id": 11}
        feed = {name: rng.randint(0, n, (6, 1)).astype("int64") for name, n in ids.items()}
        genre, score = rng.randint(0, 2, (6, 5)), rng.randint(1, 6, (6, 1))
        return feed | {"genres": genre.astype("float32"), "score": score.astype("float32")}

    return [avg_cost], batch


def fit_a_line() -> Built:
    x = fluid.layers.data(name="x", shape=[13], dtype="float32")
    y = fluid.layers.data(name="y", shape=[1], dtype="float32")
    y_predict = fluid.layers.fc(input=x, size=1, act=None)
    avg_cost = fluid.layers.mean(fluid.layers.huber_loss(y_predict, y, 1.0))
    smooth = fluid.layers.reduce_sum(fluid.layers.smooth_l1(y_predict, y, sigma=2.0))
    total = fluid.layers.sums([avg_cost, fluid.layers.scale(smooth, 0.1)])
    fluid.optimizer.Ftrl(learning_rate=0.1, l1=0.01, l2=0.01).minimize(total)

    def batch(rng: np.random.RandomState) -> Feed:
        x = rng.randn(10, 13).astype("float32")
        return {"x": x, "y": x.sum(1, keepdims=True) + 1}

    return [total], batch


def smoothed_labels_and_prelu() -> Built:
    x = fluid.layers.data(name="x", shape=[10], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    hidden = fluid.layers.prelu(fluid.layers.fc(x, 12), mode="all")
    hidden = fluid.layers.prelu(fluid.layers.reshape(hidden, [-1, 3, 4, 1]), mode="channel")
    hidden = fluid.layers.layer_norm(fluid.layers.flatten(hidden), begin_norm_axis=1)
    hidden = fluid.layers.maxout(fluid.layers.unsqueeze(hidden, axes=[2, 3]), groups=2)
    logits = fluid.layers.fc(hidden, 5)
    one_hot_label = fluid.layers.one_hot(input=label, depth=5)
    smooth_label = fluid.layers.label_smooth(label=one_hot_label, epsilon=0.1, dtype="float32")
    loss = fluid.layers.softmax_with_cross_entropy(logits, smooth_label, soft_label=True)
    avg_loss = fluid.layers.reduce_mean(loss)
    fluid.optimizer.RMSProp(learning_rate=0.01, rho=0.9).minimize(avg_loss)

    def batch(rng: np.random.RandomState) -> Feed:
        return {"x": rng.randn(6, 10).astype("float32"), "label": rng.randint(0, 5, (6, 1)).astype("int64")}

    return [avg_loss], batch


def clicks_with_auc() -> Built:
    x = fluid.layers.data("x", [8])
    label = fluid.layers.data("label", [1], dtype="int64")
    predict = fluid.layers.fc(x, 2, act="softmax")
    auc_out, batch_auc, _states = fluid.layers.auc(input=predict, label=label, num_thresholds=200, slide_steps=2)
    positive = fluid.layers.slice(predict, axes=[1], starts=[1], ends=[2])
    cost = fluid.layers.log_loss(positive, fluid.layers.cast(label, "float32"), epsilon=1e-6)
    both = fluid.layers.sigmoid_cross_entropy_with_logits(
        x=fluid.layers.fc(x, 1), label=fluid.layers.cast(label, "float32")
    )
    avg_cost = fluid.layers.mean(fluid.layers.elementwise_add(cost, both))
    fluid.optimizer.DecayedAdagrad(0.1).minimize(avg_cost)

    def batch(rng: np.random.RandomState) -> Feed:
        x = rng.randn(16, 8).astype("float32")
        return {"x": x, "label": (x.sum(1, keepdims=True) > 0).astype("int64")}

    return [avg_cost, auc_out, batch_auc], batch


def ranking_of_unit_vectors() -> Built:
    sides = [fluid.layers.data(name=name, shape=[6]) for name in ("query", "left", "right")]
    unit = [
        fluid.layers.l2_normalize(fluid.layers.fc(side, 4, param_attr="w", bias_attr="b"), axis=1) for side in sides
    ]
    near = fluid.layers.reduce_sum(fluid.layers.elementwise_mul(unit[0], unit[1]), dim=1, keep_dim=True)
    far = fluid.layers.cos_sim(unit[0], unit[2])
    label = fluid.layers.fill_constant_batch_size_like(input=near, shape=[-1, 1], dtype="float32", value=1.0)
    hinge = fluid.layers.margin_rank_loss(label, near, far, margin=0.5)
    rank = fluid.layers.rank_loss(label=label, left=near, right=far)
    loss = fluid.layers.mean(fluid.layers.sums(input=[hinge, rank]))
    fluid.optimizer.Adadelta(learning_rate=0.5, epsilon=1.0e-6, rho=0.95).minimize(loss)
    return [loss], lambda rng: {name: rng.randn(5, 6).astype("float32") for name in ("query", "left", "right")}


def clipped_in_every_way() -> Built:
    x = fluid.layers.data("x", [6])
    y = fluid.layers.data("y", [1])
    by_value = fluid.ParamAttr(name="w1", gradient_clip=fluid.clip.GradientClipByValue(max=0.1, min=-0.05))
    by_norm = fluid.ParamAttr(
        name="w2", gradient_clip=fluid.clip.GradientClipByNorm(0.2), regularizer=fluid.regularizer.L1Decay(0.01)
    )
    hidden = fluid.layers.fc(fluid.layers.fc(x, 8, act="relu", param_attr=by_value), 8, act="tanh", param_attr=by_norm)
    hidden.error_clip = fluid.clip.ErrorClipByValue(max=0.02)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1, param_attr="w3"), y))
    w3 = [p for p in fluid.default_main_program().all_parameters() if p.name == "w3"]
    fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(clip_norm=0.5), param_list=w3)
    fluid.optimizer.LarsMomentum(learning_rate=1.0, momentum=0.9).minimize(loss)
    return [loss], lambda rng: {"x": rng.randn(8, 6).astype("float32"), "y": 3 + rng.randn(8, 1).astype("float32")}


def backward_by_hand() -> Built:
    """append_backward, a look at the gradients, apply_gradients; and attributes given by their short names."""
    x = fluid.layers.data("x", [6])
    y = fluid.layers.data("y", [1])
    w = fluid.layers.create_parameter([6, 4], "float32", attr=fluid.ParamAttr(initializer=fluid.initializer.Xavier()))
    hidden = fluid.layers.relu(fluid.layers.matmul(x, w, alpha=2.0))
    predict = fluid.layers.fc(input=hidden, size=1, param_attr=fluid.initializer.Constant(0.3))
    loss = fluid.layers.mean(fluid.layers.square_error_cost(input=predict, label=y))
    optimizer = fluid.optimizer.Adam(
        learning_rate=fluid.layers.noam_decay(d_model=16, warmup_steps=4), beta1=0.9, beta2=0.98, epsilon=1e-9
    )
    params_grads = optimizer.backward(loss)
    norms = [fluid.layers.reduce_sum(fluid.layers.square(grad)) for _, grad in params_grads]
    optimizer.apply_gradients(params_grads)
    step = fluid.layers.autoincreased_step_counter()
    return [loss, *norms, step], lambda rng: {
        "x": rng.randn(8, 6).astype("float32"), "y": rng.randn(8, 1).astype("float32"),
    }  # fmt: skip


def attention() -> Built:
    """The dense part of a Transformer: heads by reshape and transpose, positions, masks, residuals."""
    src = fluid.layers.data("src", [5, 1], dtype="int64")
    position = fluid.layers.data("position", [5, 1], dtype="int64")
    label = fluid.layers.data("label", [5, 1], dtype="int64")
    word = fluid.layers.embedding(src, size=[12, 8], padding_idx=0)
    where = fluid.layers.embedding(position, size=[5, 8], param_attr=fluid.ParamAttr(name="pos", trainable=False))
    x = fluid.layers.dropout(fluid.layers.elementwise_add(word, where), dropout_prob=0.1, is_test=False)

    def heads(v: Any) -> Any:
        parts = fluid.layers.reshape(fluid.layers.fc(v, 8, num_flatten_dims=2, bias_attr=False), [0, 0, 2, 4])
        return fluid.layers.transpose(parts, perm=[0, 2, 1, 3])

    weights = fluid.layers.softmax(fluid.layers.matmul(heads(x), heads(x), transpose_y=True, alpha=4**-0.5))
    joined = fluid.layers.transpose(fluid.layers.matmul(weights, heads(x)), perm=[0, 2, 1, 3])
    merged = fluid.layers.reshape(joined, shape=[0, 0, 8])
    out = fluid.layers.layer_norm(fluid.layers.elementwise_add(x, merged), begin_norm_axis=2)
    logits = fluid.layers.reshape(fluid.layers.fc(out, 12, num_flatten_dims=2, act="gelu"), [-1, 12])
    smooth = fluid.layers.label_smooth(fluid.layers.one_hot(fluid.layers.reshape(label, [-1, 1]), 12), epsilon=0.1)
    cost = fluid.layers.softmax_with_cross_entropy(logits, smooth, soft_label=True)
    padding = fluid.layers.cast(fluid.layers.not_equal(src, fluid.layers.zeros_like(src)), "float32")
    weighted = fluid.layers.elementwise_mul(cost, fluid.layers.reshape(padding, [-1, 1]))
    total, tokens = fluid.layers.reduce_sum(weighted), fluid.layers.reduce_sum(padding)
    tokens.stop_gradient = True
    loss = fluid.layers.elementwise_div(total, tokens)
    rate = fluid.layers.linear_lr_warmup(fluid.layers.natural_exp_decay(0.1, 2, 0.5), 2, 0.0, 0.1)
    fluid.optimizer.Adam(rate).minimize(loss)

    def batch(rng: np.random.RandomState) -> Feed:
        places = np.tile(np.arange(5).reshape(1, 5, 1), (3, 1, 1))
        words = {name: rng.randint(0, 12, (3, 5, 1)).astype("int64") for name in ("src", "label")}
        return words | {"position": places.astype("int64")}

    return [loss], batch


def static_shapes_of_1_8() -> Built:
    """As 1.7 and 1.8 wrote it: fluid.data with the batch dim, fluid.embedding, grad_clip of the optimiser."""
    x = fluid.data(name="x", shape=[None, 4], dtype="int64")
    label = fluid.data(name="label", shape=[None, 1], dtype="int64")
    emb = fluid.embedding(input=x, size=[15, 6])
    pooled = fluid.layers.reduce_max(emb, dim=1)
    logits = fluid.layers.fc(input=pooled, size=3)
    loss = fluid.layers.mean(fluid.layers.cross_entropy(fluid.layers.softmax(logits), label))
    clip = fluid.clip.GradientClipByGlobalNorm(0.5)
    fluid.optimizer.AdamOptimizer(0.05, grad_clip=clip, regularization=fluid.regularizer.L2Decay(0.01)).minimize(loss)

    def batch(rng: np.random.RandomState) -> Feed:
        return {"x": rng.randint(0, 15, (7, 4)).astype("int64"), "label": rng.randint(0, 3, (7, 1)).astype("int64")}

    return [loss], batch


PROGRAMS = (
    mnist_conv, lenet_5, vgg, resnet, alexnet_with_lrn, mobilenet, auto_encoder, segmentation_with_group_norm,
    video_of_conv3d, word2vec, recommender_system, fit_a_line, smoothed_labels_and_prelu, clicks_with_auc,
    ranking_of_unit_vectors, clipped_in_every_way, backward_by_hand, attention, static_shapes_of_1_8,
)  # fmt: skip


def train(build: Callable[[], Built], place: str, steps: int = STEPS) -> np.ndarray[Any, Any]:
    """Build and train a program; return what it fetched, flat, at each step."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 90
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
        fetched, batch = build()
        exe = fluid.Executor(place)
        rng = np.random.RandomState(0)
        first = batch(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fluid.FallbackWarning)
            exe.run(startup)
            found = [exe.run(main, feed=first, fetch_list=fetched) for _ in range(steps)]
        if place.startswith("opencl"):  # which has a kernel for each of these operators
            assert [row["op"] for row in exe.explain_last().data() if row["how"] == "fallback"] == []
    return np.array([np.concatenate([np.ravel(value) for value in values]) for values in found], "float64")


@pytest.fixture(scope="module")
def on_the_cpu() -> Callable[[Callable[[], Built]], np.ndarray[Any, Any]]:
    """What a program fetches on the cpu, run once."""
    known: dict[Any, np.ndarray[Any, Any]] = {}

    def find(build: Callable[[], Built]) -> np.ndarray[Any, Any]:
        if build not in known:
            known[build] = train(build, "cpu")
        return known[build]

    return find


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_trains_alike_on_every_place(build: Callable[[], Built], place: str, on_the_cpu: Any) -> None:
    expected = on_the_cpu(build)
    assert np.isfinite(expected).all()
    if place == "cpu:0":
        assert len(set(expected[:, 0])) == STEPS  # it learns something
        found = train(build, place)
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(train(build, place), expected, rtol=1e-4, atol=1e-6)
