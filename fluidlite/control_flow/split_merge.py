"""split_lod_tensor splits rows or sequences by a mask; merge_lod_tensor merges both parts."""

from __future__ import annotations

import numpy as np

from fluidlite.base.dtypes import ALL
from fluidlite.base.errors import ShapeError
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.run_errors import raise_before_state_write
from fluidlite.control_flow.join_split import copy_rows, join_rows
from fluidlite.control_flow.rank_tables import infer_like_x, open_rows
from fluidlite.control_flow.second_gradients import grad_merge, grad_split
from fluidlite.control_flow.sequence_units import Indices, gather_rows, inverse, take_units, unit_count
from fluidlite.operators.inference import Inferred, spec_like
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, Attr, Slot
from fluidlite.program.operator import Operator
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.program.rules import GradRule
from fluidlite.tensor.lod import concatenated_lod
from fluidlite.tensor.tensor_spec import Lod, Spec


def _mask(frame: Frame, op: Operator) -> Indices:
    raise_before_state_write(frame, None)
    (tensor,) = frame.read("Mask")
    return tensor.numpy().reshape(-1).astype(bool)


def _infer_split(call: Call) -> Inferred:
    spec, level = call.spec("X"), call.attr("level")
    call.need(spec.rank > 0, "X", "rank 1 or more")
    call.need(not spec.lod_level or spec.lod_level > level, "X", f"more than {level} LoD level(s), or none")
    spec_of_part = open_rows(spec, max(spec.lod_level - level, 0))
    return {"OutTrue": spec_of_part, "OutFalse": spec_of_part}


def _rows_of(op: Operator, mask: Indices, spec: Spec) -> list[tuple[Indices, Lod]]:
    """The row indices, with LoD, where the mask is true, and where it is false."""
    lod = spec.lod[op.attrs["level"] :]
    count = unit_count(lod, spec.dims[0])
    if len(mask) != count:
        raise ShapeError(f"Mask {op.input('Mask')[0]!r} has {len(mask)} elements; expected {count}, as X has sequences")
    return [take_units(lod, np.flatnonzero(mask == side)) for side in (True, False)]


def _run_split(frame: Frame, op: Operator) -> None:
    (tensor,) = frame.read("X")
    for slot, (rows, lod) in zip(
        ("OutTrue", "OutFalse"), _rows_of(op, _mask(frame, op), tensor._required_spec()), strict=True
    ):
        if frame.output_count(slot):
            frame.write(slot, [gather_rows(frame, op, tensor, rows, lod)])


def _run_split_grad(frame: Frame, op: Operator) -> None:
    gradients = [frame.read(slot + GRAD)[0] for slot in ("OutTrue", "OutFalse")]
    spec = frame.planned("X" + GRAD)[0]
    order = np.concatenate([rows for rows, _ in _rows_of(op, _mask(frame, op), spec)])
    joined = join_rows(gradients, frame.context)
    frame.write("X" + GRAD, [gather_rows(frame, op, joined, inverse(order), spec.lod)])


def _infer_merge(call: Call) -> Inferred:
    first, second = call.spec("InTrue"), call.spec("InFalse")
    if first.dtype != second.dtype:
        call.fail_dtype("InFalse", f"{first.dtype}, that of InTrue")
    call.need(
        first.rank == second.rank and first.lod_level == second.lod_level,
        "InFalse",
        f"such as InTrue, which is {first!r}",
    )
    dims = tuple(a if a == b else -1 for a, b in zip(first.dims, second.dims, strict=True))
    above = min(call.attr("level"), call.spec("X").lod_level)
    return {"Out": open_rows(first.with_(dims=dims), first.lod_level + above)}


def _merged_rows(op: Operator, mask: Indices, specs: list[Spec]) -> tuple[Indices, Lod]:
    """The row indices, into both parts joined, in the order of the merged rows, and their LoD."""
    counts = [unit_count(spec.lod, spec.dims[0]) for spec in specs]
    expected_counts = [int(mask.sum()), int((~mask).sum())]
    if counts != expected_counts:
        raise ShapeError(
            f"InTrue and InFalse of {op} have {counts[0]} and {counts[1]} sequences; expected {expected_counts[0]} and "
            f"{expected_counts[1]}, as Mask {op.input('Mask')[0]!r} says"
        )
    units = np.empty(len(mask), np.int64)
    units[mask] = np.arange(expected_counts[0])
    units[~mask] = expected_counts[0] + np.arange(expected_counts[1])
    return take_units(concatenated_lod(spec.lod for spec in specs), units)


def _run_merge(frame: Frame, op: Operator) -> None:
    parts = [frame.read(slot)[0] for slot in ("InTrue", "InFalse")]
    dims = {tensor.dims[1:] for tensor in parts}
    if len(dims) > 1:
        raise ShapeError(f"InTrue and InFalse have dims {list(parts[0].dims)} and {list(parts[1].dims)}")
    rows, lod = _merged_rows(op, _mask(frame, op), [tensor._required_spec() for tensor in parts])
    (like_it,) = frame.read("X")
    above = like_it._required_spec().lod[: op.attrs["level"]]
    frame.write("Out", [gather_rows(frame, op, join_rows(parts, frame.context), rows, (*above, *lod))])


def _infer_merge_grad(call: Call) -> Inferred:
    return {slot + GRAD: spec_like(call.spec(slot)) for slot in ("InTrue", "InFalse") if call.has(slot + GRAD)}


def _run_merge_grad(frame: Frame, op: Operator) -> None:
    (gradient,) = frame.read("Out" + GRAD)
    tensors = [frame.read(slot)[0] for slot in ("InTrue", "InFalse")]
    rows, _ = _merged_rows(op, _mask(frame, op), [tensor._required_spec() for tensor in tensors])
    gathered, at = gather_rows(frame, op, gradient, inverse(rows)), 0
    for slot, tensor in zip(("InTrue", "InFalse"), tensors, strict=True):
        if frame.output_count(slot + GRAD):
            part = copy_rows(gathered, at, at + tensor.dims[0], frame.context)
            part.spec, part._array = frame.planned(slot + GRAD)[0], None
            frame.write(slot + GRAD, [part])
        at += tensor.dims[0]


_MASK = Slot("Mask", on_host=True, doc="bool, one element for each sequence of X (each row, if X has no LoD)")
_LEVEL_ATTR = Attr("level", "int", 0, minimum=0, doc="the LoD level of the sequences")
_SOURCE = "Fluid split_lod_tensor_op.cc, merge_lod_tensor_op.cc"
register_op(
    "split_lod_tensor",
    Differentiation(rule=GradRule("split_lod_tensor_grad", ("X", "Mask", "OutTrue" + GRAD, "OutFalse" + GRAD), ("X",))),
    Inference(_infer_split, dynamic=True),
    Execution(run=_run_split, pure=True),
    inputs=(Slot("X", run_place=True), _MASK),
    outputs=(Slot("OutTrue", run_place=True), Slot("OutFalse", run_place=True)),
    attrs=(_LEVEL_ATTR,),
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
    attrs=(_LEVEL_ATTR,),
    doc="X@GRAD is both gradients merged, each sequence in its place in X",
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
        Slot("X", run_place=True, doc="the tensor that was split"),
        _MASK,
        Slot("InTrue", run_place=True),
        Slot("InFalse", run_place=True),
    ),
    outputs=(Slot("Out", run_place=True),),
    attrs=(_LEVEL_ATTR,),
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
    attrs=(_LEVEL_ATTR,),
    doc="InTrue@GRAD is the sequences of Out@GRAD for which the mask holds, InFalse@GRAD the others",
    source=_SOURCE,
)
