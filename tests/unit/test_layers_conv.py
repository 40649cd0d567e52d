"""Convolution layers: values against NumPy, parameters, and what they refuse."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, ProgramError

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def programs() -> Iterator[None]:
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield


def run(out: Any, x: Array) -> tuple[Array, dict[str, Array]]:
    """Run the default programs; return the value and the parameters."""
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    (value,) = exe.run(feed={"x": x}, fetch_list=[out])
    parameters = fluid.default_main_program().all_parameters()
    return value, {p.name: fluid.global_scope().var(p.name).get_tensor().numpy() for p in parameters}


def images(*dims: int) -> Any:
    return fluid.layers.data("x", list(dims), append_batch_size=False)


def numbers(*dims: int) -> Array:
    return np.random.default_rng(0).standard_normal(dims).astype("float32")


def convolved(x: Array, w: Array, stride: int = 1, pad: int = 0) -> Array:
    x = np.pad(x, [(0, 0), (0, 0)] + [(pad, pad)] * (x.ndim - 2))
    axes = tuple(range(2, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axes)
    windows = windows[(slice(None), slice(None), *(slice(None, None, stride),) * len(axes))]
    spatial = "hwd"[: len(axes)]
    kernel = "xyz"[: len(axes)]
    out: Array = np.einsum(f"nc{spatial}{kernel},mc{kernel}->nm{spatial}", windows, w)
    return out


def test_conv2d() -> None:
    x = numbers(2, 3, 6, 7)
    out = fluid.layers.conv2d(images(2, 3, 6, 7), 4, 3, stride=2, padding=1, bias_attr=fluid.ParamAttr(
        initializer=fluid.initializer.Constant(0.5)), act="relu")  # fmt: skip
    value, parameters = run(out, x)
    assert {name: array.shape for name, array in parameters.items()} == {
        "conv2d_0.w_0": (4, 3, 3, 3), "conv2d_0.b_0": (4,),
    }  # fmt: skip
    expected = np.maximum(convolved(x, parameters["conv2d_0.w_0"], 2, 1) + 0.5, 0)
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_conv3d() -> None:
    x = numbers(2, 2, 4, 5, 6)
    value, parameters = run(fluid.layers.conv3d(images(*x.shape), 3, (2, 3, 2)), x)
    expected = convolved(x, parameters["conv3d_0.w_0"]) + parameters["conv3d_0.b_0"].reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_channels_last_has_the_same_filter() -> None:
    x = numbers(2, 6, 7, 3)
    attr = fluid.ParamAttr(initializer=fluid.initializer.Constant(2.0))
    out = fluid.layers.conv2d(images(*x.shape), 4, 3, bias_attr=attr, data_format="NHWC")
    value, parameters = run(out, x)
    expected = convolved(np.moveaxis(x, -1, 1), parameters["conv2d_0.w_0"]) + 2
    np.testing.assert_allclose(value, np.moveaxis(expected, 1, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [{"filter_size": 3}, {"output_size": 9}, {"output_size": (9, 9)}])
def test_conv2d_transpose(size: dict[str, Any]) -> None:
    x = numbers(2, 3, 4, 4)
    out = fluid.layers.conv2d_transpose(images(*x.shape), 2, stride=2, bias_attr=False, **size)
    value, parameters = run(out, x)
    w = parameters["conv2d_transpose_0.w_0"]
    assert w.shape == (3, 2, 3, 3)
    spread = np.zeros((2, 3, 7, 7), "float32")
    spread[:, :, ::2, ::2] = x
    expected = convolved(spread, np.swapaxes(w, 0, 1)[:, :, ::-1, ::-1], 1, 2)
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_conv3d_transpose() -> None:
    x = numbers(1, 3, 2, 3, 4)
    out = fluid.layers.conv3d_transpose(images(*x.shape), 2, filter_size=2, bias_attr=False)
    value, parameters = run(out, x)
    w = np.swapaxes(parameters["conv3d_transpose_0.w_0"], 0, 1)[..., ::-1, ::-1, ::-1]
    np.testing.assert_allclose(value, convolved(x, w, 1, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", ["conv2d", "conv2d_transpose"])
def test_a_gradient_has_a_gradient(layer: str) -> None:
    """The gradient of the squares of both gradients, against central differences along one direction for each input."""
    attr = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(0.0))
    x = images(2, 3, 5, 5)
    out = getattr(fluid.layers, layer)(x, 3, filter_size=3, stride=2, padding=1, param_attr=attr, bias_attr=False)
    dy = fluid.layers.data("dy", list(out.shape), append_batch_size=False)
    x.stop_gradient = dy.stop_gradient = False
    inputs: list[Any] = [x, fluid.default_main_program().global_block().var("w"), dy]
    first: list[Any] = fluid.gradients([out], inputs[:2], target_gradients=[dy])
    loss = fluid.layers.sums([fluid.layers.reduce_sum(fluid.layers.square(each)) for each in first])
    second: list[Any] = fluid.gradients([loss], inputs)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    values = [np.random.default_rng(i).standard_normal(v.shape).astype("float32") for i, v in enumerate(inputs)]

    def at(*moved: Array) -> list[Array]:
        fluid.global_scope().var("w").get_tensor().set(moved[1], fluid.CPUPlace())
        return list(exe.run(feed={"x": moved[0], "dy": moved[2]}, fetch_list=[loss, *second]))

    gradients = at(*values)[1:]
    for i, value in enumerate(values):
        step = np.random.default_rng(9).standard_normal(value.shape).astype("float32") * 1e-2
        up, down = (at(*values[:i], value + sign * step, *values[i + 1 :])[0] for sign in (1, -1))
        assert float((up - down)[0]) / 2 == pytest.approx(float((gradients[i] * step).sum()), rel=1e-2, abs=1e-2)


@pytest.mark.parametrize(("padding", "attrs"), [
    (1, ([1, 1], "EXPLICIT")), ([1, 2], ([1, 2], "EXPLICIT")), ([1, 2, 3, 0], ([1, 2, 3, 0], "EXPLICIT")),
    ([1, 1, 2, 2], ([1, 2], "EXPLICIT")), ([[0, 0], [0, 0], [1, 2], [3, 3]], ([1, 2, 3, 3], "EXPLICIT")),
    ("same", ([0, 0], "SAME")), ("VALID", ([0, 0], "VALID")),
])  # fmt: skip
def test_padding_forms(padding: Any, attrs: tuple[list[int], str]) -> None:
    for layer in (fluid.layers.conv2d, fluid.layers.conv2d_transpose):
        layer(images(2, 3, 8, 8), 4, filter_size=3, padding=padding, bias_attr=False)
        op = fluid.default_main_program().global_block().ops[-1]
        assert (list(op.attr("paddings")), op.attr("padding_algorithm")) == attrs


def test_padding_pairs_follow_the_format() -> None:
    pairs = [[0, 0], [1, 2], [3, 3], [0, 0]]
    fluid.layers.conv2d(images(2, 8, 8, 3), 4, 3, padding=pairs, bias_attr=False, data_format="NHWC")
    assert list(fluid.default_main_program().global_block().ops[-1].attr("paddings")) == [1, 2, 3, 3]


@pytest.mark.parametrize(("channels", "filters", "groups", "use_cudnn", "type"), [
    (4, 8, 4, False, "depthwise_conv2d"), (4, 4, 4, False, "depthwise_conv2d"), (4, 4, 4, True, "conv2d"),
    (4, 4, 2, False, "conv2d"), (1, 4, None, False, "conv2d"),
])  # fmt: skip
def test_which_operator(channels: int, filters: int, groups: Any, use_cudnn: bool, type: str) -> None:
    x = images(2, channels, 5, 5)
    fluid.layers.conv2d(x, filters, 3, groups=groups, use_cudnn=use_cudnn, bias_attr=False)
    assert fluid.default_main_program().global_block().ops[-1].type == type


def test_which_transposed_operator() -> None:
    for filters, type in ((4, "depthwise_conv2d_transpose"), (8, "conv2d_transpose")):
        x = images(2, 4, 5, 5)
        fluid.layers.conv2d_transpose(x, filters, filter_size=3, groups=4, use_cudnn=False, bias_attr=False)
        assert fluid.default_main_program().global_block().ops[-1].type == type


def test_the_filter_is_normal_by_default() -> None:
    fluid.layers.conv2d(images(2, 8, 9, 9), 4, 3, groups=2)
    (op,) = [op for op in fluid.default_startup_program().global_block().ops if op.type == "gaussian_random"]
    assert op.attr("std") == pytest.approx((2.0 / (3 * 3 * 8)) ** 0.5)


@pytest.mark.parametrize(("layer", "names"), [
    ("conv2d", "input num_filters filter_size stride=1 padding=0 dilation=1 groups=None param_attr=None bias_attr=None "
     "use_cudnn=True act=None name=None data_format=NCHW"),
    ("conv3d", "input num_filters filter_size stride=1 padding=0 dilation=1 groups=None param_attr=None bias_attr=None "
     "use_cudnn=True act=None name=None data_format=NCDHW"),
    ("conv2d_transpose", "input num_filters output_size=None filter_size=None padding=0 stride=1 dilation=1 "
     "groups=None param_attr=None bias_attr=None use_cudnn=True act=None name=None data_format=NCHW"),
    ("conv3d_transpose", "input num_filters output_size=None filter_size=None padding=0 stride=1 dilation=1 "
     "groups=None param_attr=None bias_attr=None use_cudnn=True act=None name=None data_format=NCDHW"),
])  # fmt: skip
def test_signatures(layer: str, names: str) -> None:
    parameters = inspect.signature(getattr(fluid.layers, layer)).parameters.values()
    shown = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]
    assert shown == names.split()


@pytest.mark.parametrize(("layer", "dims", "options", "error", "word"), [
    ("conv2d", (2, 3, 5), {"filter_size": 3}, ProgramError, "rank 4"),
    ("conv2d", (2, -1, 5, 5), {"filter_size": 3}, ProgramError, "known number of channels"),
    ("conv2d", (2, 3, 5, 5), {"filter_size": 3, "data_format": "NDHWC"}, AttributeValueError, "NHWC"),
    ("conv2d", (2, 3, 5, 5), {"filter_size": [3, 3, 3]}, AttributeValueError, "2 of them"),
    ("conv2d", (2, 3, 5, 5), {"filter_size": 3, "groups": 2}, AttributeValueError, "channels of input, 3"),
    ("conv2d", (2, 3, 5, 5), {"filter_size": 3, "groups": 3}, AttributeValueError, "num_filters, 4"),
    ("conv2d", (2, 3, 5, 5), {"filter_size": 3, "stride": 0}, AttributeValueError, "stride"),
    ("conv2d", (2, 3, 5, 5), {"filter_size": 3, "padding": "FULL"}, AttributeValueError, "SAME"),
    ("conv2d", (2, 3, 5, 5), {"filter_size": 3, "padding": -1}, AttributeValueError, "padding"),
    ("conv2d", (2, 3, 5, 5), {"filter_size": 3, "padding": [[0, 0], [1, 1], [0, 0], [0, 0]]}, AttributeValueError,
     "pairs"),
    ("conv2d_transpose", (2, 3, 5, 5), {}, ProgramError, "filter_size or output_size"),
    ("conv2d_transpose", (2, 3, -1, 5), {"output_size": 7}, ProgramError, "known spatial dims"),
    ("conv2d_transpose", (2, 3, 5, 5), {"output_size": 3}, AttributeValueError, "output_size"),
    ("conv3d", (2, 3, 5, 5), {"filter_size": 3}, ProgramError, "rank 5"),
])  # fmt: skip
def test_refused(layer: str, dims: tuple[int, ...], options: Any, error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        getattr(fluid.layers, layer)(images(*dims), 4, **options)
