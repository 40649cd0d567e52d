"""Parts of random programs: what references refuse, derivatives of state that is overwritten, state that is fed."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.dtypes import ALL, NUMPY
from fluidlite.conformance.samples import reference_of
from fluidlite.control_flow import tensor_arrays
from fluidlite.errors import FluidError
from fluidlite.platform.place import Place
from fluidlite.tensor.tensor import Tensor
from fluidlite.testing.fuzz import blocks
from fluidlite.testing.fuzz.builder import Builder
from fluidlite.testing.fuzz.differences import derivative
from fluidlite.testing.fuzz.error_bounds import NoReference
from fluidlite.testing.fuzz.generate import generate
from fluidlite.testing.fuzz.outcome import Finding
from fluidlite.testing.fuzz.printing import python
from fluidlite.testing.fuzz.recipe import OperatorStep, Recipe, build
from fluidlite.testing.fuzz.reference import Evaluator, exactly
from fluidlite.testing.fuzz.run import check

CPU = Place("cpu", 0)
DIMS = ((), (1,), (3,), (1, 1), (2, 3), (3, 1), (1, 3), (1, 1, 1), (2, 1, 1), (1, 2, 3))


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_references_of_two_operands_have_the_dims_that_inference_says(axis: int) -> None:
    """Whichever has fewer dims, and whichever has one element."""
    reference = reference_of("elementwise_add")
    assert reference is not None
    for x, y in product(DIMS, DIMS):
        block = fluid.Program().global_block()
        for name, dims in (("x", x), ("y", y)):
            block.create_var(name, dims, "float32", is_data=True)
        block.create_var("out")
        try:
            block.append_op("elementwise_add", {"X": ["x"], "Y": ["y"]}, {"Out": ["out"]}, {"axis": axis})
        except FluidError:
            continue
        found = reference({"X": np.zeros(x), "Y": np.zeros(y)}, {"axis": axis})["Out"]
        assert found.shape == tuple(block.var("out").shape), (x, y)


def test_nothing_is_known_of_a_path_whose_score_is_nearly_that_of_another() -> None:
    """Sums of three numbers, which are equal as decimals, and further apart in float64 than float32 rounds."""
    moves = [[-0.83, 0.06, 0.10], [-0.17, 0.33, 0.03], [0.27, -0.39, 0.73], [-0.83, 0.06, 0.10], [-0.17, 0.33, 0.03]]
    values = {"x": np.ones((1, 3, 3)), "moves": np.array(moves)}
    given = {name: exactly(array.astype("float32")) for name, array in values.items()}
    given["length"] = exactly(np.array([[3]]))
    step = OperatorStep(
        "crf_decoding",
        {"Emission": ("x",), "Transition": ("moves",), "Length": ("length",)},
        {"ViterbiPath": ("path",)},
    )
    for seed in range(40):
        found = Evaluator(given, {}, seed).outputs(step, {})["path"]
        assert not np.isfinite(found.bound).all(), seed


def test_a_reference_with_another_number_of_parts_is_refused() -> None:
    step = OperatorStep("unbind", {"X": ("x",)}, {"Out": ("a", "b")}, {})
    evaluator = Evaluator({"x": exactly(np.zeros((3, 2), "float32"))}, {})
    with pytest.raises(NoReference, match="3 values for the 2 variables of Out"):
        evaluator.outputs(step, {})


def test_what_would_be_too_large_is_left_out_before_its_reference_is_called() -> None:
    """Each of 20,000 rows of indices took an element of 20,000: several GB, for a program that was not kept."""
    builder = Builder(np.random.default_rng(0), (2,), ("float32",), ALL)
    x = builder.feed([np.zeros((20_000, 1), "float32")])
    index = builder.feed([np.zeros((20_000, 1), "int64")])
    wide = builder.feed([np.zeros((2, 10_000), "float32")])
    tracemalloc.start()
    try:
        assert builder.append("matmul", {"X": [x], "Y": [x]}, attrs={"transpose_Y": True}) is None
        assert builder.append("gather_nd", {"X": [wide], "Index": [index]}) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
    assert builder.refused == {"too large": 2}
    assert not builder.program.global_block().ops and builder.append("relu", {"X": [x]}) is not None


def test_an_index_that_no_shard_has_is_refused() -> None:
    step = OperatorStep("shard_index", {"X": ("x",)}, {"Out": ("a",)}, {"index_num": 6, "nshards": 2, "shard_id": 0})
    with pytest.raises(NoReference, match="no shard"):
        Evaluator({"x": exactly(np.asarray([[5], [6]]))}, {}).outputs(step, {})


def test_a_stride_of_nothing_is_refused() -> None:
    """The sizes in Y over 0 were numbers of rows without end."""
    step = OperatorStep(
        "im2sequence", {"X": ("x",), "Y": ("y",)}, {"Out": ("a",)}, {"kernels": [1, 1], "out_stride": [0, 1]}
    )
    values = {"x": exactly(np.zeros((2, 1, 4, 5))), "y": exactly(np.asarray([[4.0, 5.0]] * 2))}
    with pytest.raises(NoReference, match="Y are larger"):
        Evaluator(values, {}).outputs(step, {})


def overwritten(*steps: OperatorStep) -> Recipe:
    """State ``s`` and what is fed as ``x``; the gradient of ``s`` is wanted."""
    run = {"x": np.asarray([2.0, -0.5])}
    return Recipe(steps, (run,), {"s": np.asarray([0.4, 1.5])}, ("y",), targets=("y",), wrt=("s",), differences=True)


def test_the_derivative_of_a_name_is_that_of_the_value_which_it_got_last() -> None:
    """Unless its own value is what it is made of."""
    product_ = OperatorStep("elementwise_mul", {"X": ("x",), "Y": ("s",)}, {"Out": ("y",)})
    for first in (
        OperatorStep("assign", {"X": ("x",)}, {"Out": ("s",)}),
        OperatorStep("scale", {"X": ("s",)}, {"Out": ("s",)}, {"scale": 3.0}),
    ):
        outcome = check(overwritten(first, product_), CPU)
        assert not outcome.findings and outcome.differences == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_half_types_are_held_against_differences(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right one passes, and a wrong one is found."""
    x = np.asarray([1.2]).astype(NUMPY[dtype])
    steps = OperatorStep("tanh", {"X": ("x",)}, {"Out": ("v",)}), OperatorStep("square", {"X": ("v",)}, {"Out": ("y",)})
    recipe = Recipe(steps, ({"x": x},), fetches=("y",), targets=("y",), wrt=("x",), differences=True)
    outcome = check(recipe, CPU)
    assert not outcome.findings and outcome.differences == 1
    wrong = OperatorStep("tanh", {"X": ("x",)}, {"Out": ("v",)}), OperatorStep("abs", {"X": ("v",)}, {"Out": ("y",)})
    threefold = {"abs": lambda inputs, attrs: {"Out": 3 * inputs["X"]}}
    monkeypatch.setattr(
        "fluidlite.testing.fuzz.call.reference_of", lambda type: threefold.get(type, reference_of(type))
    )
    found = check(Recipe(wrong, ({"x": x},), targets=("y",), wrt=("x",), differences=True), CPU).findings
    assert [finding.kind for finding in found] == ["difference"]


def test_state_is_fed_written_and_fetched() -> None:
    """Some programs have it, and it is right in them."""
    seen = 0
    for number in range(25):
        recipe = generate(4, number, ALL).recipe
        written = {name for step in recipe.steps for name in step.writes()}
        if written & set(recipe.state) & set(recipe.runs[0]) & set(recipe.fetches):
            seen += 1
            assert not check(recipe, CPU).findings
        if seen == 2:
            return
    pytest.fail("no program has it")


def test_a_gradient_of_nothing_but_rounding_is_not_compared() -> None:
    """The sum of a softmax is 1: what its derivative is depends on how each rendering rounds."""
    rows = [
        [0.2739233672618866, -0.46042656898498535, -0.9180529713630676, -0.9669447541236877],
        [0.62654048204422, 0.8255111575126648, 0.21327155828475952, 0.4589931070804596],
        [0.08724997937679291, 0.8701448440551758, 0.6317071318626404, -0.9945229887962341],
    ]
    steps = (
        OperatorStep("scale", {"X": ("s",)}, {"Out": ("s",)}, {"scale": 0.5}),
        OperatorStep("logsumexp", {"X": ("x",)}, {"Out": ("v",)}, {"dim": [0], "keep_dim": True}),
        OperatorStep("softmax", {"X": ("v",)}, {"Out": ("y",)}, {"axis": -1}),
    )
    feed, state = {"x": np.asarray(3 * rows)}, {"s": np.ones((1, 4))}
    outcome = check(Recipe(steps, (feed,), state, targets=("y",), wrt=("x",)), CPU)
    assert not outcome.findings
    assert outcome.discarded["gradient: ill conditioned"] == 1


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("pairs", [2, 4])
def test_which_of_equal_elements_is_chosen_is_not_known(pairs: int, seed: int) -> None:
    """Each of them was rounded, and may be the largest; the largest of different ones is known."""
    block = fluid.Program().global_block()
    table = np.array([0.5, 0.1] * pairs + [-3.0], "float32")
    steps = [
        OperatorStep("tanh", {"X": ["x"]}, {"Out": ["y"]}, {}),
        OperatorStep("arg_max", {"X": ["y"]}, {"Out": ["z"]}, {"axis": -1}),
        OperatorStep("arg_min", {"X": ["y"]}, {"Out": ["least"]}, {"axis": -1}),
    ]
    block.create_var("x", table.shape, "float32", is_data=True)
    evaluator = Evaluator({"x": exactly(table)}, {}, seed)
    for step in steps:
        for name in step.writes():
            block.create_var(name)
        block.append_op(step.type, step.inputs, step.outputs, step.attrs)
        evaluator.take(step, evaluator.outputs(step, {name: block.var(name).dtype for name in step.writes()}))
    assert np.isinf(evaluator.values["z"].bound).all()
    assert evaluator.values["least"].value == 2 * pairs and evaluator.values["least"].bound == 0


@pytest.mark.parametrize("equal", [True, False])
def test_the_difference_at_a_kink_is_not_compared(equal: bool) -> None:
    """Of equal numbers top_k takes the first one; how they are moved apart decides on the derivative."""
    x = np.asarray([[0.5, *([0.5] * 6 if equal else [0.4] * 6)]])
    steps = (OperatorStep("top_k", {"X": ("x",)}, {"Out": ("v",), "Indices": ("i",)}, {"k": 1}),)
    outcome = check(Recipe(steps, ({"x": x},), targets=("v",), wrt=("x",), differences=True), CPU)
    assert not outcome.findings
    assert outcome.differences == (0 if equal else 1)


def test_kinks_are_seen_at_curves_too() -> None:
    """Forward and backward derivatives differ by 2 at 0; a curve alone has one derivative."""
    for type, sides in (("abs", 2.0), ("square", 0.0)):
        steps = (
            OperatorStep(type, {"X": ("x",)}, {"Out": ("v",)}),
            OperatorStep("exp", {"X": ("v",)}, {"Out": ("y",)}),
        )
        recipe = Recipe(steps, ({"x": np.zeros(1)},), targets=("y",), wrt=("x",), differences=True)
        _, unsure = derivative(recipe, "x", np.ones(1), 1e-4)
        assert unsure == pytest.approx(sides, abs=1e-6)


def test_an_index_that_one_mode_finds_late_is_refused_by_both() -> None:
    """Behind a write of state a compiled chain records it, and the interpreter's array kernel raises at once."""
    steps = (
        OperatorStep("tanh", {"X": ("s",)}, {"Out": ("s",)}),
        OperatorStep(
            "auc",
            {"Predict": ("p",), "Label": ("l",), "StatPos": ("c",), "StatNeg": ("c",)},
            {"AUC": ("a",), "StatPosOut": ("pos",), "StatNegOut": ("neg",)},
            {"num_thresholds": 4, "slide_steps": 0},
        ),
    )
    feed = {"p": np.asarray([[-0.9]], "float32"), "l": np.zeros((1, 1), "int32"), "c": np.ones(5, "int64")}
    outcome = check(Recipe(steps, (feed,), {"s": np.ones(1, "float32")}, ("neg",)), CPU)
    assert not outcome.findings
    assert outcome.discarded["refused by numbers that only the run knows"] == 1


@pytest.mark.parametrize("dims", [(2, 1, 2), (2, 1, 2, 1)])
def test_the_rounding_of_a_mean_counts_where_no_movement_of_x_does(dims: tuple[int, ...]) -> None:
    """Two elements become 1 and -1, wherever they are; how exactly follows from how large they are."""
    x = np.asarray([999.02, 998.78, 1001.15, 998.75]).reshape(dims)
    outputs = {"Y": ("y",), "SavedMean": ("m",), "SavedVariance": ("v",)}
    step, other = (
        OperatorStep("instance_norm", {"X": ("x",), "Scale": ("one",), "Bias": ("one",)}, outputs, {"epsilon": epsilon})
        for epsilon in (8.517398407649353e-06, 8.6e-06)
    )
    feed = {"x": x, "one": np.ones(1)}
    outcome = check(Recipe((step,), (feed,), fetches=("y",)), CPU)
    assert not outcome.findings and outcome.compared == 1
    evaluator = Evaluator({name: exactly(value) for name, value in feed.items()}, {})
    right, wrong = evaluator.outputs(step, {})["y"], evaluator.outputs(other, {})["y"]
    assert (np.abs(wrong.value - right.value) > right.bound).any()


def test_blocks_around_steps_change_nothing_and_their_faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of a program in a branch, a loop and a loop with arrays: values and gradients are those without."""
    x = np.linspace(0.2, 1.0, 6, dtype=np.float32).reshape(2, 3)
    plain = (
        OperatorStep("tanh", {"X": ("x",)}, {"Out": ("a",)}), OperatorStep("square", {"X": ("a",)}, {"Out": ("b",)}),
        OperatorStep("elementwise_mul", {"X": ("b",), "Y": ("x",)}, {"Out": ("c",)}),
        OperatorStep("exp", {"X": ("c",)}, {"Out": ("d",)}),
    )  # fmt: skip

    def recipe(kind: str) -> Recipe:
        steps = [replace(step, block=blocks.label(kind, 2, 0)) if step.type != "exp" else step for step in plain]
        fed = {"x": x}
        return Recipe(tuple(steps), (fed, fed), fetches=("b", "d"), targets=("d",), wrt=("x",), differences=True)

    for kind in blocks.KINDS:
        outcome = check(recipe(kind), CPU)
        assert not outcome.findings and outcome.compared and outcome.differences
        types = {op.type for op in build(recipe(kind)).program.global_block().ops}
        assert ("while" if kind != "branch" else "conditional_block") in types
        assert "append_all" in python(recipe(kind), "cpu")
    wrong = lambda tensor, context: Tensor().set(tensor.numpy() * np.float32(1.01), context.place)  # noqa: E731
    monkeypatch.setattr(tensor_arrays, "_shared_tensor", wrong)
    assert "value" in [finding.kind for finding in check(recipe("array"), CPU).findings]


def test_a_recipe_that_is_not_built_is_another_failure() -> None:
    """Else a failing recipe would be cut down to one that no program can be made of."""
    recipe = generate(5, 0, ALL).recipe
    ran, other, not_built = (
        Finding("error", f"ShapeError: {what}: X is [1]", "", recipe)
        for what in ("one mode alone", "one mode alone", "not built")
    )
    assert ran.key == other.key != not_built.key
    assert Finding("foreign", "KeyError: compiled, run 1: x", "", recipe).key == "foreign:KeyError"
    assert Finding("value", "v1: differs", "v1", recipe).key == "value"
