"""Operators declared as functions of scalars: slots, inference, gradient operators, and expressions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from codegen_harness import ArrayContext, call_of, execute

from fluidlite import expr
from fluidlite.base.errors import DtypeError, RegistryError, ShapeError
from fluidlite.codegen.expr import Expr, constant, scalar_reads, snake, trace
from fluidlite.codegen.lower import typed_of
from fluidlite.codegen.typed import converted_number, evaluate, promote
from fluidlite.operators.scalar_op import Elementwise, binary, scalar_op, unary
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule, ScalarRule
from fluidlite.tensor.tensor_spec import Spec


@pytest.fixture
def made() -> Iterator[list[OpDef]]:
    """Take what a test declares out of the registry again."""
    before = dict(ops._ops)
    found: list[OpDef] = []
    yield found
    for type, op in list(ops._ops.items()):
        if before.get(type) is not op:
            ops.remove(op)


def build(op: OpDef, **dims: Any) -> dict[str, Any]:
    ins = {slot: (Spec.of(*spec) if isinstance(spec, tuple) else spec,) for slot, spec in dims.items()}
    assert op.infer is not None
    return dict(op.infer(Call(op, ins, {}, {a.name: a.default for a in op.attrs})))


def test_unary_declares_operator_and_gradient(made: Any) -> None:
    op = unary("t_relu", lambda x: expr.maximum(x, 0), grad=lambda out, dout: expr.where(out > 0, dout, 0))
    assert op.grad == GradRule("t_relu_grad", ("Out", "Out@GRAD"), ("X",))
    assert dict(op.may_alias) == {"Out": "X"}
    assert op.origin.startswith(__file__)
    grad = ops.get("t_relu_grad")
    assert [s.name for s in grad.inputs] == ["Out", "Out@GRAD"] and [s.name for s in grad.outputs] == ["X@GRAD"]
    assert scalar_reads(op) == ("X",) and scalar_reads(grad) == ("Out", "Out@GRAD")
    x = Spec.of((-1, 3), "float32", lod=((0, 1),))
    assert build(op, X=x) == {"Out": x}
    assert build(grad, Out=x, **{"Out@GRAD": x}) == {"X@GRAD": x}


def test_binary_gradient_reads_only_dims(made: Any) -> None:
    op = binary("t_add", lambda x, y: x + y, grad=lambda dout: (dout, dout))
    assert op.grad == GradRule("t_add_grad", ("X", "Y", "Out@GRAD"), ("X", "Y"))
    grad = ops.get("t_add_grad")
    assert [s.metadata_only for s in grad.inputs] == [True, True, False]
    assert all(s.dispensable for s in grad.outputs)
    assert grad.kernel_dtype == "Out@GRAD"
    dims = {"X": ((4, 3), "float32"), "Y": ((3,), "float32"), "Out@GRAD": ((4, 3), "float32")}
    assert build(grad, **dims) == {"X@GRAD": Spec.of((4, 3), "float32"), "Y@GRAD": Spec.of((3,), "float32")}


@pytest.mark.parametrize(
    ("x", "y", "axis", "out"),
    [
        ((-1, 5), (5,), -1, (-1, 5)), ((-1, 5), (-1,), 0, (-1, 5)), ((-1, 1), (-1, 4), -1, (-1, 4)),
        ((2, 3, 4), (3, 1), 1, (2, 3, 4)), ((), (), -1, ()), ((-1, 5), (1,), -1, (-1, 5)), ((-1,), (5,), -1, (5,)),
        ((1, 5), (-1, 5), -1, (-1, 5)), ((0, 3), (3,), -1, (0, 3)), ((), (1,), -1, (1,)),
        ((4, 3), (2, 4, 3), -1, (2, 4, 3)), ((4,), (2, -1, 3), 1, (2, 4, 3)), ((1,), (2, 3), -1, (2, 3)),
    ],
)  # fmt: skip
def test_binary_inference(made: Any, x: Any, y: Any, axis: int, out: Any) -> None:
    op = binary("t_mul", lambda x, y: x * y)
    call = Call(op, {"X": (Spec.of(x, "float32"),), "Y": (Spec.of(y, "float32"),)}, {}, {"axis": axis})
    assert op.infer is not None
    assert op.infer(call)["Out"].dims == out  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("x", "y", "axis"),
    [((4, 3), (4,), -1), ((4, 3), (2, 3, 4), -1), ((4, 3), (3,), 0), ((4, 3), (3,), 2), ((4, 3), (2, 3), -1)],
)
def test_binary_refuses_dims(made: Any, x: Any, y: Any, axis: int) -> None:
    op = binary("t_mul", lambda x, y: x * y)
    call = Call(op, {"X": (Spec.of(x, "float32"),), "Y": (Spec.of(y, "float32"),)}, {}, {"axis": axis})
    assert op.infer is not None
    with pytest.raises(ShapeError, match=r"^(Y is .*X|X is .*Y)"):
        op.infer(call)


def test_binary_refuses_another_dtype(made: Any) -> None:
    op = binary("t_mul", lambda x, y: x * y)
    with pytest.raises(DtypeError, match=r"Y is float64.*expected dtype float32, as X"):
        build(op, X=((3,), "float32"), Y=((3,), "float64"))


def test_scalar_op_refuses_other_dims(made: Any) -> None:
    op = scalar_op("t_axpy", lambda x, other: x + other)
    assert [s.name for s in op.inputs] == ["X", "Other"]
    assert build(op, X=((-1, 3), "float32"), Other=((4, 3), "float32"))["Out"].dims == (4, 3)
    with pytest.raises(ShapeError, match="Other"):
        build(op, X=((2, 3), "float32"), Other=((4, 3), "float32"))


def test_gradient_as_dict_and_maker(made: Any) -> None:
    def gradients(x: Any, label: Any, dout: Any) -> dict[str, Any]:
        return {"Label": dout * x, "X": dout * label}

    op = scalar_op("t_two", lambda x, label: x * label, Elementwise(differentiable=("X", "Label")), grad=gradients)
    assert op.grad == GradRule("t_two_grad", ("X", "Label", "Out@GRAD"), ("X", "Label"))
    x, label, d = (np.full(3, v, "f4") for v in (2, 3, 5))
    got = execute(ArrayContext(), ops.get("t_two_grad"), {"X": x, "Label": label, "Out@GRAD": d})
    assert got["X@GRAD"].tolist() == [15] * 3 and got["Label@GRAD"].tolist() == [10] * 3

    def make(maker: Any) -> None:
        """Append nothing."""

    assert unary("t_made", lambda x: x, grad=make).grad is make
    assert "t_made_grad" not in ops._ops


def test_out_dtype(made: Any) -> None:
    assert build(unary("t_test", expr.isnan, Elementwise(out_dtype="bool")), X=((3,), "float32"))["Out"].dtype == "bool"
    assert dict(ops.get("t_test").may_alias) == {}


def test_unknown_names_are_refused(made: Any) -> None:
    with pytest.raises(RegistryError, match="nonsense"):
        unary("t_bad", lambda x: x, grad=lambda nonsense, dout: dout)
    op = unary("t_attr", lambda x, *, missing: x * missing)
    with pytest.raises(RegistryError, match="missing"):
        execute(ArrayContext(), op, {"X": np.ones(2, "f4")})


def test_snake() -> None:
    names = {"X": "x", "LearningRate": "learning_rate", "Beta1Pow": "beta1_pow", "Out@GRAD": "dout",
             "Loss@GRAD": "dloss"}  # fmt: skip
    assert {slot: snake(slot) for slot in names} == names


def test_symbols_have_no_truth_and_do_not_change() -> None:
    x = Expr("input", (), "X")
    with pytest.raises(TypeError, match="where"):
        bool(x > 0)
    with pytest.raises(AttributeError):
        x.op = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        x + "text"  # type: ignore[operator]
    assert repr(2 - x) == "sub(const(2), input('X'))"


def typed_for(function: Any, attrs: tuple[Attr, ...] = (), dtype: str = "float32", **values: Any) -> Any:
    op = OpDef("t", (Slot("X"),), (Slot("Out"),), attrs, lambda call: {"Out": call.spec("X")},
               scalar=ScalarRule(function, ("Out",)))  # fmt: skip
    return typed_of(call_of(op, {"X": np.ones(3, dtype)}, values)), op


def test_equal_expressions_are_one_value() -> None:
    code, _ = typed_for(lambda x: expr.exp(x) * expr.exp(x) + expr.exp(x))
    assert [i.op for i in code.instrs] == ["input", "exp", "mul", "add"]


def test_scalars_are_computed_once_by_the_host() -> None:
    attrs = (Attr("a", "float", 0.5), Attr("b", "float", 2.0))
    code, _ = typed_for(lambda x, *, a, b: x * (1 - a) / expr.sqrt(b + 2) + 3 * 4.0, attrs)
    assert [i.op for i in code.instrs].count("scalar") == 2
    assert code.values({"a": 0.25, "b": 2.0}) == (0.75, 2.0)
    assert 12.0 in [i.value for i in code.instrs if i.op == "const"]
    again, _ = typed_for(lambda x, *, a: x - a / 2, attrs, a=3.0)
    assert again.values({"a": 3.0}) == (1.5,)


def test_what_is_not_wanted_is_not_computed(made: Any) -> None:
    op = scalar_op("t_more", lambda x: (x + 1, expr.exp(x)), Elementwise(outputs=("A", "B")))
    code = typed_of(call_of(op, {"X": np.ones(3, "f4")}, {}, wanted=("A",)))
    assert [i.op for i in code.instrs] == ["input", "const", "add"]


def test_host_arithmetic_and_promotion() -> None:
    a = Expr("param", (), "a")
    assert evaluate(expr.where(a > 1, a, -a), {"a": 0.5}) == -0.5
    assert evaluate(expr.cast(a, "int32"), {"a": -2.7}) == -2
    assert evaluate(constant(1) / constant(2), {}) == 0.5
    assert (
        converted_number(3e10, "int32") == 2**31 - 1
        and converted_number(float("nan"), "int8") == 0
        and converted_number(300, "uint8") == 44
    )
    assert converted_number(-1.9, "int64") == -1 and converted_number(2, "bool") is True
    assert promote("uint8", "int8") == "int16" and promote("int64", "float32") == "float32"
    assert promote("float32", "float64") == "float64"


def test_trace_keeps_attributes_apart() -> None:
    def function(x: Any, *, a: Any, flag: Any) -> Any:
        assert flag is True
        return x * a

    op = OpDef("t", (Slot("X"),), (Slot("Out"),), (Attr("a", "float"), Attr("flag", "bool")), None,
               scalar=ScalarRule(function, ("Out",)))  # fmt: skip
    assert op.scalar is not None
    traced = trace(op.scalar, op, {"a": 2.0, "flag": True})
    assert repr(traced.expressions[0]) == "mul(input('X'), param('a'))"
