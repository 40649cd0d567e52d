"""Calls of other operators within expressions: one launch where a call is decomposed, their meaning everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from expr_harness import LLVM, Function, llvm  # noqa: F401

import fluidlite as fluid
from fluidlite import expr as e
from fluidlite.base.errors import ProgramError
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.kernel_selection import select_kernel
from fluidlite.expr.constants import MAX_TABLE_SIZE
from fluidlite.expr.declare import operator as declare
from fluidlite.program.decompose import DecompositionPart, decompose as parts_of
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator_arguments import check_attrs
from fluidlite.program.operator_options import Differentiation, Inference
from fluidlite.program.registry import ops
from fluidlite.program.source_location import NOWHERE
from fluidlite.tensor.tensor_spec import Spec

Declare = Callable[..., OpDef]


@pytest.fixture
def made() -> Iterator[Declare]:
    """Declares operators for the length of a test."""
    found: list[OpDef] = []

    def one(type: str, function: Function, *options: Any, **more: Any) -> OpDef:
        found.append(declare(type, *options, **more)(function))
        return found[-1]

    yield one
    for op in found:
        for name in (f"{op.type}_grad", op.type):
            if name in ops:
                ops.remove(ops.get(name))


def call_of(
    type: str, ins: dict[str, tuple[int, ...]], outs: dict[str, tuple[int, ...]], dtype: str = "float32", **attrs: Any
) -> Call:
    def specs(given: dict[str, tuple[int, ...]], slot: str) -> tuple[Spec, ...]:
        return (Spec.of(given[slot], "int64" if slot == "Index" else dtype),)

    op = ops.get(type)
    clean, _ = check_attrs(op, attrs, NOWHERE)
    return Call(op, {slot: specs(ins, slot) for slot in ins}, {slot: specs(outs, slot) for slot in outs}, clean)


def types(call: Call) -> list[str]:
    parts = parts_of(call)
    assert not isinstance(parts, str), parts
    assert all(isinstance(part, DecompositionPart) for part in parts)
    return [part.call.op.type for part in parts]


def run(type: str, x: Any, place: str, mode: str = "interpreted") -> Any:
    block = fluid.default_main_program().global_block()
    given = block.create_var(fluid.unique_name.generate("x"), x.shape, str(x.dtype), is_data=True)
    out = block.create_var(fluid.unique_name.generate("out"))
    block.append_op(type, {"X": given}, {"Out": out})
    (found,) = fluid.Executor(place, mode=mode).run(fluid.default_main_program(), {given.name: x}, [out])
    return found


def backwards(x: e.Tensor) -> e.Tensor:
    return e.call("reverse", {"X": x * 2}, {"axis": [0]})["Out"] + 1


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("place", [*(str(place) for place in fluid.places()), LLVM])
def test_a_call_is_one_launch_and_means_what_the_operator_says(made: Declare, place: str, mode: str) -> None:
    made("test.backwards", backwards, Differentiation(reads=()))
    call = call_of("test.backwards", {"X": (4, 3)}, {"Out": (4, 3)})
    assert types(call) == ["elementwise_part", "reverse", "elementwise_part"]
    x = np.arange(12, dtype="float32").reshape(4, 3)
    np.testing.assert_array_equal(run("test.backwards", x, place, mode), x[::-1] * 2 + 1)


@pytest.mark.parametrize("place", [*(str(place) for place in fluid.places()), LLVM])
def test_derivatives_are_those_of_what_a_call_means(made: Declare, place: str) -> None:
    made("test.backwards", lambda x: backwards(x * x), Differentiation(reads=("X",)), inputs=("X",))
    block = fluid.default_main_program().global_block()
    x = fluid.layers.data("x", [3, 2], append_batch_size=False, dtype="float64")
    x.stop_gradient = False
    out = block.create_var("out")
    block.append_op("test.backwards", {"X": x}, {"Out": out})
    (first,) = fluid.gradients([fluid.layers.reduce_sum(out * out)], [x])
    (second,) = fluid.gradients([fluid.layers.reduce_sum(first)], [x])
    given = np.arange(6, dtype="float64").reshape(3, 2)
    exe = fluid.Executor(place, fallback="allow")
    found = exe.run(feed={"x": given}, fetch_list=[first, second])
    np.testing.assert_allclose(found[0], 8 * given * (2 * given**2 + 1))  # of the sum of (2 x x + 1) squared
    np.testing.assert_allclose(found[1], 48 * given**2 + 8)


GRADIENTS = [
    ("cross_grad", {"X": (4, 3), "Y": (4, 3), "Out@GRAD": (4, 3)}, ["X", "Y"], {}, ["cross", "cross"]),
    ("roll_grad", {"X": (4, 3), "Out@GRAD": (4, 3)}, ["X"], {"shifts": [1, 2], "dims": [0, 1]}, ["roll"]),
    ("roll_grad", {"X": (4, 3), "Out@GRAD": (4, 3)}, ["X"], {"shifts": [5]}, ["roll"]),
    ("tril_triu_grad", {"Out@GRAD": (4, 3)}, ["X"], {"lower": True}, ["tril_triu"]),
    (
        "affine_channel_grad", {"X": (4, 3), "Scale": (3,), "Out@GRAD": (4, 3)}, ["X", "Scale", "Bias"], {},
        ["elementwise_mul_grad", "reduce_sum"],
    ),
    (
        "scatter_nd_add_grad", {"Index": (5, 1), "Updates": (5, 3), "Out@GRAD": (4, 3)}, ["X", "Updates"], {},
        ["assign", "gather_nd"],
    ),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("type", "ins", "grads", "attrs", "parts"), GRADIENTS)
def test_gradients_that_are_other_operators_are_calls_of_them(
    type: str, ins: dict[str, Any], grads: list[str], attrs: dict[str, Any], parts: list[str], dtype: str
) -> None:
    outs = {f"{slot}@GRAD": ins.get(slot, (3,) if slot == "Bias" else (4, 3)) for slot in grads}
    assert types(call_of(type, ins, outs, dtype, **attrs)) == parts


def _twice_and_one(type: str) -> Function:
    return lambda x: e.call(type, {"X": x}, {}, lambda: {"Out": x * 2})["Out"] + 1


def test_an_operand_that_the_callee_refuses_is_computed_by_what_the_call_means(made: Declare) -> None:
    made("test.floats", lambda x: x * 2, inputs=("X",), dtypes={"X": ("float32",)})
    made("test.rows", lambda x: e.need(x.dims[0] > 2, "X", "three rows") or x * 2, inputs=("X",))
    for type in ("test.floats", "test.rows"):
        made(f"{type}_plus", _twice_and_one(type), inputs=("X",))
    called = call_of("test.floats_plus", {"X": (4, 3)}, {"Out": (4, 3)})
    assert types(called) == ["test.floats", "elementwise_part"]
    other = call_of("test.floats_plus", {"X": (4, 3)}, {"Out": (4, 3)}, "int32")
    assert types(other) == ["elementwise_part"]
    assert types(call_of("test.rows_plus", {"X": (4, 3)}, {"Out": (4, 3)})) == ["test.rows", "elementwise_part"]
    assert types(call_of("test.rows_plus", {"X": (2, 3)}, {"Out": (2, 3)})) == ["elementwise_part"]


def test_a_callee_that_makes_something_else_is_refused(made: Declare) -> None:
    def other(x: e.Tensor) -> e.Tensor:
        return e.call("reverse", {"X": x}, {"axis": [0]}, lambda: {"Out": e.slice_axis(x, 0, 0, 1)})["Out"]

    made("test.other", other)
    with pytest.raises(ProgramError, match=r"a call of reverse makes .* as Out, where its function says float32\[1"):
        parts_of(call_of("test.other", {"X": (4, 3)}, {"Out": (1, 3)}))


def test_an_operator_that_calls_itself_with_the_same_operands_is_what_its_function_says(made: Declare) -> None:
    def endless(x: e.Tensor) -> e.Tensor:
        return e.call("test.endless", {"X": e.transpose(x, (1, 0))}, {}, lambda: {"Out": x + 1})["Out"]

    made("test.endless", endless)
    assert types(call_of("test.endless", {"X": (3, 3)}, {"Out": (3, 3)})) == ["elementwise_part"]


def test_operators_that_call_each_other_come_to_an_end(made: Declare) -> None:
    def calling(type: str) -> Function:
        return lambda x: e.call(type, {"X": x}, {}, lambda: {"Out": x + 1})["Out"]

    made("test.one", calling("test.two"), inputs=("X",))
    made("test.two", calling("test.three"), inputs=("X",))
    made("test.three", calling("test.one"), inputs=("X",))
    call = call_of("test.one", {"X": (3, 3)}, {"Out": (3, 3)})
    assert types(call) == ["test.two"]
    chosen = select_kernel(call, fluid.Place.parse(LLVM), Policy("error"))
    assert (chosen.how, chosen.capability, chosen.parts) == ("generated", "language", ())
    x = np.zeros((3, 3), "float32")
    for type in ("test.one", "test.two"):
        for mode in ("interpreted", "compiled"):
            np.testing.assert_array_equal(run(type, x, LLVM, mode), x + 1)


def test_what_is_said_with_a_call_of_itself_needs_a_function(made: Declare) -> None:
    made("test.one", lambda x: e.call("test.two", {"X": x})["Out"], inputs=("X",))
    made("test.two", lambda x: e.call("test.one", {"X": x})["Out"], inputs=("X",))
    with pytest.raises(ProgramError, match=r"test\.two is said with a call of itself; expected a function"):
        run("test.one", np.zeros((3, 3), "float32"), "cpu")
    made("test.print", lambda x: e.call("print", {"In": x})["Out"], inputs=("X",))
    with pytest.raises(ProgramError, match="print has no expression; expected a function"):
        run("test.print", np.zeros((3, 3), "float32"), "cpu")


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_functions_of_sizes_alone_are_a_table(made: Declare, place: str) -> None:
    """One is added by the operator that computes the rest; what would be large is computed on the place."""
    call = call_of("add_position_encoding", {"X": (2, 64, 32)}, {"Out": (2, 64, 32)})
    assert types(call) == ["assign_value", "elementwise_part"]

    def waves(x: e.Tensor) -> e.Tensor:
        return e.wide(x) + e.sin(e.cast(e.iota(x.dims, 0), "float64")) + e.cast(e.iota(x.dims, 0), "float64")

    made("test.waves", waves)
    assert "assign_value" in types(
        call_of("test.waves", {"X": (MAX_TABLE_SIZE,)}, {"Out": (MAX_TABLE_SIZE,)}, "float64")
    )
    large = MAX_TABLE_SIZE + 1
    assert "assign_value" not in types(call_of("test.waves", {"X": (large,)}, {"Out": (large,)}, "float64"))
    for count in (3, MAX_TABLE_SIZE, large):
        k = np.arange(count, dtype="float64")
        np.testing.assert_allclose(run("test.waves", k * 0, place), np.sin(k) + k, atol=1e-9)


WRONG = [
    (lambda x: e.call("scale", {"X": x}, {"sclae": 3.0})["Out"], "scale has no attribute 'sclae'"),
    (lambda x: e.call("tril_triu", {"X": x}, {"lower": "no"})["Out"], "attribute 'lower' is 'no'; expected a bool"),
    (lambda x: e.call("scale", {"X": x, "Nope": x})["Out"], "scale has no input slot 'Nope'"),
    (lambda x: e.call("concat", {"X": (x, x)})["Out"], "a call of concat takes one tensor as X"),
    (lambda x: e.call("cross", {"X": x})["Out"], "a call of cross leaves out Y"),
    (lambda x: e.call("reshape", {"X": x}, {"shape": [9]})["Out"], "reshape infers Out by other means"),
    (lambda x: e.call("roll", {"X": x}, {"shifts": [1], "dims": [5]})["Out"], "what roll takes, dims: an axis"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "said"), WRONG)
@pytest.mark.parametrize("inferred", [False, True])
def test_a_call_that_the_operator_does_not_take_is_refused(
    made: Declare, function: Function, said: str, inferred: bool
) -> None:
    """The outputs that the caller infers are not those of the operator that it calls."""
    options = (Inference(lambda call: {"Out": call.spec("X")}),) if inferred else ()
    made("test.wrong", function, *options, inputs=("X",))
    with pytest.raises(fluid.FluidError, match=said):
        run("test.wrong", np.zeros((3, 3), "float32"), "cpu")


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("place", [*(str(place) for place in fluid.places()), LLVM])
@pytest.mark.parametrize(("type", "ins", "outs", "attrs"), [
    ("cross_grad", {"X": (0, 3), "Y": (0, 3), "Out@GRAD": (0, 3)}, {"X@GRAD": (0, 3), "Y@GRAD": (0, 3)}, {}),
    ("roll_grad", {"X": (0, 3), "Out@GRAD": (0, 3)}, {"X@GRAD": (0, 3)}, {"shifts": [1], "dims": [0]}),
    ("affine_channel_grad", {"X": (0, 3), "Scale": (3,), "Out@GRAD": (0, 3)},
     {"X@GRAD": (0, 3), "Scale@GRAD": (3,), "Bias@GRAD": (3,)}, {"data_layout": "NCHW"}),
    ("scatter_nd_add_grad", {"Index": (0, 1), "Updates": (0, 3), "Out@GRAD": (2, 3)},
     {"X@GRAD": (2, 3), "Updates@GRAD": (0, 3)}, {}),
    ("conv2d_grad", {"Input": (0, 2, 4, 4), "Filter": (3, 2, 3, 3), "Bias": (3,), "Output@GRAD": (0, 3, 2, 2)},
     {"Filter@GRAD": (3, 2, 3, 3), "Bias@GRAD": (3,)}, {}),
])  # fmt: skip
def test_calls_of_nothing(
    type: str, ins: dict[str, tuple[int, ...]], outs: dict[str, tuple[int, ...]], attrs: dict[str, Any], place: str,
    mode: str,
) -> None:  # fmt: skip
    block = fluid.default_main_program().global_block()
    given = {slot: block.create_var(f"in{k}", dims, "int64" if slot == "Index" else "float32", is_data=True)
             for k, (slot, dims) in enumerate(ins.items())}  # fmt: skip
    made = {slot: block.create_var(f"out{k}") for k, slot in enumerate(outs)}
    block.append_op(type, given, made, attrs)
    feed = {given[slot].name: np.ones(dims, "int64" if slot == "Index" else "float32") for slot, dims in ins.items()}
    exe = fluid.Executor(place, mode=mode, fallback="allow")
    for found, dims in zip(exe.run(feed=feed, fetch_list=list(made.values())), outs.values(), strict=True):
        assert found.shape == dims and (found == (dims == (2, 3))).all()


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("place", [*(str(place) for place in fluid.places()), LLVM])
def test_two_outputs_that_are_one_call(made: Declare, place: str, mode: str) -> None:
    def twice(x: e.Tensor) -> tuple[e.Tensor, e.Tensor]:
        found = e.call("tril_triu", {"X": x}, {"lower": True})["Out"]
        return found, found

    made("test.twice", twice, Differentiation(reads=("X",)), outputs=("Out", "Again"))
    block = fluid.default_main_program().global_block()
    x = fluid.layers.data("x", [3, 3], append_batch_size=False)
    outs = {slot: block.create_var(slot) for slot in ("Out", "Again")}
    block.append_op("test.twice", {"X": x}, outs)
    given = np.ones((3, 3), "float32")
    for found in fluid.Executor(place, mode=mode, fallback="allow").run(feed={"x": given}, fetch_list=[*outs.values()]):
        np.testing.assert_array_equal(found, np.tril(given))
