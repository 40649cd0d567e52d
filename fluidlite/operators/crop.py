"""A block of a tensor: crop, crop_tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from fluidlite.base.dtypes import ALL, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Dims, Spec
from fluidlite.operators.inference import Inferred, grad_like, grad_outputs
from fluidlite.operators.math.numbers import Number, numbers_of
from fluidlite.operators.samples import EVERY, WIDE, ints, rand, stated


def _for_each_dim(call: Call, attr: str, slots: Sequence[str], found: Sequence[Number] | None) -> Sequence[Number]:
    """Return a number for each dim of X, or raise."""
    rank = call.spec("X").rank
    if found is None:
        return (None,) * rank
    if len(found) != rank:
        expected = f"{rank} numbers, one for each dim of X ({call.shown('X')})"
        for slot in slots:
            if call.has(slot):
                call.fail(slot, expected)
        call.fail_attr(attr, expected)
    return found


def _block(call: Call, offsets: Sequence[Number], shape: Sequence[Number], tensors: Sequence[str]) -> Dims:
    """Return the dims of the block, which must lie in X."""

    def refuse(i: int, at_least: int, expected: str) -> NoReturn:
        for slot in tensors:
            if call.has(slot):
                call.fail(slot, f"{expected} for dim {i}", offsets)
        call.fail("X", f"{at_least} elements or more in dim {i}, from {offsets[i]} on")

    dims = []
    for i, (n, start, d) in enumerate(zip(call.dims("X"), offsets, shape, strict=True)):
        if start is not None and (start < 0 or 0 <= n < start):
            refuse(i, 0, f"0 to {n}" if n >= 0 else "0 or more")
        if d is None or (d < 0 and (n < 0 or start is None)):
            dims.append(-1)
            continue
        size = d if d >= 0 else n - (start or 0)
        if 0 <= n < size:
            call.fail("X", f"{size} elements or more in dim {i}")
        if n >= 0 and start is not None and start + size > n:
            refuse(i, size, f"0 to {n - size}, so that {size} of {n} elements follow,")
        dims.append(size)
    return tuple(dims)


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = inputs["X"]
    offsets = stated(inputs, attrs, "offsets", "OffsetsTensor", "Offsets")
    shape = inputs["Y"].shape if "Y" in inputs else stated(inputs, attrs, "shape", "ShapeTensor", "Shape")
    for axis, (start, length) in enumerate(zip(offsets, shape, strict=True)):
        stop = x.shape[axis] if length < 0 else start + length
        x = np.moveaxis(np.moveaxis(x, axis, 0)[start:stop], 0, axis)
    return {"Out": x}


# crop --------------------------------------------------------------------------------------------------------------

_CROP_ATTRS = (
    Attr("offsets", "ints", (), minimum=0, doc="where the crop begins in each dim of X, unless Offsets is given"),
    Attr("shape", "ints", (), minimum=-1, doc="dims of Out, unless Y is given; -1: all from the offset on"),
)
_OFFSETS = Slot("Offsets", dispensable=True, value=True, doc="the offsets, as a tensor")


def _infer_crop(call: Call) -> Inferred:
    offsets = _for_each_dim(call, "offsets", ("Offsets",), numbers_of(call, "offsets", "Offsets"))
    shape: Sequence[int] = call.dims("Y") if call.has("Y") else call.attr("shape")
    if len(shape) != call.spec("X").rank:
        if call.has("Y"):
            call.fail("Y", f"rank {call.spec('X').rank}, as X")
        call.fail_attr("shape", f"{call.spec('X').rank} dims, as X ({call.shown('X')}) has")
    wanted: Sequence[Number] = [None if d < 0 else d for d in shape] if call.has("Y") else shape
    return {"Out": Spec.of(_block(call, offsets, wanted, ("Offsets",)), call.dtype("X"))}


register_op(
    "crop",
    inputs=("X", Slot("Y", dispensable=True, metadata_only=True, doc="Out gets its dims"), _OFFSETS),
    outputs=("Out",),
    attrs=_CROP_ATTRS,
    infer=_infer_crop,
    grad=GradRule("crop_grad", ("X", "Offsets", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL, "Offsets": INTS},
    reference=_reference,
    samples=lambda: [
        Sample({"X": rand(5, 6)}, {"offsets": [1, 2], "shape": [3, 2]}, ("X",), name="matrix", dtypes=EVERY),
        Sample({"X": rand(4, 5, 3)}, {"offsets": [1, 0, 2], "shape": [2, 5, 1]}, ("X",), name="rank3", dtypes=WIDE),
        Sample({"X": rand(4, 5)}, {"offsets": [0, 1], "shape": [-1, 3]}, ("X",), name="remainder"),
        Sample({"X": rand(5, 6), "Y": rand(2, 3)}, {"offsets": [2, 3]}, ("X",), name="like_y"),
        Sample(
            {"X": rand(5, 6), "Offsets": np.asarray([1, 2], "int32")}, {"shape": [3, 2]}, ("X",), name="offsets_tensor"
        ),
        Sample({"X": rand(5), "Y": rand(2), "Offsets": np.asarray([3], "int32")}, {}, ("X",), name="both_tensors"),
        Sample({"X": rand(4, 5), "Offsets": np.asarray([0, 2])}, {"shape": [3, -1]}, ("X",), name="offsets_and_rest"),
        Sample({"X": rand(4, 5), "Offsets": np.asarray([0, 0])}, {"shape": [4, 2]}, ("X",), name="offsets_zero"),
        Sample({"X": rand(4, 5), "Offsets": np.asarray([1, 3])}, {"shape": [3, 2]}, ("X",), name="offsets_tensor_end"),
        Sample({"X": ints(6)}, {"offsets": [2], "shape": [3]}, name="int64", dtypes=("int64",)),
        Sample({"X": rand(0, 6)}, {"offsets": [0, 2], "shape": [0, 3]}, name="empty"),
    ],
    doc="Out = the part of X that begins at the offsets and has the given dims",
    source="Fluid crop_op.cc",
)

register_op(
    "crop_grad",
    inputs=(Slot("X", metadata_only=True), _OFFSETS, Slot("Out@GRAD")),
    outputs=grad_outputs("X"),
    attrs=_CROP_ATTRS,
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = Out@GRAD where X was kept, else 0",
)

# crop_tensor -------------------------------------------------------------------------------------------------------

_ATTRS = (
    Attr("offsets", "ints", (), minimum=-1, doc="where the crop begins in each dim of X, unless a tensor says it"),
    Attr("shape", "ints", (), minimum=-1, doc="dims of Out, unless a tensor says them; -1: all from the offset on"),
)
_OFFSET_SLOTS = (
    _OFFSETS,
    Slot("OffsetsTensor", duplicable=True, dispensable=True, value=True, doc="the offsets, a tensor each"),
)


def _infer_crop_tensor(call: Call) -> Inferred:
    at, of = ("OffsetsTensor", "Offsets"), ("ShapeTensor", "Shape")
    offsets = _for_each_dim(call, "offsets", at, numbers_of(call, "offsets", *at))
    shape = _for_each_dim(call, "shape", of, numbers_of(call, "shape", *of))
    for i, (d, n) in enumerate(zip(shape, call.dims("X"), strict=True)):
        if d is not None and (d < -1 or (d == 0 and n > 0)):
            slot = next((slot for slot in of if call.has(slot)), None)
            if slot is None:
                call.fail_attr("shape", f"-1, or 1 or more, for dim {i}")
            call.fail(slot, f"-1, or 1 or more, for dim {i}", shape)
    return {"Out": Spec.of(_block(call, offsets, shape, at), call.dtype("X"))}


register_op(
    "crop_tensor",
    inputs=(
        "X",
        Slot("Shape", dispensable=True, value=True, doc="dims of Out, as a tensor"),
        Slot("ShapeTensor", duplicable=True, dispensable=True, value=True, doc="dims of Out, a tensor each"),
        *_OFFSET_SLOTS,
    ),
    outputs=("Out",),
    attrs=_ATTRS,
    infer=_infer_crop_tensor,
    grad=GradRule("crop_tensor_grad", ("X", "Offsets", "OffsetsTensor", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL, **dict.fromkeys(("Shape", "ShapeTensor", "Offsets", "OffsetsTensor"), INTS)},
    reference=_reference,
    samples=lambda: [
        Sample({"X": rand(5, 6)}, {"offsets": [1, 2], "shape": [3, 2]}, ("X",), name="matrix", dtypes=EVERY),
        Sample({"X": rand(4, 5, 3)}, {"offsets": [1, 0, 2], "shape": [2, -1, 1]}, ("X",), name="rest", dtypes=WIDE),
        Sample({"X": rand(4, 5), "Shape": np.asarray([2, -1], "int32")}, {"offsets": [0, 3]}, ("X",), name="shape"),
        Sample(
            {"X": rand(4, 5), "ShapeTensor": [np.asarray([2], "int32"), np.asarray([3], "int64")]},
            {"offsets": [1, 2], "shape": [-1, -1]}, ("X",), name="shapes",
        ),
        Sample({"X": rand(4, 5), "Offsets": np.asarray([1, 2], "int32")}, {"shape": [2, 2]}, ("X",), name="offsets"),
        Sample(
            {"X": rand(4, 5), "OffsetsTensor": [np.asarray([2], "int32"), np.asarray([0], "int32")]},
            {"offsets": [-1, -1], "shape": [2, -1]}, ("X",), name="each_offset",
        ),
        Sample({"X": ints(6)}, {"offsets": [2], "shape": [3]}, name="int64", dtypes=("int64",)),
        Sample({"X": rand(0, 6)}, {"offsets": [0, 2], "shape": [-1, 3]}, name="empty"),
    ],
    doc="Out = the part of X that begins at the offsets and has the given dims",
    source="Fluid crop_tensor_op.cc",
)  # fmt: skip

register_op(
    "crop_tensor_grad",
    inputs=(Slot("X", metadata_only=True), *_OFFSET_SLOTS, Slot("Out@GRAD")),
    outputs=grad_outputs("X"),
    attrs=_ATTRS,
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = Out@GRAD where X was kept, else 0",
)
