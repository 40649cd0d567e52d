"""Kernels of the library ``fpgann``: each converts an operator's call to one launch on the board."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from fluidlite.plugin import KernelOptions, Span, register_kernel

Dims = tuple[int, ...]
Run = Callable[[Any, Any], None]
"""A prepared kernel: ``run(context, io)``."""

FLOATS = ("float32", "float64")


def same_dtype(call: Any) -> str | None:
    """Return the reason if X and Y have different dtypes."""
    dtypes = {slot: call.dtype(slot) for slot in ("X", "Y") if call.has(slot)}
    if len(set(dtypes.values())) > 1:
        return f"fpgann computes in one dtype, X is {dtypes['X']} and Y {dtypes['Y']}"
    return None


def dims_differ(x: Dims, y: Dims) -> bool:
    """Whether dims are known to differ; -1 is unknown."""
    return len(x) != len(y) or any(a != b for a, b in zip(x, y, strict=True) if min(a, b) >= 0)


def matmul_refusal(call: Any) -> str | None:
    """Return the reason if the board cannot compute a matmul: batches that differ."""
    x, y = call.dims("X")[:-2], call.dims("Y")[:-2]
    if x and y and dims_differ(x, y):
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


def launch(
    kernel: str,
    dtype: str,
    slots: Sequence[str],
    numbers: Sequence[int],
    scalars: Sequence[float] = (),
    program: str = "",
) -> Run:
    """Return a prepared kernel that launches ``kernel`` on the spans of ``slots``."""

    def run(context: Any, io: Any) -> None:
        context.enqueue(kernel, dtype, [io.span(slot) for slot in slots], numbers, scalars, program)

    return run


def reduced_axes(call: Any) -> tuple[int, ...]:
    """The non-negative axes of X that a reduce operator reduces."""
    rank = len(call.dims("X"))
    if call.op.type.startswith("mean") or call.attr("reduce_all"):
        return tuple(range(rank))
    return tuple(sorted(axis % rank for axis in call.attr("dim")))


def _reduction(op: str, program: str) -> Any:
    @register_kernel(op, "fpga", library="fpgann", dtypes=FLOATS)
    def reduction(call: Any, context: Any) -> Run:
        dims = call.dims("X")
        return launch("reduce", call.dtype("X"), ("X", "Out"), (len(dims), *dims, *reduced_axes(call)), (), program)

    return reduction


def _mean_gradient(op: str, mean: bool) -> Any:
    """The gradient of a sum or a mean: the gradient of Out broadcast to X, divided by the count for a mean."""

    @register_kernel(op, "fpga", library="fpgann", dtypes=FLOATS)
    def gradient(call: Any, context: Any) -> Run:
        dims, axes = call.dims("X"), reduced_axes(call)
        reduced_dims = tuple(1 if i in axes else n for i, n in enumerate(dims))
        count = prod(dims[axis] for axis in axes) if mean else 1
        numbers = (1, 1, 0, len(dims), *reduced_dims, *dims)
        return launch("vector", call.dtype("Out@GRAD"), ("Out@GRAD", "X@GRAD"), numbers, (count,), "x0 s0 /")

    return gradient


GENERATED_KERNELS = [
    *(_reduction(f"reduce_{name}", name) for name in ("sum", "mean", "max", "min", "prod")),
    _reduction("mean", "mean"),
    _mean_gradient("reduce_sum_grad", mean=False),
    _mean_gradient("reduce_mean_grad", mean=True),
    _mean_gradient("mean_grad", mean=True),
]
"""Kernels created by functions of this module; the plugin registers each of them."""


def split_at_axis(dims: Dims, axis: int) -> tuple[int, int, int]:
    """Dims as three: before an axis, the axis, after it."""
    axis %= len(dims)
    return prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])


@register_kernel("softmax", "fpga", library="fpgann", dtypes=FLOATS, inplace=True)
def softmax(call: Any, context: Any) -> Run:
    """``Out = exp(X - max) / sum`` over an axis."""
    return launch("softmax", call.dtype("X"), ("X", "Out"), split_at_axis(call.dims("X"), call.attr("axis")))


@register_kernel("softmax_grad", "fpga", library="fpgann", dtypes=FLOATS, inplace=True)
def softmax_grad(call: Any, context: Any) -> Run:
    """``X@GRAD = Out * (Out@GRAD - sum(Out * Out@GRAD))`` over an axis."""
    dims = split_at_axis(call.dims("Out"), call.attr("axis"))
    return launch("softmax_grad", call.dtype("Out"), ("Out", "Out@GRAD", "X@GRAD"), dims)


def label_refusal(call: Any) -> str | None:
    """Return the reason if the board does not support these labels."""
    if call.attr("soft_label"):
        return "fpgann takes labels that are classes, soft_label is True"
    if call.dtype("Label") not in ("int32", "int64"):
        return f"fpgann takes labels of int32 and int64, Label is {call.dtype('Label')}"
    if call.op.type == "softmax_with_cross_entropy" and not (call.has("Softmax") and call.has("Loss")):
        return "fpgann writes Softmax and Loss"
    if call.attrs.get("axis", -1) != -1:
        return f"fpgann takes classes along the last axis, by axis -1; axis is {call.attr('axis')}"
    return None


def _label_kernel(op: str, kernel: str, slots: tuple[str, ...]) -> Any:
    @register_kernel(
        op, "fpga", library="fpgann", dtypes=FLOATS, supports=label_refusal, options=KernelOptions(indexes=True)
    )
    def label_kernel(call: Any, context: Any) -> Run:
        """The board checks the labels: it records the first invalid one in the context's status words."""
        dims = call.dims(slots[0])
        itemsize = 4 if call.dtype("Label") == "int32" else 8
        numbers = (prod(dims[:-1]), dims[-1], call.attr("ignore_index"), itemsize)

        def run(context: Any, io: Any) -> None:
            spans: list[Span] = [io.span(slot) for slot in slots]
            spans.append(context.status_span())
            context.enqueue(kernel, call.dtype(slots[0]), spans, (*numbers, io.op_id + 1))

        return run

    return label_kernel


GENERATED_KERNELS += [
    _label_kernel("cross_entropy", "cross_entropy", ("X", "Label", "Y")),
    _label_kernel("cross_entropy_grad", "cross_entropy_grad", ("X", "Label", "Y@GRAD", "X@GRAD")),
    _label_kernel("softmax_with_cross_entropy", "softmax_cross_entropy", ("Logits", "Label", "Softmax", "Loss")),
    _label_kernel(
        "softmax_with_cross_entropy_grad", "softmax_cross_entropy_grad",
        ("Softmax", "Label", "Loss@GRAD", "Logits@GRAD"),
    ),
]  # fmt: skip
