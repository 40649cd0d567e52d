"""Edits in place of a program that has run: the next run sees them, or they are refused with what to call instead."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import AttributeValueError, ProgramError

X = np.array([[1.0, -2.0, 4.0]], "float32")

MODES = pytest.mark.parametrize("mode", ["compiled", "interpreted"])


class Case:
    """A program of three operators that has run, so that its plans are kept: ``((x * 2 + 1) * 3) ** 2``."""

    def __init__(self, mode: str) -> None:
        self.main, self.scope = fluid.Program(), fluid.Scope()
        with fluid.program_guard(self.main, fluid.Program()), fluid.unique_name.guard():
            self.x = layers.data("x", [3])
            self.y = layers.scale(self.x, 2.0, bias=1.0)
            self.z = layers.scale(self.y, 3.0)
            self.out = layers.square(self.z)
        self.block = self.main.global_block()
        self.exe = fluid.Executor("cpu", mode=mode)
        for _ in range(3):
            self.run()

    def run(self) -> Any:
        """What it gives now, which is what a new executor gives of a copy."""
        found = self.exe.run(self.main, {"x": X}, [self.out], scope=self.scope)[0]
        again = fluid.Executor("cpu").run(self.main.clone(), {"x": X}, [self.out.name], scope=fluid.Scope())[0]
        np.testing.assert_array_equal(found, again)
        return found


def exchange_for_another(block: Any) -> None:
    block.append_op("abs", {"X": block.ops[1].input("X")}, {"Out": block.ops[1].output("Out")})
    block.ops[1] = block.ops.pop()


def two_steps(block: Any) -> None:
    """First the length changes, then it is as before."""
    block.append_op("scale", {"X": block.ops[2].input("X")}, {"Out": block.ops[2].output("Out")}, {"scale": 7.0})
    block.ops.remove(block.ops[2])


def rebound(block: Any) -> None:
    block.append_op("abs", {"X": block.ops[1].input("X")}, {"Out": block.ops[1].output("Out")})
    block.ops = [block.ops[0], block.ops[3], block.ops[2]]


SEEN: dict[str, Callable[[Any], Any]] = {
    "an operator for another": exchange_for_another,
    "two steps": two_steps,
    "a new list": rebound,
    "set_attr": lambda block: block.ops[0].set_attr("bias", 5.0),
    "rename_input": lambda block: block.ops[2].rename_input(block.ops[2].input("X")[0], "x"),
    "extended": lambda block: block.ops.extend([block.ops[0]]) or block.ops.sort(key=lambda op: op.type),
}


@MODES
@pytest.mark.parametrize("edit", SEEN)
def test_edits_of_equal_length_are_seen(edit: str, mode: str) -> None:
    case = Case(mode)
    edits = case.main.edits
    before = case.run()
    SEEN[edit](case.block)
    assert case.main.edits > edits
    found = case.run()
    assert edit == "extended" or (found != before).any()


@MODES
def test_another_order_is_seen(mode: str) -> None:
    case = Case(mode)
    case.block.append_op("scale", {"X": case.out}, {"Out": case.out}, {"scale": 2.0})
    case.block.append_op("scale", {"X": case.out}, {"Out": case.out}, {"scale": 1.0, "bias": 3.0})
    first = case.run()
    case.block.ops[3:] = case.block.ops[:2:-1]
    np.testing.assert_allclose(case.run(), first + 3.0)


@MODES
def test_what_a_variable_is_is_seen(mode: str) -> None:
    case = Case(mode)
    case.z.persistable = True
    case.run()
    np.testing.assert_array_equal(case.scope.find_var(case.z.name).get_tensor().numpy(), (X * 2 + 1) * 3)
    for name in ("stop_gradient", "is_data", "persistable"):
        edits = case.main.edits
        setattr(case.y, name, not getattr(case.y, name))
        assert case.main.edits > edits, name
    with pytest.raises(AttributeError):
        case.y.shape = (4,)


@MODES
def test_a_variable_that_is_told_again_costs_no_compilation(mode: str) -> None:
    case = Case(mode)
    case.out.persistable = True
    case.x.stop_gradient = True
    edits = case.main.edits
    case.out.persistable = True
    case.x.stop_gradient = True
    assert case.main.edits == edits


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "attrs[...] =": (lambda op: op.attrs.__setitem__("scale", 5.0), "set_attr"),
    "attrs.update": (lambda op: op.attrs.update(scale=5.0), "set_attr"),
    "attrs |=": (lambda op: op.attrs.__ior__({"scale": 5.0}), "set_attr"),
    "attrs.pop": (lambda op: op.attrs.pop("scale"), "set_attr"),
    "attrs =": (lambda op: setattr(op, "attrs", {"scale": 5.0}), "set_attr"),
    "hints[...] =": (lambda op: op.hints.__setitem__("op_device", "cpu"), "set_attr"),
    "inputs[...] =": (lambda op: op.inputs.__setitem__("X", ["x"]), "rename_input"),
    "inputs[...][0] =": (lambda op: op.inputs["X"].__setitem__(0, "x"), "rename_input"),
    "inputs[...] +=": (lambda op: op.inputs["X"].__iadd__(["x"]), "rename_input"),
    "inputs[...].append": (lambda op: op.inputs["X"].append("x"), "rename_input"),
    "inputs =": (lambda op: setattr(op, "inputs", {}), "rename_input"),
    "outputs.clear": (lambda op: op.outputs.clear(), "rename_output"),
    "outputs[...][:] =": (lambda op: op.outputs["Out"].__setitem__(slice(None), ["x"]), "rename_output"),
    "type =": (lambda op: setattr(op, "type", "relu"), "insert_op"),
}


@pytest.mark.parametrize("edit", REFUSED)
def test_edits_that_nothing_would_check_are_refused(edit: str) -> None:
    case = Case("compiled")
    op = case.block.ops[1]
    before = repr(op), dict(op.attrs), case.run()
    change, instead = REFUSED[edit]
    says = (
        rf"(?s)^operator scale \({os.path.basename(__file__)}:\d+, layers.scale\): .*cannot be changed.*Do: .*{instead}"
    )
    with pytest.raises(ProgramError, match=says):
        change(op)
    with pytest.raises(ProgramError, match=says):  # a copy of the program shares what cannot change
        change(case.main.clone().global_block().ops[1])
    assert (repr(op), dict(op.attrs)) == before[:2]
    np.testing.assert_array_equal(case.run(), before[2])


NO_OPERATORS: dict[str, Callable[[Any], Any]] = {
    "append": lambda block: block.ops.append(3),
    "insert": lambda block: block.ops.insert(0, "relu"),
    "extend": lambda block: block.ops.extend([block.ops[0], 3]),
    "extend by what is no list": lambda block: block.ops.extend(3),
    "+=": lambda block: block.ops.__iadd__([3]),
    "[...] =": lambda block: block.ops.__setitem__(0, [block.ops[0]]),
    "[:] =": lambda block: block.ops.__setitem__(slice(None), [None]),
    "ops =": lambda block: setattr(block, "ops", [3]),
}


@pytest.mark.parametrize("edit", NO_OPERATORS)
def test_a_block_takes_operators_alone(edit: str) -> None:
    case = Case("compiled")
    before = list(case.block.ops)
    with pytest.raises(ProgramError, match=r"block\.ops.*expected (an operator\n  Do: block\.append_op|operators)"):
        NO_OPERATORS[edit](case.block)
    assert list(case.block.ops) == before


@pytest.mark.parametrize(("name", "value"), [("spec", 3), ("spec", (2, 3)), ("type", 7)])
def test_a_variable_is_told_what_it_can_be(name: str, value: Any) -> None:
    y = Case("compiled").y
    before = getattr(y, name)
    with pytest.raises(ProgramError, match=rf"{name} of variable '{y.name}' is .*; expected"):
        setattr(y, name, value)
    assert getattr(y, name) == before


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("scal", 1.0, "has no attribute 'scal'; it has scale, .*did you mean 'scale'"),
        ("op_devise", "cpu", "has no attribute 'op_devise'.*did you mean 'op_device'"),
        (3, 1.0, "has no attribute 3"),
        ("scale", "x", "'scale' is 'x'"),
    ],
)
def test_an_attribute_that_no_operator_reads_is_refused(name: Any, value: Any, says: str) -> None:
    op = Case("compiled").block.ops[1]
    before = op.all_attrs()
    with pytest.raises(AttributeValueError, match=rf"^operator scale \(.*layers.scale\).*{says}"):
        op.set_attr(name, value)
    assert op.all_attrs() == before


def test_an_attribute_that_fits_nothing_leaves_the_operator_as_it_was() -> None:
    x = layers.data("x", [2, 3], append_batch_size=False)
    op = layers.reshape(x, [3, 2]).block.ops[-1]
    with pytest.raises(fluid.errors.FluidError):
        op.set_attr("shape", [5, 5])
    assert list(op.attr("shape")) == [3, 2]


def test_copies_of_what_an_operator_has_may_be_changed() -> None:
    op = Case("compiled").block.ops[0]
    for make in (copy.copy, copy.deepcopy):
        attrs, inputs, names = make(op.attrs), make(op.inputs), make(op.inputs["X"])
        attrs["scale"], inputs["X"] = 5.0, ["y"]
        names.append("z")
    assert (op.attr("scale"), op.inputs) == (2.0, {"X": ["x"]})
    ops = copy.copy(op.block.ops)
    ops.clear()
    assert len(op.block.ops) == 3
