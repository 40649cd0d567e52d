"""Tables of uses of operators, as Fluid's own tests use them: a use is one line, checked by the harness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from op_test import PLACES, OpTest

Array = np.ndarray[Any, Any]


@dataclass
class Use:
    """An operator with inputs, attributes, the outputs that it must have, and inputs whose gradients are checked."""

    op: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    grads: str = ""
    of: str = "Out"
    atol: float = 1e-5
    error: float = 0.005
    skip: Sequence[str] = ()


class _Strict(OpTest):
    """Also compares dtypes: the tables say them."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.op_type, self.inputs, self.outputs, self.attrs = use.op, use.inputs, use.outputs, use.attrs

    def check_dtype(self, what: str, actual: Array, expected: Array) -> None:
        self.assertEqual(str(actual.dtype), str(expected.dtype), what)


def where(uses: Sequence[Use]) -> list[Any]:
    """Each use on the first place, and the first use of each operator on every place.

    What a use says is Fluid's meaning of inputs and attributes, and no place has a part in that; what places compute,
    for every attribute of every operator, the samples of operators check (``operators/test_samples.py``).
    """
    found, seen = [], dict[str, int]()
    for use in uses:
        number = seen[use.op] = seen.get(use.op, -1) + 1
        found += [(place, use, f"{place}-{use.op}-{number}") for place in (PLACES if number == 0 else PLACES[:1])]
    found.sort(key=lambda each: PLACES.index(each[0]))
    return [pytest.param(place, use, id=id) for place, use, id in found]


def checks_of(uses: Sequence[Use]) -> tuple[Callable[..., None], Callable[..., None]]:
    """The two tests of a table: of its outputs and of its gradients."""

    @pytest.mark.parametrize(("place", "use"), where(uses))
    def test_output(use: Use, place: str) -> None:
        _Strict(use).check_output_with_place(place, atol=use.atol, no_check_set=use.skip)

    known: dict[int, list[Array]] = {}  # the differences of a use, found once for all places

    @pytest.mark.parametrize(("place", "use"), where([use for use in uses if use.grads]))
    def test_gradient(use: Use, place: str) -> None:
        test, names, of = _Strict(use), use.grads.split(), use.of.split()
        if id(use) not in known:
            known[id(use)] = [test.differences(name, of) for name in names]
        test.check_grad_with_place(place, names, of, max_relative_error=use.error, user_defined_grads=known[id(use)])

    return test_output, test_gradient


class Numbers:
    """Random numbers of one table, the same each time."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.RandomState(seed)

    def f(self, *dims: int, low: float = -1.0, high: float = 1.0) -> Array:
        """float32 numbers."""
        return self.rng.uniform(low, high, dims).astype("float32")

    def i(self, *dims: int, high: int, low: int = 0, dtype: str = "int64") -> Array:
        """Integers from ``low``, below ``high``."""
        return self.rng.randint(low, high, dims).astype(dtype)

    def far(self, *dims: int, kinks: Sequence[float] = (0.0,), low: float = -1.0, high: float = 1.0) -> Array:
        """float32 numbers at least 0.05 from the points where a function has a kink."""
        x = self.f(*dims, low=low, high=high)
        for kink in kinks:
            x = np.where(np.abs(x - kink) < 0.05, np.float32(kink + 0.1), x)
        return x

    def distinct(self, *dims: int) -> Array:
        """float32 numbers of which no two are near each other."""
        count = int(np.prod(dims))
        return (self.rng.permutation(count).reshape(dims) / count * 4 - 2).astype("float32")


def f32(x: Any) -> Array:
    """As float32."""
    return np.asarray(x).astype("float32")


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-np.asarray(x, "float64")))


def softmax(x: Any, axis: int = -1) -> Any:
    """exp(x), divided by its sum."""
    e = np.exp(np.asarray(x, "float64") - np.max(x, axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)
