"""The program builder: names, dims, sharing, generated layers, messages."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import AttributeValueError, DtypeError, ProgramError, ShapeError
from fluidlite.layer_helper import LayerHelper


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Give every test new programs, names and scope."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        yield


def run(fetch: Any, feed: dict[str, Any] | None = None) -> Any:
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    many = isinstance(fetch, (list, tuple))
    found = exe.run(fluid.default_main_program(), feed=feed or {}, fetch_list=list(fetch) if many else [fetch])
    return found if many else found[0]


def types() -> list[str]:
    return [op.type for op in fluid.default_main_program().global_block().ops]


# data --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "append", "dims"),
    [
        ([3], True, (-1, 3)),
        ([-1, 3], True, (-1, 3)),
        ([None, 3], True, (-1, 3)),
        ([2, 3], False, (2, 3)),
        ([], True, (-1,)),
    ],
)
def test_data_dims(shape: list[int], append: bool, dims: tuple[int, ...]) -> None:
    x = layers.data("x", shape, append_batch_size=append)
    assert x.shape == dims and x.dtype == "float32" and x.is_data and x.stop_gradient


def test_data_lod_and_dtype() -> None:
    x = layers.data("words", [1], dtype="int64", lod_level=1, stop_gradient=False)
    assert x.lod_level == 1 and x.dtype == "int64" and not x.stop_gradient


def test_data_refuses_a_name_that_is_taken() -> None:
    out = layers.fc(layers.data("x", [3]), 2)
    with pytest.raises(ProgramError, match="not taken"):
        layers.data(out.name, [3])


# fc and embedding --------------------------------------------------------------------------------------------------


def test_fc_has_fluids_names_and_operators() -> None:
    x = layers.data("x", [20])
    out = layers.fc(layers.fc(x, 8, act="relu"), 4)
    block = fluid.default_main_program().global_block()
    assert [p.name for p in block.all_parameters()] == ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"]
    assert block.var("fc_0.w_0").shape == (20, 8) and block.var("fc_0.b_0").shape == (8,)
    assert types() == ["mul", "elementwise_add", "relu", "mul", "elementwise_add"]
    assert block.ops[0].output("Out") == ["fc_0.tmp_0"] and out.name == "fc_1.tmp_1" and out.shape == (-1, 4)
    start = {op.output("Out")[0]: op for op in fluid.default_startup_program().global_block().ops}
    assert start["fc_0.w_0"].type == "uniform_random" and start["fc_0.b_0"].type == "fill_constant"
    assert start["fc_0.w_0"].attr("max") == pytest.approx((6 / 28) ** 0.5)


def test_fc_named_and_without_bias() -> None:
    out = layers.fc(layers.data("x", [3]), 2, name="head", bias_attr=False)
    assert out.name == "head.tmp_0" and types() == ["mul"]
    assert [p.name for p in fluid.default_main_program().all_parameters()] == ["head.w_0"]


def test_fc_of_several_inputs_computes_their_sum() -> None:
    x, y = layers.data("x", [3]), layers.data("y", [2, 2])
    attrs = [fluid.ParamAttr(name="a"), fluid.ParamAttr(name="b")]
    out = layers.fc([x, y], 4, param_attr=attrs, bias_attr=fluid.initializer.Constant(0.5))
    a, b = np.random.rand(5, 3).astype("float32"), np.random.rand(5, 2, 2).astype("float32")
    got, wa, wb = run([out, "a", "b"], {"x": a, "y": b})
    np.testing.assert_allclose(got, a @ wa + b.reshape(5, 4) @ wb + 0.5, rtol=1e-5)


@pytest.mark.parametrize(("kept", "rows", "dims"), [(2, 6, (5,)), (1, 30, ()), (3, 3, (5, 2)), (-1, 3, (5, 2))])
def test_fc_flattens_from_num_flatten_dims(kept: int, rows: int, dims: tuple[int, ...]) -> None:
    out = layers.fc(layers.data("x", [5, 2, 3]), 7, num_flatten_dims=kept)
    assert out.shape == (-1, *dims, 7)
    assert fluid.default_main_program().global_block().var("fc_0.w_0").shape == (rows, 7)
    assert run(out, {"x": np.zeros((4, 5, 2, 3), "float32")}).shape == (4, *dims, 7)


def test_parameters_of_one_name_are_shared_and_initialised_once() -> None:
    x, y = layers.data("x", [3]), layers.data("y", [3])
    for variable in (x, y):
        layers.fc(variable, 2, param_attr="shared", bias_attr=False)
    assert [p.name for p in fluid.default_main_program().all_parameters()] == ["shared"]
    assert len(fluid.default_startup_program().global_block().ops) == 1
    with pytest.raises(ProgramError, match="declared twice"):
        layers.fc(x, 5, param_attr="shared")


def test_param_attr_reaches_the_parameter() -> None:
    clip, decay = fluid.clip.GradientClipByValue(1.0), fluid.regularizer.L2Decay(0.1)
    attr = fluid.ParamAttr("w", learning_rate=0.5, regularizer=decay, trainable=False, gradient_clip=clip)
    layers.fc(layers.data("x", [3]), 2, param_attr=attr)
    parameter = fluid.default_main_program().global_block().var("w")
    assert parameter.optimize_attr == {"learning_rate": 0.5} and parameter.regularizer is decay
    assert parameter.gradient_clip_attr is clip and not parameter.trainable and parameter.stop_gradient
    assert attr.initializer is None, "a user's ParamAttr is not changed"


def test_embedding_pads_from_the_end() -> None:
    ids = layers.data("ids", [1], dtype="int64")
    out = layers.embedding(ids, [6, 4], padding_idx=-1)
    got, table = run([out, "embedding_0.w_0"], {"ids": np.array([[2], [5]])})
    np.testing.assert_array_equal(got, [table[2], np.zeros(4)])


# Generated layers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", layers.ops.__all__)
def test_generated_layers_have_signature_and_doc(name: str) -> None:
    layer = getattr(layers, name)
    assert layer.__name__ == name and "x" in inspect.signature(layer).parameters
    assert "Parameters" in layer.__doc__ and layer is getattr(layers, name)


@pytest.mark.parametrize("name", [n for n in layers.ops.ACTIVATIONS if n not in ("clip",)])
def test_activations_append_their_operator(name: str) -> None:
    out = getattr(layers, name)(layers.data("x", [3]))
    assert types() == [name] and out.name == f"{name}_0.tmp_0" and out.shape == (-1, 3)


def test_every_layer_is_exported() -> None:
    for name in layers.__all__:
        assert callable(getattr(layers, name)), name
    assert set(layers.__all__) <= set(dir(layers)) and len(set(layers.__all__)) == len(layers.__all__)
    for room in ("io", "learning_rate_scheduler", "loss", "metric_op", "nn", "ops", "tensor"):
        assert set(getattr(layers, room).__all__) <= set(layers.__all__), room
    with pytest.raises(AttributeError, match="no attribute 'fully_connected'"):
        layers.fully_connected  # noqa: B018


def test_attributes_by_position_and_name() -> None:
    x = layers.data("x", [4], append_batch_size=False)
    outs = [
        layers.leaky_relu(x, 0.5), layers.leaky_relu(x, alpha=0.1), layers.clip(x, -1.0, max=1.0), layers.pow(x, 2.0),
    ]  # fmt: skip
    values = np.array([-2, -0.5, 0.5, 2], "float32")
    found = run(outs, {"x": values})
    for got, want in zip(found, [np.maximum(values, values / 2), np.maximum(values, values / 10),
                                 np.clip(values, -1, 1), values**2], strict=True):  # fmt: skip
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_elementwise_with_axis_and_activation() -> None:
    x, y = layers.data("x", [2, 3], append_batch_size=False), layers.data("y", [2], append_batch_size=False)
    a, b = np.random.randn(2, 3).astype("float32"), np.random.randn(2).astype("float32")
    got = run(layers.elementwise_add(x, y, axis=0, act="relu"), {"x": a, "y": b})
    np.testing.assert_allclose(got, np.maximum(a + b[:, None], 0), rtol=1e-6)


def test_compare_and_logic() -> None:
    x, y = (layers.data(name, [3], append_batch_size=False) for name in "xy")
    less, same = layers.less_than(x, y), layers.equal(x, y, force_cpu=True)
    assert less.dtype == "bool" and less.stop_gradient
    target = layers.create_tensor("bool")
    assert layers.greater_than(x, y, cond=target) is target
    both = layers.logical_or(less, same)
    feed = {"x": np.array([1, 2, 3], "float32"), "y": np.array([2, 2, 2], "float32")}
    found = run([less, same, target, both, layers.logical_not(both)], feed)
    want = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 1]]
    np.testing.assert_array_equal(np.stack(found), np.array(want, bool))


# Tensors -----------------------------------------------------------------------------------------------------------


def test_creation() -> None:
    x = layers.data("x", [3])
    outs = [
        layers.fill_constant([2], "int64", 7), layers.zeros([2, 1], "float64"), layers.ones([3], "float32"),
        layers.zeros_like(x), layers.ones_like(x), layers.fill_constant_batch_size_like(x, [-1, 2], "float32", 3.0),
    ]  # fmt: skip
    found = run(outs, {"x": np.full((2, 3), np.inf, "float32")})
    want: list[Any] = [[7, 7], [[0.0], [0.0]], [1, 1, 1], np.zeros((2, 3)), np.ones((2, 3)), np.full((2, 2), 3)]
    want[4] = np.ones((2, 3))
    for got, expected, out in zip(found, want, outs, strict=True):
        np.testing.assert_array_equal(got, expected)
        assert out.stop_gradient and got.dtype == out.dtype


def test_random_layers_follow_the_programs_seed() -> None:
    outs = [layers.uniform_random([1000], min=2.0, max=3.0), layers.gaussian_random([1000], mean=5.0, std=0.5)]
    uniform, normal = run(outs)
    assert uniform.min() >= 2 and uniform.max() < 3 and abs(normal.mean() - 5) < 0.1 and abs(normal.std() - 0.5) < 0.1


def test_copies_and_conversion() -> None:
    x = layers.data("x", [2], append_batch_size=False)
    target = layers.create_global_var([2], 0.0, "float32", persistable=True, name="kept")
    layers.assign(x, target)
    outs = [layers.cast(x, "int64"), layers.concat([x, x]), layers.sums([x, x, x]), layers.sum([x, x]), target]
    found = run(outs, {"x": np.array([1.5, 2.5], "float32")})
    for got, want in zip(found, [[1, 2], [1.5, 2.5] * 2, [4.5, 7.5], [3, 5], [1.5, 2.5]], strict=True):
        np.testing.assert_array_equal(got, want)


def test_global_variables_and_counters_keep_their_state() -> None:
    count = layers.autoincreased_step_counter(begin=5, step=2)
    assert layers.autoincreased_step_counter() is count, "one counter a name"
    total = layers.create_global_var([1], 10.0, "float32", persistable=True)
    layers.increment(total, 0.5)
    copy = layers.increment(total, 1.0, in_place=False)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    seen = [exe.run(fetch_list=[count, total, copy]) for _ in range(2)]
    assert [[float(v[0]) for v in row] for row in seen] == [[5, 10.5, 11.5], [7, 11.0, 12.0]]


# nn ----------------------------------------------------------------------------------------------------------------


def test_reductions() -> None:
    x = layers.data("x", [2, 3, 4], append_batch_size=False)
    outs = [
        layers.mean(x), layers.reduce_sum(x), layers.reduce_mean(x, dim=1), layers.reduce_max(x, dim=[0, -1]),
        layers.reduce_min(x, dim=-1, keep_dim=True),
    ]  # fmt: skip
    a = np.random.randn(2, 3, 4).astype("float32")
    want = [[a.mean()], [a.sum()], a.mean(1), a.max((0, 2)), a.min(2, keepdims=True)]
    for got, expected, out in zip(run(outs, {"x": a}), want, outs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
        assert got.shape == out.shape


def test_shapes() -> None:
    x = layers.data("x", [2, 6], append_batch_size=False)
    parts, sections = layers.split(x, 3), layers.split(x, [1, 1], dim=0)
    outs = [
        layers.reshape(x, [0, 2, -1], act="relu"), layers.transpose(x, [1, 0]), parts[1], sections[1],
        layers.slice(x, [0, 1], [1, -3], [2, 99]), layers.crop(x, [1, 2], [1, 3]), layers.crop(x, sections[0]),
    ]  # fmt: skip
    a = np.random.randn(2, 6).astype("float32")
    want = [
        np.maximum(a.reshape(2, 2, 3), 0), a.T, a[:, 2:4], a[1:], a[1:2, -3:], a[1:2, 3:5], a[:1],
    ]  # fmt: skip
    assert len(parts) == 3
    for got, expected in zip(run(outs, {"x": a}), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_products_and_norms() -> None:
    x, y = layers.data("x", [3, 4], append_batch_size=False), layers.data("y", [3, 4], append_batch_size=False)
    outs = [
        layers.matmul(x, y, transpose_y=True, alpha=2.0), layers.mul(x, layers.transpose(y, [1, 0])),
        layers.l2_normalize(x, axis=1), layers.clip_by_norm(x, 0.5), layers.clip_by_norm(x, 100.0),
        layers.square_error_cost(x, y), layers.scale(x, 2.0, 1.0, bias_after_scale=False), layers.softmax(x),
    ]  # fmt: skip
    a, b = np.random.randn(3, 4).astype("float32"), np.random.randn(3, 4).astype("float32")
    norm = np.linalg.norm(a)
    e = np.exp(a)
    want = [2 * a @ b.T, a @ b.T, a / np.linalg.norm(a, axis=1, keepdims=True), a * min(1, 0.5 / norm), a,
            (a - b) ** 2, (a + 1) * 2, e / e.sum(1, keepdims=True)]  # fmt: skip
    for got, expected in zip(run(outs, {"x": a, "y": b}), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_classification() -> None:
    x, label = layers.data("x", [4]), layers.data("label", [1], dtype="int64")
    loss, softmax = layers.softmax_with_cross_entropy(x, label, return_softmax=True)
    hits = layers.create_tensor("int32")
    accuracy = layers.accuracy(x, label, k=2, correct=hits)
    outs = [loss, layers.cross_entropy(softmax, label), accuracy, hits, layers.one_hot(label, 4), *layers.topk(x, 2)]
    a = np.array([[1, 2, 3, 4], [9, 1, 2, 3], [4, 3, 2, 1]], "float32")
    y = np.array([[2], [1], [0]])
    found = run(outs, {"x": a, "label": y})
    want = np.log(np.exp(a).sum(1, keepdims=True)) - np.take_along_axis(a, y, 1)
    np.testing.assert_allclose(found[0], want, rtol=1e-5)
    np.testing.assert_allclose(found[1], want, rtol=1e-5)
    assert found[2] == pytest.approx(2 / 3) and found[3] == 2
    np.testing.assert_array_equal(found[4], np.eye(4)[y[:, 0]])
    np.testing.assert_array_equal(found[6], [[3, 2], [0, 3], [0, 1]])


def test_dropout_in_training_and_test() -> None:
    x = layers.data("x", [1000])
    out = layers.dropout(x, 0.25, dropout_implementation="upscale_in_train")
    tested = fluid.default_main_program().clone(for_test=True)
    ones = np.ones((2, 1000), "float32")
    kept = run(out, {"x": ones})
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.75)} and 0.65 < (kept > 0).mean() < 0.85
    (same,) = fluid.Executor("cpu").run(tested, feed={"x": ones}, fetch_list=[out.name])
    np.testing.assert_array_equal(same, ones)


def test_gather_and_maxout() -> None:
    x, index = layers.data("x", [3]), layers.data("i", [2], dtype="int64", append_batch_size=False)
    image = layers.data("image", [4, 1, 1])
    a, b = np.random.randn(4, 3).astype("float32"), np.random.randn(1, 4, 1, 1).astype("float32")
    last = layers.maxout(layers.reshape(image, [-1, 1, 1, 4]), groups=2, axis=-1)
    outs = [layers.gather(x, index), layers.maxout(image, 2), last]
    rows, most, channels_last = run(outs, {"x": a, "i": np.array([3, 0]), "image": b})
    np.testing.assert_array_equal(rows, a[[3, 0]])
    np.testing.assert_array_equal(most.ravel(), b.reshape(2, 2).max(1))
    np.testing.assert_array_equal(channels_last, b.reshape(1, 1, 1, 2, 2).max(4))


def test_names_that_1_8_takes() -> None:
    made = [
        layers.zeros([1], "float32", name="z"), layers.fill_constant([1], "float32", 2.0, name="c"),
        layers.range(0, 3, 1, "int32", name="r"), layers.eye(2, name="e"), layers.uniform_random([2], name="u"),
        layers.gaussian_random([2], name="g"),
        layers.equal(layers.ones([1], "int32"), layers.ones([1], "int32"), name="q"),
    ]  # fmt: skip
    assert [variable.name for variable in made] == [f"{name}.tmp_0" for name in "zcreugq"]
    like = layers.fill_constant_batch_size_like(made[3], [-1, 3], "float32", 1.0, 0, 0, False)
    assert like.shape == (2, 3)


def test_crf_layers_share_the_transitions() -> None:
    emission = layers.data("emission", [3], lod_level=1)
    label = layers.data("label", [1], dtype="int64", lod_level=1)
    cost = layers.linear_chain_crf(emission, label, param_attr=fluid.ParamAttr(name="crfw"))
    path = layers.crf_decoding(emission, "crfw")
    assert fluid.default_main_program().global_block().var("crfw").shape == (5, 3)
    assert cost.shape[-1] == 1 and path.dtype == "int64"
    with pytest.raises(ProgramError, match="earlier layer made"):
        layers.crf_decoding(emission, "unknown")


# Initializers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("initializer", "low", "high", "std"),
    [
        (fluid.initializer.Constant(2.5), 2.5, 2.5, 0.0),
        (fluid.initializer.Uniform(-0.5, 1.5), -0.5, 1.5, 2 / 12**0.5),
        (fluid.initializer.Normal(0.0, 0.1, seed=3), -1, 1, 0.1),
        (fluid.initializer.TruncatedNormal(0.0, 0.1), -0.2001, 0.2001, 0.088),
        (fluid.initializer.Xavier(), -((6 / 300) ** 0.5), (6 / 300) ** 0.5, (2 / 300) ** 0.5),
        (fluid.initializer.Xavier(uniform=False, fan_in=50, fan_out=30), -1, 1, (2 / 80) ** 0.5),
        (fluid.initializer.Xavier(uniform=False, fan_in=0, fan_out=30), -1, 1, (2 / 30) ** 0.5),
        (fluid.initializer.MSRA(), -((6 / 100) ** 0.5), (6 / 100) ** 0.5, (2 / 100) ** 0.5),
        (fluid.initializer.MSRA(uniform=False, fan_in=400), -1, 1, (2 / 400) ** 0.5),
    ],
    ids=repr,
)
def test_initializers(initializer: Any, low: float, high: float, std: float) -> None:
    parameter = layers.create_parameter([100, 200], "float32", name="w", default_initializer=initializer)
    value = run(layers.scale(parameter))
    assert value.min() >= low and value.max() <= high
    np.testing.assert_allclose(value.std(), std, rtol=0.03, atol=1e-7)


def test_filters_count_their_field() -> None:
    layers.create_parameter([8, 4, 3, 3], "float32", name="filter")
    op = fluid.default_startup_program().global_block().ops[0]
    assert op.attr("max") == pytest.approx((6 / (4 * 9 + 8 * 9)) ** 0.5)


# Messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda x: layers.fc(3, 2), ProgramError, ["layers.fc (test_layers.py:", "'input' is int 3", "Do:"]),
        (lambda x: layers.fc(x, "2"), ProgramError, ["'size' is str '2'", "an int of 1 or more"]),
        (lambda x: layers.fc(x, 0), AttributeValueError, ["'size' is int 0"]),
        (lambda x: layers.fc(x, 2, num_flatten_dims=2), ProgramError, ["'input' is x: ", "a rank above"]),
        (lambda x: layers.fc(layers.data("u", [-1, -1]), 2), ProgramError, ["known dims from dim 1 on"]),
        (lambda x: layers.fc([x, x], 2, param_attr="w"), ProgramError, ["'param_attr'", "a list of 2"]),
        (lambda x: layers.fc(x, 2, param_attr=3.0), ProgramError, ["float 3.0", "a ParamAttr"]),
        (lambda x: layers.fc(x, 2, param_attr=False), ProgramError, ["needs the parameter"]),
        (lambda x: layers.fc(x, 2, act=3), ProgramError, ["'act' is int 3"]),
        (lambda x: layers.fc(x, 2, act="rellu"), AttributeValueError, ["'act' is str 'rellu'", "did you mean 'relu'"]),
        (lambda x: layers.fc([x, layers.cast(x, "float64")], 2), DtypeError, ["float32, the dtype of 'x'"]),
        (lambda x: layers.relu("x"), ProgramError, ["layers.relu (test_layers.py:", "str 'x'"]),
        (lambda x: layers.relu(x, alpha=1.0), TypeError, ["layers.relu(x, name=None)", "alpha"]),
        (lambda x: layers.relu(), TypeError, ["missing a required argument: 'x'"]),
        (lambda x: layers.matmul(x, layers.ones([2, 2], "float32")), ShapeError, ["layers.matmul", "expected"]),
        (lambda x: layers.concat([]), ProgramError, ["'input' is list []"]),
        (lambda x: layers.split(x, []), ProgramError, ["one section or more"]),
        (lambda x: layers.reshape(x, [1.5]), ProgramError, ["'shape' is float 1.5", "an int"]),
        (lambda x: layers.reshape(x, [-1], actual_shape=3), ProgramError, ["'actual_shape'"]),
        (lambda x: layers.embedding(x, [3]), ProgramError, ["'size' is list [3]", "[vocabulary, width]"]),
        (lambda x: layers.embedding(x, [3, 2], padding_idx=3), ProgramError, ["an id in [-3, 3)"]),
        (lambda x: layers.data("y", "3"), ProgramError, ["layers.data", "a list of ints"]),
        (lambda x: layers.data("", [3]), ProgramError, ["'name' is str ''"]),
        (lambda x: layers.fill_constant([2], "float32", "1"), ProgramError, ["'value' is str '1'"]),
        (lambda x: layers.crf_decoding(x, None), ProgramError, ["the name of linear_chain_crf's weights"]),
        (lambda x: layers.create_parameter([2], "int64"), DtypeError, ["unless an initializer is named"]),
        (lambda x: layers.create_parameter([2], "int64", default_initializer=fluid.initializer.Xavier()), DtypeError,
         ["initializer.Constant"]),
        (lambda x: fluid.ParamAttr(name=3), ProgramError, ["name is 3"]),
        (lambda x: fluid.ParamAttr(initializer=0.5), ProgramError, ["initializer is float 0.5"]),
        (lambda x: fluid.initializer.Uniform(1, -1), ProgramError, ["low <= high"]),
    ],
)  # fmt: skip
def test_messages(make: Any, error: type[Exception], words: list[str]) -> None:
    x = layers.data("x", [3])
    with pytest.raises(error) as caught:
        make(x)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_helper_serves_layers_of_ones_own() -> None:
    def twice(input: Any, act: Any = None) -> Any:
        helper = LayerHelper("twice", input=input, act=act)
        out = helper.create_variable_for_type_inference(helper.input_dtype())
        helper.append_op("scale", {"X": helper.input()}, {"Out": out}, {"scale": 2.0})
        return helper.append_activation(out)

    out = twice(layers.data("x", [2]), act={"type": "leaky_relu", "alpha": 0.5})
    assert out.name == "twice_0.tmp_1"
    np.testing.assert_array_equal(run(out, {"x": np.array([[1, -1]], "float32")}), [[2, -1]])
