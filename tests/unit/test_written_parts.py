"""What array calls write where it is to be: a part of a larger output, beside others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fluidlite import expr as e
from fluidlite.codegen import functions
from fluidlite.devices.cpu import NumPyArrays
from fluidlite.expr.calls import values_of
from fluidlite.expr.traced import trace
from fluidlite.render import array_functions, array_moves
from fluidlite.render.arrays import array_code
from fluidlite.render.results import WRITING

X = np.random.default_rng(0).standard_normal((3, 5))
ONE = np.array([[2], [0], [1]])
MANY = np.array([[2, 0, 1, 1, 0], [0, 0, 1, 2, 2], [1, 1, 1, 0, 2]])
LINE = np.array([2, 0, 0])
CASES: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "put one": (lambda x, i: e.put(e.slice_axis(x, 1, 0, 1), i, 1, 30), ONE),
    "put along the last axis": (lambda x, i: e.put(x, i, 1, 30), MANY),
    "put along the first axis": (lambda x, i: e.put(x, i, 0, 30), MANY),
    "add_at": (lambda x, i: e.add_at(x, i, 0, 40), LINE),
    "add_at along the last axis": (lambda x, i: e.add_at(e.transpose(x, (1, 0)), i, 1, 40), LINE),
    "add_at to what is turned": (
        lambda x, i: e.add_at(e.contract(x, x, "ij,kj->ik"), i, 0, 5, base=e.transpose(x, (1, 0))),
        LINE,
    ),
    "put on what is turned": (
        lambda x, i: e.put(x, i, 0, 5, base=e.transpose(e.contract(x, x, "ij,ik->jk"), (1, 0))),
        MANY,
    ),
    "set_at": (lambda x, i: e.set_at(x * 0, x, i, 0), np.array([2, 0, 1])),
    "take": (lambda x, i: e.take(x, i, 0), LINE),
    "take along the last axis": (lambda x, i: e.take(x, i, 1), LINE),
    "pick": (lambda x, i: e.pick(x, i, 1), ONE),
    "scan": (lambda x, i: e.scan("sum", x, 1), LINE),
    "scan along the first axis": (lambda x, i: e.scan("sum", x, 0), LINE),
    "contract": (lambda x, i: e.contract(x, x, "ij,kj->ik"), LINE),
    "unwindow, overlapping": (lambda x, i: e.unwindow(e.window(x, 1, 3, 2), 1, 7, 2), LINE),
    "unwindow, side by side": (lambda x, i: e.unwindow(e.window(x, 1, 2, 2), 1, 6, 2), LINE),
    "unwindow, apart": (lambda x, i: e.unwindow(e.window(x, 1, 1, 2), 1, 8, 3), LINE),
    "unwindow, dilated": (lambda x, i: e.unwindow(e.window(x, 1, 2, 1, 2), 1, 8, 1, 3), LINE),
    "unwindow along two axes": (
        lambda x, i: e.unwindow(e.unwindow(e.window(e.window(x, 0, 2, 1), 2, 2, 2), 2, 6, 2), 0, 4, 1),
        LINE,
    ),
    "unwindow one": (
        lambda x, i: e.unwindow(e.put(e.reshape(x, (3, 5, 1)), e.reshape(i, (3, 5, 1)), 2, 3), 1, 12, 2),
        MANY,
    ),
    "map": (lambda x, i: x * 2, LINE),
}


def run(function: Callable[..., Any], **given: Any) -> Any:
    operands = {slot: [(x.shape, x.dtype.name)] for slot, x in given.items()}
    values = values_of(operands, {})
    made = trace(lambda found, _: {"Out": function(*(each[0] for each in found.values()))}, operands, {}, values)
    code, xp = array_code(made), np
    array = SimpleNamespace(eager=True, extra=NumPyArrays().extra)
    context = SimpleNamespace(xp=xp, array=array, check_index=lambda index, size, io: index)
    out = np.full(made.dims("Out", values), 77, made.outputs["Out"][0].dtype)
    arrays = [given[slot] for slot, _ in code.operands]
    code.function()(xp, functions, array_functions, context, None, code.values(values), [], *arrays, out)
    return out


def matrix(x: Any) -> Any:
    return x if x.rank == 2 else e.reshape(x, (*x.dims, 1))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("axis", [0, 1])
def test_beside_others(name: str, axis: int) -> None:
    """Between two others along each axis, so that the part is no array of its own."""
    function, index = CASES[name]

    def joined(x: Any, i: Any) -> Any:
        part = matrix(function(x, i))
        beside = [2 if k == axis else d for k, d in enumerate(part.dims)]
        return e.concat([e.full(beside, 7.0, "float64"), part, e.full(beside, 8.0, "float64")], axis)

    alone = run(lambda x, i: matrix(function(x, i)), X=X, I=index)
    want = np.pad(alone, [(2, 2) if k == axis else (0, 0) for k in range(2)])
    want[: 2 if axis == 0 else None, : 2 if axis else None] = 7.0
    want[-2 if axis == 0 else None :, -2 if axis else None :] = 8.0
    np.testing.assert_array_equal(run(joined, X=X, I=index), want)


@pytest.mark.parametrize("axis", [0, 1])
def test_turned_and_flat_beside_others(axis: int) -> None:
    """What lies otherwise under its own dims is written there, where a part of the result has memory of its own."""

    def joined(x: Any, i: Any) -> Any:
        a, b = (e.reshape(e.transpose(e.window(y, 1, 2), (1, 2, 0)), (4, 6)) for y in (x, x * 2))
        turned = e.reshape(e.transpose(e.slice_axis(x, 1, 0, 4)), (4, 3))
        inner = e.concat([b, e.concat([turned, turned], 1)], axis)
        return e.concat([a, inner], axis)

    windows = np.stack([X[:, :-1], X[:, 1:]]).transpose(2, 0, 1).reshape(4, 6)
    turned = np.concatenate([X.T[:4]] * 2, 1)
    np.testing.assert_array_equal(run(joined, X=X, I=LINE), np.concatenate([windows, windows * 2, turned], axis))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_short_axes_are_copied_an_element_after_the_other(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies where: all elements are there, once, and rounded once."""
    monkeypatch.setattr(array_moves, "MIN_ANALYZED_ELEMENTS", 1)
    rng, ways = np.random.default_rng(0), set[int]()
    for turn in range(60):
        dims = [int(n) for n in rng.choice([1, 2, 3, 4, 7, 20], rng.integers(1, 6))]
        order = rng.permutation(len(dims)) if turn % 3 else np.arange(len(dims))
        value = rng.standard_normal([dims[k] for k in order]).transpose(np.argsort(order))
        out = np.full(dims, np.nan, dtype)
        array_functions.store(np, out, value)
        np.testing.assert_array_equal(out, value.astype(dtype))
        ways.add(min(len(list(array_moves._short_axes(out, value))), 2))
    assert ways == {1, 2}


def test_all_that_write_are_there() -> None:
    assert all(any(name.startswith(op) for name in CASES) for op in WRITING)
