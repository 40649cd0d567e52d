"""Graphs that share nodes, which each may overwrite: what is read is right, or refused."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from fluidlite import nodes as gn
from fluidlite.base.errors import NodeError

X = np.array([0.3, -0.7, 1.1, -1.3], "float32")
UNARY: dict[str, tuple[Any, Any, Any, Any]] = {  # the node, the one in place, the function, its derivative by x and y
    "tanh": (gn.Tanh, gn.InPlaceTanh, np.tanh, lambda x, y: 1 - y * y),
    "sigmoid": (gn.Sigmoid, gn.InPlaceSigmoid, lambda x: 1 / (1 + np.exp(-x)), lambda x, y: y * (1 - y)),
    "add": (lambda x: x + 0.5, lambda x: gn.InPlaceAddScalar(x, 0.5), lambda x: x + 0.5, lambda x, y: np.ones_like(x)),
    "scale": (lambda x: x * 2.0, lambda x: gn.InPlaceProdScalar(x, 2.0), lambda x: 2 * x, lambda x, y: 2 + 0 * x),
}


class Shared:
    """Random nodes of one leaf, their values in float64, and the derivatives of sums of them by the leaf."""

    def __init__(self, random: np.random.Generator, place: str) -> None:
        self.leaf = gn.Data(gn.device(place), X)
        self.nodes: list[Any] = [self.leaf]
        self.values = [np.float64(X)]
        self.slopes = [np.ones(4)]
        for _ in range(7):
            at, other = (int(random.integers(max(0, len(self.nodes) - 3), len(self.nodes))) for _ in range(2))
            if random.random() < 0.75:
                plain, inplace, function, derivative = UNARY[str(random.choice(list(UNARY)))]
                value = function(self.values[at])
                self.nodes.append((inplace if at and random.random() < 0.6 else plain)(self.nodes[at]))
                self.slopes.append(self.slopes[at] * derivative(self.values[at], value))
            else:
                value = self.values[at] + self.values[other]
                self.nodes.append(self.nodes[at] + self.nodes[other])
                self.slopes.append(self.slopes[at] + self.slopes[other])
            self.values.append(value)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("mode", ["copy", "auto"])
def test_what_graphs_of_shared_nodes_read_is_right_or_refused(place: str, mode: str, compiled: bool) -> None:
    random = np.random.default_rng(len(place + mode) + compiled)
    counts = {"forward": 0, "backward": 0, "refused": 0}
    for _ in range(40):
        shared = Shared(random, place)
        graphs: list[tuple[gn.Graph, int]] = []
        for _ in range(14):
            if (len(graphs) < 3 and random.random() < 0.4) or not graphs:
                at = int(random.integers(3, 8))
                graphs.append((gn.Graph(gn.Sum(shared.nodes[at]), inplace=mode, compiled=compiled), at))
            graph, at = graphs[int(random.integers(len(graphs)))]
            step = str(random.choice(["forward", "forward", "backward", "reset", "reset a node"]))
            try:
                if step == "forward":
                    np.testing.assert_allclose(graph.forward().numpy(), shared.values[at].sum(), rtol=1e-4, atol=1e-5)
                elif step == "backward":
                    shared.leaf.reset_grad()
                    graph.backward()
                    np.testing.assert_allclose(shared.leaf.grad().numpy(), shared.slopes[at], rtol=1e-4, atol=1e-5)
                elif step == "reset":
                    graph.reset_forwarded()
                else:
                    shared.nodes[int(random.integers(1, 8))].reset_forwarded()
                counts[step] = counts.get(step, 0) + 1
            except NodeError:
                counts["refused"] += 1
            for node, value in zip(shared.nodes, shared.values, strict=True):
                with contextlib.suppress(NodeError):
                    np.testing.assert_allclose(node.value().numpy(), value, rtol=1e-4, atol=1e-5, err_msg=f"{node}")
    assert counts["forward"] > 60 and counts["backward"] > 15, counts


def test_a_node_keeps_what_it_wrote_over_a_node_of_another_graph(place: str) -> None:
    x = gn.Data(gn.device(place), np.float32([1, -2]))
    h = x * 2.0
    y, z = gn.InPlaceAddScalar(h, 1.0), gn.InPlaceTanh(h)
    first, second = gn.Graph(gn.Sum(gn.Square(y))), gn.Graph(gn.Sum(z))
    first.forward()
    with pytest.raises(NodeError, match=r"InPlaceAddScalar .* has overwritten its value in place"):
        second.forward()
    second.reset_forwarded()
    second.forward()
    np.testing.assert_allclose(y.value().numpy(), [3, -3])
    np.testing.assert_allclose(z.value().numpy(), np.tanh([2, -4]), rtol=1e-5)
    first.reset_grad()
    first.backward()
    np.testing.assert_allclose(x.grad().numpy(), [12, -12])
    second.reset_grad()
    second.backward()
    np.testing.assert_allclose(x.grad().numpy(), 2 * (1 - np.tanh([2, -4]) ** 2), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_graphs_that_share_what_is_written_in_place_go_on_in_turns(place: str, compiled: bool) -> None:
    """Two heads of one trunk: backward of the first still finds the trunk's values, and the trunk is computed once."""
    weight = gn.Weight(gn.device(place), np.float32([0.5, -0.25]))
    trunk = gn.InPlaceTanh(weight * 2.0)
    first = gn.Graph(gn.Sum(trunk * 3.0), compiled=compiled)
    second = gn.Graph(gn.Sum(gn.InPlaceAddScalar(trunk * 5.0, 1.0)), compiled=compiled)
    slope = 2 * (1 - np.tanh(np.array([1, -0.5])) ** 2)
    for _ in range(3):
        for graph in (first, second):
            graph.reset_forwarded()
        first.forward()
        second.forward()
        weight.reset_grad()
        first.backward()
        np.testing.assert_allclose(weight.grad().numpy(), 3 * slope, rtol=1e-5)
        second.backward()
        np.testing.assert_allclose(weight.grad().numpy(), 8 * slope, rtol=1e-5)


@pytest.mark.parametrize("mode", ["asked", "auto"])
def test_a_view_is_of_a_node_that_writes_in_place(place: str, mode: str) -> None:
    dev = gn.device(place)
    x = gn.Data(dev, np.float32([1, -2]))
    y = gn.InPlaceTanh(x * 2.0)
    view = gn.DeviceView(y, dev)
    gn.Graph(y).forward()
    x.set_value(gn.Tensor(dev, values=[0.5, 0.25]))
    graph = gn.Graph(gn.Sum(view * 3.0), inplace=mode)
    graph.reset_forwarded()
    wanted = np.tanh([1, 0.5])
    np.testing.assert_allclose(graph.forward().numpy(), 3 * wanted.sum(), rtol=1e-5)
    np.testing.assert_allclose(view.value().numpy(), wanted, rtol=1e-5)
    graph.reset_grad()
    graph.backward()
    np.testing.assert_allclose(x.grad().numpy(), 6 * (1 - wanted**2), rtol=1e-4)


def test_nothing_is_computed_where_an_index_was_refused(place: str) -> None:
    weight = gn.Weight(gn.device(place), np.arange(6, dtype="float32").reshape(3, 2))
    for compiled in (False, True, True):
        graph = gn.Graph(gn.Sum(gn.Square(gn.Lookup(weight, [0, 7]))), compiled=compiled)
        for _ in range(2):
            with pytest.raises(IndexError, match="7"):
                graph.forward()
        with pytest.raises(NodeError, match="before forward"):
            graph.reset_grad()
        with pytest.raises(NodeError, match="before forward"):
            graph.backward()
    np.testing.assert_array_equal(weight.grad().numpy(), 0)


def test_a_chain_that_another_graph_writes_over_in_part_is_computed_again(place: str) -> None:
    """The second graph still writes over both ends of the chain, but no longer in its middle."""
    x = gn.Data(gn.device(place), X)
    one = x + x
    two = gn.InPlaceAddScalar(one, 0.5)
    four = gn.InPlaceTanh(gn.InPlaceProdScalar(two, 2.0))
    gn.Graph(gn.Sum(four), inplace="copy").forward()
    last = gn.InPlaceTanh(four + two)
    graph = gn.Graph(gn.Sum(last), inplace="copy")
    graph.forward()  # what the middle had overwritten is computed again, and before it what that had overwritten
    wanted = 2 * np.float64(X) + 0.5
    np.testing.assert_allclose(last.value().numpy(), np.tanh(np.tanh(2 * wanted) + wanted), rtol=1e-5)
    graph.reset_grad()
    graph.backward()
    slope = (1 - np.tanh(np.tanh(2 * wanted) + wanted) ** 2) * (2 * (1 - np.tanh(2 * wanted) ** 2) + 1) * 2
    np.testing.assert_allclose(x.grad().numpy(), slope, rtol=1e-3, atol=1e-5)
