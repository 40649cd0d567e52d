"""Parts of a tensor: slice, strided_slice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import (
    Inferred,
    agree,
    grad_like,
    grad_outputs,
    like,
    normal_axis,
)
from fluidlite.operators.math.boxes import slice_window
from fluidlite.operators.math.numbers import numbers_of
from fluidlite.operators.samples import EVERY, WIDE, bools, ints, rand, stated

# slice and strided_slice -------------------------------------------------------------------------------------------


def _bound_slots(*names: str) -> tuple[Slot, ...]:
    """Return slots that say the bounds as one tensor, and as a tensor each."""
    whole = [Slot(f"{name}Tensor", dispensable=True, value=True, doc=f"{name.lower()}, as a tensor") for name in names]
    each = [
        Slot(f"{name}TensorList", duplicable=True, dispensable=True, value=True, doc=f"{name.lower()}, a tensor each")
        for name in names
    ]
    return (*whole, *each)


def _names(slots: tuple[Slot, ...]) -> tuple[str, ...]:
    return tuple(slot.name for slot in slots)


_SLICE_SLOTS = _bound_slots("Starts", "Ends")
_STRIDED_SLOTS = _bound_slots("Starts", "Ends", "Strides")

_SLICE_ATTRS = (
    Attr("axes", "ints", doc="the dims that are cut"),
    Attr("starts", "ints", (), doc="the first index kept of each; negative: from the end"),
    Attr("ends", "ints", (), doc="the first index no longer kept of each; negative: from the end; large: up to it"),
    Attr("infer_flags", "ints", (), doc="-1 for each axis whose bounds are tensors; then -1 to 0 is the last element"),
    Attr("decrease_axis", "ints", (), doc="dims of 1 that Out does not keep"),
)
_STRIDED_ATTRS = (
    *_SLICE_ATTRS[:3],
    Attr("strides", "ints", (), doc="the step of each; of a negative one, an end of -1 is in front of the first index"),
    *_SLICE_ATTRS[3:],
)


def _check_bounds(call: Call, *names: str) -> None:
    """Raise unless there are as many bounds as axes, and no step is 0."""
    count = len(call.attr("axes"))
    for name in names:
        slots = (f"{name}TensorList", f"{name}Tensor")
        found = numbers_of(call, name.lower(), *slots)
        given = next((slot for slot in slots if call.has(slot)), None)
        if found is not None and len(found) != count:
            expected = f"{count} numbers, one for each of axes"
            if given is None:
                call.fail_attr(name.lower(), expected)
            call.fail(given, expected)
        if name == "Strides" and found is not None and 0 in found:
            if given is None:
                call.fail_attr("strides", "steps other than 0")
            call.fail(given, "steps other than 0", found)


def _infer_slice(call: Call) -> Inferred:
    x = call.spec("Input")
    cut = [normal_axis(call, "axes", axis, x.rank, "Input") for axis in call.attr("axes")]
    if len(set(cut)) != len(cut):
        call.fail_attr("axes", "different dims")
    dropped = {normal_axis(call, "decrease_axis", axis, x.rank, "Input") for axis in call.attr("decrease_axis")}
    strided = "strides" in call.attrs
    _check_bounds(call, "Starts", "Ends", *(("Strides",) if strided else ()))
    _, dims, _ = slice_window(call)
    for axis in cut:
        if strided and dims[axis] == 0 and x.dims[axis] > 0:
            call.fail_attr("ends", f"bounds with an element of dim {axis} between them; Input is {call.shown('Input')}")
    for axis in dropped:
        if not agree(dims[axis], 1):
            call.fail_attr("decrease_axis", f"dims of 1; dim {axis} has {dims[axis]} after the cut")
    kept = [d for i, d in enumerate(dims) if i not in dropped]
    if 0 in cut or 0 in dropped:
        return {"Out": Spec.of(kept or (1,), x.dtype)}
    return {"Out": like(x, kept)}


def _reference_slice(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    out = inputs["Input"]
    starts = stated(inputs, attrs, "starts", "StartsTensorList", "StartsTensor")
    ends = stated(inputs, attrs, "ends", "EndsTensorList", "EndsTensor")
    for axis, start, end, flag in zip(attrs["axes"], starts, ends, [*attrs["infer_flags"], *starts], strict=False):
        if (start, end, flag) == (-1, 0, -1) and axis in attrs["decrease_axis"]:
            end = out.shape[axis]
        keep = range(out.shape[axis])[start:end]
        out = np.take(out, list(keep), axis) if keep else np.delete(out, np.s_[:], axis)
    if attrs["decrease_axis"]:
        out = np.squeeze(out, tuple(attrs["decrease_axis"]))
    return {"Out": out.reshape(out.shape or (1,)) if inputs["Input"].ndim else out}


def _reference_strided(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    out = inputs["Input"]
    starts = stated(inputs, attrs, "starts", "StartsTensorList", "StartsTensor")
    ends = stated(inputs, attrs, "ends", "EndsTensorList", "EndsTensor")
    strides = stated(inputs, attrs, "strides", "StridesTensorList", "StridesTensor")
    for i, (axis, start, end, stride) in enumerate(zip(attrs["axes"], starts, ends, strides, strict=True)):
        if list(attrs["infer_flags"][i : i + 1]) == [-1] and (start, end) == (-1, 0) and axis in attrs["decrease_axis"]:
            kept = [out.shape[axis] - 1]
        else:
            kept = list(range(out.shape[axis]))[start : None if stride < 0 and end == -1 else end : stride]
        out = np.take(out, np.asarray(kept, "int64"), axis)
    if attrs["decrease_axis"]:
        out = np.squeeze(out, tuple(attrs["decrease_axis"]))
    return {"Out": out.reshape(out.shape or (1,))}


def _cut(
    name: str,
    dims: tuple[int, ...],
    axes: Any,
    starts: Any,
    ends: Any,
    strides: Any = None,
    drop: Any = (),
    flags: Any = (),
    check: bool = True,
    dtypes: tuple[str, ...] = ("float32",),
    **tensors: Any,
) -> Sample:
    """Return a sample with the attributes that are not empty."""
    attrs = {"axes": axes, "starts": starts, "ends": ends, "strides": strides}
    attrs |= {"decrease_axis": drop, "infer_flags": flags}
    given = {attr: value for attr, value in attrs.items() if value not in ((), None)}
    return Sample({"Input": rand(*dims), **tensors}, given, ("Input",) if check else (), name=name, dtypes=dtypes)


def _vector(*numbers: int, dtype: str = "int32") -> Any:
    return np.asarray(numbers, dtype)


register_op(
    "slice",
    inputs=("Input", *_SLICE_SLOTS),
    outputs=("Out",),
    attrs=_SLICE_ATTRS,
    infer=_infer_slice,
    grad=GradRule("slice_grad", ("Input", *_names(_SLICE_SLOTS), "Out@GRAD"), ("Input",)),
    dtypes={"Input": ALL, **dict.fromkeys(_names(_SLICE_SLOTS), INTS)},
    reference=_reference_slice,
    samples=lambda: [
        _cut("rows", (5, 6), [0], [1], [4], dtypes=EVERY),
        _cut("both", (5, 6), [0, 1], [1, 2], [4, 5], dtypes=WIDE),
        _cut("negative", (5, 6, 3), [1, 0], [-4, -3], [-1, 9]),
        _cut("clamped", (5, 6), [1], [-99], [99]),
        _cut("decreased", (5, 6, 3), [1], [2], [3], drop=[1]),
        _cut("decreased_all", (5, 6), [0, 1], [2, -1], [3, 99], drop=[0, 1]),
        _cut("nothing", (5, 6), [1], [4], [2]),
        _cut("empty", (0, 6), [1], [2], [4], check=False),
        _cut("by_tensors", (5, 6), [0, 1], (), (), StartsTensor=_vector(1, -4), EndsTensor=_vector(4, 6)),
        _cut("by_lists", (5, 6), [1, 0], [2, 1], [5, 9], StartsTensorList=[_vector(2), _vector(1)],
             EndsTensorList=[_vector(4, dtype="int64"), _vector(-1)], flags=[-1, -1]),
        _cut("last_by_tensor", (5, 6), [0], [7], [8], drop=[0], flags=[-1], StartsTensorList=[_vector(-1)],
             EndsTensorList=[_vector(0)]),
        Sample({"Input": ints(7)}, {"axes": [0], "starts": [2], "ends": [5]}, name="int64", dtypes=("int64",)),
        Sample({"Input": bools(7)}, {"axes": [0], "starts": [2], "ends": [5]}, name="bool", dtypes=("bool",)),
    ],
    doc="Out = Input[..., start:end, ...] in each of axes",
    source="Fluid slice_op.cc",
)  # fmt: skip

register_op(
    "slice_grad",
    inputs=(Slot("Input", metadata_only=True), *_SLICE_SLOTS, Slot("Out@GRAD")),
    outputs=grad_outputs("Input"),
    attrs=_SLICE_ATTRS,
    infer=grad_like("Input"),
    kernel_dtype="Out@GRAD",
    doc="Input@GRAD = Out@GRAD where Input was kept, else 0",
)

register_op(
    "strided_slice",
    inputs=("Input", *_STRIDED_SLOTS),
    outputs=("Out",),
    attrs=_STRIDED_ATTRS,
    infer=_infer_slice,
    grad=GradRule("strided_slice_grad", ("Input", *_names(_STRIDED_SLOTS), "Out@GRAD"), ("Input",)),
    dtypes={"Input": ALL, **dict.fromkeys(_names(_STRIDED_SLOTS), INTS)},
    reference=_reference_strided,
    samples=lambda: [
        _cut("every_second", (7, 3), [0], [1], [6], [2], dtypes=EVERY),
        _cut("both", (5, 9), [0, 1], [-4, 0], [99, 8], [1, 3], dtypes=WIDE),
        _cut("backwards", (8, 3), [0], [6], [1], [-2], dtypes=EVERY),
        _cut("backwards_columns", (2, 8), [1], [-1], [-6], [-1]),
        _cut("to_the_first", (3, 8), [1], [99], [-1], [-3]),
        _cut("three", (3, 4, 5), [2, 0, 1], [4, 1, 0], [0, 3, 4], [-2, 1, 3]),
        _cut("decreased", (5, 6), [0, 1], [2, 0], [3, 6], [1, 4], drop=[0]),
        _cut("decreased_all", (5, 6), [0, 1], [2, 3], [3, 2], [1, -1], drop=[0, 1]),
        _cut("last_by_tensor", (5, 6), [0], [7], [8], [1], drop=[0], flags=[-1], StartsTensorList=[_vector(-1)],
             EndsTensorList=[_vector(0)]),
        _cut("by_tensors", (5, 6), [0, 1], (), (), StartsTensor=_vector(1, -1), EndsTensor=_vector(4, 0),
             StridesTensor=_vector(2, -2)),
        _cut("by_lists", (5, 6), [1], (), [5], StartsTensorList=[_vector(1)], StridesTensorList=[_vector(2)],
             flags=[-1]),
        _cut("rank1", (6,), [0], [0], [6], [4]),
        _cut("empty", (0, 6), [1], [1], [4], [2], check=False),
        _cut("empty_axis", (0, 6), [0], [1], [4], [2], check=False),
        Sample({"Input": ints(7)}, {"axes": [0], "starts": [5], "ends": [1], "strides": [-3]}, name="int64",
               dtypes=("int64",)),
        Sample({"Input": bools(7)}, {"axes": [0], "starts": [0], "ends": [7], "strides": [3]}, name="bool",
               dtypes=("bool",)),
    ],
    doc="Out = Input[..., start:end:stride, ...] in each of axes",
    source="Fluid strided_slice_op.cc",
)  # fmt: skip

register_op(
    "strided_slice_grad",
    inputs=(Slot("Input", metadata_only=True), *_STRIDED_SLOTS, Slot("Out@GRAD")),
    outputs=grad_outputs("Input"),
    attrs=_STRIDED_ATTRS,
    infer=grad_like("Input"),
    kernel_dtype="Out@GRAD",
    doc="Input@GRAD = Out@GRAD where Input was kept, else 0",
)
