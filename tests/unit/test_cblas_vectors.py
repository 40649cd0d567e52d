"""Products of which one side is a vector, as cblas takes them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fluidlite.kernels.blas.cblas import Product, cblas_routine


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(1, 5, 7), (5, 1, 7), (1, 1, 7), (1, 4, 1), (4, 1, 1)], ids=str)
def test_a_vector_on_either_side(sizes: tuple[int, int, int], dtype: str) -> None:
    routine = cblas_routine(dtype)
    if routine is None:
        pytest.skip("this build of NumPy shows no cblas")
    m, n, k = sizes
    rng = np.random.default_rng(5)
    for a_turned, b_turned in itertools.product((False, True), repeat=2):
        a, b = rng.random((m, k)).astype(dtype), rng.random((k, n)).astype(dtype)
        stored = [np.ascontiguousarray(x.T if turned else x) for x, turned in ((a, a_turned), (b, b_turned))]
        out = np.full((m, n), np.nan, dtype)
        product = Product(routine, m, n, k, stored[0].shape[1], a_turned, stored[1].shape[1], b_turned, 2.0)
        addresses = (*(x.ctypes.data for x in stored), out.ctypes.data)
        product(*addresses, False)
        np.testing.assert_allclose(out, 2 * (a @ b), rtol=1e-5)
        product.bind(*addresses, True)()
        np.testing.assert_allclose(out, 4 * (a @ b), rtol=1e-5)
