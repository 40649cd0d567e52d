"""sequence_reshape and lod_reset: the same elements with another LoD."""

from __future__ import annotations

from itertools import pairwise

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.expr.gradients import infer_by_forward
from fluidlite.operators.inference import Inferred
from fluidlite.operators.ragged import need_one_level
from fluidlite.operators.sequence_rows import like_x, need_lod, spec_with_lod
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Inference
from fluidlite.tensor.tensor_spec import Lod


def _infer_reshape(call: Call) -> Inferred:
    x, width = need_one_level(call, "X"), call.attr("new_dim")
    call.need(x.rank == 2, "X", "[rows, width]")
    if not x.lod or x.dims[1] < 0:
        return {"Out": spec_with_lod((-1, width), x, (), 1)}
    if any((b - a) * x.dims[1] % width for a, b in pairwise(x.lod[0])):
        call.fail_attr("new_dim", f"a divisor of the numbers of each sequence of X, {call.describe('X')}")
    offsets = tuple(a * x.dims[1] // width for a in x.lod[0])
    return {"Out": spec_with_lod((offsets[-1], width), x, (offsets,), 1)}


@operator(
    "sequence_reshape",
    Differentiation(reads=(), doc="X@GRAD = Out@GRAD in the rows of X"),
    Inference(_infer_reshape),
    inputs={"X": "[rows, width], with one level of LoD"},
    attrs=(Attr("new_dim", "int", minimum=1, doc="the width of Out"),),
    dtypes={"X": (*ALL_FLOATS, *INTS)},
    source="Fluid sequence_reshape_op.h",
    doc="Out = the numbers of each sequence of X in rows of new_dim",
)
def sequence_reshape(x: e.Tensor) -> e.Tensor:
    """Reshape; the elements keep their order."""
    return e.reshape(x, e.results("Out")[0])


def _infer_reset(call: Call) -> Inferred:
    x, target = call.spec("X"), call.attr("target_lod")
    call.need(x.rank >= 1, "X", "rows of one dim or more")
    lod: Lod | None
    slot, level = "target_lod", 1
    if call.has("Y"):
        y, slot = need_lod(call, "Y"), "Y"
        lod, level = (y.lod or None), y.lod_level
    elif call.has("TargetLod"):
        value, slot = call.value("TargetLod"), "TargetLod"
        lod = None if value is None else (tuple(map(int, value)),)
    else:
        lod = (tuple(target),)
    if call.attr("append"):
        x_is_known = bool(x.lod) or not x.lod_level
        last = x.lod[-1][-1] if x.lod else None
        level += x.lod_level
        if lod is not None and last is not None and len(lod[0]) - 1 != last:
            _fail_lod(call, slot, f"offsets of {last} sequences: the LoD of X covers as many", lod)
        lod = (*x.lod, *lod) if lod is not None and x_is_known else None
    if lod is None:
        return {"Out": spec_with_lod(x.dims, x, (), level)}
    for offsets in lod:
        if not offsets or offsets[0] != 0 or any(a > b for a, b in pairwise(offsets)):
            _fail_lod(call, slot, "offsets: they begin with 0, and never fall", lod)
    for upper, lower in pairwise(lod):
        if upper[-1] != len(lower) - 1:
            _fail_lod(call, slot, f"{upper[-1]} sequences: the level above covers as many", lod)
    if x.dims[0] >= 0 and lod[-1][-1] != x.dims[0]:
        _fail_lod(call, slot, f"offsets that end with {x.dims[0]}, the rows of X", lod)
    return {"Out": spec_with_lod(x.dims, x, lod, len(lod))}


def _fail_lod(call: Call, slot: str, expected: str, lod: Lod) -> None:
    if slot == "target_lod":
        call.fail_attr(slot, expected)
    call.fail(slot, expected, got=f"LoD {lod}")


@operator(
    "lod_reset",
    Differentiation(stop_gradient={"Y": "its LoD alone counts", "TargetLod": "it only says where sequences begin"}),
    Inference(_infer_reset),
    inputs=(
        "X",
        Slot("Y", dispensable=True, metadata_only=True, doc="its LoD is that of Out"),
        Slot("TargetLod", dispensable=True, value=True, doc="offsets of one level, where Y is left out"),
    ),
    attrs=(
        Attr("target_lod", "ints", (), doc="offsets of one level, where neither is given"),
        Attr("append", "bool", False, doc="put it under the LoD of X, instead of in its place"),
    ),
    dtypes={"X": (*ALL_FLOATS, *INTS), "TargetLod": INTS},
    source="Fluid lod_reset_op.h",
    doc="Out = X with other sequences",
)
def lod_reset(x: e.Tensor, y: e.Tensor | None, target_lod: e.Numbers | None) -> e.Tensor:
    """Copy; only the LoD changes."""
    return e.reshape(x, x.dims)


@gradient(lod_reset, Inference(infer_by_forward(like_x)), metadata=("X",), doc="X@GRAD = Out@GRAD with the LoD of X")
def lod_reset_grad(x: e.Tensor, dout: e.Tensor) -> e.Tensor:
    """Hand-written: it needs no LoD."""
    return e.reshape(e.wide(dout), x.dims)
