"""Every kind of node on every place: its value and gradient against float64 NumPy, in float32; on the cpu in float16.

What a node is depends on no dtype; operators have samples of all, on every place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fluidlite import nodes as gn

from .conftest import KINDS
from .node_cases import NODE_CASES, NodeCase

_RTOL = {"float32": 2e-5, "float16": 2e-2, "float64": 1e-12}
_GRAD_RTOL = {"float32": 2e-4, "float16": 2e-2, "float64": 1e-7}


def _numeric(case: NodeCase, arrays: list[Any], weights: Any, at: int) -> Any:
    """Central differences of the float64 reference."""
    base = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
    found = np.zeros(base[at].shape)
    step = 1e-6
    for index in np.ndindex(base[at].shape):
        values = []
        for sign in (1, -1):
            moved = [array.copy() for array in base]
            moved[at][index] += sign * step
            values.append(np.sum(weights * case.reference(*moved)))
        found[index] = (values[0] - values[1]) / (2 * step)
    return found


@pytest.mark.parametrize(
    ("place", "dtype"), [("cpu", "float16"), *((kind, "float32") for kind in KINDS)], indirect=["place"]
)
@pytest.mark.parametrize("case", NODE_CASES, ids=lambda case: case.name)
def test_value_and_gradients_are_those_of_the_reference(place: str, case: NodeCase, dtype: str) -> None:
    dev = gn.device(place)
    arrays = case.arrays(dtype)
    leaves = [gn.Data(dev, array, has_grad=at not in case.fixed) for at, array in enumerate(arrays)]
    node = case.make(*leaves)
    exact = np.asarray(case.reference(*[a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]))
    if not node.has_grad():
        got = gn.Graph(node).forward().numpy()
        assert got.shape == exact.shape and np.array_equal(got, exact)
        return
    weights = np.asarray(np.random.default_rng(3).choice([-0.5, 0.25, 0.75, 1.0], exact.shape))
    target = gn.Sum(node * gn.FixedData(dev, weights.astype(dtype)))
    graph = gn.Graph(target)
    graph.forward()
    got = node.value().numpy()
    assert got.dtype == dtype and got.shape == exact.shape
    scale = np.abs(exact).max() + 1e-3
    np.testing.assert_allclose(got, exact, _RTOL[dtype], _RTOL[dtype] * scale)
    graph.reset_grad()
    graph.backward(2.0)
    for at, leaf in enumerate(leaves):
        if at in case.fixed:
            assert not leaf.has_grad()
            continue
        numeric = 2 * _numeric(case, arrays, weights, at)
        assert leaf.grad().dev is dev
        span = np.abs(numeric).max() + 1e-3
        np.testing.assert_allclose(leaf.grad().numpy(), numeric, _GRAD_RTOL[dtype], 2 * _GRAD_RTOL[dtype] * span)


def test_every_node_of_the_package_has_a_case() -> None:
    made = {name for case in NODE_CASES for name in case.name.replace(",", " ").split()}
    kinds = {
        name
        for name in gn.__all__
        if name[0].isupper()
        and callable(getattr(gn, name))
        and not isinstance(getattr(gn, name), type)
        and not name.startswith(("InPlace", "Fixed"))
    }
    assert not kinds - made


_OF_NUMBERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "x + n": (lambda x: x + (2**53 + 1), lambda i: i + (2**53 + 1)),
    "x - n": (lambda x: x - 3, lambda i: i - 3),
    "n - x": (lambda x: 3 - x, lambda i: 3 - i),
    "x * n": (lambda x: x * 3, lambda i: i * 3),
    "x / n": (lambda x: x / 2, lambda i: np.trunc(i / 2).astype("int64")),
    "n / x": (lambda x: 9 / x, lambda i: np.trunc(9 / i).astype("int64")),
    "-x": (lambda x: -x, lambda i: -i),
    "x < n": (lambda x: x < 2**53 + 1, lambda i: i < 2**53 + 1),
    "x > n": (lambda x: x > 2**53, lambda i: i > 2**53),
}


@pytest.mark.parametrize("case", _OF_NUMBERS)
def test_integers_and_a_number(place: str, case: str) -> None:
    """The number is none of another dtype before it is one of theirs: half of a sum was nothing, and so all of it."""
    integers = np.array([-7, -2, 1, 5, 2**53, 2**53 + 1])
    make, exact = _OF_NUMBERS[case]
    np.testing.assert_array_equal(gn.Graph(make(gn.Data(place, integers))).forward().numpy(), exact(integers))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x + 0.5, lambda x: x - 0.5, lambda x: 0.5 - x, lambda x: x * 0.5, lambda x: x / 0.5,
        lambda x: 0.5 / x, lambda x: x < 0.5, lambda x: x > 0.5, lambda x: x + 2**70, lambda x: gn.Mask(x, x, 0.5),
    ],
)  # fmt: skip
def test_a_number_that_integers_are_not(make: Callable[[Any], Any], dtype: str) -> None:
    with pytest.raises(ValueError, match=f"no {dtype} is"):
        make(gn.Data("cpu", np.array([1, 2], dtype)))
