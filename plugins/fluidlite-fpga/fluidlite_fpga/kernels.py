"""Kernels of the library ``fpgann``: each turns an operator's call into one launch on the board."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import register_kernel

Dims = tuple[int, ...]
Run = Callable[[Any, Any], None]
"""What a prepared kernel is: ``run(context, io)``."""

FLOATS = ("float32", "float64")


def same_dtype(call: Any) -> str | None:
    """Refuse operands of two dtypes."""
    x, y = call.dtype("X"), call.dtype("Y")
    return None if x == y else f"fpgann computes in one dtype, X is {x} and Y {y}"


def unlike(x: Dims, y: Dims) -> bool:
    """Whether dims are known to differ; -1 is unknown."""
    return len(x) != len(y) or any(a != b for a, b in zip(x, y, strict=True) if min(a, b) >= 0)


def matmul_refusal(call: Any) -> str | None:
    """Say why the board cannot do a matmul: batches that differ."""
    x, y = call.dims("X")[:-2], call.dims("Y")[:-2]
    if x and y and unlike(x, y):
        return f"fpgann has no broadcasting of batches, X has {list(x)} and Y has {list(y)}"
    return same_dtype(call)


@register_kernel("matmul", "fpga", library="fpgann", dtypes=FLOATS, supports=matmul_refusal)
def matmul(call: Any, context: Any) -> Run:
    """``Out = alpha * X @ Y``; a vector X is a row, a vector Y is a column, before they are transposed."""
    x, y = call.dims("X"), call.dims("Y")
    x_transposed, y_transposed = bool(call.attr("transpose_X")), bool(call.attr("transpose_Y"))
    x_matrix = x[-2:] if len(x) > 1 else (1, *x)
    y_matrix = y[-2:] if len(y) > 1 else (*y, 1)
    m, k = reversed(x_matrix) if x_transposed else x_matrix
    n = y_matrix[0] if y_transposed else y_matrix[1]
    numbers = (prod(x[:-2]), prod(y[:-2]), m, k, n, x_transposed, y_transposed)
    return launch("matmul", call.dtype("X"), ("X", "Y", "Out"), numbers, (float(call.attr("alpha")),))


@register_kernel("relu", "fpga", library="fpgann", dtypes=FLOATS, inplace=True)
def relu(call: Any, context: Any) -> Run:
    """``Out = max(X, 0)``."""
    return launch("relu", call.dtype("X"), ("X", "Out"), (prod(call.dims("X")),))


def trimmed(dims: Dims) -> Dims:
    """Return dims without trailing ones, which broadcasting does not need."""
    while dims and dims[-1] == 1:
        dims = dims[:-1]
    return dims


def aligned(call: Any) -> tuple[int, Dims]:
    """Return the axis of X at which Y starts, and Y's dims there."""
    x, y, axis = call.dims("X"), call.dims("Y"), call.attr("axis")
    return (len(x) - len(y) if axis == -1 else axis), trimmed(y)


def add_refusal(call: Any) -> str | None:
    """Say why the board cannot add: Y is no contiguous run of X's dims."""
    x, y = call.dims("X"), call.dims("Y")
    axis, run = aligned(call)
    if axis < 0 or unlike(x[axis : axis + len(run)], run):
        return f"fpgann adds a Y whose dims are a run of X's, X is {list(x)} and Y {list(y)} at axis {axis}"
    return same_dtype(call)


@register_kernel("elementwise_add", "fpga", library="fpgann", dtypes=FLOATS, supports=add_refusal, inplace=True)
def elementwise_add(call: Any, context: Any) -> Run:
    """``Out = X + Y``, with Y repeated over the dims of X before and after it."""
    x = call.dims("X")
    axis, run = aligned(call)
    numbers = (prod(x[:axis]), prod(run), prod(x[axis + len(run) :]))
    return launch("add", call.dtype("X"), ("X", "Y", "Out"), numbers)


def launch(
    kernel: str,
    dtype: str,
    slots: tuple[str, ...],
    numbers: tuple[int, ...],
    scalars: tuple[float, ...] = (),
) -> Run:
    """Return a prepared kernel that launches ``kernel`` on the spans of ``slots``."""

    def run(context: Any, io: Any) -> None:
        context.enqueue(kernel, dtype, [io.span(slot) for slot in slots], numbers, scalars)

    return run
