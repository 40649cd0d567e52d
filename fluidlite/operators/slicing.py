"""Slicing: slice, strided_slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL
from fluidlite.expr.declare import operator
from fluidlite.expr.number import number as as_number
from fluidlite.geometry.numbers import OptionalInt, numbers_of
from fluidlite.operators.inference import Inferred, dims_compatible, normal_axis, spec_like
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, as_tensor, as_tensors
from fluidlite.program.operator_options import Differentiation, Inference
from fluidlite.tensor.tensor_spec import Spec

# slice and strided_slice -------------------------------------------------------------------------------------------


def _bound(name: str, doc: str) -> Attr:
    return Attr(
        name.lower(), "ints", (), doc=doc, tensors=(as_tensors(f"{name}TensorList"), as_tensor(f"{name}Tensor"))
    )


_SLICE_ATTRS = (
    Attr("axes", "ints", doc="the dims that are sliced"),
    _bound("Starts", "the first index of each; negative: from the end"),
    _bound("Ends", "the index after the last of each; negative: from the end; large: up to the end"),
    Attr("infer_flags", "ints", (), doc="-1 for each axis whose bounds are tensors; then -1 to 0 is the last element"),
    Attr("decrease_axis", "ints", (), doc="dims of 1 that Out lacks"),
)
_STRIDED_ATTRS = (
    *_SLICE_ATTRS[:3],
    _bound("Strides", "the step of each; of a negative one, an end of -1 is in front of the first index"),
    *_SLICE_ATTRS[3:],
)


def _check_bounds(call: Call, *names: str) -> None:
    """Raise unless there are as many bounds as axes, and no step is 0."""
    count = len(call.attr("axes"))
    for name in names:
        bounds = numbers_of(call, name)
        if bounds is not None and len(bounds) != count:
            call.fail_attr(name, f"{count} numbers, one for each of axes")
        if name == "strides" and bounds is not None and 0 in bounds:
            call.fail_attr(name, "steps other than 0")


def _box_dims(call: Call) -> list[int]:
    """Dims of the box of Input that a call reads, of which Out lacks those of 1 in decrease_axis; -1 where unknown.

    Negative bounds count from the end, and bounds out of range are clamped, as in Python; but with a negative step, an
    end of -1 means before the first element.
    """
    dims, axes, flags = list(call.dims("Input")), call.attr("axes"), call.attr("infer_flags")
    unknown: tuple[OptionalInt, ...] = (None,) * len(axes)
    starts, ends = (numbers_of(call, name) or unknown for name in ("starts", "ends"))
    strides = numbers_of(call, "strides") or unknown if "strides" in call.attrs else (1,) * len(axes)
    dropped = {axis % len(dims) for axis in call.attr("decrease_axis")}
    for i, (axis, start, end, step) in enumerate(zip(axes, starts, ends, strides, strict=True)):
        axis, n = axis % len(dims), dims[axis]
        if start == -1 and end == 0 and axis in dropped and flags[i : i + 1] == (-1,):
            end, step = n, 1  # x[i] with i = -1 from a tensor: its end was computed as i + 1
        if n < 0 or start is None or end is None or step is None:
            dims[axis] = -1
        else:
            dims[axis] = len(range(n)[start : (-n - 1 if step < 0 and end == -1 else end) : step])
    return dims


def _infer_slice(call: Call) -> Inferred:
    x = call.spec("Input")
    sliced_axes = [normal_axis(call, "axes", axis, x.rank, "Input") for axis in call.attr("axes")]
    if len(set(sliced_axes)) != len(sliced_axes):
        call.fail_attr("axes", "different dims")
    dropped_axes = {normal_axis(call, "decrease_axis", axis, x.rank, "Input") for axis in call.attr("decrease_axis")}
    strided = "strides" in call.attrs
    _check_bounds(call, "starts", "ends", *(("strides",) if strided else ()))
    dims = _box_dims(call)
    for axis in sliced_axes:
        if strided and dims[axis] == 0 and x.dims[axis] > 0:
            call.fail_attr(
                "ends", f"bounds with an element of dim {axis} between them; Input is {call.describe('Input')}"
            )
    for axis in dropped_axes:
        if not dims_compatible(dims[axis], 1):
            call.fail_attr("decrease_axis", f"dims of 1; dim {axis} has {dims[axis]} after the cut")
    out_dims = [d for i, d in enumerate(dims) if i not in dropped_axes]
    if 0 in sliced_axes or 0 in dropped_axes:
        return {"Out": Spec.of(out_dims or (1,), x.dtype)}
    return {"Out": spec_like(x, out_dims)}


Numbers = Sequence[e.Number | int]


def _sliced(
    x: e.Tensor, dims: Sequence[e.Number], dropped: tuple[int, ...], bounds: dict[int, tuple[Any, Any]]
) -> e.Tensor:
    """A slice of these dims, which lack the axes ``dropped``; ``bounds``: start and step by axis."""
    remaining, dropped_axes = iter(dims), {axis % x.rank for axis in dropped}
    sizes = [as_number(1) if axis in dropped_axes else next(remaining) for axis in range(x.rank)]
    starts: list[e.Number | int] = [0] * x.rank
    steps = [1] * x.rank
    for axis, (start, stride) in bounds.items():
        n, step = x.dims[axis], e.exactly(stride)
        limit = n if step > 0 else n - 1
        from_end = bool(start < 0)
        starts[axis] = e.highest(n + start, limit - n) if from_end else e.lowest(start, limit)
        steps[axis] = step
    sizes = [d if axis in bounds or axis in dropped_axes else x.dims[axis] for axis, d in enumerate(sizes)]
    return e.reshape(e.slices(x, starts, sizes, steps), dims)


@operator(
    "slice",
    Differentiation(reads=(), doc="Input@GRAD = Out@GRAD inside the slice, else 0"),
    Inference(_infer_slice),
    attrs=_SLICE_ATTRS,
    dtypes={"Input": ALL},
    doc="Out = Input[..., start:end, ...] in each of axes",
    source="Fluid slice_op.cc",
)
def slice_(input: e.Tensor, *, axes: tuple[int, ...], starts: Numbers, decrease_axis: tuple[int, ...]) -> e.Tensor:
    """Slice the inferred dims from the starts."""
    return _sliced(input, e.results("Out")[0], decrease_axis, _bounds(input, axes, starts))


def _bounds(x: e.Tensor, axes: tuple[int, ...], starts: Numbers, steps: Numbers | None = None) -> dict[int, Any]:
    pairs = zip(starts, steps or [1] * len(axes), strict=True)
    return dict(zip((axis % x.rank for axis in axes), pairs, strict=True))


@operator(
    "strided_slice",
    Differentiation(reads=(), doc="Input@GRAD = Out@GRAD inside the slice, else 0"),
    Inference(_infer_slice),
    attrs=_STRIDED_ATTRS,
    dtypes={"Input": ALL},
    doc="Out = Input[..., start:end:stride, ...] in each of axes",
    source="Fluid strided_slice_op.cc",
)
def strided_slice(
    input: e.Tensor, *, axes: tuple[int, ...], starts: Numbers, strides: Numbers, decrease_axis: tuple[int, ...]
) -> e.Tensor:
    """Slice with steps."""
    return _sliced(input, e.results("Out")[0], decrease_axis, _bounds(input, axes, starts, strides))
