"""Rank tables: sequences sorted by length, the longest first, and the operators that use this order.

A table is int64 [sequences, 2] on the host, with the index and the length of each sequence. Its LoD has the levels
above that of its sequences, so the number of these levels is the level of the sequences.
"""

from __future__ import annotations

import numpy as np

from fluidlite.base.dtypes import ALL
from fluidlite.base.errors import ShapeError
from fluidlite.compiler.frame import Frame
from fluidlite.control_flow.bodies import empty, zeros
from fluidlite.control_flow.join_split import rows_of
from fluidlite.control_flow.second_gradients import forward_as_gradient, grad_shrink
from fluidlite.control_flow.sequence_units import Indices, gather_rows, inverse, take_units, unit_count
from fluidlite.control_flow.tensor_arrays import INTEGERS, index_slot, read_index
from fluidlite.operators.inference import Inferred, spec_like
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, Attr, Slot
from fluidlite.program.operator import Operator
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.program.rules import GradRule
from fluidlite.tensor import transfer
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Lod, Spec


class RankTable:
    """The contents of a table.

    ``order``: the indices of the sequences, the longest first.
    ``lengths``: their lengths, in that order.
    ``above``: the levels above that of the sequences.
    """

    def __init__(self, tensor: Tensor) -> None:
        numbers = tensor.numpy()
        self.order: Indices = numbers[:, 0].copy()
        self.lengths: Indices = numbers[:, 1].copy()
        self.above: Lod = tensor._required_spec().lod

    @property
    def level(self) -> int:
        """The LoD level of its sequences."""
        return len(self.above)

    @property
    def longest(self) -> int:
        """The length of the longest sequence; 0 if there is none."""
        return int(self.lengths[0]) if len(self.lengths) else 0

    def active(self, step: int) -> int:
        """The number of sequences longer than ``step``."""
        return int((self.lengths > step).sum())


def table_slot() -> Slot:
    return Slot("RankTable", on_host=True, doc="an output of lod_rank_table")


TABLE_TYPE = {"RankTable": ("int64",)}
"""The dtypes of the table, for operators that read one."""


def read_table(frame: Frame) -> RankTable:
    (tensor,) = frame.read("RankTable")
    return RankTable(tensor)


def check_count(op: Operator, count: int, table: RankTable) -> None:
    if count != len(table.order):
        raise ShapeError(f"X {op.input('X')[0]!r} has {count} sequences; expected {len(table.order)}, as RankTable has")


def open_rows(spec: Spec, lod_level: int | None = None) -> Spec:
    """The spec with an open number of rows."""
    level = spec.lod_level if lod_level is None else lod_level
    return Spec.of((-1, *spec.dims[1:]), spec.dtype, lod_level=level)


# The table


def _infer_table(call: Call) -> Inferred:
    spec, level = call.spec("X"), call.attr("level")
    do = "data(..., lod_level=1), and feed a LoD tensor"
    call.need(spec.lod_level > level, "X", f"sequences of more than {level} LoD level(s)", do)
    count = len(spec.lod[level]) - 1 if spec.lod else -1
    return {"Out": Spec.of((count, 2), "int64", lod=spec.lod[:level], lod_level=level)}


def _run_table(frame: Frame, op: Operator) -> None:
    (tensor,) = frame.read("X")
    lod, level = tensor._required_spec().lod, op.attrs["level"]
    lengths = np.diff(np.asarray(lod[level], np.int64))
    order = np.argsort(-lengths, kind="stable")
    frame.write("Out", [Tensor().set(np.stack([order, lengths[order]], axis=1), lod=lod[:level] or None)])


def _run_longest(frame: Frame, op: Operator) -> None:
    frame.write("Out", [Tensor().set(np.array([read_table(frame).longest], np.int64), frame.place)])


# Reordering


def _infer_reorder(call: Call) -> Inferred:
    spec = call.spec("X")
    call.need(spec.rank > 0, "X", "rank 1 or more")
    return {"Out": open_rows(spec)}


def _reorder(op: Operator, table: RankTable, spec: Spec) -> tuple[Indices, Lod]:
    check_count(op, unit_count(spec.lod, spec.dims[0]), table)
    return take_units(spec.lod, table.order)


def _run_reorder(frame: Frame, op: Operator) -> None:
    (tensor,) = frame.read("X")
    rows, lod = _reorder(op, read_table(frame), tensor._required_spec())
    frame.write("Out", [gather_rows(frame, op, tensor, rows, lod)])


def infer_like_x(call: Call) -> Inferred:
    """The gradient of X has the dims and the LoD of X."""
    return {"X" + GRAD: spec_like(call.spec("X"))}


def _run_reorder_grad(frame: Frame, op: Operator) -> None:
    (gradient,) = frame.read("Out" + GRAD)
    spec = frame.planned("X" + GRAD)[0]
    rows, _ = _reorder(op, read_table(frame), spec)
    frame.write("X" + GRAD, [gather_rows(frame, op, gradient, inverse(rows), spec.lod)])


# States of sequences, without those that have ended


def _run_shrink(frame: Frame, op: Operator) -> None:
    (tensor,) = frame.read("X")
    spec, active = tensor._required_spec(), read_table(frame).active(read_index(frame, op))
    count = unit_count(spec.lod, spec.dims[0])
    if active > count:
        raise ShapeError(
            f"X {op.input('X')[0]!r} has {count} sequences; {active} of RankTable have a step {read_index(frame, op)}"
        )
    rows, lod = take_units(spec.lod, range(active))
    shrunk = empty(spec.with_(dims=(len(rows), *spec.dims[1:]), lod=lod), frame.context)
    if shrunk._required_spec().size:
        transfer.transfer(rows_of(tensor, 0, len(rows)), frame.context, into=shrunk)
    frame.write("Out", [shrunk])


def _run_shrink_grad(frame: Frame, op: Operator) -> None:
    (gradient,) = frame.read("Out" + GRAD)
    out = zeros(frame.planned("X" + GRAD)[0].with_(lod=()), frame.context)
    if gradient._required_spec().size:
        transfer.transfer(rows_of(gradient, 0, gradient.dims[0]), frame.context, into=rows_of(out, 0, gradient.dims[0]))
    out.spec = frame.planned("X" + GRAD)[0]
    frame.write("X" + GRAD, [out])


# Declarations


register_op(
    "lod_rank_table",
    Differentiation(stop_gradient={"X": "lengths do not depend on values"}),
    Inference(_infer_table),
    Execution(run=_run_table, pure=True),
    inputs=(Slot("X", run_place=True, doc="sequences"),),
    outputs=(Slot("Out", on_host=True, doc="int64 [sequences, 2]: index and length, the longest first"),),
    attrs=(Attr("level", "int", 0, minimum=0, doc="the LoD level of the sequences"),),
    doc="Out is the sequences of X sorted by length; the sort is stable",
    source="Fluid lod_rank_table_op.cc",
)
register_op(
    "max_sequence_len",
    Inference(lambda call: {"Out": Spec.of((1,), "int64")}),
    Execution(run=_run_longest, pure=True),
    inputs=(table_slot(),),
    outputs=(Slot("Out", run_place=True),),
    dtypes=TABLE_TYPE,
    doc="Out = [the length of the longest sequence]",
    source="Fluid max_sequence_len_op.cc",
)
register_op(
    "reorder_lod_tensor_by_rank",
    Differentiation(rule=GradRule("reorder_lod_tensor_by_rank_grad", ("X", "RankTable", "Out" + GRAD), ("X",))),
    Inference(_infer_reorder, dynamic=True),
    Execution(run=_run_reorder, pure=True),
    inputs=(Slot("X", run_place=True, doc="as many sequences, or rows, as the table has"), table_slot()),
    outputs=(Slot("Out", run_place=True),),
    dtypes={"X": ALL, **TABLE_TYPE},
    doc="Out is the sequences of X in the order of the table",
    source="Fluid reorder_lod_tensor_by_rank_op.cc",
)
register_op(
    "reorder_lod_tensor_by_rank_grad",
    Inference(infer_like_x),
    Differentiation(rule=forward_as_gradient("reorder_lod_tensor_by_rank", ("RankTable",))),
    Execution(run=_run_reorder_grad, pure=True),
    inputs=(Slot("X", metadata_only=True), table_slot(), Slot("Out" + GRAD, run_place=True)),
    outputs=(Slot("X" + GRAD, run_place=True),),
    doc="X@GRAD is Out@GRAD, in the order of X",
    source="Fluid reorder_lod_tensor_by_rank_op.cc",
)
register_op(
    "shrink_rnn_memory",
    Differentiation(rule=GradRule("shrink_rnn_memory_grad", ("X", "Out" + GRAD), ("X",))),
    Inference(_infer_reorder, dynamic=True),
    Execution(run=_run_shrink, pure=True),
    inputs=(
        Slot("X", run_place=True, doc="a state of sequences in the order of the table"),
        table_slot(),
        index_slot("the number of a step"),
    ),
    outputs=(Slot("Out", run_place=True),),
    dtypes={"X": ALL, "I": INTEGERS, **TABLE_TYPE},
    doc="Out is the sequences of X that have a step I",
    source="Fluid shrink_rnn_memory_op.cc",
)
register_op(
    "shrink_rnn_memory_grad",
    Inference(infer_like_x),
    Differentiation(rule=grad_shrink),
    Execution(run=_run_shrink_grad, pure=True),
    inputs=(Slot("X", metadata_only=True), Slot("Out" + GRAD, run_place=True)),
    outputs=(Slot("X" + GRAD, run_place=True),),
    doc="X@GRAD is Out@GRAD, and 0 for sequences that have ended",
    source="Fluid shrink_rnn_memory_op.cc",
)
