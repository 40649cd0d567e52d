"""Options of operators and kernels: what is of another kind, twice, contradictory or of no use is refused at once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest

import fluidlite as fluid
from fluidlite.errors import RegistryError
from fluidlite.plugin import (
    Aliasing,
    Differentiation,
    Execution,
    Inference,
    KernelOptions,
    Lowering,
    Registration,
    gradient,
    operator,
    register_kernel,
    register_op,
    unary,
)
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule

ANY: Any = (register_op, register_kernel, Aliasing)
OPTIONS: Any = (Inference, Aliasing, Differentiation, Execution, Lowering, Registration, KernelOptions)
WRONG: dict[str, list[Any]] = {
    "bool": ["yes", 1],
    "str": [3],
    "Callable": ["a name"],
    "Mapping": ["Out", {"Out": 3}, 5],
    "Sequence": ["Out", (3,), 5],
    "tuple": ["Out", (3,), 5],
    "Infer": ["a name"],
    "Constant": [(3.0,)],
    "Rule": ["NHWC"],
    "ScalarRule": [lambda x: x],
    "ExpressionRule": [lambda x: x],
    "GradRule": ["relu_grad"],
    "int": [0, True, "1"],
}
CASES = [
    (option, each.name, value)
    for option in OPTIONS
    for each in dataclasses.fields(option)
    for value in WRONG[re.split(r"[\[ ]", str(each.type))[0]]
]


@pytest.mark.parametrize(
    ("option", "field", "value"),
    CASES,
    ids=[f"{o.__name__}.{f}-{getattr(v, '__name__', repr(v))}"[:60] for o, f, v in CASES],
)
def test_every_field_refuses_what_is_of_another_kind(option: type, field: str, value: Any) -> None:
    with pytest.raises(RegistryError, match=rf"{option.__name__}\({field}=.*\): expected"):
        option(**{field: value})


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_frozen_data_that_knows_its_fields(option: Any) -> None:
    made = option()
    name = dataclasses.fields(option)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, name, None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'dynamik'"):
        option(dynamik=True)


CONTRADICTIONS: list[tuple[Callable[[], Any], str]] = [
    (lambda: Aliasing(may={"Out": "X"}, must={"Out": "X"}), "'Out' is in may and in must\n  Do:"),
    (lambda: ANY[2](view=("Out",)), "expected two names"),
    (lambda: Differentiation(rule=lambda maker: None, reads=("X",)), "a rule, and reads.*\n  Do:"),
    (lambda: Execution(pure=True), "is of an operator with run="),
    (lambda: Execution(run=lambda frame, op: None, pure=True, effect=True), "without effect=True"),
    (lambda: Execution(run=lambda frame, op: None, marker=True), "never runs\n  Do: leave run= out"),
    (lambda: Execution(host_only=""), "say the reason"),
    (lambda: KernelOptions(kinds=()), "is never chosen"),
]


@pytest.mark.parametrize(("make", "said"), CONTRADICTIONS)
def test_contradictions_are_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(RegistryError, match=said):
        make()


def _infer(call: Any) -> Any:
    return {"Out": call.spec("X")}


PLAIN = Inference(_infer)
SLOTS: dict[str, Any] = {"inputs": ("X",), "outputs": ("Out",)}
RELU = ops.get("relu")
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: register_op("t_bad", PLAIN, PLAIN, **SLOTS), "'t_bad' has Inference twice"),
    (lambda: ANY[0]("t_bad", _infer, **SLOTS), "'t_bad': .* is no option of it; expected Inference, Al"),
    (lambda: ANY[0]("t_bad", Inference, **SLOTS), "is no option of it"),
    (lambda: register_op("t_bad", PLAIN, Aliasing(must={"Out": "Z"}), **SLOTS), "alias 'Out' <- 'Z' names an unknown"),
    (lambda: register_op("t_bad", PLAIN, Aliasing(view=("Y", "X")), **SLOTS), "alias 'Y' <- 'X' names an unknown"),
    (lambda: register_op("t_bad", Inference(_infer, kernel_dtype="Y"), **SLOTS), "kernel_dtype='Y' is an unknown slot"),
    (lambda: register_op("t_bad", Execution(random=True), **SLOTS), "needs an inference function.*\n  Do: give Infer"),
    (
        lambda: register_op("t_bad", PLAIN, Differentiation(reads=("X",)), **SLOTS),
        r"'t_bad' does not take Differentiation\(reads=...\); expected rule, .*\n  Do: declare it with @op",
    ),
    (lambda: register_op("t_bad", PLAIN, Lowering(stored={"Out": ""}), **SLOTS), r"does not take Lowering\(stored="),
    (
        lambda: register_op("t_bad", PLAIN, Differentiation(rule=GradRule("g", ("Z",), ("X",))), **SLOTS),
        "unknown slot 'Z'",
    ),
    (
        lambda: operator("t_bad", Differentiation(doc="a gradient")),
        r"Differentiation\(doc=...\).*\n  Do: give reads= too",
    ),
    (lambda: operator("t_bad", Lowering(gradient_library=True)), r"Lowering\(gradient_library=...\)"),
    (
        lambda: operator("t_bad", Lowering(decompose=lambda call, build: None)),
        r"Lowering\(decompose=...\).*\n  Do: the fun",
    ),
    (lambda: operator("t_bad", Differentiation(only_for={"X": "Y"})), "Do: write the gradient with @gradient"),
    (
        lambda: gradient(RELU, Differentiation(reads=("X",))),
        r"the gradient of 'relu' does not take Differentiation\(reads",
    ),
    (lambda: gradient(RELU, PLAIN, PLAIN), "the gradient of 'relu' has Inference twice"),
    (
        lambda: unary("t_bad", lambda x: x, Differentiation(reads=("X",))),
        r"Differentiation\(reads=...\).*\n  Do: give grad=",
    ),
    (lambda: ANY[1]("relu", "cpu", options={"indexes": True}), r"'relu', options=.*expected KernelOptions"),
    (
        lambda: operator("t_bad", Differentiation(reads=("Y",)))(lambda x: x),
        r"'t_bad': Differentiation\(reads=\('Y',\)\); expected some of X, Out",
    ),
    (
        lambda: operator("t_bad", attrs=[fluid.Attr("n", "ints", tensors=(fluid.Slot("N"),))])(lambda x, *, n: x),
        r"attribute 'n' has tensors=.*; expected dispensable slots of values",
    ),
    (
        lambda: gradient(RELU)(lambda out, dout: dout),
        r"the gradient of 'relu' at .*test_operator_options.py.*: 'relu_grad' is declared already, at .*\n  Do: leave",
    ),
]


@pytest.mark.parametrize(("declare", "said"), REFUSED)
def test_a_declaration_refuses_what_it_would_not_read(declare: Callable[[], Any], said: str) -> None:
    with pytest.raises(RegistryError, match=re.compile(said, re.DOTALL)):
        declare()
    assert "t_bad" not in ops


def test_options_reach_the_definition_in_any_order() -> None:
    def run(frame: Any, op: Any) -> None: ...

    options: list[Any] = [
        Registration(version=3),
        Execution(run=run, pure=True, random=True, host_only="a test", memory="none"),
        Lowering(in_layout=lambda call, layout: None),
        Aliasing(may={"Out": "X"}, must={"Y": "Z"}, view=("Out", "X")),
        Differentiation(stop_gradient={"Z": "state"}, no_gradient={"X": "none"}),
        Inference(_infer, constant=lambda call: {}, dynamic=True, kernel_dtype="Z"),
    ]
    for several in (options, options[::-1]):
        op = register_op("t_all", *several, inputs=("X", "Z"), outputs=("Out", "Y"))
        ops.remove(op)
        assert (op.version, op.run, op.pure, op.random, op.host_only, op.memory) == (
            3,
            run,
            True,
            True,
            "a test",
            "none",
        )
        assert (op.may_alias, op.must_alias, op.view) == ({"Out": "X"}, {"Y": "Z"}, ("Out", "X"))
        assert (op.stop_gradient, op.no_gradient) == ({"Z": "state"}, {"X": "none"})
        assert (op.infer, op.dynamic, op.kernel_dtype, op.marker, op.effect) == (_infer, True, "Z", False, False)
        assert op.constant is options[-1].constant and op.in_layout is options[2].in_layout


def test_an_operator_overrides_on_purpose() -> None:
    first = register_op("t_again", PLAIN, **SLOTS)
    try:
        with pytest.raises(RegistryError, match=r"(?s)registered twice: at .* or say Registration\(override=True\)"):
            register_op("t_again", PLAIN, **SLOTS)
        second = register_op("t_again", Registration(override=True), PLAIN, **SLOTS)
        assert ops.get("t_again") is second
        ops.remove(second)
        assert ops.get("t_again") is first
    finally:
        ops.remove(first)


def raises(*given: Any) -> Any:
    raise ZeroDivisionError("a slip")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((Inference(lambda call: None),), r"its inference returned None; expected .* by output slot \(Out\)"),  # type: ignore[arg-type,return-value]
        ((Inference(lambda call: {"Oot": call.spec("X")}),), "its inference returned {'Oot': "),
        ((Inference(lambda call: {"Out": (2, 3)}),), r"its inference returned {'Out': \(2, 3\)}"),  # type: ignore[arg-type,return-value,dict-item]
        ((Inference(raises),), "make no sense together: ZeroDivisionError: a slip"),
        ((PLAIN, Differentiation(rule=raises)), "its gradient rule raised ZeroDivisionError: a slip"),
        ((PLAIN, Lowering(decompose=raises)), "decomposition of t_slips raised ZeroDivisionError: a slip"),
    ],
)
def test_what_a_function_of_a_declaration_does_wrongly_is_told_with_the_users_line(options: Any, said: str) -> None:
    op = register_op("t_slips", *options, **SLOTS)
    try:
        with pytest.raises(fluid.FluidError, match=re.compile(said, re.DOTALL)) as error:
            main = fluid.Program()
            with fluid.program_guard(main):
                x = fluid.layers.data("x", [3], stop_gradient=False)
                out = main.global_block().create_var("out")
                main.global_block().append_op("t_slips", {"X": x}, {"Out": out})
                if op.decompose is not None:
                    fluid.Executor("cpu").run(main, {"x": [[1.0, 2.0, 3.0]]}, [out])
                fluid.gradients([fluid.layers.reduce_sum(out)], [x])
        assert "t_slips" in str(error.value)
        assert "test_operator_options.py:" in str(error.value)
    finally:
        ops.remove(op)
