"""Layers that normalise: signatures, parameters, values, and training followed by testing."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers

PLACES = [str(place) for place in fluid.places()]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Give every test new programs, names and scope."""
    programs = fluid.program_guard(fluid.Program(), fluid.Program())
    with fluid.unique_name.guard(), programs, fluid.scope_guard(fluid.Scope()):
        yield


def run(fetch: list[Any], feed: dict[str, Any], place: str = "cpu") -> list[Any]:
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    return exe.run(fluid.default_main_program(), feed=feed, fetch_list=fetch)  # type: ignore[no-any-return]


SIGNATURES = {
    "batch_norm": "input act=None is_test=False momentum=0.9 epsilon=1e-05 param_attr=None bias_attr=None "
    "data_layout='NCHW' in_place=False name=None moving_mean_name=None moving_variance_name=None "
    "do_model_average_for_mean_and_var=True use_global_stats=False "
    "fuse_with_relu=False",
    "layer_norm": "input scale=True shift=True begin_norm_axis=1 epsilon=1e-05 param_attr=None bias_attr=None act=None "
    "name=None",
    "group_norm": "input groups epsilon=1e-05 param_attr=None bias_attr=None act=None data_layout='NCHW' name=None",
    "instance_norm": "input epsilon=1e-05 param_attr=None bias_attr=None name=None",
    "lrn": "input n=5 k=1.0 alpha=0.0001 beta=0.75 name=None data_format='NCHW'",
    "affine_channel": "x scale=None bias=None data_layout='NCHW' name=None act=None",
    "l2_normalize": "x axis epsilon=1e-12 name=None",
    "data_norm": "input act=None epsilon=1e-05 param_attr=None data_layout='NCHW' in_place=False name=None "
    "moving_mean_name=None moving_variance_name=None do_model_average_for_mean_and_var=True slot_dim=-1 "
    "sync_stats=False summary_decay_rate=0.9999999 enable_scale_and_shift=False",
    "spectral_norm": "weight dim=0 power_iters=1 eps=1e-12 name=None",
    "inplace_abn": "input act=None is_test=False momentum=0.9 epsilon=1e-05 param_attr=None bias_attr=None "
    "data_layout='NCHW' name=None moving_mean_name=None moving_variance_name=None "
    "do_model_average_for_mean_and_var=True use_global_stats=False act_alpha=1.0",
    "softmax": "input use_cudnn=True name=None axis=-1",
    "log_softmax": "input axis=None dtype=None name=None",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    parameters = inspect.signature(getattr(layers, name)).parameters.values()
    shown = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    assert " ".join(shown) == SIGNATURES[name] and name in layers.__all__


def test_parameters_have_fluids_names() -> None:
    x = layers.data("x", [4, 3, 3])
    layers.batch_norm(x)
    layers.batch_norm(x, moving_mean_name="m", moving_variance_name="v", param_attr="s", bias_attr="b")
    layers.layer_norm(x)
    layers.group_norm(x, 2)
    layers.instance_norm(x)
    block = fluid.default_main_program().global_block()
    found = {p.name: (p.shape, p.trainable) for p in block.all_parameters()}
    assert found == {
        "batch_norm_0.w_0": ((4,), True), "batch_norm_0.b_0": ((4,), True),
        "batch_norm_0.w_1": ((4,), False), "batch_norm_0.w_2": ((4,), False),
        "s": ((4,), True), "b": ((4,), True), "m": ((4,), False), "v": ((4,), False),
        "layer_norm_0.w_0": ((36,), True), "layer_norm_0.b_0": ((36,), True),
        "group_norm_0.w_0": ((4,), True), "group_norm_0.b_0": ((4,), True),
        "instance_norm_0.w_0": ((4,), True), "instance_norm_0.b_0": ((4,), True),
    }  # fmt: skip
    assert block.var("m").stop_gradient and block.var("v").stop_gradient


def test_parameters_can_be_left_out() -> None:
    x = layers.data("x", [4, 3, 3])
    outs = [
        layers.layer_norm(x, scale=False, shift=False), layers.group_norm(x, 2, param_attr=False, bias_attr=False),
        layers.instance_norm(x, param_attr=False, bias_attr=False),
    ]  # fmt: skip
    assert fluid.default_main_program().global_block().all_parameters() == []
    a = np.random.default_rng(0).normal(5, 2, (2, 4, 3, 3)).astype("float32")
    for got, dims in zip(run(outs, {"x": a}), ((2, 36), (4, 18), (8, 9)), strict=True):
        rows = a.reshape(dims)
        want = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(got.reshape(dims), want, rtol=1e-4, atol=1e-5)


def test_values() -> None:
    x = layers.data("x", [3, 4, 4], append_batch_size=False)
    scale, bias = (layers.data(name, [4], append_batch_size=False) for name in ("scale", "bias"))
    outs = [
        layers.l2_normalize(x, axis=-1), layers.l2_normalize(x, None, epsilon=0.5), layers.l2_normalize(scale, 3),
        layers.log_softmax(x), layers.log_softmax(x, 0, "float64"), layers.softmax(x, axis=1),
        layers.affine_channel(x, scale, bias, act="relu"),
        layers.affine_channel(x, scale, bias, data_layout="NHWC"),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    a, s, b = (rng.normal(size=dims).astype("float32") for dims in ((3, 4, 4), (4,), (4,)))
    e, wide = np.exp(a), a.astype("float64")
    want = [
        a / np.sqrt((a * a).sum(-1, keepdims=True)), a / np.sqrt((a * a).sum(1, keepdims=True) + 0.5),
        s / np.linalg.norm(s), a - np.log(e.sum(-1, keepdims=True)),
        wide - np.log(np.exp(wide).sum(0, keepdims=True)), e / e.sum(1, keepdims=True),
        np.maximum(a * s[:, None] + b[:, None], 0), a * s + b,
    ]  # fmt: skip
    found = run(outs, {"x": a, "scale": s, "bias": b})
    for got, expected in zip(found, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    assert found[4].dtype == np.float64


def test_lrn_by_both_layouts() -> None:
    first, last = layers.data("x", [7, 2, 3]), layers.data("y", [2, 3, 7])
    outs = [layers.lrn(first, n=3, alpha=0.5), layers.lrn(last, n=3, alpha=0.5, data_format="NHWC")]
    a = np.random.default_rng(0).normal(size=(2, 7, 2, 3)).astype("float32")
    squares = np.pad(a * a, ((0, 0), (1, 1), (0, 0), (0, 0)))
    want = a / (1 + 0.5 * (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:])) ** 0.75
    one, other = run(outs, {"x": a, "y": a.transpose(0, 2, 3, 1)})
    np.testing.assert_allclose(one, want, rtol=1e-5)
    np.testing.assert_allclose(other.transpose(0, 3, 1, 2), want, rtol=1e-5)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_training_then_testing(place: str, layout: str) -> None:
    """Averages follow the batches; the program for test uses them, and leaves them as they are."""
    x = layers.data("x", [3, 5, 4] if layout == "NCHW" else [5, 4, 3])
    y = layers.batch_norm(x, momentum=0.8, data_layout=layout, act="relu", moving_mean_name="m",
                          moving_variance_name="v", param_attr="s")  # fmt: skip
    main = fluid.default_main_program()
    test = main.clone(for_test=True)
    assert [op.attr("is_test") for op in test.global_block().ops if op.type == "batch_norm"] == [True]
    loss = layers.mean(layers.square(y))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    rng = np.random.default_rng(3)
    mean, variance = np.zeros(3), np.ones(3)
    for step in range(4):
        images = rng.normal(step, 2, (6, 3, 5, 4)).astype("float32")
        fed = images if layout == "NCHW" else images.transpose(0, 2, 3, 1)
        exe.run(main, feed={"x": fed}, fetch_list=[loss])
        mean = 0.8 * mean + 0.2 * images.mean((0, 2, 3))
        variance = 0.8 * variance + 0.2 * images.var((0, 2, 3))
    state = {name: fluid.global_scope().find_var(name).get_tensor().numpy() for name in ("m", "v", "s")}
    np.testing.assert_allclose(state["m"], mean, rtol=1e-5)
    np.testing.assert_allclose(state["v"], variance, rtol=1e-5)
    assert (state["s"] != 1).all()  # it was trained
    bias = fluid.global_scope().find_var("batch_norm_0.b_0").get_tensor().numpy()
    scale, bias, mean, variance = (a.reshape(-1, 1, 1) for a in (state["s"], bias, mean, variance))
    want = np.maximum((images - mean) / np.sqrt(variance + 1e-5) * scale + bias, 0)
    for size in (6, 2, 0):
        (got,) = exe.run(test, feed={"x": fed[:size]}, fetch_list=[y])
        got = got if layout == "NCHW" else got.transpose(0, 3, 1, 2)
        np.testing.assert_allclose(got, want[:size], rtol=2e-4, atol=1e-5)
    for name, before in state.items():
        np.testing.assert_array_equal(fluid.global_scope().find_var(name).get_tensor().numpy(), before)


@pytest.mark.parametrize("place", PLACES)
def test_global_statistics_stay_in_training(place: str) -> None:
    x = layers.data("x", [3, 2])
    y = layers.batch_norm(x, use_global_stats=True, moving_mean_name="m", moving_variance_name="v")
    fluid.optimizer.SGD(0.1).minimize(layers.mean(y))
    a = np.random.default_rng(0).normal(3, 1, (4, 3, 2)).astype("float32")
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    (got,) = exe.run(feed={"x": a}, fetch_list=[y])
    np.testing.assert_allclose(got, a / np.sqrt(1 + 1e-5), rtol=1e-5)
    assert (fluid.global_scope().find_var("m").get_tensor().numpy() == 0).all()
    assert (fluid.global_scope().find_var("batch_norm_0.b_0").get_tensor().numpy() != 0).all()


def test_momentum_may_be_a_variable() -> None:
    x = layers.data("x", [3])
    kept = layers.fill_constant([1], "float32", 0.25)
    y = layers.batch_norm(x, momentum=kept, moving_mean_name="m")
    a = np.random.default_rng(0).normal(3, 1, (4, 3)).astype("float32")
    run([y], {"x": a})
    np.testing.assert_allclose(fluid.global_scope().find_var("m").get_tensor().numpy(), 0.75 * a.mean(0), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_parameters_of_half_types_are_float32(dtype: str) -> None:
    x = layers.data("x", [4, 2], dtype=dtype)
    layers.batch_norm(layers.layer_norm(layers.group_norm(layers.instance_norm(x), 2)))
    kinds = {p.dtype for p in fluid.default_main_program().global_block().all_parameters()}
    assert kinds == {"float64" if dtype == "float64" else "float32"}


@pytest.mark.parametrize("place", PLACES)
def test_results_repeat_bit_for_bit(place: str) -> None:
    """Whatever threads share the work of a large batch."""
    x = layers.data("x", [16, 40, 40])
    x.stop_gradient = False
    y = layers.batch_norm(layers.group_norm(x, 4))
    loss = layers.mean(layers.square(layers.log_softmax(y, 1)))
    (dx,) = fluid.gradients([loss], [x])
    a = np.random.default_rng(0).normal(3, 1, (24, 16, 40, 40)).astype("float32")
    first = run([y, dx], {"x": a}, place)
    for _ in range(2):
        for one, other in zip(first, run([y, dx], {"x": a}, place), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("place", PLACES)
def test_data_norm_by_its_sums(place: str) -> None:
    x = layers.data("x", [3], stop_gradient=False)
    first = {"batch_size": 10.0, "batch_sum": 20.0, "batch_square": 40.0, "scale_w": 3.0, "bias": 0.5}
    y = layers.data_norm(x, param_attr=first, name="seen", enable_scale_and_shift=True)
    plain = layers.data_norm(x, act="relu")
    scope = {p.name: tuple(p.shape) for p in fluid.default_main_program().all_parameters()}
    parts = ("batch_size", "batch_sum", "batch_square_sum")
    assert scope == {f"{name}.{part}": (3,) for name, more in (("seen", ("scale_w", "bias")), ("dn", ()))
                     for part in (*parts, *more)}  # fmt: skip
    pairs = dict(fluid.append_backward(layers.mean(y)))
    gradients = {parameter.name: grad for parameter, grad in pairs.items()}
    a = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    wanted = ["seen.batch_size", "seen.batch_sum", "seen.batch_square_sum", "seen.scale_w", "seen.bias"]
    got, same, *found = run([y, plain, *(gradients[name] for name in wanted)], {"x": a}, place)
    np.testing.assert_allclose(got, (a - 2) * 0.5 * 3 + 0.5, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(same, np.maximum(a, 0), rtol=1e-5)
    squares = np.sum((a - 2.0) ** 2, axis=0) + 4e-5
    want = [[4, 4, 4], a.sum(0), squares, (a - 2).sum(0) * 0.5 / 12, [1 / 3] * 3]
    for name, have, expected in zip(wanted, found, want, strict=True):
        np.testing.assert_allclose(have, expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("place", PLACES)
def test_spectral_norm_of_a_filter(place: str) -> None:
    rng = np.random.default_rng(0)
    filters = rng.normal(size=(4, 3, 2, 2)).astype("float32")
    weight = layers.create_parameter([4, 3, 2, 2], "float32",
                                     default_initializer=fluid.initializer.NumpyArrayInitializer(filters))  # fmt: skip
    out = layers.spectral_norm(weight, dim=1, power_iters=60)
    vectors = [p for p in fluid.default_main_program().all_parameters() if p.name != weight.name]
    assert [(tuple(p.shape), p.stop_gradient) for p in vectors] == [((3,), True), ((16,), True)]
    loss = layers.reduce_sum(layers.square(out))
    pairs = fluid.append_backward(loss)
    assert [parameter.name for parameter, _ in pairs] == [weight.name]
    (found,) = run([out], {}, place)
    largest = np.linalg.norm(np.moveaxis(filters, 1, 0).reshape(3, -1), 2)
    np.testing.assert_allclose(found, filters / largest, rtol=1e-3)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("act", [None, "identity", "leaky_relu", "elu"])
def test_inplace_abn_is_batch_norm_with_an_activation(place: str, act: str | None) -> None:
    x = layers.data("x", [3, 2, 2], stop_gradient=False)
    y = layers.inplace_abn(x, act, act_alpha=0.25)
    names = [p.name for p in fluid.default_main_program().all_parameters()]
    assert names == [f"inplace_abn_0.{part}" for part in ("w_0", "b_0", "w_1", "w_2")]
    fluid.append_backward(layers.mean(y))
    a = np.random.default_rng(0).normal(size=(4, 3, 2, 2)).astype("float32")
    unit = (a - a.mean((0, 2, 3), keepdims=True)) / np.sqrt(a.var((0, 2, 3), keepdims=True) + 1e-5)
    below = {"leaky_relu": 0.25 * unit, "elu": 0.25 * np.expm1(unit)}.get(str(act), unit)
    (found,) = run([y], {"x": a}, place)
    np.testing.assert_allclose(found, np.where(unit > 0, unit, below), rtol=1e-4, atol=1e-5)
