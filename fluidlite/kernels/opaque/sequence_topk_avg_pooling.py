"""sequence_topk_avg_pooling: sorts the rows of each matrix and averages their largest elements."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.plugin import IO, Call, Context, register_kernel


@register_kernel("sequence_topk_avg_pooling", "cpu", dtypes=("float32", "float64"))
def sequence_topk_avg_pooling(call: Call, context: Context) -> Any:
    """Write the means of the largest k elements of each row, for each k of topks."""
    topks, channels = np.asarray(call.attr("topks")), call.attr("channel_num")
    max_k = int(topks[-1])
    begins, rows_at, columns_at = (call.lod(slot)[0] for slot in ("X", "ROW", "COLUMN"))

    def run(context: Context, io: IO) -> None:
        x = io.array("X").reshape(-1)
        for matrix, (first, last) in enumerate(pairwise(rows_at)):
            rows, columns = last - first, columns_at[matrix + 1] - columns_at[matrix]
            begin = begins[matrix]
            numbers = x[begin : begins[matrix + 1]].reshape(channels, rows, columns)
            order = np.argsort(-numbers, axis=2, kind="stable")[:, :, :max_k]
            sorted_ = np.take_along_axis(numbers, order, 2).astype(np.float64)
            padding = max_k - sorted_.shape[2]
            sums = np.cumsum(np.pad(sorted_, ((0, 0), (0, 0), (0, padding))), 2)[:, :, topks - 1] / topks
            if io.has("Out"):
                io.array("Out")[first:last] = sums.transpose(1, 0, 2).reshape(rows, channels * len(topks))
            if io.has("pos"):
                starts = begin + np.arange(channels * rows).reshape(channels, rows, 1) * columns
                pos = np.pad(starts + order, ((0, 0), (0, 0), (0, padding)), constant_values=-1)
                width = channels * max_k
                io.array("pos")[first * width : last * width] = pos.transpose(1, 0, 2).reshape(-1)
        for slot in ("Out", "pos"):
            if io.has(slot):
                io.array(slot)

    return run
