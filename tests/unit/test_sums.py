"""Sums by products of NumPy's library: along any axes of any layout, as exact as pairs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fluidlite.codegen.sums import pairwise_sum, product_sum

DIMS = ((5,), (1,), (3000,), (7, 1), (1, 7), (33, 1025), (0, 3), (3, 0), (65, 3, 2100), (3, 40, 50), (2, 1, 70, 1),
        (4, 33, 2, 3), (70, 2, 2, 40))  # fmt: skip
LAYOUTS: dict[str, Any] = {
    "contiguous": lambda x: x, "turned": np.asfortranarray, "steps": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "part": lambda x: np.concatenate([x, x], -1)[..., : x.shape[-1]],
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_along_any_axes(dims: tuple[int, ...], dtype: str, layout: str) -> None:
    rng = np.random.default_rng(0)
    x, y = (LAYOUTS[layout]((rng.standard_normal(dims) + 10).astype(dtype)) for _ in range(2))
    exact, other = x.astype("float64"), y.astype("float64")
    bound = {"float32": 5e-6, "float64": 1e-14}[dtype]
    for count in range(len(dims) + 1):
        for axes in itertools.combinations(range(len(dims)), count):
            for found, terms in (
                (pairwise_sum(np, x, axes, x.dtype), exact),
                (product_sum(np, x, y, axes, x.dtype), exact * other),
            ):
                assert found.dtype == x.dtype
                assert not np.shares_memory(found, x)
                np.testing.assert_allclose(found, terms.sum(axes, keepdims=True), rtol=bound)


@pytest.mark.parametrize(("dims", "axis"), [((1 << 20,), 0), ((1 << 14, 8), 0), ((4, 1 << 14), 1), ((2, 4096, 3), 1)])
def test_errors_grow_with_the_logarithm(dims: tuple[int, ...], axis: int) -> None:
    """One number after the other, of 0.1, would be wrong in the fourth digit."""
    x = np.full(dims, 0.1, np.float32)
    for found in (pairwise_sum(np, x, (axis,), x.dtype), product_sum(np, x, np.ones_like(x), (axis,), x.dtype)):
        np.testing.assert_allclose(found, np.float64(x.flat[0]) * dims[axis], rtol=2e-6)
