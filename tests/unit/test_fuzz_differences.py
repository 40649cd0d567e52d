"""Central differences of random programs move the value that a gradient is of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.expr import derivative_rules
from fluidlite.program.registry import ops
from fluidlite.testing.fuzz.differences import derivative, second_derivative
from fluidlite.testing.fuzz.error_bounds import NoReference
from fluidlite.testing.fuzz.recipe import OperatorStep, Recipe
from fluidlite.testing.fuzz.run import check

V, S = np.array([2.0], "float32"), np.array([5.0], "float32")
READ = OperatorStep("square", {"X": ["s"]}, {"Out": ["y"]}, {})
WRITE = OperatorStep("scale", {"X": ["v"]}, {"Out": ["s"]}, {"scale": 3.0})
LATER = OperatorStep("square", {"X": ["s"]}, {"Out": ["z"]}, {})


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    ("steps", "targets"), [((READ, WRITE), ("y",)), ((WRITE, LATER), ("z",)), ((READ, WRITE, LATER), ("y", "z"))]
)
def test_of_a_name_written_anew_the_last_value_that_counts(
    steps: tuple[OperatorStep, ...], targets: tuple[str, ...], fed: bool
) -> None:
    """State is read, or overwritten first, or both; the product's gradient and the differences are of one value."""
    feed = {"v": V, **({"s": S + 1} if fed else {})}
    recipe = Recipe(steps, (feed,), {"s": S}, targets, targets=targets, wrt=("s",))
    slope, _ = derivative(recipe, "s", np.ones(1), 1e-4)
    program, scope = fluid.Program(), fluid.Scope()
    block = program.global_block()
    block.create_var("s", [1], "float32", persistable=True, stop_gradient=False)
    block.create_var("v", [1], "float32", is_data=True)
    for step in steps:
        for name in step.writes():
            if not block.has_var(name):
                block.create_var(name)
        block.append_op(step.type, step.inputs, step.outputs, step.attrs)
    gradients = fluid.gradients([block.var(name) for name in targets], [block.var("s")])
    scope.var("s").get_tensor().set(S)
    (found,) = fluid.Executor("cpu").run(program, feed, gradients, scope=scope)
    np.testing.assert_allclose(slope, found[0], rtol=1e-6)


def test_what_moves_and_is_given_as_data_has_no_difference() -> None:
    """The chances of a sampler's classes are data, as in Fluid; the same program has one by what is no data."""
    given = {
        "v": np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3),
        "w": np.linspace(0, 1, 12, dtype="float32").reshape(4, 3),
        "label": np.array([[1], [2]]),
        "at": np.array([[0, 3], [1, 2]]),
        "chances": np.full(4, 0.25, "float32"),
    }
    slots = {"Input": ["v"], "Weight": ["w"], "Label": ["label"], "Samples": ["at"], "CustomDistProbs": ["p"]}
    attrs = {"num_total_classes": 4, "sampler": "custom_dist"}
    steps = (
        OperatorStep("scale", {"X": ["chances"]}, {"Out": ["p"]}, {"scale": 1.0}),
        OperatorStep("nce", slots, {"Cost": ["cost"]}, attrs),
    )
    recipe = Recipe(steps, (given,), {}, ("cost",), targets=("cost",), wrt=("v", "chances"))
    with pytest.raises(NoReference, match="nce: no derivative flows through an input"):
        derivative(recipe, "chances", np.ones(4), 1e-4)
    slope, unsure = derivative(recipe, "v", np.ones((2, 3)), 1e-4)
    assert abs(slope) > 0.01 > unsure


def test_equal_maxima_have_no_difference() -> None:
    """Each has the whole derivative, as Fluid's have, so that the sum of them is not the slope."""
    steps = (
        OperatorStep("expand", {"X": ["v"]}, {"Out": ["y"]}, {"expand_times": [3]}),
        OperatorStep("reduce_max", {"X": ["y"]}, {"Out": ["z"]}, {"dim": [0]}),
    )
    recipe = Recipe(steps, ({"v": V},), {}, ("z",), targets=("z",), wrt=("v",))
    with pytest.raises(NoReference, match="reduce_max: equal extremes"):
        derivative(recipe, "v", np.ones(1), 1e-4)


@pytest.mark.parametrize("places", [[0, 3], [3, 3]])
def test_elements_at_one_place_have_no_difference(places: list[int]) -> None:
    """Of unpool both have its gradient, as Fluid's have; elements at places of their own are compared."""
    attrs = {"ksize": [2, 2], "strides": [2, 2], "unpooling_type": "max"}
    step = OperatorStep("unpool", {"X": ["x"], "Indices": ["i"]}, {"Out": ["y"]}, attrs)
    feed = {"x": np.array([[[[1.0, 2.0]]]]), "i": np.array([[[places]]])}
    recipe = Recipe((step,), (feed,), {}, ("y",), targets=("y",), wrt=("x",))
    if places[0] == places[1]:
        with pytest.raises(NoReference, match="unpool: equal places"):
            derivative(recipe, "x", np.ones((1, 1, 1, 2)), 1e-4)
    else:
        assert derivative(recipe, "x", np.ones((1, 1, 1, 2)), 1e-4)[0] == pytest.approx(2)


def test_second_derivatives_are_mixed_differences() -> None:
    """Of v v s: the gradients are 2 v s and v v, and their sum has the derivatives 2 s + 2 v and 2 v."""
    steps = (
        OperatorStep("elementwise_mul", {"X": ["v"], "Y": ["v"]}, {"Out": ["y"]}, {}),
        OperatorStep("elementwise_mul", {"X": ["y"], "Y": ["s"]}, {"Out": ["z"]}, {}),
    )
    recipe = Recipe(steps, ({"v": V, "s": S},), {}, ("z",), targets=("z",), wrt=("v", "s"), order=2)
    for name, exact in (("v", 2 * S + 2 * V), ("s", 2 * V)):
        slope, unsure = second_derivative(recipe, name, np.ones(1), 8e-3)
        np.testing.assert_allclose(slope, exact[0], rtol=1e-8)
        assert unsure < 1e-6
    assert not check(recipe, fluid.CPUPlace()).findings
    wrong = replace(recipe, differences=True)
    outcome = check(wrong, fluid.CPUPlace())
    assert outcome.differences == 2
    assert not outcome.findings


def test_second_derivatives_of_a_computed_value_are_not_compared() -> None:
    """The gradient of tanh reads its output, so that it has a derivative by that alone."""
    steps = (
        OperatorStep("elementwise_add", {"X": ["v"], "Y": ["s"]}, {"Out": ["t"]}, {}),
        OperatorStep("tanh", {"X": ["t"]}, {"Out": ["s"]}, {}),
        OperatorStep("elementwise_mul", {"X": ["v"], "Y": ["s"]}, {"Out": ["z"]}, {}),
    )
    recipe = Recipe(
        steps, ({"v": V},), {"s": S}, ("z",), targets=("z",), wrt=("v", "s"), order=2, differences=True
    )  # fmt: skip
    outcome = check(recipe, fluid.CPUPlace())
    assert outcome.differences == 1
    assert not outcome.findings


def test_a_wrong_second_derivative_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(
        (OperatorStep("tanh", {"X": ["v"]}, {"Out": ["z"]}, {}),), ({"v": V},), {}, ("z",), targets=("z",), wrt=("v",),
        order=2, differences=True,
    )  # fmt: skip
    monkeypatch.setattr(ops.get("tanh_grad"), "derived", {})
    monkeypatch.setitem(derivative_rules.SCALAR_RULES, "mul", lambda a, b, out, d: (d * b, d * 0))
    found = check(recipe, fluid.CPUPlace()).findings
    assert [finding.kind for finding in found] == ["difference"]
    assert "second derivative of v" in found[0].what
