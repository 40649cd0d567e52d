"""Array calls that touch a part of an array alone, or make several tensors at once, against what they stand for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import array_api_strict
import numpy as np
import pytest

from fluidlite import expr as e
from fluidlite.devices.cpu import NumPyArrays
from fluidlite.expr.traced import trace, values_of
from fluidlite.program.registry import ops
from fluidlite.render import array_choices, array_functions, array_reductions
from fluidlite.render.arrays import array_code

CONTEXT = SimpleNamespace(xp=np, array=SimpleNamespace(eager=True, extra=NumPyArrays().extra))
RNG = np.random.default_rng(5)


def _all_but_one(kind: str, x: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    join = {"sum": np.sum, "prod": np.prod}[kind]
    parts = [join(np.delete(x, k, axis), axis=axis) for k in range(x.shape[axis])]
    return np.stack(parts, axis) if parts else x


@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize("dims", [(3, 0), (3, 1), (3, 2), (3, 7), (2, 16, 5), (40, 3), (1, 33), (0, 4)])
@pytest.mark.parametrize("axis", [0, 1])
def test_all_others_are_joined(kind: str, dims: tuple[int, ...], axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_reductions, "SCANNED", 0)
    x = RNG.integers(-2, 3, dims).astype("float64")  # zeros among them; all is exact
    wanted, before, out = _all_but_one(kind, x, axis), x.copy(), np.full(dims, 77.0)
    for target in (None, out):
        np.testing.assert_array_equal(array_functions.others(np, kind, x, axis, target), wanted)
    np.testing.assert_array_equal(x, before)
    in_place = array_functions.others(np, kind, x, axis, x)
    np.testing.assert_array_equal(in_place, wanted)
    strict = array_functions.others(array_api_strict, kind, array_api_strict.asarray(before), axis)
    np.testing.assert_array_equal(np.asarray(strict), wanted)


def _source(function: Any, given: Any) -> str:
    return _source_of(lambda slots, _: function(*(found[0] for found in slots.values())), given)


def _source_of(function: Any, given: Any) -> str:
    return array_code(trace(function, given, (), values_of(given)), None, True).source


def _operator_source(type: str, given: Any, **attrs: Any) -> str:
    rule = ops.get(type).expression
    assert rule is not None
    return _source_of(lambda slots, _: rule.function(slots, attrs), given)


def test_running_products_from_both_ends_are_made_at_once() -> None:
    given = {"X": [((4, 6), "float64")]}

    def both(x: e.Tensor, also: bool = False, turned: bool = True) -> dict[str, e.Tensor]:
        front, behind = e.scan("prod", x, 1, exclusive=True), e.scan("prod", x, 1, turned, exclusive=True)
        return {"Out": front * behind, **({"Front": front} if also else {})}

    assert "H.others(" in _source(both, given) and "H.scan(" not in _source(both, given)
    for others in (lambda x: both(x, also=True), lambda x: both(x, turned=False)):
        assert "H.others(" not in _source(others, given) and "H.scan(" in _source(others, given)


def test_zeros_around_a_summand_are_not_made() -> None:
    given = {"X": [((4, 6), "float64")], "Y": [((4, 2), "float64")]}

    def padded(x: e.Tensor, y: e.Tensor, filler: float = 0) -> dict[str, e.Tensor]:
        return {"Out": x + e.pad(y, (0, 1), (0, 3), filler)}

    assert "H.add_part(" in _source(padded, given) and "H.pad" not in _source(padded, given)
    assert "H.add_part(" not in _source(lambda x, y: padded(x, y, 1), given)


@pytest.mark.parametrize("counts", [((1, 0), (2, 3), (0, 0)), ((-1, 0), (3, 2), (0, 1)), ((9, 0), (-8, 0), (0, 0))])
@pytest.mark.parametrize("where", ["new", "whole", "part"])
def test_a_part_is_added_where_it_lies(counts: Any, where: str) -> None:
    buffer = RNG.random((6, 20))
    x = buffer[:3, :4] if where == "part" else RNG.random((3, 4))
    wanted = array_functions.pad(np, x, 0.0, *counts)
    whole = RNG.random(wanted.shape)
    wanted, out = wanted + whole, {"new": None, "whole": whole}.get(where, buffer[: whole.shape[0], : whole.shape[1]])
    np.testing.assert_array_equal(array_functions.add_part(np, whole, x, *counts, out), wanted)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("memory", ["new", "other", "a", "b", "part"])
@pytest.mark.parametrize("alone", ["", "a", "b"])
def test_rows_are_chosen_as_elements_are(share: float, memory: str, alone: str) -> None:
    a: Any = RNG.random((256, 4, 16)).astype("float32")
    b: Any = RNG.random((256, 4, 16)).astype("float32")
    chosen = RNG.random((256, 1, 1)) < share
    a, b = (2.5 if alone == name else x for name, x in (("a", a), ("b", b)))
    wanted = np.where(chosen, a, b).astype("float32")
    outs = {
        "other": np.empty((256, 4, 16), "float32"),
        "a": a,
        "b": b,
        "part": np.empty((256, 9, 16), "float32")[:, :4],
    }
    out = outs.get(memory)
    if np.ndim(out) or out is None:
        np.testing.assert_array_equal(array_functions.where(CONTEXT, chosen, a, b, out), wanted)


def test_rows_are_not_assigned_where_they_are_read() -> None:
    buffer = RNG.random((512, 32)).astype("float32")
    a, b, out = buffer[1:257], RNG.random((256, 32)).astype("float32"), buffer[:256]
    chosen = RNG.random((256, 1)) < 0.5
    wanted = np.where(chosen, a, b)
    np.testing.assert_array_equal(array_functions.where(CONTEXT, chosen, a, b, out), wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("count", [100, array_choices.MANY])
def test_signs(dtype: str, nan: bool, count: int) -> None:
    x = RNG.standard_normal(count).astype(dtype)
    x[:4] = 0.0, -0.0, np.inf, -np.inf
    x[5] = np.nan if nan else 1
    wanted = np.sign(x)
    for out in (None, np.empty_like(x), x):
        found = array_functions.sign(np, x, out)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))
        assert found.dtype == x.dtype and (out is None or found is out)


@pytest.mark.parametrize("taps", [1, 2, 3, 9])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("mode", ["clamp", "zero"])
def test_an_element_of_each_window_is_picked(taps: int, stride: int, mode: str) -> None:
    x = RNG.integers(0, 99, (2, 21, 3)).astype("int32")
    count = (21 - taps) // stride + 1
    index = RNG.integers(-1, taps + 1, (2, count, 1, 3)).astype("int32")
    windows = array_functions.window_view(np, x, 1, taps, count, stride, 1)
    given = array_functions.checked(CONTEXT, index, taps, mode, None)
    wanted = array_functions.pick(np, windows, *given, 2)
    before = x.copy()
    np.testing.assert_array_equal(array_functions.window_pick(CONTEXT, x, *given, 1, taps, count, stride, 1), wanted)
    np.testing.assert_array_equal(x, before)


def test_indices_of_maxima_are_made_in_the_dtype_that_is_read() -> None:
    given = {"X": [((4, 6), "float64")]}
    source = _source(lambda x: {"Out": e.cast(e.argmax(x, 1, keep=True), "int32") + 1}, given)
    assert "'int32')" in source and "H.cast(" not in source
    assert "H.cast(" in _source(
        lambda x: {"Out": e.cast(e.argmax(x, 1, keep=True), "int32"), "At": e.argmax(x, 1, keep=True)}, given
    )


def test_what_gradients_read_is_not_added_up_where_it_lies() -> None:
    given = {"X": [((4, 7), "float64")], "Y": [((4, 3), "float64")], "Out@GRAD": [((4, 7), "float64")]}
    source = _operator_source("conv_shift_grad", given)
    assert source.count("H.contract(") == 2 and "unwindow" not in source


def test_rows_that_sums_replace_are_emptied_first() -> None:
    given = {"X": [((4, 7), "float64")], "Ids": [((3,), "int64")], "Updates": [((3, 7), "float64")]}
    source = _operator_source("scatter", given, overwrite=False)
    assert "H.set_at(" in source and "H.add_at(" in source and "H.where(" not in source
    assert source.count("H.checked(") == 1


@pytest.mark.parametrize(("columns", "buffer"), [(16, 512), (4096, np.getbufsize())])
def test_numpy_reduces_whole_rows_of_large_arrays(columns: int, buffer: int) -> None:
    """In a run NumPy's buffer is small; it is so again behind the reduction."""
    seen = []

    def noted(x: Any, **how: Any) -> Any:
        seen.append(np.getbufsize())
        return np.all(x, **how)

    before = np.setbufsize(512)
    try:
        array_reductions.reduce(SimpleNamespace(all=noted), "all", np.ones((32, columns), bool), (1,), "bool")
        assert (seen, np.getbufsize()) == ([buffer], 512)
    finally:
        np.setbufsize(before)
