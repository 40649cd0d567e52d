"""The verifier: each way in which a pass breaks a graph is caught, and the pass is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.transformers import Computation, Graph, GraphPass, Transformer


class Breaks(GraphPass):
    """Does to a graph what a test says."""

    def __init__(self, change: Callable[[Graph], Any]) -> None:
        self.change = change

    def do_pass(self, graph: Graph) -> None:
        """Break it."""
        self.change(graph)


def find(graph: Graph, type: str, number: int = 0) -> GraphOp:
    return [op for op in graph.ops if op.type == type][number]


def a_cycle(graph: Graph) -> None:
    find(graph, "exp").inputs["X"] = [find(graph, "tanh").value]


def a_later_value(graph: Graph) -> None:
    graph.ops.append(graph.ops.pop(graph.ops.index(find(graph, "exp"))))


def an_undefined_value(graph: Graph) -> None:
    graph.ops.remove(find(graph, "exp"))


def a_value_of_nobody(graph: Graph) -> None:
    find(graph, "tanh").inputs["X"] = [GraphValue("ghost", Spec.of((2,), "float32"), None, None)]


def a_value_made_twice(graph: Graph) -> None:
    graph.ops.insert(1, graph.ops[0])


def a_dropped_write(graph: Graph) -> None:
    graph.ops.remove(find(graph, "write_state"))


def a_dropped_update(graph: Graph) -> None:
    graph.ops.remove(find(graph, "sgd"))


def a_read_behind_a_write(graph: Graph) -> None:
    moved = [find(graph, "read_state")]
    for op in graph.ops:
        if any(arg.op in moved for arg in op.args) and not op.has_effect:
            moved.append(op)
    rest = [op for op in graph.ops if op not in moved]
    at = rest.index(find(graph, "write_state")) + 1
    graph.ops = [*rest[:at], *moved, *rest[at:]]


def a_new_write(graph: Graph) -> None:
    find(graph, "tanh").value.state = "variable_of_nobody"


def another_dtype(graph: Graph) -> None:
    value = find(graph, "exp").value
    assert value.spec is not None
    value.spec = value.spec.with_(dtype="float64")


def other_dims(graph: Graph) -> None:
    find(graph, "exp").value.spec = Spec.of((3,), "float32")


def another_attribute(graph: Graph) -> None:
    find(graph, "cast").attrs["out_dtype"] = "int64"


def inputs_that_do_not_fit(graph: Graph) -> None:
    find(graph, "elementwise_add").inputs["Y"] = [find(graph, "concat").value]


def an_input_of_a_refused_dtype(graph: Graph) -> None:
    find(graph, "sgd").inputs["Grad"] = [find(graph, "cast").value]


def another_result(graph: Graph) -> None:
    graph.results[0] = find(graph, "concat").value


def a_result_too_few(graph: Graph) -> None:
    graph.results.pop()


def a_result_of_nobody(graph: Graph) -> None:
    graph.results[0] = GraphValue("ghost", graph.results[0].spec, None, None)


def another_parameter(graph: Graph) -> None:
    find(graph, "sgd").inputs["Param"] = [find(graph, "exp").value]


def no_print(graph: Graph) -> None:
    graph.ops.remove(find(graph, "print"))


def prints_turned_round(graph: Graph) -> None:
    one, two = find(graph, "print"), find(graph, "print", 1)
    i, j = graph.ops.index(one), graph.ops.index(two)
    graph.ops[i], graph.ops[j] = two, one


def state_written_twice(graph: Graph) -> None:
    put = find(graph, "write_state")
    again = copy.copy(put)
    again.outputs = {slot: [copy.copy(value) for value in values] for slot, values in put.outputs.items()}
    for value in again.results:
        value.op = again
    graph.ops.insert(graph.ops.index(put) + 1, again)


def state_of_another(graph: Graph) -> None:
    find(graph, "read_state").value.state = "w"


def a_write_forgotten(graph: Graph) -> None:
    find(graph, "write_state").value.state = None


def an_attribute_of_another_type(graph: Graph) -> None:
    find(graph, "concat").attrs["axis"] = "a"


def an_array_as_attribute(graph: Graph) -> None:
    find(graph, "concat").attrs["axis"] = np.array([1, 2])


def an_unknown_attribute(graph: Graph) -> None:
    find(graph, "concat").attrs["nonsense"] = 1


def a_lost_attribute(graph: Graph) -> None:
    del find(graph, "cast").attrs["out_dtype"]


def no_attributes(graph: Graph) -> None:
    find(graph, "exp").attrs = None  # type: ignore[assignment]


def another_type(graph: Graph) -> None:
    find(graph, "exp").type = "no_such"


def a_dropped_output(graph: Graph) -> None:
    find(graph, "exp").outputs.clear()


def a_lost_input(graph: Graph) -> None:
    find(graph, "exp").inputs.clear()


def an_unknown_input(graph: Graph) -> None:
    find(graph, "exp").inputs["Z"] = find(graph, "exp").inputs["X"]


def two_for_one(graph: Graph) -> None:
    find(graph, "exp").inputs["X"] *= 2


def an_input_that_is_no_value(graph: Graph) -> None:
    find(graph, "exp").inputs["X"] = ["x"]


def an_input_without_a_list(graph: Graph) -> None:
    find(graph, "exp").inputs["X"] = find(graph, "exp").args[0]  # type: ignore[assignment]


def inputs_without_slots(graph: Graph) -> None:
    find(graph, "exp").inputs = [find(graph, "exp").args[0]]  # type: ignore[assignment]


def no_operator(graph: Graph) -> None:
    graph.ops.append(None)  # type: ignore[arg-type]


def no_operators(graph: Graph) -> None:
    graph.ops = None  # type: ignore[assignment]


def no_result(graph: Graph) -> None:
    graph.results[0] = None


CASES = [
    (a_cycle, r"exp\(tanh.*each needs the other: a cycle"),
    (a_later_value, r"reads 'exp_\d+' before .* makes it$"),
    (an_undefined_value, r"reads 'exp_\d+', which no operator makes"),
    (a_value_of_nobody, "reads 'ghost', which is no argument and which nothing makes"),
    (a_value_made_twice, "is made twice"),
    (a_dropped_write, r"state 'variable_\d+' is not written any more: .*write_state.* is gone"),
    (a_dropped_update, r"state 'w' is not written any more: .* = sgd\(.* is gone"),
    (a_read_behind_a_write, "in another order than the program says"),
    (a_new_write, "state 'variable_of_nobody' is read or written, which the program does not do"),
    (another_dtype, r"exp\(.*test_passes_verifier.py.*Out is float64\[2\]; its inference says float32\[2\]"),
    (other_dims, r"exp\(.*Out is float32\[3\]; its inference says float32\[2\]"),
    (another_attribute, r"cast\(.*Out is int32\[2\]; its inference says int64\[2\]"),
    (inputs_that_do_not_fit, r"elementwise_add\(.*test_passes_verifier.py"),
    (an_input_of_a_refused_dtype, r"sgd\(.*Grad is int32.*expected"),
    (another_result, r"the result .* was float32\[2\]"),
    (a_result_too_few, "results were asked for; 4 are left"),
    (a_result_of_nobody, "the result 'ghost' is no argument, and nothing makes it"),
    (another_parameter, r"sgd\(.* updates Param in place; ParamOut must be the same variable"),
    (no_print, r"print\(.* is gone, which does more than make values"),
    (prints_turned_round, r"print\(.* runs in another order"),
    (state_written_twice, r"state 'variable_\d+' is read and written in another order"),
    (state_of_another, r"'variable_\d+' is 'w' in the graph; the program says state 'variable_\d+'"),
    (a_write_forgotten, r"'variable_\d+' is None in the graph; the program says state 'variable_\d+'"),
    (an_attribute_of_another_type, r"concat\(.*attribute 'axis' is 'a'; expected an int"),
    (an_array_as_attribute, r"concat\(.*attribute 'axis' is array.*; expected an int"),
    (an_unknown_attribute, r"concat\(.*has no attribute 'nonsense'; it has axis"),
    (a_lost_attribute, r"cast\(.*its attribute 'out_dtype' is gone; expected dtype"),
    (no_attributes, r"the attributes of .*exp\(.* are None; expected a dict"),
    (another_type, r"is of type 'exp', which cannot be changed.*Do: graph.insert"),
    (a_dropped_output, r"tanh\(.*reads 'exp_\d+', which no operator makes"),
    (a_lost_input, r"exp\(\).*its input X is gone"),
    (an_unknown_input, r"exp\(.*has no input 'Z'; it has X"),
    (two_for_one, r"exp\(.*X takes one value, not 2"),
    (an_input_that_is_no_value, "X of an operator 'exp' holds 'x'; expected values of the graph"),
    (an_input_without_a_list, r"X of an operator 'exp' is .*; expected a list of values"),
    (inputs_without_slots, r"the inputs of an operator 'exp' are .*; expected a dict of lists"),
    (no_operator, "None is among its operators; expected a GraphOp"),
    (no_operators, "its operators are a NoneType; expected a list"),
    (no_result, "None is among its results; expected a GraphValue"),
]


def program() -> tuple[list[Any], list[Any]]:
    """Something of everything that can be broken: results, and arguments."""
    x = ng.placeholder((2,))
    v = ng.variable((2,), 1.0)
    shown = fluid.layers.Print(x, message="one")
    again = fluid.layers.Print(x, message="two")
    kept = ng.square(v) + 1
    inner = ng.exp(ng.maximum(shown, again))
    outer = ng.tanh(inner)
    whole = ng.cast(outer, "int32")
    both = ng.concat([outer, inner, inner], 0)
    put = ng.assign(v, outer)
    block = fluid.default_main_program().global_block()
    w = block.create_parameter("w", [2], "float32", initializer=fluid.initializer.Constant(3.0))
    rate = block.create_var("rate", [1], "float32", is_data=True)
    step = block.append_op("sgd", {"Param": w, "Grad": outer, "LearningRate": rate}, {"ParamOut": w})
    return [kept, whole, both, put, step, ng.value_of(v), ng.square(v)], [x, rate]


@pytest.mark.parametrize(("change", "text"), CASES, ids=[case[0].__name__ for case in CASES])
def test_it_is_caught_and_the_pass_is_named(change: Callable[[Graph], Any], text: str, cpu: Transformer) -> None:
    results, given = program()
    cpu.graph_passes = [Breaks(change)]  # type: ignore[assignment]
    computation = cpu.computation(results, *given)
    with pytest.raises(fluid.errors.ProgramError, match=f"(?s)pass Breaks broke the graph: .*{text}"):
        computation.transform()
    cpu.graph_passes = []  # type: ignore[assignment]
    computation.transform()
    assert_runs(computation)


BAD_INSERTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "unknown operator": ("no_such", {}, {}, "no operator is called 'no_such'"),
    "unknown input": ("relu", {"Q": "x"}, {}, "relu.* has no input 'Q'; it has X"),
    "no input": ("relu", {}, {}, "its input X is gone"),
    "text": ("relu", {"X": "a name"}, {}, "a new 'relu' cannot read 'a name'; expected values of the graph"),
    "unknown attribute": ("relu", {"X": "x"}, {"nonsense": 1}, "has no attribute 'nonsense'"),
    "attribute": ("cast", {"X": "x"}, {"out_dtype": "text"}, "'text' is not a data type"),
}


@pytest.mark.parametrize("case", BAD_INSERTS)
def test_an_operator_that_does_not_fit_is_not_inserted(case: str, cpu: Transformer) -> None:
    type, inputs, attrs, text = BAD_INSERTS[case]

    def put(graph: Graph) -> None:
        at = find(graph, "exp")
        given = {slot: at.args[0] if value == "x" else value for slot, value in inputs.items()}
        graph.insert(at, type, given, attrs)

    x = ng.placeholder((2,))
    cpu.graph_passes = [Breaks(put)]  # type: ignore[assignment]
    computation = cpu.computation(ng.exp(x), x)
    with pytest.raises(ValueError, match=f"(?s)pass Breaks.*{text}"):
        computation([0, 0])
    cpu.graph_passes = []  # type: ignore[assignment]
    np.testing.assert_array_equal(computation([0, 0]), [1, 1])


def assert_runs(computation: Computation) -> None:
    block = computation.program.global_block()
    computation.transformer.set_state(block.var("w"), np.float32([3, 3]))
    found = computation([0, 1], [1])
    np.testing.assert_array_equal(found[0], [2, 2])


def test_what_a_pass_did_not_touch_is_not_inferred_again(cpu: Transformer) -> None:
    """Declared dims may say more than inference knows."""
    block = fluid.default_main_program().global_block()
    x = block.create_var("x", [-1, 4], "float32", is_data=True)
    out = block.create_var("out", [-1, 4], "float32")
    block.append_op("relu", {"X": x}, {"Out": out})
    cpu.graph_passes = [Breaks(lambda graph: None)]  # type: ignore[assignment]
    np.testing.assert_array_equal(cpu.computation(out, x)(np.ones((3, 4))), np.ones((3, 4)))


def test_a_pass_may_learn_dims(cpu: Transformer) -> None:
    """A dim that was unknown and is now known is no fault."""

    def learn(graph: Graph) -> None:
        find(graph, "exp").value.spec = Spec.of((3, 4), "float32")

    cpu.graph_passes = [Breaks(learn)]  # type: ignore[assignment]
    x = ng.placeholder((-1, 4))
    assert cpu.computation(ng.exp(x), x)(np.zeros((3, 4))).sum() == 12
