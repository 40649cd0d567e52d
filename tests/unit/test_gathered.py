"""Sums of products with what indices name, against NumPy's own on what is gathered as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fluidlite.platform.context_pool import get_context
from fluidlite.render import array_functions, gathered

NUMBERS = np.random.default_rng(11)
NEAR = np.minimum(np.arange(90)[:, None] // 2 + np.arange(3), 44)
FAR = NUMBERS.integers(0, 45, (90, 3))
SIZE = 45


def _normal(*dims: int) -> Any:
    return NUMBERS.standard_normal(dims).astype("float32")


def _weights(index: Any) -> Any:
    found = _normal(*index.shape)
    found[::7] = 0
    return found


def _gathered(x: Any, index: Any, axis: int) -> Any:
    """What indices name; 0 where they are out of range."""
    where = (index >= 0) & (index < x.shape[axis])
    found = np.take(x, np.where(where, index, 0), axis)
    return np.where(where.reshape(*(1,) * axis, *index.shape, *(1,) * (x.ndim - axis - 1)), found, 0)


def _outside(index: Any) -> Any:
    return np.where(NUMBERS.random(index.shape) < 0.1, -1, index)


def _close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    "index", [NEAR, FAR, _outside(NEAR), _outside(FAR)], ids=["near", "far", "near out", "far out"]
)
@pytest.mark.parametrize("letters", ["amkb,mk->amb", "amkb,km->amb", "akmb,mk->amb", "amk,mk->am", "mkb,mk->mb"])
def test_lines(index: Any, letters: str, monkeypatch: Any) -> None:
    """Elements along an axis, mixed: by a matrix where indices are near, else gathered."""
    monkeypatch.setattr(gathered, "MIN_RESULTS", 0)
    mine, _, rest = letters.partition(",")
    theirs, _, out = rest.partition("->")
    axis = min(mine.index("m"), mine.index("k"))
    dims = [{"a": 24, "b": 20}[n] for n in mine.replace("k", "").replace("m", "")]
    dims.insert(axis, SIZE)
    x, turned = _normal(*dims), index if mine.index("m") < mine.index("k") else index.T
    weights = _weights(turned) if theirs == mine[axis : axis + 2] else _weights(turned.T)
    checked, inside = array_functions.checked(get_context("cpu"), turned, SIZE, "zero", None)
    made = np.full([{"a": 24, "b": 20, "m": 90}[n] for n in out], np.nan, "float32")
    found = array_functions.take_contract(np, x, checked, inside, axis, weights, mine, theirs, out, made)
    _close(found, np.einsum(letters, _gathered(x, turned, axis), weights))
    # and back
    d, product = _normal(*found.shape), None
    expected = np.zeros_like(x)
    product = np.einsum(f"{out},{theirs}->{mine}", d, weights)
    lines = np.moveaxis(expected, axis, 0)
    parts = np.moveaxis(product, (axis, axis + 1), (0, 1))
    where = (turned >= 0) & (turned < SIZE)
    np.add.at(lines, turned[where], parts[where])
    context = get_context("cpu")
    for factors in ((d, weights, out, theirs), (weights, d, theirs, out)):
        _close(array_functions.add_contract(context, *factors, mine, turned, axis, SIZE, None), expected)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_stays_where_it_is_read(value: float) -> None:
    """A matrix has zeros beside what counts; they must not make NaN of it."""
    x = _normal(20, SIZE, 16)
    x[3, 7] = value
    weights = np.abs(_weights(NEAR)) + 1
    with np.errstate(all="ignore"):  # as while a place is active
        found = array_functions.take_contract(np, x, NEAR, None, 1, weights, "amkb", "mk", "amb")
    expected = np.einsum("amkb,mk->amb", np.take(x, NEAR, 1), weights)
    assert np.isfinite(found).sum() == np.isfinite(expected).sum() > 0
    _close(found, expected)


@pytest.mark.parametrize(
    "letters",
    ["nijkc,nijk->nijc", "nijkc,nijc->nijk", "nkc,nk->nc", "nkc,nc->nk", "nkc,nkc->n", "kc,k->c", "ikc,kc->i"],
)
def test_rows(letters: str) -> None:
    """Rows that indices name, times a vector for each place; and added back."""
    mine, _, rest = letters.partition(",")
    theirs, _, out = rest.partition("->")
    sizes = {"n": 5, "i": 6, "j": 7, "k": 4, "c": 8}
    index = NUMBERS.integers(-2, SIZE + 2, [sizes[n] for n in mine[:-1]])
    x, factor = _normal(SIZE, 8), _normal(*(sizes[n] for n in theirs))
    checked, inside = array_functions.checked(get_context("cpu"), index, SIZE, "zero", None)
    found = array_functions.take_contract(np, x, checked, inside, 0, factor, mine, theirs, out)
    _close(found, np.einsum(letters, _gathered(x, index, 0), factor))
    d, base = _normal(*found.shape), _normal(SIZE, 8)
    for begin in (None, base):
        expected = np.zeros_like(x) if begin is None else base.copy()
        where = (index >= 0) & (index < SIZE)
        np.add.at(expected, index[where], np.einsum(f"{out},{theirs}->{mine}", d, factor)[where])
        context = get_context("cpu")
        _close(array_functions.add_contract(context, d, factor, out, theirs, mine, index, 0, SIZE, begin), expected)


def test_near_indices_are_a_matrix_and_far_ones_are_not() -> None:
    """The fast way is taken where it should be."""
    x, ones = _normal(20, SIZE, 16), np.ones(NEAR.shape, "float32")
    assert gathered.sums_along(x, gathered.SparseMatrix(NEAR, None, ones, False, False), 1, None) is not None
    far = NUMBERS.integers(0, 10_000, (900, 3))
    lines = gathered.SparseMatrix(far, None, np.ones(far.shape, "float32"), False, False)
    assert gathered.sums_along(_normal(2, 10_000, 16), lines, 1, None) is None
