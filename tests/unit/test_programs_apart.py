"""Values of two programs do not meet, whatever their names; copies of one program know each other's variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import graph as ng, layers
from fluidlite.errors import FluidError, ProgramError
from fluidlite.transformers import make_transformer


def guarded() -> Any:
    return fluid.program_guard(fluid.Program(), fluid.Program())


@pytest.fixture
def pair() -> Iterator[tuple[Any, Any]]:
    """Placeholders of one name in two programs; the second program is the current one."""
    with fluid.unique_name.guard(), guarded():
        x = ng.placeholder((3,))
    with fluid.unique_name.guard(), guarded():
        y = ng.placeholder((3,))
        assert x.name == y.name
        yield x, y


MIXED: dict[str, Callable[[Any, Any], Any]] = {
    "x + y": lambda x, y: x + y,
    "y + x": lambda x, y: y + x,
    "dot": ng.dot,
    "where": lambda x, y: ng.where(x > 0, y, y),
    "stack": lambda x, y: ng.stack([x, y]) if hasattr(ng, "stack") else ng.concat([x, y]),
    "sequential": lambda x, y: ng.sequential([x, y]),
    "assign": lambda x, y: ng.assign(ng.variable((3,), 0.0), x),
    "deriv": lambda x, y: ng.deriv(ng.sum(y), x),
    "error tensor": lambda x, y: ng.deriv(y * 2, y, x),
    "computation": lambda x, y: make_transformer("cpu").computation([x * 1, y * 1], x),
    "argument": lambda x, y: make_transformer("cpu").computation(y * 1, x),
    "cross entropy": lambda x, y: ng.cross_entropy_multi(ng.softmax(x), y),
}


@pytest.mark.parametrize("name", MIXED)
def test_graph_values_of_two_programs_are_refused(pair: tuple[Any, Any], name: str) -> None:
    with pytest.raises(ProgramError, match=r"\(test_programs_apart.py:\d+.* \(test_programs_apart.py:\d+") as info:
        MIXED[name](*pair)
    assert "different programs" in str(info.value)


def test_a_feed_of_another_program_is_refused(pair: tuple[Any, Any]) -> None:
    x, y = pair
    made = make_transformer("cpu").computation(y * 2, y)
    with pytest.raises(FluidError, match="no parameter of it"):
        made(feed_dict={x: np.ones(3, "float32")})
    np.testing.assert_array_equal(made(feed_dict={y: np.ones(3, "float32")}), [2, 2, 2])


FLUID: dict[str, Callable[[Any, Any], Any]] = {
    "x + y": lambda x, y: x + y,
    "elementwise_add": layers.elementwise_add,
    "relu": lambda x, y: layers.relu(x),
    "concat": lambda x, y: layers.concat([y, x]),
    "mean": lambda x, y: layers.mean(x),
    "append_op": lambda x, y: y.block.append_op("mean", {"X": x}, {"Out": y.block.create_var("out")}),
    "output": lambda x, y: y.block.append_op("scale", {"X": y}, {"Out": x}),
    "gradients of": lambda x, y: fluid.gradients([layers.mean(y)], [x]),
    "gradients": lambda x, y: fluid.gradients([y], [y], [x]),
    "parameter_list": lambda x, y: fluid.append_backward(layers.mean(y), [x]),
    "rename_input": lambda x, y: layers.relu(y).block.ops[-1].rename_input(y, x),
    "rename_output": lambda x, y: y.block.append_op("relu", {"X": y}, {"Out": y}).rename_output(y, x),
}


@pytest.mark.parametrize("name", FLUID)
def test_variables_of_two_programs_are_refused(name: str) -> None:
    with guarded():
        x = layers.data("x", [3], append_batch_size=False, stop_gradient=False)
    with guarded():
        y = layers.data("x", [3], append_batch_size=False, stop_gradient=False)
        before = len(y.block.ops)
        with pytest.raises(ProgramError, match=r"'x' \(test_programs_apart.py:\d+.* of another program; 'x' \(test"):
            FLUID[name](x, y)
        assert len(y.block.ops) <= before + 1  # at most the mean


def test_a_name_that_the_program_lacks() -> None:
    says = r"'x' \(.*\), which the block does not have: it is of another program"
    with guarded():
        x = layers.data("x", [3])
    with guarded(), pytest.raises(ProgramError, match=says):
        layers.mean(x)
    with guarded():
        op = layers.relu(layers.data("y", [3])).block.ops[0]
        for rename in (op.rename_input, op.rename_output):
            with pytest.raises(ProgramError, match=says):
                rename("y", x)


TAKES: dict[str, Callable[[Any, Any], Any]] = {
    "append": lambda block, op: block.ops.append(op),
    "insert": lambda block, op: block.ops.insert(0, op),
    "extend": lambda block, op: block.ops.extend([block.ops[0], op]),
    "+=": lambda block, op: block.ops.__iadd__([op]),
    "[0] =": lambda block, op: block.ops.__setitem__(0, op),
    "[:] =": lambda block, op: block.ops.__setitem__(slice(None), [op]),
    "ops =": lambda block, op: setattr(block, "ops", [op]),
}


@pytest.mark.parametrize("edit", TAKES)
def test_a_block_takes_operators_of_its_own_alone(edit: str) -> None:
    line = r"operator relu \(test_programs_apart.py:\d+, layers.relu\)"
    with guarded():
        other = layers.relu(layers.data("x", [3])).block.ops[0]
    with guarded():
        x = layers.relu(layers.data("x", [3]))
        inner = fluid.default_main_program().create_block()
        nested = layers.relu(x).block.program.current_block().ops[0]
        fluid.default_main_program().rollback()
        before = list(x.block.ops)
        for op, home in ((other, "another program"), (nested, f"block {inner.idx}")):
            with pytest.raises(ProgramError, match=f"{line} of {home}; expected one .* begins with {line}"):
                TAKES[edit](x.block, op)
            assert list(x.block.ops) == before
        x.block.ops = []
        with pytest.raises(ProgramError, match="was made in this block\n"):
            x.block.ops.append(other)


# --- what stays possible ----------------------------------------------------------------------------------------------


def test_a_clone_takes_variables_of_the_original() -> None:
    with guarded():
        x = layers.data("x", [3])
        y = layers.fc(x, 2)
        loss = layers.mean(y)
        main, startup = fluid.default_main_program(), fluid.default_startup_program()
        test = main.clone(for_test=True)
        fluid.optimizer.SGD(0.1).minimize(loss)
    with fluid.program_guard(test, startup):
        double = layers.mean(y) * 2.0
        again = fluid.Program.clone(test)
    exe, scope = fluid.Executor("cpu"), fluid.Scope()
    exe.run(startup, scope=scope)
    feed = {"x": np.ones((4, 3), "float32")}
    one, two = exe.run(test, feed, [loss, double], scope=scope)
    np.testing.assert_allclose(2 * one, two, rtol=1e-6)
    with fluid.program_guard(again):
        three = layers.elementwise_add(double, loss)  # of the first copy, and of the original
    (found,) = exe.run(again, feed, [three], scope=scope)
    np.testing.assert_allclose(found, 3 * one, rtol=1e-6)


def test_copies_that_went_apart_are_two_programs() -> None:
    with guarded():
        x = layers.data("x", [3])
        first = fluid.default_main_program()
        second = first.clone()
    with fluid.program_guard(first), fluid.unique_name.guard():
        a = layers.scale(x, 2.0)
    with fluid.program_guard(second), fluid.unique_name.guard():
        b = layers.exp(x)
        assert a.name != b.name
        c = layers.scale(x, 3.0)
        assert a.name == c.name
        with pytest.raises(ProgramError, match="of another program"):
            layers.elementwise_add(a, b)


def test_state_is_shared_by_name() -> None:
    with guarded():
        w = layers.create_parameter([3], "float32", name="w")
        startup = fluid.default_startup_program()
    with guarded():
        other = layers.create_parameter([3], "float32", name="w")
        total = layers.reduce_sum(layers.elementwise_sub(w, other))
        exe, scope = fluid.Executor("cpu"), fluid.Scope()
        exe.run(startup, scope=scope)
        assert exe.run(fetch_list=[total], scope=scope)[0] == 0
