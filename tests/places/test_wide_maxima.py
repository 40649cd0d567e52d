"""Maxima and their places in long rows, of which several partial results are kept: NaN, infinities and ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.render.loops.text import WIDE_TILE

L = fluid.layers
PLACES = [str(place) for place in fluid.places()]
LENGTHS = (2 * WIDE_TILE - 1, 2 * WIDE_TILE, 2 * WIDE_TILE + 17, 3 * WIDE_TILE - 1, 10 * WIDE_TILE + 21)
"""Around those from which partial results are several vectors, with remainders of each of the loops."""


def rows(length: int, dtype: str) -> Any:
    """Rows of numbers with ties; some have NaN or infinities at the ends, or where the loops meet."""
    rng = np.random.default_rng(length)
    x = rng.integers(-40, 40, (24, length)).astype(dtype)
    for row, place in enumerate((0, 15, 16, WIDE_TILE - 1, WIDE_TILE, length // WIDE_TILE * WIDE_TILE - 1, length - 1)):
        x[row, place] = np.nan
        x[row + 7, place] = np.inf if row % 2 else -np.inf
    x[14] = -np.inf
    x[15] = np.inf
    x[16, [3, length - 2]] = np.nan
    return x


def check(x: Any, found: Any, mode: str) -> None:
    expected = x.max(1), x.min(1), x.max(keepdims=True).reshape(1), x.argmax(1), x.argmin(1)
    for got, value in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, value, err_msg=f"{x.shape} {mode}")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_maxima_of_long_rows(dtype: str, place: str) -> None:
    for length in LENGTHS:
        x = rows(length, dtype)
        for mode in ("compiled", "interpreted"):
            with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
                data = L.data("x", list(x.shape), dtype=dtype, append_batch_size=False)
                fetches = [
                    L.reduce_max(data, dim=1),
                    L.reduce_min(data, dim=1),
                    L.reduce_max(data),
                    L.argmax(data, axis=1),
                    L.argmin(data, axis=1),
                ]
                found = fluid.Executor(place, mode=mode, fallback="allow").run(feed={"x": x}, fetch_list=fetches)
            check(x, found, mode)
