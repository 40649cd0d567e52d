"""similarity_focus: a cell of every sample's plane at a time, by its place in the plane's order."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import stable_argsort
from .sorting import falling


@register_kernel("similarity_focus", "array")
def similarity_focus(call: Call, context: Context) -> Any:
    """Out = 1 at the greatest cells of the planes, one a row and a column."""
    xp, dims, axis, argsort = context.xp, call.dims("X"), call.attr("axis"), stable_argsort(context.xp)
    batch, (rows, columns) = dims[0], [d for i, d in enumerate(dims) if i not in (0, axis)]
    cells = rows * columns

    def chosen(plane: Any) -> Any:
        """Whether each cell of [batch, rows, columns] is chosen."""
        order = argsort(falling(xp.reshape(plane, (batch, cells)), True))
        rank = xp.reshape(xp.astype(argsort(order), xp.int64), (batch, rows, columns))
        number = xp.reshape(xp.arange(cells, dtype=xp.int64), (1, rows, columns))
        found = number < xp.zeros_like(rank)
        for _ in range(min(rows, columns)):
            first = xp.reshape(xp.argmin(xp.reshape(rank, (batch, cells)), axis=1), (batch, 1, 1))
            row, column = first // columns, first % columns
            taken = (number // columns == row) | (number % columns == column)
            found = found | (number == first)
            rank = xp.where(taken, xp.full_like(rank, cells), rank)
        return found

    def run(context: Context, io: IO) -> None:
        x, out = io.array("X"), io.array("Out")
        if not batch or not cells:
            out[...] = 0
            return
        planes = xp.moveaxis(x, axis, 0)
        found = chosen(planes[call.attr("indexes")[0], ...])
        for index in call.attr("indexes")[1:]:
            found = found | chosen(planes[index, ...])
        mask = xp.expand_dims(xp.astype(found, out.dtype), axis=axis)
        out[...] = xp.broadcast_to(mask, dims)

    return run
