"""Layers on matrices of different sizes, one a sequence: sequence_topk_avg_pooling."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.layers.declare import layer
from fluidlite.program.variable import Variable


@layer("sequence_topk_avg_pooling", {"col": "COLUMN"})
def sequence_topk_avg_pooling(
    input: Variable, row: Variable, col: Variable, topks: Sequence[int], channel_num: int
) -> Variable:
    """Return averages of the largest numbers of each row of matrices.

    >>> input = data("input", [-1, 1], lod_level=1)
    >>> row = data("row", [-1, 4], lod_level=1)
    >>> col = data("col", [-1, 4], lod_level=1)
    >>> sequence_topk_avg_pooling(input, row, col, [1, 2], 1).shape
    (-1, 2)
    """
