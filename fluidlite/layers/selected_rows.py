"""SelectedRows: merge them, apply layers to them, and gather and write rows of variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.program.variable import Variable
from fluidlite.program.variable_metadata import SelectedRowsOf

__all__ = ["get_tensor_from_selected_rows", "merge_selected_rows"]


def _require_rows(layer_name: str, x: Variable) -> SelectedRowsOf:
    if not isinstance(x, Variable) or x.selected is None:
        raise ProgramError(
            f"layers.{layer_name}: argument 'x' is {x!r}; expected SelectedRows\n"
            "  Do: give the gradient of an embedding with is_sparse=True, as Optimizer.backward returns it"
        )
    return x.selected


def merge_rows(grad: Variable) -> Variable:
    """Return SelectedRows with each row once and its values summed; a dense gradient unchanged."""
    if grad.selected is None or grad.selected.merged:
        return grad
    block, selected = grad.block.program.current_block(), grad.selected
    with block.program.roles("optimize"):
        rows, index = (block.create_temporary("int64", stop_gradient=True) for _ in range(2))
        values = block.create_temporary(grad.dtype, stop_gradient=True)
        block.append_op("unique", {"X": selected.rows}, {"Out": rows, "Index": index}, {"dtype": "int64"})
        block.append_op("sum_rows", {"Values": grad, "Index": index, "Rows": rows}, {"Out": values})
    return values.select(SelectedRowsOf(rows.name, selected.height, True))


def to_dense(grad: Variable) -> Variable:
    """Return SelectedRows as a dense tensor, 0 in other rows; a dense gradient unchanged."""
    if grad.selected is None:
        return grad
    block = grad.block.program.current_block()
    out = block.create_temporary(grad.dtype, stop_gradient=True)
    if grad.selected.merged:
        positions = block.create_temporary("int64", stop_gradient=True)
        height = {"height": grad.selected.height}
        block.append_op("row_positions", {"Rows": grad.selected.rows}, {"Out": positions}, height)
        block.append_op("rows_at", {"Positions": positions, "Values": grad}, {"Out": out})
        return out
    inputs = {"Rows": grad.selected.rows, "Values": grad}
    block.append_op("dense_rows", inputs, {"Out": out}, {"height": grad.selected.height})
    return out


def take_rows(var: Variable, grad: Variable) -> Variable:
    block, selected = grad.block.program.current_block(), _require_rows("take_rows", grad)
    out = block.create_temporary(var.dtype, stop_gradient=True)
    block.append_op("gather", {"X": var, "Index": selected.rows}, {"Out": out})
    return out


def put_rows(var: Variable, rows: Variable, grad: Variable) -> None:
    block, selected = grad.block.program.current_block(), _require_rows("put_rows", grad)
    block.append_op("set_rows", {"X": var, "Rows": selected.rows, "Values": rows}, {"Out": var})


def merge_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """Return SelectedRows with each row once and its values summed.

    x: SelectedRows: the gradient of ``embedding(is_sparse=True)``
    Returns: SelectedRows, the values [count, width] of different rows
    Raises: ProgramError: If ``x`` is dense
    """
    _require_rows("merge_selected_rows", x)
    return merge_rows(x)


def get_tensor_from_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """Return the values of SelectedRows as a dense tensor, [count, width], in the order of the rows.

    x: SelectedRows
    Returns: A tensor, [count, width]
    Raises: ProgramError: If ``x`` is dense
    """
    _require_rows("get_tensor_from_selected_rows", x)
    block = x.block.program.current_block()
    out = block.create_temporary(x.dtype)
    block.append_op("assign", {"X": x}, {"Out": out})
    return out


# Layers on SelectedRows, which return SelectedRows: missing rows are 0 before and after.

Layer = Callable[..., Variable]


def _rows_of(values: Variable, like: SelectedRowsOf) -> Variable:
    """Mark the result of a layer on values as SelectedRows."""
    values.stop_gradient = True
    return values.select(like)


def _scale(
    layer: Layer,
    x: Variable,
    scale: float | Variable = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: Any = None,
    name: str | None = None,
) -> Variable:
    selected = _require_rows("scale", x)
    if bias or act is not None:
        raise ProgramError(
            f"layers.scale: x, {x.name!r}, is sparse rows (SelectedRows), and given are bias {bias!r} and act {act!r}, "
            "which would change the rows that it does not have\n  Do: scale by a factor alone"
        )
    return _rows_of(layer(x, scale, bias, bias_after_scale, act, name), selected)


def _clip(layer: Layer, x: Variable, min: Any, max: Any, name: str | None = None) -> Variable:
    _require_rows("clip", x)
    if isinstance(min, (int, float)) and isinstance(max, (int, float)) and not min <= 0 <= max:
        raise ProgramError(
            f"layers.clip: x, {x.name!r}, is sparse rows (SelectedRows), and {min} to {max} leaves out 0, "
            "which the rows that it does not have are\n  Do: bounds with 0 between them"
        )
    merged = merge_rows(x)
    assert merged.selected is not None
    return _rows_of(layer(merged, min, max, name=name), merged.selected)


def _clip_by_norm(layer: Layer, x: Variable, max_norm: float, name: str | None = None) -> Variable:
    _require_rows("clip_by_norm", x)
    merged = merge_rows(x)
    assert merged.selected is not None
    return _rows_of(layer(merged, max_norm, name), merged.selected)


def _sums(layer: Layer, input: Variable | Sequence[Variable], out: Variable | None = None) -> Variable:
    terms = [input] if isinstance(input, Variable) else list(input)
    sparse_terms = [each.selected for each in terms if isinstance(each, Variable) and each.selected is not None]
    if len({selected.height for selected in sparse_terms}) > 1:
        texts = ", ".join(f"{each.name!r} of {each.selected.height}" for each in terms if each.selected is not None)
        raise ProgramError(f"layers.sum: the inputs are rows of tensors of different heights: {texts}")
    if len(sparse_terms) < len(terms):
        return layer([to_dense(each) for each in terms], *([] if out is None else [out]))
    if out is not None:
        raise ProgramError(
            f"layers.sums: all inputs are sparse rows (SelectedRows), and so is their sum; out is {out.name!r}"
            "\n  Do: leave out= away"
        )
    block = terms[0].block.program.current_block()
    values, row_numbers = block.create_temporary(terms[0].dtype), block.create_temporary("int64", stop_gradient=True)
    block.append_op("concat", {"X": terms}, {"Out": values}, {"axis": 0})
    block.append_op("concat", {"X": [selected.rows for selected in sparse_terms]}, {"Out": row_numbers}, {"axis": 0})
    return _rows_of(values, SelectedRowsOf(row_numbers.name, sparse_terms[0].height))


SPARSE_LAYERS: dict[str, Callable[..., Variable]] = {
    "scale": _scale,
    "clip": _clip,
    "clip_by_norm": _clip_by_norm,
    "sum": lambda layer, x: _sums(layer, x),
    "sums": _sums,
}
"""Layers that take SelectedRows: each is called with the dense layer and the arguments."""
