"""lod_tensor_to_array splits sequences into an array of steps; array_to_lod_tensor joins the steps again."""

from __future__ import annotations

import numpy as np

from fluidlite.base.dtypes import ALL
from fluidlite.base.errors import OutOfRangeError, ShapeError
from fluidlite.compiler.frame import Frame
from fluidlite.control_flow.bodies import zeros
from fluidlite.control_flow.join_split import copy_rows, join_rows
from fluidlite.control_flow.rank_tables import TABLE_TYPE, RankTable, check_count, infer_like_x, read_table, table_slot
from fluidlite.control_flow.second_gradients import array_forward_as_gradient, forward_as_gradient
from fluidlite.control_flow.sequence_units import Indices, gather_rows, inverse, take_units, unit_count
from fluidlite.control_flow.tensor_arrays import array_slot, index_error, read_array
from fluidlite.operators.inference import Inferred
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, Slot
from fluidlite.program.operator import Operator
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.program.rules import GradRule
from fluidlite.tensor.lod import concatenated_lod
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray, array_spec
from fluidlite.tensor.tensor_spec import Lod, Spec

StepSizes = list[tuple[int, Lod]]
"""The number of rows of each step, and their LoD."""


def _steps(op: Operator, table: RankTable, spec: Spec) -> tuple[Indices, StepSizes]:
    """The row indices of sequences in step order, and the rows and LoD of each step."""
    level = table.level
    if len(spec.lod) <= level:
        raise ShapeError(f"X {op.input('X')[0]!r} is {spec!r}; expected more than {level} LoD level(s)")
    offsets = np.asarray(spec.lod[level], np.int64)
    check_count(op, len(offsets) - 1, table)
    if (np.diff(offsets)[table.order] != table.lengths).any():
        raise ShapeError(f"X {op.input('X')[0]!r} has sequences of other lengths than those that RankTable was made of")
    begins, step_rows, steps = offsets[table.order], [np.zeros(0, np.int64)], []
    for step in range(table.longest):
        rows, lod = take_units(spec.lod[level + 1 :], begins[: table.active(step)] + step)
        step_rows.append(rows)
        steps.append((len(rows), lod))
    return np.concatenate(step_rows), steps


def _infer_to_array(call: Call) -> Inferred:
    spec, level = call.spec("X"), call.spec("RankTable").lod_level
    call.need(spec.lod_level > level, "X", f"sequences of more than {level} LoD level(s)")
    return {"Out": array_spec(spec.dtype, (-1, *spec.dims[1:]), spec.lod_level - level - 1)}


def _array_of_steps(frame: Frame, tensor: Tensor, steps: StepSizes) -> TensorArray:
    array, at = TensorArray(tensor.dtype, frame.place), 0
    for number, (count, lod) in enumerate(steps):
        part = copy_rows(tensor, at, at + count, frame.context)
        part.spec, part._array = part._required_spec().with_(lod=lod), None
        array, at = array.with_element(number, part), at + count
    return array


def _run_to_array(frame: Frame, op: Operator) -> None:
    (tensor,) = frame.read("X")
    rows, steps = _steps(op, read_table(frame), tensor._required_spec())
    frame.write("Out", [_array_of_steps(frame, gather_rows(frame, op, tensor, rows), steps)])


def _run_to_array_grad(frame: Frame, op: Operator) -> None:
    array, spec = read_array(frame, "Out" + GRAD), frame.planned("X" + GRAD)[0]
    rows, steps = _steps(op, read_table(frame), spec)
    context, parts = frame.context, []
    for number, (count, _) in enumerate(steps):
        part = array.element(number) if number < len(array) else None
        dims = (count, *spec.dims[1:])
        if part is not None and part.dims != dims:
            raise ShapeError(f"the gradient of step {number} has dims {list(part.dims)}; expected {list(dims)}")
        parts.append(part if part is not None else zeros(Spec.of(dims, spec.dtype), context))
    joined = join_rows(parts, context) if parts else zeros(spec.with_(lod=()), context)
    frame.write("X" + GRAD, [gather_rows(frame, op, joined, inverse(rows), spec.lod)])


def _sequence_order(op: Operator, table: RankTable, array: TensorArray) -> tuple[Indices, Lod, list[Tensor]]:
    """The order of rows of an array's steps as sequences, their LoD there, and the steps."""
    try:
        parts = array.present()
    except OutOfRangeError as exc:
        raise index_error(op, exc, "X") from None
    name = op.input("X")[0]
    if len(parts) != table.longest:
        raise ShapeError(
            f"X {name!r} has {len(parts)} steps; expected {table.longest}, as the longest of RankTable has"
        )
    counts = [table.active(step) for step in range(len(parts))]
    for step, (part, count) in enumerate(zip(parts, counts, strict=True)):
        actual = unit_count(part._required_spec().lod, part.dims[0])
        if actual != count:
            raise ShapeError(f"step {step} of X {name!r} has {actual} sequences; {count} of RankTable have such a step")
    begins = np.cumsum([0, *counts])
    rank = inverse(table.order)
    units = [begins[: table.lengths[place]] + place for place in rank]
    step_units = np.concatenate(units) if units else np.zeros(0, np.int64)
    rows, lod = take_units(concatenated_lod(part._required_spec().lod for part in parts), step_units)
    offsets = tuple(np.cumsum([0, *table.lengths[rank]]).tolist())
    return rows, (*table.above, offsets, *lod), parts


def _infer_to_sequences(call: Call) -> Inferred:
    array, table = call.spec("X"), call.spec("RankTable")
    if not array.dims:
        call.fail("X", "an array to which something was written")
    return {"Out": Spec.of((-1, *array.dims[1:]), array.dtype, lod_level=table.lod_level + 1 + array.lod_level)}


def _run_to_sequences(frame: Frame, op: Operator) -> None:
    rows, lod, parts = _sequence_order(op, read_table(frame), read_array(frame, "X"))
    spec = frame.planned("Out")[0]
    lod = (*lod, *((0,),) * (spec.lod_level - len(lod)))  # no step: the levels of steps have no sequence
    if parts:
        joined = join_rows(parts, frame.context)
    elif all(d >= 0 for d in spec.dims[1:]):
        joined = zeros(Spec.of((0, *spec.dims[1:]), spec.dtype), frame.context)
    else:
        raise ShapeError(f"X {op.input('X')[0]!r} has no step, and the dims of a row are not known: {list(spec.dims)}")
    frame.write("Out", [gather_rows(frame, op, joined, rows, lod)])


def _run_to_sequences_grad(frame: Frame, op: Operator) -> None:
    (gradient,) = frame.read("Out" + GRAD)
    rows, _, parts = _sequence_order(op, read_table(frame), read_array(frame, "X"))
    steps = [(part.dims[0], part._required_spec().lod) for part in parts]
    frame.write("X" + GRAD, [_array_of_steps(frame, gather_rows(frame, op, gradient, inverse(rows)), steps)])


register_op(
    "lod_tensor_to_array",
    Differentiation(rule=GradRule("lod_tensor_to_array_grad", ("X", "RankTable", "Out" + GRAD), ("X",))),
    Inference(_infer_to_array),
    Execution(run=_run_to_array, pure=True),
    inputs=(Slot("X", run_place=True, doc="sequences"), table_slot()),
    outputs=(array_slot("Out", "element t is step t of the sequences that have one, in the table's order"),),
    dtypes={"X": ALL, **TABLE_TYPE},
    doc="Out is the steps of the sequences of X: rows, or sequences of the next level",
    source="Fluid lod_tensor_to_array_op.cc",
)
register_op(
    "lod_tensor_to_array_grad",
    Inference(infer_like_x),
    Differentiation(rule=forward_as_gradient("lod_tensor_to_array", ("RankTable",))),
    Execution(run=_run_to_array_grad, pure=True),
    inputs=(Slot("X", metadata_only=True), table_slot(), array_slot("Out" + GRAD, "gradients of steps")),
    outputs=(Slot("X" + GRAD, run_place=True),),
    doc="X@GRAD is the steps of Out@GRAD as sequences",
    source="Fluid lod_tensor_to_array_op.cc",
)
register_op(
    "array_to_lod_tensor",
    Differentiation(rule=GradRule("array_to_lod_tensor_grad", ("X", "RankTable", "Out" + GRAD), ("X",))),
    Inference(_infer_to_sequences, dynamic=True),
    Execution(run=_run_to_sequences, pure=True),
    inputs=(array_slot("X", "steps of sequences, in the table's order"), table_slot()),
    outputs=(Slot("Out", run_place=True),),
    dtypes=TABLE_TYPE,
    doc="Out is the sequences whose steps X holds, in the order that they had before the table",
    source="Fluid array_to_lod_tensor_op.cc",
)
register_op(
    "array_to_lod_tensor_grad",
    Inference(lambda call: {"X" + GRAD: call.spec("X")}),
    Differentiation(
        rule=array_forward_as_gradient("array_to_lod_tensor", ("X", "RankTable")),
        stop_gradient={"X": "its values are not read"},
    ),
    Execution(run=_run_to_sequences_grad, pure=True),
    inputs=(array_slot("X", "the steps"), table_slot(), Slot("Out" + GRAD, run_place=True)),
    outputs=(array_slot("X" + GRAD, "their gradients"),),
    doc="X@GRAD is the steps of Out@GRAD",
    source="Fluid array_to_lod_tensor_op.cc",
)
