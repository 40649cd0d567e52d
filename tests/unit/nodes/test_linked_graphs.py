"""Linked graphs: the numbers of node by node, in memory that nobody else uses, whatever happens to leaves meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import nodes as gn
from fluidlite.nodes.linked import LinkedGraph
from fluidlite.nodes.routine import IMAGE_AFTER
from fluidlite.platform.device_registry import devices

from .node_cases import NODE_CASES


@pytest.fixture(autouse=True)
def _images() -> None:
    fluid.places()
    if getattr(devices.unit("cpu").language, "image", None) is None:
        pytest.skip("llvmlite compiles the kernels of this test")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Says whether graphs run node by node though they could be linked."""
    true = LinkedGraph.forward

    def choose(by_node: bool) -> None:
        monkeypatch.setattr(LinkedGraph, "forward", staticmethod(lambda nodes, context: None) if by_node else true)

    yield choose
    choose(False)


def run(sink: gn.Node, coefficient: float = 1.0) -> gn.Graph:
    graph = gn.Graph(sink, compiled=False)
    graph.forward()
    graph.backward(coefficient)
    return graph


UNLINKED = {"Dropout"}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_kind_of_node_runs_linked_as_node_by_node(plain: Any, dtype: str) -> None:
    linked = 0
    for case in NODE_CASES:
        leaves = [gn.Data(array, has_grad=at not in case.fixed) for at, array in enumerate(case.arrays(dtype))]
        flat = [leaf for leaf in leaves if leaf.has_grad()]
        if case.name == "LessThan":
            continue
        found = []
        for by_node in (True, *[False] * (IMAGE_AFTER + 1)):
            plain(by_node)
            gn.seed(1)
            made = case.make(*leaves)
            for leaf in flat:
                leaf.reset_grad()
            graph = run(gn.Sum(gn.Tanh(made)), 0.5)
            nodes = [node for node in graph.nodes if node.has_grad()]
            found.append([graph.sink.value().numpy(), made.value().numpy(), *[node.grad().numpy() for node in nodes]])
        linked += graph._linked is not None
        tolerance = 2e-5 if dtype == "float32" else 2e-2
        for other in found[1:]:
            for mine, its in zip(found[0], other, strict=True):
                np.testing.assert_allclose(its, mine, tolerance, tolerance, err_msg=case.name)
    assert linked >= len(NODE_CASES) * 2 // 3


def warm(build: Callable[[], gn.Node], leaves: list[Any]) -> None:
    for _ in range(IMAGE_AFTER + 1):
        graph = run(build())
    assert graph._linked is not None
    for leaf in leaves:
        leaf.reset_grad()


@pytest.mark.parametrize("uses", [1, 2, 7, 8, 9, 15, 16, 40])
def test_weights_that_are_used_often_and_tied_ones(uses: int) -> None:
    """Parts of a gradient are added eight at a time, those of tied weights together."""
    w, x = gn.Weight(np.float32([[1, 2], [3, 4]])), gn.Data(np.float32([[0.5], [-0.25]]))
    other = w.tied()

    def build() -> gn.Node:
        total: gn.Node = gn.Sum(gn.Prod(w, x))
        for number in range(1, uses):
            total = total + gn.Sum(gn.Prod(other if number % 2 else w, x)) * float(number)
        return total

    warm(build, [w, x])
    factor = 1 + sum(range(uses))
    for times in (1, 2):
        graph = run(build())
        assert graph._linked is not None
        expected = factor * times * np.ones((2, 1)) @ x.value().numpy().T.astype("float64")
        np.testing.assert_allclose(w.grad().numpy(), expected, rtol=1e-5)
        assert other.grad() is w.grad()
        inputs = factor * times * w.value().numpy().astype("float64").sum(0)[:, None]
        np.testing.assert_allclose(x.grad().numpy(), inputs, rtol=1e-5)


def test_a_gradient_that_passes_through_is_a_leafs_own() -> None:
    x, y = gn.Data(np.float32([1, 2])), gn.Data(np.float32([3, 4]))

    def build() -> gn.Node:
        return gn.Sum(x + y)

    warm(build, [x, y])
    run(build())
    x.grad().fill(7.0)
    assert y.grad().numpy().tolist() == [1, 1]
    run(build())
    assert x.grad().numpy().tolist() == [8, 8]
    assert y.grad().numpy().tolist() == [2, 2]


def test_views_of_leaves_and_of_values() -> None:
    x = gn.Data(np.float32([[1, 2, 3], [4, 5, 6]]))

    def build() -> gn.Node:
        return gn.Sum(gn.Square(gn.Reshape(gn.Reshape(x, (3, 2)) * 2.0, (6,))) + gn.Reshape(x, (6,)))

    warm(build, [x])
    graph = run(build())
    assert graph._linked is not None
    np.testing.assert_allclose(x.grad().numpy(), 8 * x.value().numpy() + 1)
    view = gn.Reshape(x, (6,))
    run(gn.Sum(view))
    x.value().assign(gn.Tensor("cpu", values=[[9, 2, 3], [4, 5, 6]]))
    assert view.value().numpy()[0] == 9  # as node by node: it lies in the leaf's memory


@pytest.mark.parametrize("again", [False, True])
def test_what_somebody_holds_stays(again: bool) -> None:
    w, x = gn.Weight(np.float32([[1, 2], [3, 4]])), gn.Data(np.float32([[1], [2]]))
    inner: list[gn.Node] = []

    def build() -> gn.Node:
        inner[:] = [gn.Prod(w, x)]
        return gn.Sum(gn.Square(inner[0]))

    warm(build, [w, x])
    graph = gn.Graph(build(), compiled=False)
    held: list[tuple[Any, Any]] = []
    for number in range(4):
        x.value().assign(gn.Tensor("cpu", values=[[1.0 + number], [2.0]]))
        graph = graph if again else gn.Graph(build(), compiled=False)
        graph.reset_forwarded()
        graph.forward()
        graph.reset_grad()
        graph.backward()
        assert graph._linked is not None
        inputs, weights = x.value().numpy().astype("float64"), w.value().numpy().astype("float64")
        slope = 2 * weights @ inputs
        for tensor, right in ((w.grad(), slope @ inputs.T), (inner[0].grad(), slope), (inner[0].value(), slope / 2)):
            np.testing.assert_allclose(tensor.numpy(), right, rtol=1e-5)
            held += [(tensor, right), (_Array(tensor), right)]
        gc.collect()
        for tensor, right in held:
            np.testing.assert_allclose(tensor.numpy(), right, rtol=1e-5)


class _Array:
    """The array of a tensor that nobody else holds."""

    def __init__(self, tensor: gn.Tensor) -> None:
        self._array = tensor.numpy()

    def numpy(self) -> Any:
        return self._array


def test_leaves_that_change_between_forward_and_backward() -> None:
    """Backward reads what leaves hold then, as node by node, and other dims raise as they do there."""
    w, x = gn.Weight(np.float32([[1, 2], [3, 4]])), gn.Data(np.float32([[1], [2]]))

    def build() -> gn.Node:
        return gn.Sum(gn.Prod(w, x))

    warm(build, [w, x])
    graph = gn.Graph(build(), compiled=False)
    graph.forward()
    x.value().assign(gn.Tensor("cpu", values=[[5.0], [6.0]]))  # in the same memory
    graph.backward()
    assert w.grad().numpy().tolist() == [[5, 6], [5, 6]]
    w.reset_grad()
    graph.reset_forwarded()
    graph.forward()
    x._at._value = gn.Tensor("cpu", values=[[7.0], [8.0]])  # in other memory
    graph.backward()
    assert w.grad().numpy().tolist() == [[7, 8], [7, 8]]


def test_values_that_were_set_and_graphs_that_share_nodes() -> None:
    x = gn.Data(np.float32([1, 2]))

    def build() -> tuple[gn.Node, gn.Node]:
        inner = gn.Square(x)
        return inner, gn.Sum(inner * 3.0)

    warm(lambda: build()[1], [x])
    inner, sink = build()
    graph = gn.Graph(sink, compiled=False)
    graph.forward()
    above = gn.Graph(gn.Sum(inner * inner), compiled=False)  # a part was computed linked
    assert float(above.forward()) == 17
    above.backward()
    np.testing.assert_allclose(x.grad().numpy(), 4 * np.float32([1, 2]) ** 3)
    assert inner.grad().numpy().tolist() == [2, 8]
    x.reset_grad()
    graph.backward()
    np.testing.assert_allclose(x.grad().numpy(), [6, 12])
    assert inner.grad().numpy().tolist() == [3, 3]
    graph.backward(2.0)
    np.testing.assert_allclose(x.grad().numpy(), [18, 36])
    inner.set_value(gn.Tensor("cpu", values=[10.0, 20.0]))
    x.reset_grad()
    graph.backward()
    np.testing.assert_allclose(x.grad().numpy(), [6, 12])


def test_indices_out_of_range_name_the_node() -> None:
    scores = gn.Data(np.float32([[2, 0], [1, 3], [0, 1]]))
    good = gn.FixedData(np.array([0, 1]))

    def build(target: gn.Node) -> gn.Node:
        return gn.Sum(gn.PickNegLogSoftmax(scores * 2.0, target))

    warm(lambda: build(good), [scores])
    sink = build(gn.FixedData(np.array([0, 5])))
    with pytest.raises(fluid.errors.OutOfRangeError, match=r"PickNegLogSoftmax .*index 5"):
        gn.Graph(sink, compiled=False).forward()
    graph = run(build(good))
    assert graph._linked is not None
    assert np.isfinite(scores.grad().numpy()).all()


def test_threads_link_for_themselves() -> None:
    w = gn.Weight(np.float32(np.arange(16).reshape(4, 4) / 16))
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            given = rng.normal(size=(4, 3)).astype("float32")
            x = gn.Data(given)
            graph = run(gn.Sum(gn.Tanh(gn.Prod(w, x))))
            weights = w.value().numpy().astype("float64")
            slope = 1 - np.tanh(weights @ given) ** 2
            if not np.allclose(x.grad().numpy(), weights.T @ slope, atol=1e-5) or not graph.sink._forwarded:
                wrong.append(f"thread {seed}")

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(plain: Any, seed: int) -> None:
    """Sums, products, functions and views in any order, of leaves that are used and tied at random."""
    rng = np.random.default_rng(seed)
    weights = [gn.Weight(rng.normal(size=(3, 3)).astype("float32")) for _ in range(3)]
    weights.append(weights[0].tied())

    def build(choices: np.random.Generator) -> gn.Node:
        nodes: list[gn.Node] = list(weights)
        kinds: list[Callable[[gn.Node, gn.Node], gn.Node]] = [
            gn.Add, gn.CwiseProd, gn.Prod, lambda a, b: gn.Tanh(a), lambda a, b: a * 0.5 + 1.0,
            lambda a, b: gn.Transpose(a), lambda a, b: gn.Reshape(gn.Reshape(a, (9,)), (3, 3)),
            lambda a, b: gn.Softmax(a) - b,
        ]  # fmt: skip
        for _ in range(15):
            a, b = (nodes[choices.integers(len(nodes))] for _ in range(2))
            nodes.append(kinds[choices.integers(len(kinds))](a, b))
        return gn.Sum(gn.Tanh(gn.Add(*nodes[-4:])))

    found = []
    for by_node in (True, *[False] * (IMAGE_AFTER + 1)):
        plain(by_node)
        for weight in weights:
            weight.reset_grad()
        graph = run(build(np.random.default_rng(seed)))
        found.append([float(graph.sink.value()), *[w.grad().numpy().copy() for w in weights]])
    assert graph._linked is not None
    for other in found[1:]:
        for mine, its in zip(found[0], other, strict=True):
            np.testing.assert_allclose(its, mine, 2e-5, 2e-5)


def test_views_of_the_same_device_share_value_and_gradient() -> None:
    x, y = gn.Data(np.float32([1, 2])), gn.Data(np.float32([3, 4]))
    views: list[gn.Node] = []

    def build() -> gn.Node:
        views[:] = [gn.DeviceView(x, "cpu"), gn.DeviceView(gn.Square(x), "cpu")]
        views.append(gn.DeviceView(views[1], "cpu"))
        return gn.Sum(views[0] * y + views[1] * views[2] + gn.DeviceView(y, "cpu"))

    warm(build, [x, y])
    for times in (1, 2):
        graph = run(build())
        assert graph._linked is not None
        v = np.float32([1, 2])
        np.testing.assert_allclose(x.grad().numpy(), times * (np.float32([3, 4]) + 4 * v**3))
        np.testing.assert_allclose(y.grad().numpy(), times * (v + 1))
        np.testing.assert_allclose(views[2].grad().numpy(), 2 * v**2)
        assert views[0].value() is x.value()
        assert views[2].value() is views[1].value()
        assert views[0].grad() is x.grad()
        graph.reset_forwarded()
        graph.forward()
        assert float(graph.sink.value()) == 3 + 8 + 1 + 16 + 7


@pytest.mark.parametrize("later", ["before", "behind"])
def test_a_graph_whose_nodes_a_later_graph_takes_too(later: str) -> None:
    """A node's number is that of the graph that runs: the later graph gave its own to what they share."""
    x, y = gn.Data(np.float32([1, 2])), gn.Data(np.float32([3, 4]))

    def build() -> gn.Node:
        return gn.Sum(gn.Square(x) * y)

    warm(build, [x, y])
    for _ in range(3):
        for leaf in (x, y):
            leaf.reset_grad()
        sink = build()
        first = gn.Graph(sink)
        extra = gn.Tanh(gn.Exp(y) + x)  # in front of what they share, or behind it
        second = gn.Graph(gn.Sum(extra) + sink if later == "before" else sink + gn.Sum(extra))
        assert float(first.forward()) == 19
        first.backward()
        np.testing.assert_allclose(x.grad().numpy(), [6, 16])
        np.testing.assert_allclose(y.grad().numpy(), [1, 4])
        first.reset_forwarded()
        second.forward()
        assert float(sink.value()) == 19
        assert float(first.forward()) == 19


def test_gradients_that_nobody_reads_in_between_add_up() -> None:
    """A gradient is made when somebody asks: that of the last backward stays when the next takes its place."""
    x = gn.Data(np.float32([1, 2]))

    def build() -> gn.Node:
        return gn.Sum(gn.Square(x) * 3.0)

    warm(build, [x])
    graph = gn.Graph(build(), compiled=False)
    graph.forward()
    graph.backward(1.0)
    graph.backward(2.0)
    assert graph._linked is not None
    assert x.grad().numpy().tolist() == [18, 36]


def test_a_sink_that_is_a_view_passes_its_gradient_on() -> None:
    x = gn.Data(np.float32([1, 2]))

    def build() -> gn.Node:
        return gn.DeviceView(gn.Sum(gn.Square(x) * 3.0), "cpu")

    warm(build, [x])
    graph = run(build(), 2.0)
    assert graph._linked is not None
    assert x.grad().numpy().tolist() == [12, 24]
    assert float(graph.sink.grad()) == 2
