"""check_gradient of nodes: right ones pass on every place, wrong ones are found, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from fluidlite import nodes as gn
from fluidlite.base.errors import GradientError
from fluidlite.testing import GradientMismatch, check_gradient


def _model(dev: gn.Device) -> tuple[gn.Node, gn.Weight, gn.Data]:
    rng = np.random.default_rng(2)
    w = gn.Weight(dev, rng.normal(size=(3, 4)))
    x = gn.Data(dev, rng.normal(size=(4, 2)))
    b = gn.Weight(dev, rng.normal(size=3))
    h = gn.InPlaceSigmoid(gn.Affine(w, x, b) * 0.5)
    return gn.Dropout(h, 0.25) + gn.Tanh(gn.Prod(w.tied(), x)), w, x


def test_gradients_of_nodes_are_held_against_differences(place: str) -> None:
    node, w, x = _model(gn.device(place))
    before = w.value().numpy().copy()
    report = check_gradient(node)
    assert report.right and len(report.inputs) == 3 and report.place == place
    assert [found.compared for found in report.inputs] == [12, 8, 3]
    assert all(len(found.elements) == found.compared for found in report.inputs)
    assert np.array_equal(w.value().numpy(), before)
    only = check_gradient(node, wrt=[x], elements=3)
    assert [found.compared for found in only.inputs] == [3]
    assert len(only.table().splitlines()) == 4 and "wrong" not in only.table()


class Wrong(gn.Node):
    """Twice its input, with a gradient that is wrong in one element."""

    reads_input = reads_output = False

    def forward_(self) -> None:
        self.set_value(gn.Tensor(self.dev(), None, "float64", 2 * self.inputs()[0].value().numpy()))

    def backward_(self) -> None:
        gradient = 2 * self.grad().numpy()
        gradient[1] += 0.01
        self.inputs()[0].add_grad(gn.Tensor(self.dev(), None, "float64", gradient))


class Overwrites(Wrong):
    """Twice its input, with a gradient that does not add up."""

    def backward_(self) -> None:
        (x,) = self.inputs()
        x.reset_grad()
        x.add_grad(gn.Tensor(self.dev(), None, "float64", 2 * self.grad().numpy()))


def test_a_wrong_element_is_named(place: str) -> None:
    x = gn.Data(gn.device(place), np.array([1.0, 2.0, 3.0]))
    with pytest.raises(GradientMismatch) as found:
        check_gradient(Wrong([x]))
    worst = found.value.report.worst
    assert worst.wrong == 1 and worst.index == (1,)
    assert [each.wrong for each in worst.elements] == [False, True, False]
    assert [line.endswith("wrong") for line in found.value.report.table().splitlines()] == [False, False, True, False]


def test_a_gradient_that_does_not_add_up_is_found() -> None:
    x = gn.Data(np.array([1.0, 2.0, 3.0]))
    with pytest.raises(GradientMismatch):
        check_gradient(Overwrites([x]) + gn.Square(x))


def test_what_is_no_leaf_of_the_node_is_refused() -> None:
    x, other = gn.Data(np.ones(2)), gn.Data(np.ones(2))
    for wrt in ([other], [gn.Square(x)], ["x"]):
        with pytest.raises(GradientError, match="expected leaves of"):
            check_gradient(gn.Square(x), wrt=wrt)
