"""Sums and means of millions of large float32 numbers, along rows and columns, are as exact as pairwise summation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid

L = fluid.layers
PLACES = [*map(str, fluid.places()), "strict"]
CASES = [((1, 4_000_000), 1), ((4_000_000, 1), 0), ((1_000_000, 4), 0), ((2, 1_000_000, 2), 1), ((100_000, 33), 0)]


@pytest.fixture(scope="module", autouse=True)
def strict(load_plugin: Callable[[str, str], None]) -> None:
    pytest.importorskip("array_api_strict")
    load_plugin("strict", "strict_device")


def programs(dims: tuple[int, ...], dim: int) -> tuple[fluid.Program, list[Any]]:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = L.data("x", list(dims), append_batch_size=False)
        made = [L.reduce_sum(x, dim), L.reduce_mean(x, dim), L.reduce_sum(L.square(x), dim)]
    return main, made


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize(("dims", "dim"), CASES, ids=str)
def test_totals(place: str, mode: str, dims: tuple[int, ...], dim: int) -> None:
    """One sequence would be off by a ten-thousandth; pairwise sums by log2(n) half units, 1.3e-6, at the most."""
    x = (np.random.default_rng(1).random(dims) * 1e6 + 1e6).astype("float32")
    main, made = programs(dims, dim)
    found = fluid.Executor(place, mode=mode, fallback="allow").run(main, {"x": x}, made)
    wide = x.astype("float64")
    exact = [wide.sum(dim), wide.mean(dim), (wide * wide).sum(dim)]
    for got, wanted in zip(found, exact, strict=True):
        np.testing.assert_allclose(got.reshape(-1), wanted.reshape(-1), rtol=1.3e-6)
