"""Layers from declarations: what arguments become, what a body adds, what is refused, what the documentation says."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import expr
from fluidlite.errors import AttributeValueError, ProgramError, RegistryError
from fluidlite.expr.declare import operator
from fluidlite.layers.attribute_checks import check_attribute, expected_of
from fluidlite.layers.declare import (
    AddedBias,
    Bias,
    BodyArg,
    Returned,
    Unused,
    VariableList,
    Weight,
    also,
    layer,
    layer_like,
)
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable

L = fluid.layers


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield


def last() -> Any:
    return fluid.default_main_program().global_block().ops[-1]


def test_a_layer_is_a_function_of_its_signature() -> None:
    @layer("leaky_relu")
    def leaky(x: Variable, alpha: float = 0.5, name: str | None = None) -> Variable:
        """Return x, or a part of it."""

    assert inspect.isfunction(leaky)
    assert (
        str(inspect.signature(leaky))
        == "(x: 'Variable', alpha: 'float' = 0.5, name: 'str | None' = None) -> 'Variable'"
    )
    assert leaky.__annotations__["alpha"] == "float"
    assert leaky.__name__ == "leaky"
    out = leaky(fluid.data("x", [2, 3]))
    assert (out.shape, last().type, last().attr("alpha")) == ((2, 3), "leaky_relu", 0.5)


def test_a_layer_like_another_has_its_signature_and_defaults_of_its_own() -> None:
    @layer("elu", {"slope": "alpha"})
    def first(x: Variable, slope: float = 0.5, name: str | None = None) -> Variable:
        """Return x, or a part of it."""

    @layer_like(first, "leaky_relu", slope=0.25)
    def second() -> None:
        """Return x, or another part of it."""

    assert str(inspect.signature(second)) == str(inspect.signature(first)).replace("0.5", "0.25")
    assert "leaky_relu" in second.__doc__ and second.__name__ == "second"
    out = second(fluid.data("x", [2, 3]))
    assert (out.shape, last().type, last().attr("alpha")) == ((2, 3), "leaky_relu", 0.25)
    second(fluid.data("x", [2, 3]), slope=2.0)
    assert last().attr("alpha") == 2.0


def test_an_argument_that_nothing_stands_for_is_refused_at_once() -> None:
    def wrong(x: Variable, slope: float) -> Variable: ...  # type: ignore[empty-body]

    with pytest.raises(RegistryError, match="argument 'slope' is no slot and no attribute of operator 'leaky_relu'"):
        layer("leaky_relu")(wrong)
    with pytest.raises(RegistryError, match="no argument 'alpha', which its declaration names"):
        layer("leaky_relu", {"slope": "alpha", "alpha": ""})(wrong)


def test_a_body_asks_for_parameters_results_and_another_operator() -> None:
    size = Attr("size", "int", minimum=1)

    @layer("mul", {"size": size, "fast": Unused("there is one way"), "start": BodyArg("x_num_col_dims")})
    def dense(
        x: Variable,
        size: int,
        start: int = 1,
        fast: bool = False,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: Any = None,
    ) -> Variable:
        """Return a dense layer."""
        return also(Y=Weight([x.shape[1], size]), Out=AddedBias(1))

    out = dense(fluid.data("x", [2, 3]), 4, act="relu")
    ops = [op.type for op in fluid.default_main_program().global_block().ops]
    assert (out.shape, ops) == ((2, 4), ["mul", "elementwise_add", "relu"])
    names = {each.name: each.shape for each in fluid.default_main_program().all_parameters()}
    assert names == {"dense_0.w_0": (3, 4), "dense_0.b_0": (4,)}
    dense(fluid.data("z", [2, 3]), 4, bias_attr=False)
    assert last().type == "mul"
    with pytest.raises(
        AttributeValueError, match=r"dense \(test_declared_layers\.py:\d+\): argument 'size' is int 0; .*1 or"
    ):
        dense(fluid.data("w", [2, 3]), 0)
    with pytest.raises(ProgramError, match=r"'param_attr' is list .*one ParamAttr"):
        dense(fluid.data("v", [2, 3]), 4, param_attr=[None, None])

    @layer("bilinear_tensor_product", {"size": size})
    def product(x: Variable, y: Variable, size: int, bias_attr: Any = None) -> Variable:
        """Return products."""
        return also(Weight=Weight([size, x.shape[1], y.shape[1]]), Bias=Bias([1, size]))

    product(fluid.data("a", [2, 3]), fluid.data("b", [2, 5]), 4, bias_attr=False)
    assert last().input("Bias") == []

    @layer("unstack")
    def parts(x: Variable) -> list[Variable]:
        """Return rows."""
        return also(Y=VariableList("x", x.shape[0]), num=x.shape[0], axis=0)

    assert [each.shape for each in parts(fluid.data("c", [2, 3]))] == [(3,), (3,)]


def test_outputs_are_returned_written_or_kept() -> None:
    @layer("top_k", {"both": Returned("Indices")}, returns="Out", stop_gradient=("Indices",))
    def best(x: Variable, k: int, both: bool = False, out: Variable | None = None) -> Any:
        """Return the best."""

    x = fluid.data("x", [2, 3])
    assert best(x, 1).shape == (2, 1)
    values, indices = best(x, 2, both=True)
    assert (values.stop_gradient, indices.stop_gradient) == (False, True)
    mine = L.create_tensor("float32")
    assert best(x, 1, out=mine) is mine
    with pytest.raises(ProgramError, match="argument 'out' is int 3; expected a Variable"):
        best(x, 1, out=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attr", "good", "canonical", "bad", "expected"),
    [
        (Attr("a", "int", minimum=2), np.int64(3), 3, 1, "an int of 2 or more"),
        (Attr("a", "int", maximum=2), 2, 2, 3, "an int of 2 or less"),
        (Attr("a", "float", minimum=0, maximum=1), 1, 1.0, float("nan"), "a number from 0 to 1"),
        (Attr("a", "bool"), 1, True, 2, "True or False"),
        (Attr("a", "str", choices=("u", "v")), "u", "u", "w", "'u' or 'v'"),
        (Attr("a", "str", choices=("u", "v", "w", "x")), "u", "u", "y", "one of 'u', 'v', 'w', 'x'"),
        (Attr("a", "ints"), (1, 2), [1, 2], ["x"], "an int"),
        (Attr("a", "ints"), 4, [4], 1.5, "an int"),
        (Attr("a", "floats"), [1, 2.5], [1.0, 2.5], "x", "a number"),
        (Attr("a", "dtype"), "float64", "float64", "float63", "float63"),
    ],
    ids=lambda value: value.type if isinstance(value, Attr) else None,
)
def test_an_attribute_says_what_its_argument_may_be(
    attr: Attr, good: Any, canonical: Any, bad: Any, expected: str
) -> None:
    assert check_attribute("a", good, attr) == canonical
    with pytest.raises(fluid.FluidError, match=expected):
        check_attribute("a", bad, attr)


def test_words_of_lists() -> None:
    assert expected_of(Attr("a", "ints", minimum=0)) == "ints of 0 or more"
    with pytest.raises(AttributeValueError, match="ints of 0 or more"):
        check_attribute("a", [1, -1], Attr("a", "ints", minimum=0))


def test_the_documentation_is_the_operators() -> None:
    text = inspect.getdoc(L.kldiv_loss) or ""
    for words in (
        "Appends the operator ``kldiv_loss``",
        "Source: Fluid kldiv_loss_op",
        "reduction : str, default 'mean'",
        "'none'",
        "DtypeError\n    A dtype is another one: ``x`` is ",
        "Examples\n--------\n>>> from fluidlite import data\n>>> from fluidlite.layers import kldiv_loss\n",
    ):
        assert words in text, words


def test_fluids_sake_is_said_and_heard() -> None:
    assert "Taken for Fluid's sake: the result is int64" in (inspect.getdoc(L.sampling_id) or "")
    assert L.sampling_id(fluid.data("x", [2, 3]), dtype="float32").dtype == "int64"


def test_what_is_said_of_slots_that_are_not_there_is_refused() -> None:
    with pytest.raises(RegistryError, match=r"operator 'test.told': inputs tells of Z; expected input slots"):

        @operator("test.told", inputs={"Z": "a tensor"})
        def told(x: expr.Tensor) -> expr.Tensor:
            return x
