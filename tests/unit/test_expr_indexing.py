"""Tensor expressions that index, scan, contract and reduce segments, in each rendering."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from expr_harness import NAMESPACES, X, llvm, run, traced  # noqa: F401

from fluidlite import expr as e
from fluidlite.expr.derivatives import derivatives
from fluidlite.expr.traced import trace, values_of
from fluidlite.render.arrays import array_code


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("mode", ["clamp", "zero"])
def test_indices_out_of_range(mode: str, namespace: str) -> None:
    index = np.array([-1, 0, 5, 4])
    taken = run(lambda x, i: e.take(x, i, 1, mode), {"X": X, "I": index}, namespace)
    wanted = X[:, [0, 0, 4, 4]] * (1 if mode == "clamp" else np.array([0, 1, 0, 1]))
    np.testing.assert_array_equal(taken, wanted)
    each = np.broadcast_to(index, (3, 4)).copy()
    np.testing.assert_array_equal(run(lambda x, i: e.pick(x, i, 1, mode), {"X": X, "I": each}, namespace), wanted)


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_sums_at_indices(namespace: str) -> None:
    index, updates = np.array([[2, 0], [2, 9]]), np.arange(12.0).reshape(3, 2, 2)
    wanted = np.zeros((3, 4))
    for k in range(3):
        np.add.at(wanted[k], [2, 0, 2], updates[k].ravel()[:3])
    found = run(lambda u, i: e.add_at(u, i, 1, 4), {"U": updates, "I": index}, namespace)
    np.testing.assert_array_equal(found, wanted)
    flat, rows = updates.reshape(3, 4), np.array([[2, 0, 2, -1]] * 3)
    np.testing.assert_array_equal(run(lambda u, i: e.put(u, i, 1, 4), {"U": flat, "I": rows}, namespace), wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_sums_at_indices_begin_with_what_is_given(namespace: str, dtype: str) -> None:
    index, updates = np.array([2, 0, 2]), np.arange(15, dtype=dtype).reshape(3, 5)
    base = np.full((4, 5), -0.0).astype(dtype)
    wanted = base.copy()
    np.add.at(wanted, index, updates)
    given = {"U": updates, "I": index, "B": base}
    found = run(lambda u, i, b: e.add_at(u, e.checked(i, 4), 0, 4, b), given, namespace)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_what_is_not_finite_is_added_to_its_own_part_alone(namespace: str, number: float) -> None:
    updates, index, base = np.ones((3, 2)), np.array([2, 0, 2]), np.full((4, 2), 5.0)
    updates[0, 1] = number
    for begin in (None, base):
        wanted = np.zeros((4, 2)) if begin is None else begin.copy()
        np.add.at(wanted, index, updates)
        given = {"U": updates, "I": index, **({} if begin is None else {"B": begin})}
        found = run(lambda u, i, *b: e.add_at(u, i, 0, 4, *b), given, namespace)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("size", [4, 40])
@pytest.mark.parametrize("columns", [1, 4])
def test_elements_are_put_on_what_is_given(columns: int, size: int, namespace: str) -> None:
    index, updates = np.array([[2, 0, 2, -1], [3, 3, size, 1], [-5, 0, 1, 2]])[:, :columns], X[:, :columns].copy()
    base = np.arange(3.0 * size).reshape(3, size)
    wanted = base.copy()
    for row, column in product(range(3), range(columns)):
        if 0 <= index[row, column] < size:
            wanted[row, index[row, column]] += updates[row, column]
    given = {"U": updates, "I": index, "B": base}
    found = run(lambda u, i, b: e.put(u, i, 1, size, b), given, namespace)
    np.testing.assert_allclose(found, wanted, rtol=1e-15)
    doubled = run(lambda u, i, b: 2 * e.put(u, i, 1, size, b * 1.0), given, namespace)
    np.testing.assert_allclose(doubled, 2 * wanted, rtol=1e-15)


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("axis", [0, 1])
def test_of_several_updates_of_a_part_the_last_counts(axis: int, namespace: str) -> None:
    index, updates = np.array([2, 0, 2, 1, 0]), np.arange(20.0).reshape(5, 4)
    x = np.full((6, 4), -1.0)
    wanted = x.copy()
    for i, at in enumerate(index):
        wanted[at] = updates[i]
    x, updates, wanted = (np.ascontiguousarray(a.T) if axis else a for a in (x, updates, wanted))
    given = {"X": x, "U": updates, "I": index}
    np.testing.assert_array_equal(run(lambda x, u, i: e.set_at(x, u, i, axis), given, namespace), wanted)
    stays = run(lambda i: e.stays(i, 6), {"I": index}, namespace)
    np.testing.assert_array_equal(stays, [False, False, True, True, True])


@pytest.mark.parametrize("axis", [0, 1])
def test_derivatives_of_replaced_parts(axis: int) -> None:
    """What was overwritten has none, in the operand and among the updates."""
    index = np.array([2, 0, 2])
    x, updates, weights = np.ones((4, 5)), np.ones((3, 5)), np.arange(20.0).reshape(4, 5)
    dx, du = weights.copy(), weights[index]
    dx[[0, 2]], du[0] = 0, 0
    x, updates, weights, dx, du = (np.ascontiguousarray(a.T) if axis else a for a in (x, updates, weights, dx, du))
    given = {"X": x, "U": updates, "I": index, "W": weights}
    for k, exact in enumerate((dx, du)):
        found = run(lambda x, u, i, w, k=k: derivatives([e.set_at(x, u, i, axis)], [w], [x, u])[k], given)  # type: ignore[misc]
        np.testing.assert_array_equal(found, exact)


def test_an_index_that_was_checked_is_not_checked_again() -> None:
    """Neither by what reads at it, nor by the derivative, which adds there."""
    arrays = {"X": X, "I": np.array([2, 0])}
    for function in (
        lambda x, i: e.take(x, e.checked(i, x.dims[0])),
        lambda x, i: derivatives([e.take(x, i)], [e.full((i.dims[0], 5), 1, "float64")], [x])[0],
    ):
        source = array_code(traced(function, arrays)).source
        assert source.count("H.checked(") == 1, source
        assert traced(function, arrays).checks_indices
    assert not traced(lambda x, i: e.take(x, i, 0, "zero"), arrays).checks_indices


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dims", [(5, 600), (2, 4, 300), (600, 5), (1, 600)])
def test_running_sums_across_long_slices(dims: tuple[int, ...], reverse: bool, exclusive: bool) -> None:
    """They are added a slice at a time there."""
    x, axis = np.random.default_rng(1).standard_normal(dims), len(dims) - 2
    wanted = np.cumsum(np.flip(x, axis) if reverse else x, axis)
    wanted = np.flip(wanted, axis) if reverse else wanted
    found = run(lambda x: e.scan("sum", x, axis, reverse, exclusive), {"X": x})
    np.testing.assert_allclose(found, wanted - x if exclusive else wanted, atol=1e-12)


PRODUCTS = ("ik,kj->ij", "ki,kj->ij",
            "ik,jk->ji", "ab,cb->ca", "aik,akj->aij", "aki,akj->aji", "abik,kj->abij",
            "ik,akj->aij", "abik,abkj->kij", "ij,ij->", "ij,ij->i", "ij,k->kij", "ij,jk->ki",
            "iab,jba->ij")  # fmt: skip


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("letters", PRODUCTS)
def test_contractions(letters: str, namespace: str) -> None:
    rng, sizes = np.random.default_rng(3), dict(zip("abcijk", (2, 3, 4, 5, 2, 3), strict=True))
    mine, theirs = letters.partition("->")[0].split(",")
    x, y = (rng.standard_normal([sizes[n] for n in names]) for names in (mine, theirs))
    found = run(lambda x, y: e.contract(x, y, letters), {"X": x, "Y": y}, namespace)
    np.testing.assert_allclose(found, np.einsum(letters, x, y), rtol=1e-12, atol=1e-13)


def test_a_slice_beyond_the_tensor_is_refused() -> None:
    def call(rows: int) -> dict[str, Any]:
        return {"X": [((rows, 4), "float32")]}

    made = trace(lambda given, numbers: {"Out": e.slices(given["X"][0], (4, 3), (2, 4), (-3, -1))}, call(-1))
    assert made.failed_requirement(values_of(call(5))) is None
    failed = made.failed_requirement(values_of(call(4)))
    assert failed is not None
    assert "within" in failed.expected


OFFSETS = np.array([0, 2, 2, 5, 6, 6])


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("kind", ["sum", "max", "min", "mean"])
def test_segments(kind: str, namespace: str) -> None:
    """Runs of different lengths, empty ones among them; first and second derivatives."""
    x = np.random.default_rng(4).standard_normal((6, 2))
    pairs = list(pairwise(OFFSETS))
    wanted = np.stack([getattr(x[a:b], kind)(0) if b > a else np.zeros(2) for a, b in pairs])

    def pooled(x: Any, offsets: Any) -> Any:
        return e.segment_mean(x, offsets) if kind == "mean" else e.segment(kind, x, offsets)

    given = {"X": x, "O": OFFSETS}
    np.testing.assert_allclose(run(pooled, given, namespace), wanted, rtol=1e-14)

    def squares(x: Any, offsets: Any) -> Any:
        found = pooled(x, offsets)
        return derivatives([e.reduce_sum(found * found * found)], [e.reduce_sum(x * 0) + 1], [x])[0]

    def along(x: Any, offsets: Any, direction: Any) -> Any:
        return derivatives([squares(x, offsets)], [direction], [x])[0]

    step, direction = 1e-6, np.random.default_rng(5).standard_normal(x.shape)
    moved = [run(pooled, {**given, "X": x + s * direction}) for s in (step, -step)]
    slope = ((moved[0] ** 3).sum() - (moved[1] ** 3).sum()) / (2 * step)
    np.testing.assert_allclose((run(squares, given, namespace) * direction).sum(), slope, rtol=1e-7)
    change = [run(squares, {**given, "X": x + s * direction}) for s in (step, -step)]
    curve = (change[0] - change[1]) / (2 * step)
    np.testing.assert_allclose(run(along, {**given, "D": direction}, namespace), curve, rtol=1e-5, atol=1e-8)
