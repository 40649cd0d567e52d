"""What the reference and ``fluidlite op`` say of operators."""

from __future__ import annotations

import pytest

from fluidlite.base.dtypes import ALL, ALL_FLOATS
from fluidlite.cli import op_docs as facts
from fluidlite.cli.kernel_matrix import gradient_types
from fluidlite.program.opdef import Attr
from fluidlite.program.registry import ops


@pytest.mark.parametrize(
    ("type", "family"),
    [
        ("relu", "activations"),
        ("squeeze2", "squeeze"),
        ("transpose", "shape"),
        ("sgd", "optimizers"),
        ("sum", "reduce"),
    ],
)
def test_the_family_is_the_file_that_declares(type: str, family: str) -> None:
    """Also where a helper of another file registers the operator."""
    assert facts.family_of(ops.get(type)) == family


def test_families_hold_each_operator_once() -> None:
    shown = [op.type for family in facts.families() for op in family.operators]
    assert len(shown) == len(set(shown))
    hidden = {op.type for op in ops if facts.is_own(op)} - set(shown)
    assert all("_grad" in type for type in hidden)
    assert "cross_entropy_grad2" in hidden
    assert {"matmul", "feed", "print"} <= set(shown)


@pytest.mark.parametrize(
    ("type", "words"),
    [
        ("equal", "none"),
        ("relu", "relu_grad reads Out, Out@GRAD; writes X@GRAD"),
        ("reduce_sum", "reduce_sum_grad reads Out@GRAD and only the dims of X; writes X@GRAD"),
        ("split", "made of concat"),
        ("py_func", "made by its definition, for each call"),
    ],
)
def test_gradients(type: str, words: str) -> None:
    assert facts.gradient_words(ops.get(type)) == words


def test_a_gradient_that_a_function_makes() -> None:
    assert gradient_types(ops.get("stack")) == ["stack_grad"]
    assert gradient_types(ops.get("cast")) == ["cast"]
    assert gradient_types(ops.get("equal")) == []


@pytest.mark.parametrize(
    ("dtypes", "words"),
    [
        (ALL, "every dtype"),
        (ALL_FLOATS, "floats"),
        ((*ALL_FLOATS, "int64", "int32"), "floats, int32, int64"),
        (("float64", "float32"), "float32, float64"),
        ((), ""),
    ],
)
def test_dtypes(dtypes: tuple[str, ...], words: str) -> None:
    assert facts.dtype_words(dtypes) == words


@pytest.mark.parametrize(
    ("attr", "default", "allowed"),
    [
        (Attr("a", "float"), "required", ""),
        (Attr("a", "ints", (1, 2), minimum=1), "[1, 2]", "1 or more"),
        (Attr("a", "float", 0.5, minimum=0.0, maximum=1.0), "0.5", "0 to 1"),
        (Attr("a", "int", 0, maximum=3), "0", "3 or less"),
        (Attr("a", "str", "x", choices=("x", "y")), "'x'", "'x' or 'y'"),
        (Attr("a", "dtype", optional=True), "None", ""),
    ],
)
def test_attributes(attr: Attr, default: str, allowed: str) -> None:
    assert (facts.attr_default(attr), facts.attr_range(attr)) == (default, allowed)


def test_traits() -> None:
    def told(type: str) -> str:
        return " ".join(facts.traits(ops.get(type)))

    assert "Pinned to the host: its recursion" in told("linear_chain_crf")
    assert "ParamOut is Param, written in place." in told("sgd")
    assert "Random" in told("dropout")
    assert "Dynamic" in told("where_index")
    assert "Memory of gather_nd: where arrays compute" in told("gather_nd")
    assert "Memory of prelu_grad: " in told("prelu") and "Memory of prelu:" not in told("prelu")
    assert "It runs itself" in told("print")
    assert "never runs" in told("feed")
