"""Kernels, prepared as by the framework, compared with NumPy in float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from fluidlite.plugin import Span
from numpy.typing import NDArray

from fluidlite_fpga import FpgaDevice, elementwise, kernels

Array = NDArray[Any]
RTOL = {"float32": 1e-5, "float64": 1e-12}


class Call:
    """The part of the framework's call that kernels read."""

    def __init__(self, dims: dict[str, tuple[int, ...]], attrs: dict[str, Any], type: str = "", **dtypes: str) -> None:
        self._dims, self.attrs, self._dtypes = dims, attrs, dtypes
        self.ins = {slot: () for slot in dims if not slot.startswith("Out")}
        self.op = SimpleNamespace(type=type, must_alias={})

    def has(self, slot: str) -> bool:
        return slot in self._dims

    def dims(self, slot: str) -> tuple[int, ...]:
        return self._dims[slot]

    def dtype(self, slot: str) -> str:
        return self._dtypes.get(slot, "float32")

    def attr(self, name: str) -> Any:
        return self.attrs[name]


class IO:
    """Spans by slot."""

    def __init__(self, spans: dict[str, Span]) -> None:
        self._spans = spans

    def span(self, slot: str) -> Span:
        return self._spans[slot]


def compute(device: FpgaDevice, kernel: Any, inputs: dict[str, Array], out: Array, **attrs: Any) -> Array:
    """Run a kernel on the board and return ``Out``."""
    context, allocator = device.context(0, 0), device.allocator(0)
    dtypes = {slot: str(value.dtype) for slot, value in inputs.items()}
    dims = {slot: value.shape for slot, value in {**inputs, "Out": out}.items()}
    call = Call(dims, attrs, kernel.op, **dtypes)
    assert kernel.supports is None or kernel.supports(call) is None
    spans = {}
    for slot, value in {**inputs, "Out": out}.items():
        handle = allocator.allocate(value.nbytes) if value.nbytes else None
        spans[slot] = Span(handle, 0, value.nbytes)
        if value.nbytes:
            context.copy_in(spans[slot], np.ascontiguousarray(value).data)
    kernel.prepare(call, context)(context, IO(spans))
    result = np.empty_like(out)
    context.copy_out(result.data, spans["Out"])
    context.wait()
    return result


def plugin_kernel(op: str) -> Any:
    """The plugin's kernel of an operator."""
    return next(kernel for kernel in (*kernels.GENERATED_KERNELS, *elementwise.GENERATED_KERNELS) if kernel.op == op)


def values(dims: tuple[int, ...], dtype: str, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(dims).astype(dtype)


def swapped(dims: tuple[int, ...], transposed: bool) -> tuple[int, ...]:
    return (*dims[:-2], dims[-1], dims[-2]) if transposed else dims


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transpose_y", [False, True])
@pytest.mark.parametrize("transpose_x", [False, True])
@pytest.mark.parametrize(
    ("x_dims", "y_dims"),
    [((3, 5), (5, 4)), ((1, 1), (1, 1)), ((2, 3, 5), (2, 5, 4)), ((2, 2, 3, 5), (5, 4)), ((3, 5), (2, 5, 4))],
)
def test_matmul(
    device: FpgaDevice,
    x_dims: tuple[int, ...],
    y_dims: tuple[int, ...],
    transpose_x: bool,
    transpose_y: bool,
    dtype: str,
) -> None:
    x, y = values(swapped(x_dims, transpose_x), dtype, 1), values(swapped(y_dims, transpose_y), dtype, 2)
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    expected = 0.5 * np.matmul(
        wide_x.swapaxes(-1, -2) if transpose_x else wide_x, wide_y.swapaxes(-1, -2) if transpose_y else wide_y
    )
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": 0.5}
    out = compute(device, kernels.matmul, {"X": x, "Y": y}, np.zeros(expected.shape, dtype), **attrs)
    np.testing.assert_allclose(out, expected, rtol=RTOL[dtype], atol=RTOL[dtype])


@pytest.mark.parametrize(
    ("x_dims", "y_dims", "transpose_x", "transpose_y", "equation"),
    [
        ((4,), (4,), False, False, "k,k->"),
        ((4,), (3,), True, True, "m,n->mn"),
        ((2, 4), (4,), False, False, "mk,k->m"),
        ((4,), (4, 3), False, False, "k,kn->n"),
        ((2, 3, 4), (4,), False, False, "bmk,k->bm"),
    ],
)
def test_matmul_of_vectors(
    device: FpgaDevice,
    x_dims: tuple[int, ...],
    y_dims: tuple[int, ...],
    transpose_x: bool,
    transpose_y: bool,
    equation: str,
) -> None:
    x, y = values(x_dims, "float64", 3), values(y_dims, "float64", 4)
    expected = np.asarray(np.einsum(equation, x, y))
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": 1.0}
    out = compute(device, kernels.matmul, {"X": x, "Y": y}, np.zeros(expected.shape or (1,)), **attrs)
    np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=1e-12)


def test_matmul_over_nothing_is_zero(device: FpgaDevice) -> None:
    inputs = {"X": np.zeros((2, 0), np.float32), "Y": np.zeros((0, 3), np.float32)}
    attrs = {"transpose_X": False, "transpose_Y": False, "alpha": 1.0}
    assert not compute(device, kernels.matmul, inputs, np.ones((2, 3), np.float32), **attrs).any()


def test_relu_keeps_nan(device: FpgaDevice) -> None:
    x = np.array([[-1.5, 0.0, 2.5], [np.nan, -np.inf, np.inf]], np.float32)
    out = compute(device, plugin_kernel("relu"), {"X": x}, np.zeros_like(x))
    np.testing.assert_array_equal(out, [[0, 0, 2.5], [np.nan, 0, np.inf]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("y_dims", "axis", "broadcast_dims"),
    [
        ((2, 3, 4), -1, (2, 3, 4)),
        ((4,), -1, (1, 1, 4)),
        ((3, 4), -1, (1, 3, 4)),
        ((3,), 1, (1, 3, 1)),
        ((2,), 0, (2, 1, 1)),
        ((2, 3), 0, (2, 3, 1)),
        ((3, 1), 1, (1, 3, 1)),
        ((1,), -1, (1, 1, 1)),
        ((), -1, (1, 1, 1)),
        ((2, 1, 4), -1, (2, 1, 4)),
        ((1, 3, 1), -1, (1, 3, 1)),
        ((4, 1), 2, (1, 1, 4)),
    ],
)
def test_elementwise_add(
    device: FpgaDevice, y_dims: tuple[int, ...], axis: int, broadcast_dims: tuple[int, ...], dtype: str
) -> None:
    x, y = values((2, 3, 4), dtype, 7), np.asarray(values(y_dims, dtype, 8), dtype)
    out = compute(device, plugin_kernel("elementwise_add"), {"X": x, "Y": y}, np.zeros_like(x), axis=axis)
    np.testing.assert_allclose(
        out, x.astype(np.float64) + y.reshape(broadcast_dims), rtol=RTOL[dtype], atol=RTOL[dtype]
    )


MATMUL = {"transpose_X": False, "transpose_Y": False, "alpha": 1.0}


@pytest.mark.parametrize(
    ("kernel", "x", "y", "attrs", "reason"),
    [
        (kernels.matmul, (2, 3, 4), (5, 4, 3), MATMUL, "no broadcasting of batches"),
        (kernels.matmul, (-1, 3, 4), (5, 4, 3), MATMUL, None),
        (plugin_kernel("elementwise_add"), (2, 3), (1, 3), {"axis": -1}, None),
        (plugin_kernel("elementwise_add"), (-1, 3), (-1, 3), {"axis": -1}, None),
        (elementwise.scale, (2,), (2,), {}, None),
    ],
)
def test_refusals_say_why(
    kernel: Any, x: tuple[int, ...], y: tuple[int, ...], attrs: dict[str, Any], reason: str | None
) -> None:
    refusal = kernel.supports(Call({"X": x, "Y": y}, attrs))
    assert refusal is None if reason is None else reason in refusal


def test_two_dtypes_are_refused() -> None:
    call = Call({"X": (2, 2), "Y": (2, 2)}, MATMUL, Y="float64")
    assert kernels.matmul.supports is not None
    assert kernels.matmul.supports(cast(Any, call)) == "fpgann computes in one dtype, X is float32 and Y float64"


def test_the_log_tells_what_ran(device: FpgaDevice) -> None:
    x, y = values((2, 3), "float32", 1), values((3, 4), "float32", 2)
    assert device.command_log(1) == []
    compute(device, kernels.matmul, {"X": x, "Y": y}, np.zeros((2, 4), np.float32), **MATMUL)
    log = {entry["command"]: entry for entry in device.command_log(0)}
    matmul_entry = log["matmul"]
    assert (matmul_entry["dtype"], matmul_entry["nbytes"], matmul_entry["queue"]) == ("float32", 104, 0)
    assert matmul_entry["dims"] == [[1, 2, 3], [1, 3, 4], [1, 2, 4]]
    assert log["copy_in"]["end"] <= matmul_entry["start"] < matmul_entry["end"] <= log["copy_out"]["start"]
    device.clear_command_log(0)
    assert device.command_log(0) == []


def test_what_the_board_does_not_know_is_an_error_of_wait(device: FpgaDevice) -> None:
    context = device.context(0, 0)
    context.enqueue("conv9d", "float32", [], [])
    with pytest.raises(Exception, match="launch: the board has no kernel 'conv9d'; it has matmul, vector, reduce"):
        context.wait()
    context.enqueue("reduce", "int32", [], [1], (), "sum")
    with pytest.raises(Exception, match="computes in float32 and float64, not in int32"):
        context.wait()
    for program, reason in {"x0 +": "takes 2 values, there are 1", "1 2": "leaves 2 values for 1 outputs",
                            "what": "could not convert"}.items():  # fmt: skip
        span = Span(device.allocator(0).allocate(64), 0, 8)
        context.enqueue("vector", "float32", [span, span], [1, 1, 0, 1, 2, 2], (), program)
        with pytest.raises(Exception, match=reason):
            context.wait()
