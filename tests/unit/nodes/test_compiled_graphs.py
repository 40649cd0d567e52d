"""Compiled graphs: equal to node by node, in memory that nobody else uses, for weights and threads of their own."""

from __future__ import annotations

import gc
import re
from threading import Thread
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import graph as ng, nodes as gn
from fluidlite.graph.value import emit
from fluidlite.nodes import compiled as compiled_module
from fluidlite.nodes.graph import COMPILE_AFTER

from .node_cases import NODE_CASES


def test_every_kind_of_node_runs_compiled_as_node_by_node(place: str) -> None:
    dev = gn.device(place)
    cases = [case for case in NODE_CASES if case.name != "LessThan"]
    if place != "cpu:0":
        cases = cases[::4]  # their compilers take a second for what takes the CPU's 50 ms
    leaves = [
        [gn.Data(dev, array, has_grad=at not in case.fixed) for at, array in enumerate(case.arrays("float32"))]
        for case in cases
    ]
    flat = [leaf for group in leaves for leaf in group if leaf.has_grad()]

    def build() -> tuple[gn.Node, list[gn.Node]]:
        made = [case.make(*group) for case, group in zip(cases, leaves, strict=True)]
        total = gn.Sum(gn.Tanh(made[0]))
        for node in made[1:]:
            total = total + gn.Sum(gn.Tanh(node))
        return total, made

    found = []
    for compiled in (False, True, True, True):
        sink, made = build()
        graph = gn.Graph(sink, compiled=compiled)
        graph.forward()
        graph.reset_grad()
        graph.backward()
        found.append(
            [
                graph.sink.value().numpy(),
                *[node.value().numpy() for node in made],
                *[leaf.grad().numpy() for leaf in flat],
                *[node.grad().numpy() for node in made],
            ]
        )
    assert graph.runs_compiled
    for other in found[1:]:
        for mine, its in zip(found[0], other, strict=True):
            np.testing.assert_allclose(its, mine, 2e-5, 2e-5)


def test_values_that_somebody_holds_are_not_overwritten_by_the_next_graph(place: str) -> None:
    dev = gn.device(place)
    w = gn.Weight(dev, np.ones((2, 2), "float32"))
    held, arrays, gradients = [], [], []
    for step in range(8):
        x = gn.Data(dev, np.full((2, 2), step, "float32"))
        h = gn.Tanh(w * x) + w
        graph = gn.Graph(gn.Sum(h))
        graph.forward()
        graph.reset_grad()
        graph.backward(float(step))
        held.append(h.value())
        arrays.append(h.value().numpy())
        gradients.append((h.grad(), w.grad()))
    for step in range(8):
        exact = np.full((2, 2), np.tanh(float(step)) + 1)
        np.testing.assert_allclose(held[step].numpy(), exact, 1e-5)
        np.testing.assert_allclose(arrays[step], exact, 1e-5)
        np.testing.assert_allclose(gradients[step][0].numpy(), np.full((2, 2), step), 1e-5)
        slope = step * (1 + step * (1 - np.tanh(float(step)) ** 2))
        np.testing.assert_allclose(gradients[step][1].numpy(), np.full((2, 2), slope), 1e-4, 1e-6)


def test_two_graphs_of_one_structure_that_are_alive_keep_their_own_values(place: str) -> None:
    dev = gn.device(place)
    w = gn.Weight(dev, np.ones(3, "float32"))
    graphs = []
    for step in range(7):
        graph = gn.Graph(gn.Sum(gn.Square(w * gn.Data(dev, np.full(3, step, "float32")))))
        graph.forward()
        graphs.append(graph)
    for step, graph in enumerate(graphs):
        graph.reset_grad()
        graph.backward()
        assert float(graph.sink.value()) == 3 * step**2
        np.testing.assert_allclose(w.grad().numpy(), np.full(3, 2 * step**2))


def test_a_graph_that_is_seen_again_runs_compiled_and_others_do_not() -> None:
    width = 7919  # which no other test has

    def run(width: int) -> gn.Graph:
        graph = gn.Graph(gn.Sum(gn.Tanh(gn.Data(np.ones((3, width), "float32")))))
        graph.forward()
        return graph

    assert [run(width).runs_compiled for _ in range(COMPILE_AFTER + 2)] == [False] * COMPILE_AFTER + [True, True]
    assert not run(width + 1).runs_compiled
    fluid.set_fallback("allow")  # other kernels might be chosen now: nothing of before is used
    assert [run(width).runs_compiled for _ in range(COMPILE_AFTER + 1)] == [False] * COMPILE_AFTER + [True]


def test_other_weights_of_the_same_dims_have_their_own_values(place: str) -> None:
    dev = gn.device(place)
    x = gn.FixedData(dev, np.ones((2, 2), "float32"))
    weights = [gn.Weight(dev, np.full((2, 2), n, "float32")) for n in range(6)]
    for _ in range(3):
        for n, weight in enumerate(weights):
            graph = gn.Graph(gn.Sum(weight * x + weight))
            assert float(graph.forward()) == 8 * n
            graph.reset_grad()
            graph.backward(n)
            assert np.all(weight.grad().numpy() == 2 * n)


def test_weights_die_with_their_model_though_graphs_of_them_were_compiled() -> None:
    before = fluid.memory.used("cpu")
    w = gn.Weight(np.ones((100, 1000), "float32"))
    for _ in range(3):
        graph = gn.Graph(gn.Sum(w * w))
        graph.forward()
        graph.reset_grad()
        graph.backward()
    assert graph.runs_compiled
    w.set_value(gn.Tensor(gn.cpu(), values=np.full((100, 1000), 2.0)))
    graph.reset_forwarded()
    assert float(graph.forward()) == 400_000
    del graph, w
    gc.collect()
    assert fluid.memory.used("cpu") - before < 10_000


def test_threads_run_graphs_of_one_structure_side_by_side(place: str) -> None:
    dev = gn.device(place)
    w = gn.Weight(dev, np.ones(4, "float32"))
    failed: list[Any] = []

    def work(number: int) -> None:
        try:
            for step in range(20):
                x = gn.Data(dev, np.full(4, number + step, "float32"))
                graph = gn.Graph(gn.Sum(w * x * x))
                graph.forward()
                graph.backward()
                np.testing.assert_allclose(float(graph.sink.value()), 4 * (number + step) ** 2)
                np.testing.assert_allclose(x.grad().numpy(), 2.0 * np.full(4, number + step))
        except BaseException as exc:
            failed.append(exc)

    threads = [Thread(target=work, args=(100 * number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


Noisy = gn.node_function("Noisy", lambda x: ng.tanh(emit("dropout", {"X": x}, {"dropout_prob": 0.5})))
"""A kind of the user's own, of whose random numbers nothing but its operators says."""


def test_random_nodes_draw_the_same_numbers_compiled_as_node_by_node(place: str) -> None:
    dev = gn.device(place)
    w = gn.Weight(dev, np.linspace(0.5, 1.5, 60, dtype="float32").reshape(6, 10))

    def drawn(compiled: bool) -> list[list[np.ndarray[Any, Any]]]:
        gn.seed(7)
        found = []
        for _ in range(4):
            first = gn.Dropout(w * 2.0, 0.5)
            second, third, fixed = gn.InPlaceDropout(w * 3.0, 0.25), Noisy(w), gn.Dropout(w, 0.5, seed=3)
            graph = gn.Graph(gn.Sum(first + second + third + fixed), compiled=compiled)
            for _ in range(2):  # each forward draws anew
                graph.reset_forwarded()
                graph.forward()
                graph.reset_grad()
                graph.backward()
                nodes = first, second, third, fixed
                found.append([w.grad().numpy().copy(), *[node.value().numpy().copy() for node in nodes]])
        assert graph.runs_compiled == compiled
        return found

    plain, fast = drawn(False), drawn(True)
    for mine, its in zip(plain, fast, strict=True):
        for a, b in zip(mine, its, strict=True):
            np.testing.assert_allclose(b, a, 1e-5, 1e-6)
    for at in (1, 2, 3):
        assert len({run[at].tobytes() for run in fast}) == len(fast)  # each node and each forward for itself
    assert len({run[4].tobytes() for run in fast}) == 1
    assert not np.array_equal(plain[0][1] == 0, plain[0][3] == 0)


class Twice(gn.Node):
    """Of the user's own, by hand."""

    def forward_(self) -> None:
        self.set_value(gn.Tensor(self.dev(), values=2 * self.inputs()[0].value().numpy()))

    def backward_(self) -> None:
        self.inputs()[0].add_grad(gn.Tensor(self.dev(), values=2 * self.grad().numpy()))


def _prealloc(x: gn.Node) -> gn.Node:
    return gn.Tanh(gn.DeviceView(x, gn.PreallocCpu(4096)))


REASONS: dict[str, tuple[Any, str]] = {
    "a class of one's own": (lambda x: gn.Tanh(Twice([x])), r"^Twice \(.*\) is of a class with a forward_ of its own"),
    "preallocated": (_prealloc, r"^Sum \(.*\) lies on .*, whose memory each run takes and reset\(\) ends"),
    "two devices": (lambda x: gn.DeviceTransfer(x, "fpga"), r"^Data \(.*\) lies on cpu:0, and the sink on fpga:0"),
    "large": (lambda x: _chain(x, 2000), "^it has more than 2000 nodes$"),
}


def _chain(x: gn.Node, count: int) -> gn.Node:
    for _ in range(count):
        x = x + 1.0
    return x


@pytest.mark.parametrize("name", REASONS)
def test_a_graph_that_runs_node_by_node_says_why(name: str, require: Any) -> None:
    require("fpga")
    make, why = REASONS[name]
    x = gn.Data(np.ones(3, "float32"))
    for _ in range(3):
        graph = gn.Graph(gn.Sum(make(x)))
        assert graph.why_not_compiled == "it has not run"
        graph.forward()
        graph.reset_grad()
        graph.backward()
        assert not graph.runs_compiled
        assert re.search(why, graph.why_not_compiled)


def test_why_a_graph_runs_node_by_node_changes_from_run_to_run() -> None:
    width = 7877  # which no other test has
    x = gn.Data(np.ones((7, width), "float32"))

    def run(compiled: bool = True) -> gn.Graph:
        graph = gn.Graph(gn.Sum(gn.Tanh(x * 3.0)), compiled=compiled)
        graph.forward()
        return graph

    assert run().why_not_compiled == "no graph of its structure and metadata was seen before"
    assert run().why_not_compiled == ""
    assert run(False).why_not_compiled == "compiled=False"
    alive = [run() for _ in range(compiled_module.MAX_RUNS + 1)]
    assert [graph.why_not_compiled for graph in alive[:-1]] == [""] * compiled_module.MAX_RUNS
    assert "are alive, whose values are kept" in alive[-1].why_not_compiled
    sink = gn.Tanh(alive[0].nodes[1])
    later = gn.Graph(sink)
    later.forward()
    assert later.why_not_compiled == "a part of its nodes was computed before"


def test_caches_are_bounded() -> None:
    for cache in (compiled_module._entries, compiled_module._compiled):
        assert cache.most <= 4096
    names = fluid.caches() if hasattr(fluid, "caches") else {}
    assert not names or "compiled graphs" in names


@pytest.mark.parametrize("anew", [False, True])
def test_gradients_that_somebody_holds_stay_and_the_next_are_right(place: str, anew: bool) -> None:
    """A gradient that is held keeps its memory: the next run's lies elsewhere, and the program must be told so."""
    dev = gn.device(place)
    w, x = gn.Weight(dev, np.float32([[1, 2], [3, 4]])), gn.Data(dev, np.float32([[1], [2]]))
    inner: list[gn.Node] = []

    def build() -> gn.Graph:
        inner[:] = [gn.Prod(w, x)]
        return gn.Graph(gn.Sum(gn.Square(inner[0])))

    build().forward()
    graph = build()
    held: list[tuple[gn.Tensor, Any]] = []
    for number in range(4):
        x.value().assign(gn.Tensor(dev, values=[[1.0 + number], [2.0]]))
        graph = build() if anew else graph
        graph.reset_forwarded()
        graph.forward()
        graph.reset_grad()
        graph.backward()
        assert graph.runs_compiled
        inputs, weights = x.value().numpy().astype("float64"), w.value().numpy().astype("float64")
        slope = 2 * weights @ inputs
        expected = (slope @ inputs.T, weights.T @ slope, slope)
        for node, right in zip((w, x, inner[0]), expected, strict=True):
            np.testing.assert_allclose(node.grad().numpy(), right, rtol=1e-5)
            held.append((node.grad(), right))
        for tensor, right in held:
            np.testing.assert_allclose(tensor.numpy(), right, rtol=1e-5)


def test_values_that_somebody_has_given_other_dims_are_right_in_the_next_run(place: str) -> None:
    """A run lends tensors: what others do to one of them changes that tensor only."""
    dev = gn.device(place)
    x = gn.Data(dev, np.float32([1, 2, 3]))

    def build() -> gn.Graph:
        graph = gn.Graph(gn.Sum(gn.Square(x) * 3.0))
        graph.forward()
        return graph

    def changed(node: gn.Node, change: Any) -> None:
        change(node.value())
        change(node.grad())

    build()
    for change in (
        lambda tensor: tensor.assign(gn.Tensor(dev, values=[7.0, 8.0, 9.0, 10.0])),
        lambda tensor: tensor.assign(gn.Tensor(dev, values=[7.0])),
        lambda tensor: tensor.resize([1, 3]),
    ):
        graph = build()
        graph.backward()
        changed(graph.nodes[1], change)
        for again in (True, False):
            x.reset_grad()
            if again:
                graph.reset_forwarded()
                graph.forward()
            else:
                del graph
                graph = build()
            graph.backward()
            assert graph.runs_compiled
            assert graph.nodes[1].value().numpy().tolist() == [1, 4, 9]
            assert graph.nodes[1].grad().numpy().tolist() == [3, 3, 3]
            assert x.grad().numpy().tolist() == [6, 12, 18]


def test_a_compiled_graph_leaves_nodes_that_stay_forwarded(place: str) -> None:
    """Nodes that another graph has computed, or that were not reset, keep values and gradients when it runs again."""
    dev = gn.device(place)
    weight = gn.Weight(dev, np.array([[1, 2], [3, 5], [0, 1]], "float32"))
    for _ in range(COMPILE_AFTER + 1):  # its structure is known
        gn.Graph(gn.Sum(gn.LayerNorm(weight))).forward()
    normal = gn.LayerNorm(weight)
    first, second = gn.Graph(gn.Sum(normal)), gn.Graph(gn.Sum(normal * normal))
    first.forward()
    weight.set_value(gn.Tensor(dev, values=[[1, 2], [3, 4], [9, 1]]))
    first.reset_forwarded()
    second.reset_forwarded()
    second.forward()
    second.reset_grad()
    second.backward()
    gradient, value = np.array(normal.grad().numpy()), np.array(normal.value().numpy())
    assert np.abs(gradient).max() > 0.1
    first.forward()
    np.testing.assert_array_equal(normal.grad().numpy(), gradient)
    np.testing.assert_array_equal(normal.value().numpy(), value)
    second.backward()
    first.backward()

    inner = gn.LayerNorm(weight)
    graph = gn.Graph(gn.Sum(gn.Tanh(inner)))
    expected = np.array(graph.forward().numpy())
    inner.reset_forwarded()
    np.testing.assert_array_equal(graph.forward().numpy(), expected)


def test_attributes_that_are_equal_but_not_the_same(place: str) -> None:
    """0.0 and -0.0, and 1, 1.0 and True: each has a program of its own."""
    dev = gn.device(place)
    x, mask = gn.Data(dev, np.array([1, 2], "float32")), gn.FixedData(dev, np.array([0, 1], "float32"))
    one = gn.node_function("One", lambda x, mode: x * {bool: 10.0, int: 20.0, float: 30.0}[type(mode)])

    def found(node: gn.Node) -> list[float]:
        return np.asarray(gn.Graph(node).forward().numpy()).tolist()

    for _ in range(COMPILE_AFTER + 1):
        for zero in (0.0, -0.0):
            sign = np.copysign(1.0, zero)
            assert found(1.0 / gn.Mask(x, mask, zero)) == [sign * np.inf, 0.5]
        assert [found(one(x, mode=mode)) for mode in (True, 1, 1.0)] == [[10, 20], [20, 40], [30, 60]]
