"""Array calls that touch a part of an array alone, or make several tensors at once, against what they stand for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fluidlite.expr.traced import trace, values_of
from fluidlite.program.registry import ops
from fluidlite.render import array_reductions
from fluidlite.render.arrays import array_code


def _source(function: Any, given: Any) -> str:
    return _source_of(lambda slots, _: function(*(found[0] for found in slots.values())), given)


def _source_of(function: Any, given: Any) -> str:
    return array_code(trace(function, given, (), values_of(given)), None, True).source


def _operator_source(type: str, given: Any, **attrs: Any) -> str:
    rule = ops.get(type).expression
    assert rule is not None
    return _source_of(lambda slots, _: rule.function(slots, attrs), given)


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
