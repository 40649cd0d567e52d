"""Sparse gradients, rows of a table: those of lookups with ``is_sparse``, and sums of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fluidlite.program.block import Block
from fluidlite.program.operator import Operator
from fluidlite.program.variable import Parameter
from fluidlite.program.variable_metadata import ROWS, SelectedRowsOf

if TYPE_CHECKING:
    from fluidlite.program.backward import Backward
    from fluidlite.program.gradient_parts import GradientParts


def sum_with_rows(gradients: GradientParts, name: str, parts: Sequence[str]) -> str:
    """Append the sum of gradients of which some are rows: concatenated rows, or a dense tensor if one is dense."""
    block = gradients.block
    parts_with_rows = [(part, block.vars[part].selected) for part in parts]
    rows = [selected for _, selected in parts_with_rows if selected is not None]
    if len(rows) == len(parts_with_rows):
        target = block.create_var(gradients.base(name))
        row_numbers = block.create_var(_rows_name(block, target.name), stop_gradient=True)
        row_names = [selected.rows for selected in rows]
        gradients.append("concat", {"X": row_names}, {"Out": [row_numbers.name]}, {"axis": 0})
        # the values last: data-parallel training gathers both after the writer of the values
        gradients.append("concat", {"X": list(parts)}, {"Out": [target.name]}, {"axis": 0})
        target.select(SelectedRowsOf(row_numbers.name, rows[0].height))
        return target.name
    dense = []
    for part, selected in parts_with_rows:
        if selected is not None:
            dense_part = block.create_temporary(block.vars[part].dtype).name
            inputs = {"Rows": [selected.rows], "Values": [part]}
            gradients.append("dense_rows", inputs, {"Out": [dense_part]}, {"height": selected.height})
            part = dense_part
        dense.append(part)
    summed = gradients.declare(name)
    gradients.append("sum", {"X": dense}, {"Out": [summed]})
    return summed


def look_up_by_rows(backward: Backward, op: Operator) -> bool:
    """Append the gradient of a lookup as rows of the table; return False if it must be dense."""
    if not (op.attrs.get("is_sparse") and op.type in ("lookup_table", "lookup_table_v2")):
        return False
    (table,), block = op.input("W"), backward.block
    var = block.find_var(table)
    if table not in backward.paths.into(op).get("W", ()) or not isinstance(var, Parameter) or var.error_clip:
        return False
    if any(table in other.output_arg_names for other in backward.forward):
        return False
    grad = backward.incoming(op.output("Out")[0], True)
    ids = backward.forward_value(op, "Ids", op.input("Ids")[0])
    backward.begin(op)
    height, values = var.shape[0], backward.outgoing(op, "W", table)
    rows = block.create_var(_rows_name(block, values), stop_gradient=True).name
    block.vars[values].spec = None
    backward.append(
        "lookup_table_rows_grad",
        {"Ids": [ids], "OutGrad": [grad]},
        {"Rows": [rows], "Values": [values]},
        {"padding_idx": op.attrs["padding_idx"], "height": height},
        op,
    )
    block.vars[values].select(SelectedRowsOf(rows, height))
    return True


def _rows_name(block: Block, values: str) -> str:
    """Return an unused name for the variable of row numbers."""
    name = values + ROWS
    return block.new_name(name) if block.has_var(name) else name
