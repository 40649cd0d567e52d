"""op.Operator: one operator on a scope's tensors, on every place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import AttributeValueError, OperatorNotFoundError, ProgramError, TensorError
from fluidlite.op import Operator

PLACES = [str(place) for place in fluid.places()]


@pytest.fixture(autouse=True)
def allow_fallback() -> None:
    fluid.set_fallback("allow")


def scope_of(place: Any, **arrays: Any) -> fluid.Scope:
    scope = fluid.Scope()
    for name, array in arrays.items():
        scope.var(name).get_tensor().set(np.asarray(array, "float32"), place)
    return scope


def read(scope: fluid.Scope, name: str) -> Any:
    return np.array(scope.find_var(name).get_tensor())


@pytest.mark.parametrize("place", PLACES)
def test_operators_run_on_a_scope(place: str) -> None:
    scope = scope_of(place, w=[[1, 2]], g=[[1, -1]], rate=[0.5])
    sgd = Operator("sgd", Param="w", Grad="g", LearningRate="rate", ParamOut="w")
    for _ in range(2):
        sgd.run(scope, place)
    np.testing.assert_array_equal(read(scope, "w"), [[0, 3]])
    Operator("concat", X=["w", "g"], Out="both", axis=0).run(scope, place)
    np.testing.assert_array_equal(read(scope, "both"), [[0, 3], [1, -1]])
    Operator("fill_constant", Out="made", shape=[2], value=3.0).run(scope, place)
    np.testing.assert_array_equal(read(scope, "made"), [3, 3])
    np.testing.assert_array_equal(read(scope, "g"), [[1, -1]])


def test_what_it_shows_and_refuses() -> None:
    scope = scope_of("cpu", x=[1])
    shown = Operator("scale", X="x", Out="y", scale=2.0)
    assert (shown.inputs, shown.outputs, shown.attrs) == ({"X": ["x"]}, {"Out": ["y"]}, {"scale": 2.0})
    assert str(shown) == "scale: inputs {'X': ['x']}, outputs {'Out': ['y']}, attributes {'scale': 2.0}"
    with pytest.raises(ProgramError, match=r"the scope has no tensor 'z'\n.*scope\.var\('z'\)"):
        Operator("abs", X="z", Out="y").run(scope, "cpu")
    scope.var("empty")
    with pytest.raises(TensorError, match="no dims yet"):
        Operator("abs", X="empty", Out="y").run(scope, "cpu")
    with pytest.raises(AttributeValueError, match="no attribute 'power'"):
        Operator("abs", X="x", Out="y", power=2).run(scope, "cpu")
    with pytest.raises(OperatorNotFoundError, match="abs"):
        Operator("abss", X="x", Out="y")
