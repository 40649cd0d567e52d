"""Image classification: the third chapter, by two deep networks.

`vgg`: groups of 3 x 3 convolutions with batch normalisation and dropout. `resnet`: residual blocks, like
Fluid's `resnet_cifar10`. The images are handwritten digits, in random colours on backgrounds of other random
colours, so that colours do not depend on the class. They have
16 x 16 pixels, CIFAR's have 32 x 32: the network has one group of convolutions less, and fewer filters.

python examples/book/image_classification.py [place]
"""

from __future__ import annotations

import itertools
import random

import numpy as np
from sklearn.datasets import load_digits

import fluidlite as fluid

VARIANTS = ("vgg", "resnet")
DATA = "scikit-learn's digits (real), 3 x 16 x 16 in generated colours (generated)"
METRIC, BETTER = "accuracy on the test part", "higher"
GOAL = {"vgg": 0.85, "resnet": 0.85}
STEPS = {"vgg": 300, "resnet": 300}
BATCH_SIZE = 32


def reader(part: slice):
    """Return a reader of samples: a colour image, float32 [3, 16, 16] in -1..1, and its class."""

    def samples():
        images, labels = load_digits(return_X_y=True)
        order = np.random.RandomState(0).permutation(len(labels))
        rng = np.random.RandomState(1)
        colours = rng.uniform(-1, 1, (2, len(labels), 3, 1, 1))
        is_similar = np.abs(colours[0] - colours[1]).max(axis=1, keepdims=True) < 0.6
        colours[1] = np.where(is_similar, -np.sign(colours[0]) * 0.8, colours[1])  # enough contrast to the background
        for row, ink, ground in zip(order[part], colours[0][part], colours[1][part], strict=True):
            pixels = np.kron(images[row].reshape(8, 8) / 16, np.ones((2, 2)))
            yield np.float32(pixels * ink + (1 - pixels) * ground), int(labels[row])

    return samples


TRAIN, TEST = reader(slice(0, 1500)), reader(slice(1500, None))


def vgg_bn_drop(input):
    """Three groups of convolutions, then two fully connected layers."""

    def conv_block(ipt, num_filter, groups, dropouts):
        return fluid.nets.img_conv_group(
            input=ipt,
            pool_size=2,
            pool_stride=2,
            conv_num_filter=[num_filter] * groups,
            conv_filter_size=3,
            conv_act="relu",
            conv_with_batchnorm=True,
            conv_batchnorm_drop_rate=dropouts,
            pool_type="max",
        )

    conv1 = conv_block(input, 16, 2, [0.1, 0])
    conv2 = conv_block(conv1, 32, 2, [0.1, 0])
    conv3 = conv_block(conv2, 64, 2, [0.1, 0])
    drop = fluid.layers.dropout(x=conv3, dropout_prob=0.2)
    fc1 = fluid.layers.fc(input=drop, size=64, act=None)
    bn = fluid.layers.batch_norm(input=fc1, act="relu")
    fc2 = fluid.layers.fc(input=bn, size=64, act=None)
    return fluid.layers.fc(input=fc2, size=10, act="softmax")


def resnet_cifar10(ipt, depth=8):
    """Three stages of residual blocks, (depth - 2) / 6 in each."""

    def conv_bn_layer(input, ch_out, filter_size, stride, padding, act="relu", bias_attr=False):
        tmp = fluid.layers.conv2d(
            input=input,
            filter_size=filter_size,
            num_filters=ch_out,
            stride=stride,
            padding=padding,
            act=None,
            bias_attr=bias_attr,
        )
        return fluid.layers.batch_norm(input=tmp, act=act)

    def shortcut(input, ch_in, ch_out, stride):
        return conv_bn_layer(input, ch_out, 1, stride, 0, None) if ch_in != ch_out else input

    def basicblock(input, ch_in, ch_out, stride):
        tmp = conv_bn_layer(input, ch_out, 3, stride, 1)
        tmp = conv_bn_layer(tmp, ch_out, 3, 1, 1, act=None, bias_attr=True)
        return fluid.layers.elementwise_add(x=tmp, y=shortcut(input, ch_in, ch_out, stride), act="relu")

    def layer_warp(block_func, input, ch_in, ch_out, count, stride):
        tmp = block_func(input, ch_in, ch_out, stride)
        for _ in range(1, count):
            tmp = block_func(tmp, ch_out, ch_out, 1)
        return tmp

    n = (depth - 2) // 6
    conv1 = conv_bn_layer(ipt, ch_out=16, filter_size=3, stride=1, padding=1)
    res1 = layer_warp(basicblock, conv1, 16, 16, n, 1)
    res2 = layer_warp(basicblock, res1, 16, 32, n, 2)
    res3 = layer_warp(basicblock, res2, 32, 64, n, 2)
    pool = fluid.layers.pool2d(input=res3, pool_size=4, pool_type="avg", pool_stride=1)
    return fluid.layers.fc(input=pool, size=10, act="softmax")


NETWORKS = {"vgg": vgg_bn_drop, "resnet": resnet_cifar10}


def train(place, folder, steps=200, on_step=lambda exe, step, loss: None, variant="vgg"):
    """Train, save the model, and return its predictions for the test part."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        images = fluid.layers.data(name="pixel", shape=[3, 16, 16], dtype="float32")
        label = fluid.layers.data(name="label", shape=[1], dtype="int64")
        predict = NETWORKS[variant](images)
        avg_cost = fluid.layers.mean(fluid.layers.cross_entropy(input=predict, label=label))
        test_program = main.clone(for_test=True)
        fluid.optimizer.Adam(learning_rate=0.003).minimize(avg_cost)

    random.seed(0)
    batches = fluid.batch(fluid.reader.shuffle(TRAIN, buf_size=1500), batch_size=BATCH_SIZE, drop_last=True)
    feeder = fluid.DataFeeder(feed_list=[images, label], place=place)
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        epochs = itertools.chain.from_iterable(batches() for _ in itertools.count())
        for step, batch in enumerate(itertools.islice(epochs, steps)):
            (cost,) = exe.run(main, feed=feeder.feed(batch), fetch_list=[avg_cost])
            on_step(exe, step, float(cost[0]))
        fluid.io.save_inference_model(folder, ["pixel"], [predict], exe, main)
        (predicted,) = exe.run(test_program, feed=feeder.feed(list(TEST())), fetch_list=[predict])
    return predicted


def infer(place, folder, variant="vgg"):
    """Load the model; return its accuracy on the test part, and its predictions."""
    images, labels = map(np.stack, zip(*TEST(), strict=True))
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        program, feed_names, fetch_targets = fluid.io.load_inference_model(folder, exe)
        (predicted,) = exe.run(program, feed={feed_names[0]: images}, fetch_list=fetch_targets)
    return float(np.mean(predicted.argmax(axis=1) == labels)), predicted


if __name__ == "__main__":
    from fluidlite.cli.books import main

    main(__file__)
