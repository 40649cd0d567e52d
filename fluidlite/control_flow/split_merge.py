"""split_lod_tensor and merge_lod_tensor: rows or sequences for which a mask holds, the others, and both together."""

from __future__ import annotations

import numpy as np

from fluidlite.base.dtypes import ALL
from fluidlite.base.errors import ShapeError
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.run_errors import before_state
from fluidlite.control_flow.join_split import copied_rows, join_rows
from fluidlite.control_flow.rank_tables import infer_like_x, open_rows
from fluidlite.control_flow.second_gradients import grad_merge, grad_split
from fluidlite.control_flow.sequence_units import Indices, gather_rows, inverse, take_units, unit_count
from fluidlite.operators.inference import Inferred, like
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, Attr, Slot
from fluidlite.program.operator import Operator
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.program.rules import GradRule
from fluidlite.tensor.lod import joined_lod
from fluidlite.tensor.tensor_spec import Lod, Spec


def _mask(frame: Frame, op: Operator) -> Indices:
    before_state(frame, None)
    (tensor,) = frame.read("Mask")
    return tensor.numpy().reshape(-1).astype(bool)


def _infer_split(call: Call) -> Inferred:
    spec, level = call.spec("X"), call.attr("level")
    call.need(spec.rank > 0, "X", "rank 1 or more")
    call.need(not spec.lod_level or spec.lod_level > level, "X", f"more than {level} LoD level(s), or none")
    made = open_rows(spec, max(spec.lod_level - level, 0))
    return {"OutTrue": made, "OutFalse": made}


def _parts(op: Operator, mask: Indices, spec: Spec) -> list[tuple[Indices, Lod]]:
    """The rows for which the mask holds, and the others."""
    lod = spec.lod[op.attrs["level"] :]
    count = unit_count(lod, spec.dims[0])
    if len(mask) != count:
        raise ShapeError(f"Mask {op.input('Mask')[0]!r} has {len(mask)} elements; expected {count}, as X has sequences")
    return [take_units(lod, np.flatnonzero(mask == side)) for side in (True, False)]


def _run_split(frame: Frame, op: Operator) -> None:
    (tensor,) = frame.read("X")
    for slot, (rows, lod) in zip(("OutTrue", "OutFalse"), _parts(op, _mask(frame, op), tensor._known()), strict=True):
        if frame.wants(slot):
            frame.write(slot, [gather_rows(frame, op, tensor, rows, lod)])


def _run_split_grad(frame: Frame, op: Operator) -> None:
    given = [frame.read(slot + GRAD)[0] for slot in ("OutTrue", "OutFalse")]
    spec = frame.planned("X" + GRAD)[0]
    order = np.concatenate([rows for rows, _ in _parts(op, _mask(frame, op), spec)])
    whole = join_rows(given, frame.context)
    frame.write("X" + GRAD, [gather_rows(frame, op, whole, inverse(order), spec.lod)])


def _infer_merge(call: Call) -> Inferred:
    one, other = call.spec("InTrue"), call.spec("InFalse")
    if one.dtype != other.dtype:
        call.fail_dtype("InFalse", f"{one.dtype}, that of InTrue")
    call.need(
        one.rank == other.rank and one.lod_level == other.lod_level, "InFalse", f"such as InTrue, which is {one!r}"
    )
    dims = tuple(a if a == b else -1 for a, b in zip(one.dims, other.dims, strict=True))
    above = min(call.attr("level"), call.spec("X").lod_level)
    return {"Out": open_rows(one.with_(dims=dims), one.lod_level + above)}


def _merged(op: Operator, mask: Indices, specs: list[Spec]) -> tuple[Indices, Lod]:
    """Which rows of both, one after the other, come where."""
    counts = [unit_count(spec.lod, spec.dims[0]) for spec in specs]
    wanted = [int(mask.sum()), int((~mask).sum())]
    if counts != wanted:
        raise ShapeError(
            f"InTrue and InFalse of {op} have {counts[0]} and {counts[1]} sequences; expected {wanted[0]} and "
            f"{wanted[1]}, as Mask {op.input('Mask')[0]!r} says"
        )
    units = np.empty(len(mask), np.int64)
    units[mask] = np.arange(wanted[0])
    units[~mask] = wanted[0] + np.arange(wanted[1])
    return take_units(joined_lod(spec.lod for spec in specs), units)


def _run_merge(frame: Frame, op: Operator) -> None:
    given = [frame.read(slot)[0] for slot in ("InTrue", "InFalse")]
    dims = {tensor.dims[1:] for tensor in given}
    if len(dims) > 1:
        raise ShapeError(f"InTrue and InFalse have dims {list(given[0].dims)} and {list(given[1].dims)}")
    rows, lod = _merged(op, _mask(frame, op), [tensor._known() for tensor in given])
    (like_it,) = frame.read("X")
    above = like_it._known().lod[: op.attrs["level"]]
    frame.write("Out", [gather_rows(frame, op, join_rows(given, frame.context), rows, (*above, *lod))])


def _infer_merge_grad(call: Call) -> Inferred:
    return {slot + GRAD: like(call.spec(slot)) for slot in ("InTrue", "InFalse") if call.has(slot + GRAD)}


def _run_merge_grad(frame: Frame, op: Operator) -> None:
    (given,) = frame.read("Out" + GRAD)
    tensors = [frame.read(slot)[0] for slot in ("InTrue", "InFalse")]
    rows, _ = _merged(op, _mask(frame, op), [tensor._known() for tensor in tensors])
    whole, at = gather_rows(frame, op, given, inverse(rows)), 0
    for slot, tensor in zip(("InTrue", "InFalse"), tensors, strict=True):
        if frame.wants(slot + GRAD):
            part = copied_rows(whole, at, at + tensor.dims[0], frame.context)
            part.spec, part._array = frame.planned(slot + GRAD)[0], None
            frame.write(slot + GRAD, [part])
        at += tensor.dims[0]


_MASK = Slot("Mask", on_host=True, doc="bool, an element a sequence of X (a row, if X has no LoD)")
_LEVEL = Attr("level", "int", 0, minimum=0, doc="which LoD level the sequences are of")
_SOURCE = "Fluid split_lod_tensor_op.cc, merge_lod_tensor_op.cc"
register_op(
    "split_lod_tensor",
    Differentiation(rule=GradRule("split_lod_tensor_grad", ("X", "Mask", "OutTrue" + GRAD, "OutFalse" + GRAD), ("X",))),
    Inference(_infer_split, dynamic=True),
    Execution(run=_run_split, pure=True),
    inputs=(Slot("X", run_place=True), _MASK),
    outputs=(Slot("OutTrue", run_place=True), Slot("OutFalse", run_place=True)),
    attrs=(_LEVEL,),
    dtypes={"X": ALL, "Mask": ("bool",)},
    doc="OutTrue is the sequences of X for which the mask holds, OutFalse the others",
    source=_SOURCE,
)
register_op(
    "split_lod_tensor_grad",
    Inference(infer_like_x),
    Differentiation(rule=grad_split),
    Execution(run=_run_split_grad, pure=True),
    inputs=(
        Slot("X", metadata_only=True),
        _MASK,
        Slot("OutTrue" + GRAD, run_place=True),
        Slot("OutFalse" + GRAD, run_place=True),
    ),
    outputs=(Slot("X" + GRAD, run_place=True),),
    attrs=(_LEVEL,),
    doc="X@GRAD is both gradients, sequence by sequence where it was",
    source=_SOURCE,
)
register_op(
    "merge_lod_tensor",
    Differentiation(
        rule=GradRule("merge_lod_tensor_grad", ("Mask", "InTrue", "InFalse", "Out" + GRAD), ("InTrue", "InFalse")),
        stop_gradient={"X": "its values are not read"},
    ),
    Inference(_infer_merge, dynamic=True),
    Execution(run=_run_merge, pure=True),
    inputs=(
        Slot("X", run_place=True, doc="what was split"),
        _MASK,
        Slot("InTrue", run_place=True),
        Slot("InFalse", run_place=True),
    ),
    outputs=(Slot("Out", run_place=True),),
    attrs=(_LEVEL,),
    dtypes={"X": ALL, "InTrue": ALL, "Mask": ("bool",)},
    doc="Out is the sequences of InTrue where the mask holds, and of InFalse elsewhere, in order",
    source=_SOURCE,
)
register_op(
    "merge_lod_tensor_grad",
    Inference(_infer_merge_grad),
    Differentiation(rule=grad_merge, stop_gradient=dict.fromkeys(("InTrue", "InFalse"), "its values are not read")),
    Execution(run=_run_merge_grad, pure=True),
    inputs=(_MASK, Slot("InTrue", run_place=True), Slot("InFalse", run_place=True), Slot("Out" + GRAD, run_place=True)),
    outputs=(
        Slot("InTrue" + GRAD, dispensable=True, run_place=True),
        Slot("InFalse" + GRAD, dispensable=True, run_place=True),
    ),
    attrs=(_LEVEL,),
    doc="InTrue@GRAD is the sequences of Out@GRAD for which the mask holds, InFalse@GRAD the others",
    source=_SOURCE,
)
