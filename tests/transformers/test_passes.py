"""The graph of a computation, and passes on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite.transformers import (
    Add,
    CommonSubexpressions,
    Computation,
    Graph,
    GraphPass,
    Multiply,
    PeepholeGraphPass,
    SimplePrune,
    Transformer,
    visit,
)


class SeedPrune(PeepholeGraphPass):
    """The documentation's example, word for word."""

    @visit.on_type(Add)
    def visit(self, op):
        x, y = op.args
        rep = None
        if x.is_scalar and x.is_constant:
            if x.const == 0:
                rep = y
        elif y.is_scalar and y.is_constant:  # noqa: SIM102
            if y.const == 0:
                rep = x
        if rep is not None:
            self.replace_op(op, rep)

    @visit.on_type(Multiply)
    def visit(self, op):
        self.seen = getattr(self, "seen", 0) + 1


def types(computation: Computation) -> list[str]:
    return [op.type for op in computation.transformed.operators]


def test_the_seeds_pass(cpu: Transformer) -> None:
    cpu.graph_passes = [seed := SeedPrune()]
    x = ng.placeholder((3,))
    computation = cpu.computation((0 + (x + 0)) * 2 + 1, x)
    np.testing.assert_array_equal(computation([1, 2, 3]), [3, 5, 7])
    assert types(computation) == ["fill_constant", "elementwise_mul", "fill_constant", "elementwise_add"]
    assert seed.seen


@pytest.mark.parametrize("passes", [True, False])
def test_simple_prune(passes: bool, cpu: Transformer) -> None:
    cpu.graph_passes = [SimplePrune()] if passes else []
    x = ng.placeholder((3,))
    same = (((((x + 0) * 1) - 0) / 1) ** 1) + 0
    computation = cpu.computation([ng.exp(1 * same), same, x], x)
    given = np.float32([np.nan, -np.inf, 1])
    found = computation(given)
    np.testing.assert_array_equal(found, [np.exp(given), given, given])
    assert types(computation).count("exp") == 1
    assert (len(types(computation)) == 1) == passes
    assert not any(np.shares_memory(array, given) for array in found)


def test_what_simple_prune_leaves(cpu: Transformer) -> None:
    x = ng.placeholder((2,))
    computation = cpu.computation([x * 0, 0 - x, 1 / x, x + ng.constant(np.zeros(2, "float32"))], x)
    found = computation([np.nan, 1])
    np.testing.assert_array_equal(found[0], [np.nan, 0])
    np.testing.assert_array_equal(found[1], [np.nan, -1])
    assert len([t for t in types(computation) if t != "fill_constant"]) == 4


@pytest.mark.parametrize("passes", [True, False])
def test_common_subexpressions(passes: bool, transformer: Transformer) -> None:
    transformer.graph_passes = [CommonSubexpressions()] if passes else []
    x = ng.placeholder((2,))
    v = ng.variable((2,), 1.0)
    before, put, after = ng.exp(v), ng.assign(v, v + 1), ng.exp(v)
    twice = ng.tanh(x * 2) + ng.tanh(x * 2)
    computation = transformer.computation([twice, before, put, after, ng.exp(v)], x)
    found = computation([0.5, 1])
    np.testing.assert_allclose(found[0], 2 * np.tanh([1, 2]), rtol=1e-6)
    np.testing.assert_allclose(found[1], np.exp([1, 1]), rtol=1e-6)
    np.testing.assert_allclose(found[3:], np.exp(np.full((2, 2), 2.0)), rtol=1e-6)
    assert types(computation).count("tanh") == (1 if passes else 2)
    assert types(computation).count("exp") == (2 if passes else 3)


def test_random_operators_stay_apart(cpu: Transformer) -> None:
    a, b = cpu.computation([ng.uniform((8,)), ng.uniform((8,))])()
    assert (a != b).any()


def test_a_value_outlives_the_state_it_came_from(transformer: Transformer) -> None:
    """X + 0 becomes x; x is state that is written before it is read."""
    v = ng.variable((2,), 1.0)
    old = v + 0
    put = ng.assign(v, v * 10)
    again = ng.assign(v, v + 1)
    late = old * 2
    computation = transformer.computation([late, put, again, old, v])
    found = computation()
    assert "elementwise_add" not in types(computation)[:1]
    np.testing.assert_array_equal(found[0], [2, 2])
    np.testing.assert_array_equal(found[3], [1, 1])
    np.testing.assert_array_equal(found[4], [11, 11])
    np.testing.assert_array_equal(computation()[0], [22, 22])


def test_a_temporary_that_is_written_twice(transformer: Transformer) -> None:
    t, x = ng.temporary((2,)), ng.placeholder((2,))
    first = ng.assign(t, x)
    kept = t + 0
    second = ng.assign(t, t * 3)
    found = transformer.computation(ng.sequential([first, kept, second, kept * t]), x)([1, 2])
    np.testing.assert_array_equal(found, [3, 12])


def test_optimizers_that_update_in_place(transformer: Transformer) -> None:
    x = fluid.layers.data("x", [3])
    loss = fluid.layers.mean(fluid.layers.fc(x, 2))
    updates, _ = fluid.optimizer.Adam(0.1).minimize(loss)
    ones = np.ones((4, 3), "float32")
    train = transformer.computation([loss, *updates], x)
    losses = [train(ones)[0].item() for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]
    written = {name for op in train.transformed.operators for name in op.output_arg_names}
    assert {v.name for v in fluid.default_main_program().all_parameters()} <= written


class Negate(PeepholeGraphPass):
    """exp becomes exp of the negative: a pass that inserts."""

    def __init__(self) -> None:
        super().__init__()
        self.done: set[int] = set()

    @visit.on_type("exp")
    def turn(self, op: Any) -> None:
        if id(op) in self.done:
            return
        minus = self.graph.insert(op, "scale", {"X": op.args[0]}, {"scale": -1.0})
        new = self.graph.insert(op, "exp", {"X": minus}, {})
        self.done.add(id(new.op))
        self.replace_op(op, new)


def test_a_pass_that_inserts(transformer: Transformer) -> None:
    transformer.register_graph_pass(Negate())
    x = ng.placeholder((-1,))
    computation = transformer.computation(ng.exp(x), x)
    np.testing.assert_allclose(computation([0, 1]), [1, np.exp(-1)], rtol=1e-6)
    assert types(computation) in (["scale", "exp"], ["fused.scale_exp"])


class Broken(GraphPass):
    """Moves an operator in front of what it reads."""

    def do_pass(self, graph: Graph) -> None:
        graph.ops.reverse()


class Late(GraphPass):
    """Moves a write of state behind a later one."""

    def do_pass(self, graph: Graph) -> None:
        writes = [i for i, op in enumerate(graph.ops) if op.type == "write_state"]
        a, b = writes
        graph.ops[a], graph.ops[b] = graph.ops[b], graph.ops[a]


def test_a_pass_that_turns_writes_around(cpu: Transformer) -> None:
    cpu.graph_passes = [Late()]
    v, x = ng.variable((), 1.0), ng.placeholder(())
    y = x * 2
    computation = cpu.computation([ng.assign(v, x), ng.assign(v, y)], x)
    with pytest.raises(ValueError, match="another order"):
        computation(1)


class Other(PeepholeGraphPass):
    """Replaces by other dims."""

    @visit.on_type("reduce_sum")
    def shrink(self, op: Any) -> None:
        self.replace_op(op, op.args[0])


class Restless(PeepholeGraphPass):
    """Replaces for ever."""

    @visit.on_type("exp")
    def again(self, op: Any) -> None:
        self.replace_op(op, self.graph.insert(op, "exp", {"X": op.args[0]}, {}))


@pytest.mark.parametrize(
    ("graph_pass", "word"),
    [(Broken(), "pass Broken broke the graph"), (Other(), "cannot be replaced"), (Restless(), "again and again")],
)
def test_a_pass_that_breaks_the_program(graph_pass: GraphPass, word: str, cpu: Transformer) -> None:
    cpu.register_graph_pass(graph_pass)
    x = ng.placeholder((2,))
    computation = cpu.computation(ng.sum(ng.exp(x)), x)
    with pytest.raises(ValueError, match=word):
        computation([1, 2])
    cpu.graph_passes.remove(graph_pass)
    assert computation([0, 0]) == 2


def test_what_is_no_pass(cpu: Transformer) -> None:
    with pytest.raises(ValueError, match="is no GraphPass"):
        cpu.register_graph_pass(SimplePrune)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"visit\.on_type takes"):
        visit.on_type(3)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="do_pass"):
        GraphPass().do_pass(Graph(fluid.Program(), []))


def test_the_graph_shows_state(cpu: Transformer) -> None:
    v, x = ng.variable((2,), 1.0, name="v"), ng.placeholder((2,))
    computation = cpu.computation([ng.assign(v, v * x), v], x)
    graph = Graph(computation.program, computation.fetches)
    assert [op.type for op in graph] == ["read_state", "elementwise_mul", "write_state"]
    product = graph.ops[1].value
    assert graph.readers(product) == [graph.ops[2]]
    assert graph.results[0] is graph.ops[2].value
    assert graph.is_result(graph.ops[2].value)
    assert "write_state" in str(graph)
    graph.verify()
    assert graph.fetches == [v.name] and graph.state == {v.name: True}
    assert [str(op).split()[1] for op in graph.operators] == ["elementwise_mul", "assign"]


def test_readers_are_up_to_date(cpu: Transformer) -> None:
    x = ng.placeholder((2,))
    computation = cpu.computation([ng.tanh(ng.exp(x)), ng.square(ng.floor(x))], x)
    graph = Graph(computation.program, computation.fetches)
    exp, tanh, floor, square = graph.ops
    assert graph.readers(exp.value) == [tanh]
    assert graph.readers(exp.args[0]) == [exp, floor]
    graph.replace(floor.value, exp.value)
    assert graph.readers(exp.value) == [tanh, square]
    assert graph.readers(floor.value) == []
    new = graph.insert(square, "abs", {"X": exp.value}, {})
    assert graph.readers(exp.value) == [tanh, square, new.op]
    square.inputs["X"] = [new]
    graph.touch()
    assert graph.readers(exp.value) == [tanh, new.op]
    assert graph.prune() == 1
    assert graph.readers(exp.args[0]) == [exp]
