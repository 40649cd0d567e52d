"""Gradients that are rows of a table: members gather those of all, however many each has."""

from __future__ import annotations

from typing import Any

from fluidlite.program.block import Block
from fluidlite.program.operator import Operator
from fluidlite.program.variable import Variable


def gather_rows(block: Block, values: Variable, after: Operator, members: int) -> None:
    """Let what stands behind backward read the rows of all members.

    A gathering takes equally many of each, so that a member fills up to the most that one has with zeros, for a row
    that it has anyway: only rows that some member has are updated, as in one process.

    ``values``: a gradient that is sparse rows.
    ``after``: what makes it.
    """
    assert values.selected is not None
    rows = values.selected.rows
    at = block.ops.index(after) + 1

    def add(type: str, inputs: dict[str, Any], attrs: dict[str, Any] | None = None) -> str:
        nonlocal at
        out = block.create_temporary(prefix="data_parallel", stop_gradient=True).name
        block._insert(at, type, inputs, {"Out": [out]}, attrs or {}, role="backward")
        at += 1
        return out

    def number(value: int, dtype: str) -> str:
        return add("fill_constant", {}, {"shape": [1], "value": float(value), "dtype": dtype})

    count = add("shape", {"Input": [rows]})
    most = add("c_allreduce_max", {"X": [count]}, {"use_calc_stream": True})
    most = add("elementwise_max", {"X": [most], "Y": [number(1, "int32")]})
    steps = add("range", {"Start": [number(0, "int32")], "End": [most], "Step": [number(1, "int32")]})
    index = add("elementwise_min", {"X": [steps], "Y": [count]})  # the number of rows: what stands behind them
    first = add("slice", {"Input": [rows]}, {"axes": [0], "starts": [0], "ends": [1]})
    gather = {"nranks": members, "use_calc_stream": True}
    found = []
    for name in (
        add("concat", {"X": [rows, first, number(0, "int64")]}, {"axis": 0}),
        add("pad", {"X": [values.name]}, {"paddings": [0, 2, 0, 0], "pad_value": 0.0}),
    ):
        found.append(add("c_allgather", {"X": [add("gather", {"X": [name], "Index": [index]})]}, gather))
    for op in block.ops[at:]:
        if op.role != "backward":
            op.rename_input(rows, found[0])
            op.rename_input(values.name, found[1])
