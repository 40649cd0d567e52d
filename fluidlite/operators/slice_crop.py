"""Parts of a tensor: slice, crop."""

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
    all_agree,
    grad_inputs,
    grad_like,
    grad_outputs,
    like,
    normal_axis,
)
from fluidlite.operators.samples import EVERY, WIDE, bools, ints, rand

# slice -------------------------------------------------------------------------------------------------------------

_SLICE_ATTRS = (
    Attr("axes", "ints", doc="the dims that are cut"),
    Attr("starts", "ints", doc="the first index kept of each; negative: from the end"),
    Attr("ends", "ints", doc="the first index no longer kept of each; negative: from the end; large: up to the end"),
    Attr("decrease_axis", "ints", (), doc="dims of 1 that Out does not keep"),
)


def _infer_slice(call: Call) -> Inferred:
    x = call.spec("Input")
    axes, starts, ends = call.attr("axes"), call.attr("starts"), call.attr("ends")
    if len(starts) != len(axes):
        call.fail_attr("starts", f"{len(axes)} numbers, one for each of axes")
    if len(ends) != len(axes):
        call.fail_attr("ends", f"{len(axes)} numbers, one for each of axes")
    dims = list(x.dims)
    cut = [normal_axis(call, "axes", axis, x.rank, "Input") for axis in axes]
    if len(set(cut)) != len(cut):
        call.fail_attr("axes", "different dims")
    for axis, start, end in zip(cut, starts, ends, strict=True):
        if dims[axis] >= 0:
            n = dims[axis]
            start = max(start + n, 0) if start < 0 else min(start, n)
            end = max(end + n, 0) if end < 0 else min(end, n)
            dims[axis] = max(end - start, 0)
    dropped = {normal_axis(call, "decrease_axis", axis, x.rank, "Input") for axis in call.attr("decrease_axis")}
    for axis in dropped:
        if not agree(dims[axis], 1):
            call.fail_attr("decrease_axis", f"dims of 1; dim {axis} has {dims[axis]} after the cut")
    if 0 in cut or 0 in dropped:
        return {"Out": Spec.of([d for i, d in enumerate(dims) if i not in dropped] or (1,), x.dtype)}
    return {"Out": like(x, [d for i, d in enumerate(dims) if i not in dropped])}


def _reference_slice(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    out = inputs["Input"]
    for axis, start, end in zip(attrs["axes"], attrs["starts"], attrs["ends"], strict=True):
        keep = range(out.shape[axis])[start:end]
        out = np.take(out, list(keep), axis) if keep else np.delete(out, np.s_[:], axis)
    if attrs["decrease_axis"]:
        out = np.squeeze(out, tuple(attrs["decrease_axis"]))
    return {"Out": out.reshape(out.shape or (1,)) if inputs["Input"].ndim else out}


def _slice_sample(name: str, dims: tuple[int, ...], axes: Any, starts: Any, ends: Any, *drop: int, check: bool = True,
                  dtypes: tuple[str, ...] = ("float32",)) -> Sample:  # fmt: skip
    attrs = {"axes": axes, "starts": starts, "ends": ends, **({"decrease_axis": drop} if drop else {})}
    return Sample({"Input": rand(*dims)}, attrs, ("Input",) if check else (), name=name, dtypes=dtypes)


register_op(
    "slice",
    inputs=("Input",),
    outputs=("Out",),
    attrs=_SLICE_ATTRS,
    infer=_infer_slice,
    grad=GradRule("slice_grad", ("Input", "Out@GRAD"), ("Input",)),
    dtypes={"Input": ALL},
    reference=_reference_slice,
    samples=lambda: [
        _slice_sample("rows", (5, 6), [0], [1], [4], dtypes=EVERY),
        _slice_sample("both", (5, 6), [0, 1], [1, 2], [4, 5], dtypes=WIDE),
        _slice_sample("negative", (5, 6, 3), [1, 0], [-4, -3], [-1, 9]),
        _slice_sample("clamped", (5, 6), [1], [-99], [99]),
        _slice_sample("decreased", (5, 6, 3), [1], [2], [3], 1),
        _slice_sample("decreased_all", (5, 6), [0, 1], [2, -1], [3, 99], 0, 1),
        _slice_sample("nothing", (5, 6), [1], [4], [2]),
        _slice_sample("empty", (0, 6), [1], [2], [4], check=False),
        Sample({"Input": ints(7)}, {"axes": [0], "starts": [2], "ends": [5]}, name="int64", dtypes=("int64",)),
        Sample({"Input": bools(7)}, {"axes": [0], "starts": [2], "ends": [5]}, name="bool", dtypes=("bool",)),
    ],
    doc="Out = Input[..., start:end, ...] in each of axes",
    source="Fluid slice_op.cc",
)

register_op(
    "slice_grad",
    inputs=grad_inputs("Input", "Out@GRAD", meta=("Input",)),
    outputs=grad_outputs("Input"),
    attrs=_SLICE_ATTRS,
    infer=grad_like("Input"),
    kernel_dtype="Out@GRAD",
    doc="Input@GRAD = Out@GRAD where Input was kept, else 0",
)

# crop --------------------------------------------------------------------------------------------------------------

_CROP_ATTRS = (
    Attr("offsets", "ints", (), minimum=0, doc="where the crop begins in each dim of X, unless Offsets is given"),
    Attr("shape", "ints", (), minimum=-1, doc="dims of Out, unless Y is given; -1: all from the offset on"),
)


def _infer_crop(call: Call) -> Inferred:
    x = call.spec("X")
    tensor = call.has("Offsets")
    offsets = call.attr("offsets")
    if tensor:
        call.need(all_agree(call.dims("Offsets"), (x.rank,)), "Offsets", f"[{x.rank}], a number for each dim of X")
    elif len(offsets) != x.rank:
        call.fail_attr("offsets", f"{x.rank} numbers, one for each dim of X ({call.shown('X')})")
    if call.has("Y"):
        shape = list(call.dims("Y"))
        call.need(len(shape) == x.rank, "Y", f"rank {x.rank}, as X")
    else:
        shape = list(call.attr("shape"))
        if len(shape) != x.rank:
            call.fail_attr("shape", f"{x.rank} dims, as X ({call.shown('X')}) has")
    for i, (d, n) in enumerate(zip(shape, x.dims, strict=True)):
        if d < 0 and not call.has("Y"):
            if tensor:
                call.fail_attr("shape", "dims of 0 or more, since Offsets is a tensor")
            shape[i] = d = n - offsets[i] if n >= 0 else -1
        if (n >= 0 and d > n - (0 if tensor else offsets[i])) or (n >= 0 and not tensor and offsets[i] > n):
            at = "" if tensor else f", from {offsets[i]} on"
            call.fail("X", f"{d} elements or more in dim {i}{at}")
    return {"Out": Spec.of(shape, x.dtype)}


def _reference_crop(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = inputs["X"]
    offsets = [int(o) for o in inputs.get("Offsets", attrs["offsets"])]
    shape = inputs["Y"].shape if "Y" in inputs else attrs["shape"]
    for axis, (start, length) in enumerate(zip(offsets, shape, strict=True)):
        stop = x.shape[axis] if length < 0 else start + length
        x = np.moveaxis(np.moveaxis(x, axis, 0)[start:stop], 0, axis)
    return {"Out": x}


register_op(
    "crop",
    inputs=(
        "X",
        Slot("Y", dispensable=True, metadata_only=True, doc="Out gets its dims"),
        Slot("Offsets", dispensable=True, on_host=True, doc="the offsets, as a tensor"),
    ),
    outputs=("Out",),
    attrs=_CROP_ATTRS,
    infer=_infer_crop,
    grad=GradRule("crop_grad", ("X", "Offsets", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL, "Offsets": INTS},
    reference=_reference_crop,
    samples=lambda: [
        Sample({"X": rand(5, 6)}, {"offsets": [1, 2], "shape": [3, 2]}, ("X",), name="matrix", dtypes=EVERY),
        Sample({"X": rand(4, 5, 3)}, {"offsets": [1, 0, 2], "shape": [2, 5, 1]}, ("X",), name="rank3", dtypes=WIDE),
        Sample({"X": rand(4, 5)}, {"offsets": [0, 1], "shape": [-1, 3]}, ("X",), name="remainder"),
        Sample({"X": rand(5, 6), "Y": rand(2, 3)}, {"offsets": [2, 3]}, ("X",), name="like_y"),
        Sample(
            {"X": rand(5, 6), "Offsets": np.asarray([1, 2], "int32")}, {"shape": [3, 2]}, ("X",), name="offsets_tensor"
        ),
        Sample({"X": rand(5), "Y": rand(2), "Offsets": np.asarray([3], "int32")}, {}, ("X",), name="both_tensors"),
        Sample({"X": rand(4, 5), "Offsets": np.asarray([0, 2])}, {"shape": [3, 2]}, ("X",), name="offsets_tensor_zero"),
        Sample(
            {"X": rand(4, 5), "Offsets": np.asarray([0, 0])}, {"shape": [4, 2]}, ("X",), name="offsets_tensor_zeros"
        ),
        Sample({"X": rand(4, 5), "Offsets": np.asarray([1, 3])}, {"shape": [3, 2]}, ("X",), name="offsets_tensor_end"),
        Sample({"X": ints(6)}, {"offsets": [2], "shape": [3]}, name="int64", dtypes=("int64",)),
        Sample({"X": rand(0, 6)}, {"offsets": [0, 2], "shape": [0, 3]}, name="empty"),
    ],
    doc="Out = the part of X that begins at the offsets and has the given dims",
    source="Fluid crop_op.cc",
)

register_op(
    "crop_grad",
    inputs=(
        Slot("X", metadata_only=True),
        Slot("Offsets", dispensable=True, on_host=True),
        Slot("Out@GRAD"),
    ),
    outputs=grad_outputs("X"),
    attrs=_CROP_ATTRS,
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = Out@GRAD where X was kept, else 0",
)
