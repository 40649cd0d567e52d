"""sequence_topk_avg_pooling: the layer, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, ShapeError

L = fluid.layers


def pooled(sizes: list[int], topks: list[int]) -> Any:
    feed = {}
    for name, lengths in (("x", sizes), ("row", [2, 1]), ("col", [3, 2])):
        rows = np.arange(sum(lengths), dtype="float32").reshape(-1, 1)
        feed[name] = fluid.create_lod_tensor(rows, [lengths], fluid.CPUPlace())
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x, row, col = (L.data(name, [1], lod_level=1) for name in feed)
        out = L.sequence_topk_avg_pooling(x, row, col, topks, channel_num=1)
        return fluid.Executor("cpu").run(feed=feed, fetch_list=[out], return_numpy=False)[0]


def test_rows_of_both_matrices_are_averaged() -> None:
    out = pooled([6, 2], [1, 3])
    assert np.asarray(out).tolist() == [[2, 1], [5, 4], [7, np.float32(13 / 3)]]  # the last row has 6 and 7 alone
    assert out.lod() == [[0, 2, 3]]


def test_matrices_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"X(.|\n)*1 x 1 x 2 numbers in sequence 1") as caught:
        pooled([6, 3], [1])
    assert "test_sequence_topk_avg_pooling.py" in str(caught.value)
    for topks in ([], [0, 1], [2, 1]):
        with pytest.raises(AttributeValueError, match="topks"):
            pooled([6, 2], topks)
