"""similarity_focus: chooses one cell of every sample's plane at a time, by its rank in the plane."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import stable_argsort
from .sorting import descending_key


@register_kernel("similarity_focus", "array")
def similarity_focus(call: Call, context: Context) -> Any:
    """Out = 1 at the largest cells of the planes, at most one in each row and column."""
    xp, dims, axis, argsort = context.xp, call.dims("X"), call.attr("axis"), stable_argsort(context.xp)
    batch, (rows, columns) = dims[0], [d for i, d in enumerate(dims) if i not in (0, axis)]
    cells = rows * columns

    def chosen_cells(plane: Any) -> Any:
        """Return the mask [batch, rows, columns] of the chosen cells."""
        order = argsort(descending_key(xp.reshape(plane, (batch, cells)), True))
        rank = xp.reshape(xp.astype(argsort(order), xp.int64), (batch, rows, columns))
        number = xp.reshape(xp.arange(cells, dtype=xp.int64), (1, rows, columns))
        cells_mask = number < xp.zeros_like(rank)
        for _ in range(min(rows, columns)):
            first = xp.reshape(xp.argmin(xp.reshape(rank, (batch, cells)), axis=1), (batch, 1, 1))
            row, column = first // columns, first % columns
            is_used = (number // columns == row) | (number % columns == column)
            cells_mask = cells_mask | (number == first)
            rank = xp.where(is_used, xp.full_like(rank, cells), rank)
        return cells_mask

    def run(context: Context, io: IO) -> None:
        x, out = io.array("X"), io.array("Out")
        if not batch or not cells:
            out[...] = 0
            return
        planes = xp.moveaxis(x, axis, 0)
        cells_mask = chosen_cells(planes[call.attr("indexes")[0], ...])
        for index in call.attr("indexes")[1:]:
            cells_mask = cells_mask | chosen_cells(planes[index, ...])
        mask = xp.expand_dims(xp.astype(cells_mask, out.dtype), axis=axis)
        out[...] = xp.broadcast_to(mask, dims)

    return run
