"""Crop a block out of a tensor: crop, crop_tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL
from fluidlite.expr.declare import gradient, operator
from fluidlite.expr.derivatives import derivatives
from fluidlite.geometry.numbers import OptionalInt, numbers_of
from fluidlite.operators.inference import Inferred, grad_like
from fluidlite.program.op_call import Call, slot_of_attribute
from fluidlite.program.opdef import Attr, Slot, as_tensor, as_tensors
from fluidlite.program.operator_options import Inference
from fluidlite.tensor.tensor_spec import Dims, Spec


def _numbers_per_dim(call: Call, attr: str) -> Sequence[OptionalInt]:
    """Return one number for each dim of X; None where it is unknown."""
    rank, numbers = call.spec("X").rank, numbers_of(call, attr)
    if numbers is None:
        return (None,) * rank
    if len(numbers) != rank:
        call.fail_attr(attr, f"{rank} numbers, one for each dim of X ({call.describe('X')})")
    return numbers


def _block_dims(call: Call, shape: Sequence[OptionalInt]) -> Dims:
    """Return the dims of the block; refuse one that is not within X."""
    offsets = _numbers_per_dim(call, "offsets")

    def refuse(i: int, at_least: int, expected: str) -> NoReturn:
        if slot_of_attribute(call, "offsets"):
            call.fail_attr("offsets", f"{expected} for dim {i}")
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


# crop --------------------------------------------------------------------------------------------------------------

_CROP_ATTRS = (
    Attr(
        "offsets",
        "ints",
        (),
        minimum=0,
        doc="where the crop begins in each dim of X, unless Offsets is given",
        tensors=(as_tensor("Offsets"),),
    ),
    Attr("shape", "ints", (), minimum=-1, doc="dims of Out, unless Y is given; -1: all from the offset on"),
)


def _infer_crop(call: Call) -> Inferred:
    shape: Sequence[int] = call.dims("Y") if call.has("Y") else call.attr("shape")
    if len(shape) != call.spec("X").rank:
        if call.has("Y"):
            call.fail("Y", f"rank {call.spec('X').rank}, as X")
        call.fail_attr("shape", f"{call.spec('X').rank} dims, as X ({call.describe('X')}) has")
    requested: Sequence[OptionalInt] = [None if d < 0 else d for d in shape] if call.has("Y") else shape
    return {"Out": Spec.of(_block_dims(call, requested), call.dtype("X"))}


@operator(
    "crop",
    Inference(_infer_crop),
    inputs=["X", Slot("Y", dispensable=True, metadata_only=True, doc="its dims are those of Out")],
    attrs=_CROP_ATTRS,
    dtypes={"X": ALL},
    doc="Out = the part of X that begins at the offsets and has the given dims",
    source="Fluid crop_op.cc",
)
def crop(x: e.Tensor, y: Any, *, offsets: Sequence[e.Numeric]) -> e.Tensor:
    """Slice the dims that inference has computed."""
    return e.slices(x, offsets, e.results("Out")[0])


def _crop_grad(x: e.Tensor, dout: e.Tensor, *, offsets: Sequence[e.Numeric]) -> Any:
    """Hand-written: it takes the dims from Out@GRAD, so that Y is not read."""
    return derivatives([e.slices(x, offsets, dout.dims)], [dout], [x])[0]


_GRAD_DOC = "X@GRAD = Out@GRAD inside the block, else 0"
gradient(crop, Inference(grad_like("X")), metadata=("X",), doc=_GRAD_DOC)(_crop_grad)

# crop_tensor -------------------------------------------------------------------------------------------------------

_ATTRS = (
    Attr(
        "offsets",
        "ints",
        (),
        minimum=-1,
        doc="where the crop begins in each dim of X, unless a tensor gives it",
        tensors=(as_tensors("OffsetsTensor"), as_tensor("Offsets")),
    ),
    Attr(
        "shape",
        "ints",
        (),
        minimum=-1,
        doc="dims of Out, unless a tensor gives them; -1: all from the offset on",
        tensors=(as_tensors("ShapeTensor"), as_tensor("Shape")),
    ),
)


def _infer_crop_tensor(call: Call) -> Inferred:
    shape = _numbers_per_dim(call, "shape")
    for i, (d, n) in enumerate(zip(shape, call.dims("X"), strict=True)):
        if d is not None and (d < -1 or (d == 0 and n > 0)):
            call.fail_attr("shape", f"-1, or 1 or more, for dim {i}")
    return {"Out": Spec.of(_block_dims(call, shape), call.dtype("X"))}


@operator(
    "crop_tensor",
    Inference(_infer_crop_tensor),
    attrs=_ATTRS,
    dtypes={"X": ALL},
    doc="Out = the part of X that begins at the offsets and has the given dims",
    source="Fluid crop_tensor_op.cc",
)
def crop_tensor(x: e.Tensor, *, offsets: Sequence[e.Numeric]) -> e.Tensor:
    """Slice the dims that inference has computed."""
    return e.slices(x, offsets, e.results("Out")[0])


gradient(crop_tensor, Inference(grad_like("X")), metadata=("X",), doc=_GRAD_DOC)(_crop_grad)
