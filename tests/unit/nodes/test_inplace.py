"""In-place: what is safe gives equal numbers in fewer bytes; what is not is refused, and would give wrong numbers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fluidlite import nodes as gn
from fluidlite.base.errors import NodeError
from fluidlite.nodes import inplace as inplace_module

X = np.array([[0.3, -0.7, 1.1], [-1.3, 0.9, 0.2]], "float32")
Y = np.array([[0.8, 0.4, -0.6], [1.2, -0.5, 0.7]], "float32")
M = np.array([[1, 0, 1], [0, 1, 1]])


def _leaves(dev: gn.Device) -> tuple[gn.Data, gn.Data]:
    return gn.Data(dev, X), gn.Data(dev, Y)


def _gradients(graph: gn.Graph, leaves: tuple[gn.Data, ...]) -> list[Any]:
    graph.reset_forwarded()
    value = graph.forward().numpy().copy()
    graph.reset_grad()
    graph.backward()
    return [value, *[leaf.grad().numpy().copy() for leaf in leaves]]


SAFE: dict[str, Callable[[gn.Node, gn.Node, gn.Node], gn.Node]] = {
    "Add": lambda h, y, m: gn.InPlaceAdd(h, y),
    "AddScalar": lambda h, y, m: gn.InPlaceAddScalar(h, 2.0),
    "Subtract": lambda h, y, m: gn.InPlaceSubtract(h, y),
    "ProdScalar": lambda h, y, m: gn.InPlaceProdScalar(h, 2.0),
    "CwiseProd": lambda h, y, m: gn.InPlaceCwiseProd(h, gn.FixedData(h.dev(), Y)),
    "Dropout": lambda h, y, m: gn.InPlaceDropout(h, 0.5, seed=3),
    "Mask": lambda h, y, m: gn.InPlaceMask(h, m, 0.25),
    "Sigmoid": lambda h, y, m: gn.InPlaceSigmoid(h),
    "Tanh": lambda h, y, m: gn.InPlaceTanh(h),
    "Relu": lambda h, y, m: gn.InPlaceRelu(h),
    "Permute": lambda h, y, m: gn.InPlacePermute(h, (1, 0)),
    "LayerNorm": lambda h, y, m: gn.InPlaceLayerNorm(h),
    "LayerNorm along rows": lambda h, y, m: gn.InPlaceLayerNorm(h, axis=1),
    "chain": lambda h, y, m: gn.InPlaceSigmoid(gn.InPlaceAddScalar(gn.InPlaceAdd(h, y), 0.5)),
}


@pytest.mark.parametrize("name", SAFE)
@pytest.mark.parametrize("compiled", [False, True])
def test_safe_nodes_give_the_numbers_of_the_plain_ones(place: str, name: str, compiled: bool) -> None:
    dev = gn.device(place)
    x, y = _leaves(dev)
    m = gn.FixedData(dev, M)
    found = []
    for inplace in ("asked", False, "copy", "auto"):
        h = x + y * 0.5  # whose gradients read nothing of the sum
        node = SAFE[name](h, y, m)
        graph = gn.Graph(gn.Sum(node * gn.FixedData(dev, Y.T.copy() if name == "Permute" else Y)), inplace, compiled)
        for _ in range(3 if compiled else 1):
            found.append(_gradients(graph, (x, y)))
        assert graph.runs_compiled == compiled
        asked = [each for each, _ in graph.inplace_report.chosen if each.name().startswith("InPlace")]
        assert (node in asked) == (inplace is not False)
        if inplace == "asked":
            with pytest.raises(NodeError, match=r"InPlace.*has overwritten its value in place"):
                h.value()
            with pytest.raises(NodeError, match="writes in place: its gradient has become that of"):
                node.grad()
            assert h.grad().numpy().shape == X.shape
    for other in found[1:]:
        for mine, its in zip(found[0], other, strict=True):
            np.testing.assert_allclose(its, mine, 1e-6, 1e-6)


def test_the_output_lies_in_the_memory_of_the_input(place: str) -> None:
    x, y = _leaves(gn.device(place))
    h = x + y
    gn.Graph(h).forward()
    before = h.value().allocation
    node = gn.InPlaceSigmoid(h)
    gn.Graph(gn.Sum(node), compiled=False).forward()
    if place == "cpu:0":
        assert node.value().allocation is before
    assert node._at is h._at


# What is unsafe ----------------------------------------------------------------------------------------------------


def _sigmoid_then(dev: gn.Device) -> tuple[gn.Node, tuple[gn.Data, ...], str, str]:
    x, y = _leaves(dev)
    h = gn.Sigmoid(x * y)
    return gn.Sum(gn.InPlaceAddScalar(h, 1.0) * y), (x, y), "the gradient of Sigmoid .* reads its own value", "Sigmoid"


def _second_reader(dev: gn.Device) -> tuple[gn.Node, tuple[gn.Data, ...], str, str]:
    x, y = _leaves(dev)
    h = x + y
    return gn.Sum(gn.InPlaceProdScalar(h, 2.0) * gn.Tanh(h)), (x, y), "Tanh .* reads it too", "Add"


def _leaf(dev: gn.Device) -> tuple[gn.Node, tuple[gn.Data, ...], str, str]:
    x, y = _leaves(dev)
    return gn.Sum(gn.InPlaceProdScalar(x, 2.0) * y), (x, y), "is a leaf, whose value outlives the graph", "Data"


def _leaf_through_a_view(dev: gn.Device) -> tuple[gn.Node, tuple[gn.Data, ...], str, str]:
    x, y = _leaves(dev)
    flat = gn.Reshape(x, (6,))
    return gn.Sum(gn.InPlaceProdScalar(flat, 2.0) * gn.Reshape(y, (6,))), (x, y), "is a leaf", "Data"


def _the_same_twice(dev: gn.Device) -> tuple[gn.Node, tuple[gn.Data, ...], str, str]:
    x, y = _leaves(dev)
    h = x + y
    weighted = gn.node_function("Weighted", lambda a, b: a + b * 2.0, inplace=(1,))
    node = weighted(h, h, inplace=True)
    return gn.Sum(node * y), (x, y), "input 0 of InPlaceWeighted .* lies in the same buffer", "Add"


def _own_gradient(dev: gn.Device) -> tuple[gn.Node, tuple[gn.Data, ...], str, str]:
    x, y = _leaves(dev)
    h = x + y
    return gn.Sum(gn.InPlaceCwiseProd(h, gn.Tanh(y))), (x, y), "the gradient of InPlaceCwiseProd .* itself reads", "Add"


def _stacked(dev: gn.Device) -> tuple[gn.Node, tuple[gn.Data, ...], str, str]:
    x, y = _leaves(dev)
    h = gn.InPlaceSigmoid(x + y)
    return (
        gn.Sum(gn.InPlaceAddScalar(h, 1.0) * y),
        (x, y),
        "the gradient of InPlaceSigmoid .* reads its own value",
        "InP",
    )


def _view_is_read_later(dev: gn.Device) -> tuple[gn.Node, tuple[gn.Data, ...], str, str]:
    x, y = _leaves(dev)
    h = x + y
    flat = gn.Reshape(h, (6,))
    return (
        gn.Sum(gn.InPlaceProdScalar(flat, 2.0)) + gn.Sum(gn.Tanh(h)),
        (x, y),
        "Tanh .* reads the buffer later",
        "Add",
    )


def _over(kind: Any) -> Any:
    """Over a node whose gradient reads its own value."""

    def pattern(dev: gn.Device) -> tuple[gn.Node, tuple[gn.Data, ...], str, str]:
        x, y = _leaves(dev)
        h = kind(gn.Square(x) + 0.5 if kind is gn.Sqrt else x + y * 0.5)
        name = kind.__name__
        return gn.Sum(gn.InPlaceAddScalar(h, 1.0) * y), (x, y), f"the gradient of {name} .* reads its own value", name

    pattern.__name__ = f"over_{kind.__name__}"
    return pattern


UNSAFE = [
    _sigmoid_then,
    *(_over(kind) for kind in (gn.Tanh, gn.Relu, gn.Softmax, gn.LayerNorm, gn.Exp, gn.Sqrt)),
    _second_reader,
    _leaf,
    _leaf_through_a_view,
    _the_same_twice,
    _own_gradient,
    _stacked,
    _view_is_read_later,
]


@pytest.mark.parametrize("pattern", UNSAFE, ids=lambda pattern: pattern.__name__.strip("_"))
def test_an_unsafe_pattern_is_refused_and_would_give_wrong_numbers(
    place: str, pattern: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = gn.device(place)
    sink, leaves, reason, over = pattern(dev)
    with pytest.raises(gn.InPlaceError, match=reason) as refused:
        gn.Graph(sink)
    text = str(refused.value)
    assert text.startswith("InPlace") and over in text and "test_inplace.py:" in text and "(slot " in text

    exact = _gradients(gn.Graph(sink, inplace=False, compiled=False), leaves)
    copied = gn.Graph(sink, inplace="copy", compiled=False)
    for mine, its in zip(exact, _gradients(copied, leaves), strict=True):
        np.testing.assert_allclose(its, mine, 1e-5, 1e-6)
    assert copied.inplace_report.refused and copied.inplace_report.refused[0].reason in text

    # without the proof, and with overwritten values read as they are
    sink, leaves, _, _ = pattern(dev)
    before = [leaf.value().numpy().copy() for leaf in leaves]
    monkeypatch.setattr(inplace_module._Proof, "refusal", lambda self, node, at: None)
    graph = gn.Graph(sink, compiled=False)
    wrong = _gradients_unchecked(graph, leaves)
    wrong += [leaf.value().numpy() for leaf in leaves]
    assert any(not np.allclose(its, mine, 1e-3, 1e-4) for mine, its in zip(exact + before, wrong, strict=True)), (
        "the refusal was not needed"
    )


def _gradients_unchecked(graph: gn.Graph, leaves: tuple[gn.Data, ...]) -> list[Any]:
    """Run nodes one by one, each reading what lies in its inputs' buffers."""
    graph.reset_forwarded()
    for node in graph.nodes:
        for item in node.inputs():
            item._overwriter = None
        if not node.leaf:
            node.forward()
    for node in graph.nodes:
        node._overwriter = None
    value = graph.sink.value().numpy().copy()
    graph.reset_grad()
    graph.backward()
    return [value, *[leaf.grad().numpy().copy() for leaf in leaves]]


def test_values_seen_through_views_are_known_to_be_overwritten(place: str) -> None:
    x, y = _leaves(gn.device(place))
    h = x + y
    flat = gn.Reshape(h, (6,))
    node = gn.InPlaceSigmoid(flat)
    graph = gn.Graph(gn.Sum(node))
    for _ in range(3):
        found = _gradients(graph, (x, y))
        s = 1 / (1 + np.exp(-np.float64(X) - Y))
        np.testing.assert_allclose(found[0], s.sum(), 1e-5)
        np.testing.assert_allclose(found[1], s * (1 - s), 1e-4)
        for gone in (h, flat):
            with pytest.raises(NodeError, match="has overwritten its value in place"):
                gone.value()


def test_a_zero_does_not_become_nan_in_a_product() -> None:
    """Ginn's divided by the other factor to get the old value back."""
    x, y = gn.Data(np.array([0.0, 2.0], "float32")), gn.FixedData(np.array([0.0, 3.0], "float32"))
    graph = gn.Graph(gn.Sum(gn.InPlaceCwiseProd(x + x, y)))
    graph.forward()
    graph.reset_grad()
    graph.backward()
    assert x.grad().numpy().tolist() == [0, 6]


def test_nothing_is_written_in_place_over_what_another_graph_reads(place: str) -> None:
    dev = gn.device(place)
    x, y = _leaves(dev)
    h = x + y
    a, b = gn.Sigmoid(h), gn.Tanh(h)
    first, second = gn.Graph(gn.Sum(a), "auto"), gn.Graph(gn.Sum(b), "auto")
    assert first.inplace_report.chosen and second.inplace_report.chosen
    exact = np.float64(X) + Y
    first.forward()
    with pytest.raises(NodeError, match="has overwritten its value"):  # not a wrong number
        gn.Graph(gn.Sum(h * 2.0), compiled=False).forward()
    second.reset_forwarded()
    np.testing.assert_allclose(float(second.forward()), np.tanh(exact).sum(), 1e-5)
    both = gn.Graph(gn.Sum(a) + gn.Sum(b), "auto")
    assert not [over for _, over in both.inplace_report.chosen if over is h]
    both.reset_forwarded()
    np.testing.assert_allclose(float(both.forward()), np.sum(1 / (1 + np.exp(-exact)) + np.tanh(exact)), 1e-5)
    both.reset_grad()
    both.backward()
    s = 1 / (1 + np.exp(-exact))
    np.testing.assert_allclose(x.grad().numpy(), s * (1 - s) + 1 - np.tanh(exact) ** 2, 1e-4)


def test_auto_chooses_every_safe_one_and_says_what_it_saves(place: str) -> None:
    dev = gn.device(place)
    rng = np.random.default_rng(0)
    w1, w2 = (gn.Weight(dev, rng.normal(size=(8, 8)).astype("float32")) for _ in range(2))
    b = gn.Weight(dev, np.zeros(8, "float32"))
    x = gn.FixedData(dev, rng.normal(size=(8, 16)).astype("float32"))

    def build() -> gn.Node:
        h = gn.Relu(gn.Affine(w1, x, b) * 0.5)  # two in place, over the product
        h = gn.Dropout(gn.Affine(w2, h, b), 0.25, seed=5) + h  # two: the dropout, and the sum over it
        return gn.Sum(gn.Softmax(h))  # one, over the sum

    found = {}
    for inplace in ("auto", False):
        graph = gn.Graph(build(), inplace)
        graph.forward()
        graph.reset_grad()
        graph.backward()
        found[inplace] = (
            [graph.sink.value().numpy(), *[w.grad().numpy() for w in graph.weights()]],
            graph.inplace_report,
        )
    for mine, its in zip(found["auto"][0], found[False][0], strict=True):
        np.testing.assert_allclose(mine, its, 1e-5, 1e-6)
    report = found["auto"][1]
    size = 8 * 16 * 4
    assert [node.name() for node, _ in report.chosen] == ["ProdScalar", "Relu", "Dropout", "Add", "Softmax"]
    assert report.value_bytes == 7 * size + 4 and report.saved_value_bytes == 5 * size
    assert report.saved_bytes == 10 * size and found[False][1].saved_bytes == 0
    assert "5 nodes write in place: values take 1,028 bytes instead of 3,588" in str(report)


def test_memory_in_use_is_what_the_report_says() -> None:
    import fluidlite as fluid

    dev = gn.cpu()
    x = gn.Data(dev, np.zeros((1000,), "float32"))

    def used(inplace: Any) -> tuple[int, gn.InPlaceReport]:
        node: gn.Node = x * 1.0
        for _ in range(9):
            node = node + 1.0
        graph = gn.Graph(node, inplace, compiled=False)
        gc.collect()
        before = fluid.memory.used("cpu")
        graph.forward()
        return fluid.memory.used("cpu") - before, graph.inplace_report

    plain, _ = used(False)
    auto, report = used("auto")
    assert plain == report.value_bytes == 40_000
    assert plain - auto == report.saved_value_bytes == 36_000


def test_a_class_of_ones_own_takes_part_in_the_proof() -> None:
    x = gn.Data(X)

    class Twice(gn.Node):
        reads_input = False
        reads_output = True

        def forward_(self) -> None:
            self.set_value(gn.Tensor(self.dev(), values=2 * self.inputs()[0].value().numpy()))

        def backward_(self) -> None:
            self.inputs()[0].add_grad(gn.Tensor(self.dev(), values=2 * self.grad().numpy()))

        def _spec(self) -> Any:
            return self.inputs()[0]._spec()

    with pytest.raises(gn.InPlaceError, match=r"the gradient of Twice .* reads its own value"):
        gn.Graph(gn.Sum(gn.InPlaceAddScalar(Twice([x]), 1.0)))
    Twice.reads_output = False
    graph = gn.Graph(gn.Sum(gn.InPlaceAddScalar(Twice([x]), 1.0)))
    np.testing.assert_allclose(float(graph.forward()), np.sum(2 * X + 1), 1e-6)
    graph.reset_grad()
    graph.backward()
    assert np.all(x.grad().numpy() == 2)


def test_only_kinds_that_declare_a_pair_can_be_asked() -> None:
    kind = gn.node_function("Plain", lambda x: x * 2.0)
    with pytest.raises(NodeError, match="declare no such pair"):
        kind(gn.Data(X), inplace=True)
