"""Graphs: one order, forward and backward, ties and copies, nodes of one's own, chains of any length."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest

from fluidlite import graph as ng, nodes as gn
from fluidlite.base.errors import DtypeError, GradientError, NodeError, OutOfRangeError, ShapeError
from fluidlite.graph.value import emit


def _small(dev: gn.Device) -> tuple[gn.Node, list[gn.Weight], gn.Data]:
    rng = np.random.default_rng(1)
    w = gn.Weight(dev, rng.normal(size=(3, 4)).astype("float32"))
    b = gn.Weight(dev, rng.normal(size=3).astype("float32"))
    x = gn.Data(dev, rng.normal(size=(4, 5)).astype("float32"))
    h = gn.Tanh(gn.Affine(w, x, b))
    return gn.Sum(h * h + h), [w, b], x


def _expected(w: gn.Weight, b: gn.Weight, x: gn.Data) -> list[np.ndarray]:
    wa, ba, xa = (np.float64(leaf.value().numpy()) for leaf in (w, b, x))
    h = np.tanh(wa @ xa + ba[:, None])
    d = (2 * h + 1) * (1 - h * h)
    return [np.sum(h * h + h), d @ xa.T, d.sum(1), wa.T @ d]


def test_forward_and_backward_with_a_coefficient(place: str) -> None:
    sink, (w, b), x = _small(gn.device(place))
    graph = gn.Graph(sink)
    value, dw, db, dx = _expected(w, b, x)
    for _ in range(3):  # node by node, and then compiled
        np.testing.assert_allclose(float(graph.forward()), value, 1e-5)
        graph.reset_grad()
        graph.backward(-0.5)
        for leaf, exact in ((w, dw), (b, db), (x, dx)):
            np.testing.assert_allclose(leaf.grad().numpy(), -0.5 * exact, 1e-4, 1e-5)
        graph.reset_forwarded()


def test_gradients_of_leaves_add_up_until_they_are_reset(place: str) -> None:
    sink, (w, b), x = _small(gn.device(place))
    _, dw, _, _ = _expected(w, b, x)
    graph = gn.Graph(sink)
    for round in range(3):
        graph.reset_forwarded()
        graph.forward()
        graph.backward()
        graph.backward(2.0)
        np.testing.assert_allclose(w.grad().numpy(), 3 * (round + 1) * dw, 1e-4, 1e-4)
    graph.reset_grad()
    assert not np.any(w.grad().numpy())


def test_data_may_change_between_runs_and_so_may_its_dims(place: str) -> None:
    dev = gn.device(place)
    x = gn.Data(dev, np.ones((2, 3), "float32"))
    y = gn.Tanh(x)
    graph = gn.Graph(gn.Sum(y + y))
    for dims in [(2, 3), (2, 3), (4, 1), (4, 1), (2, 3), (2, 3)]:
        x.value().assign(np.full(dims, 0.5, "float32"))
        graph.reset_forwarded()
        graph.forward()
        graph.reset_grad()
        graph.backward()
        np.testing.assert_allclose(float(graph.sink.value()), 2 * np.prod(dims) * np.tanh(0.5), 1e-5)
        np.testing.assert_allclose(x.grad().numpy(), np.full(dims, 2 * (1 - np.tanh(0.5) ** 2)), 1e-4)


def test_a_chain_of_100000_nodes() -> None:
    x = gn.Data(np.zeros(2, "float32"))
    node: gn.Node = x
    for number in range(100_000):  # many times as deep as Python recurses: a tenth computes, others are views
        node = gn.DeviceView(node, node.dev()) if number % 10 else gn.AddScalar(node, 1.0)
    graph = gn.Graph(node)
    assert len(graph) == 100_001
    assert graph.forward().numpy().tolist() == [10_000, 10_000]
    graph.reset_grad()
    graph.backward()
    assert x.grad().numpy().tolist() == [1, 1]
    assert [type(item) is gn.Data for item in graph.nodes[:2]] == [True, False]


def test_the_order_is_depth_first_and_each_node_is_in_it_once() -> None:
    a, b = gn.Data([1.0]), gn.Data([2.0])
    c = a + b
    d = c * c
    e = d + a
    assert gn.Graph(e).nodes == [a, b, c, d, e]


def test_what_is_forwarded_is_not_computed_again(place: str) -> None:
    dev = gn.device(place)
    x = gn.Data(dev, np.ones(3, "float32"))
    drawn = gn.Dropout(x, 0.5)
    first = gn.Graph(drawn).forward().numpy().copy()
    total = gn.Graph(drawn + drawn).forward().numpy()
    assert np.array_equal(total, 2 * first)


def test_dropout_draws_anew_and_its_gradient_uses_its_own_mask(place: str) -> None:
    dev = gn.device(place)
    x = gn.Data(dev, np.ones(2000, "float32"))
    a, b = gn.Dropout(x, 0.25), gn.Dropout(x, 0.25)
    graph = gn.Graph(gn.Sum(a * b))
    seen = []
    for _ in range(2):
        graph.reset_forwarded()
        graph.forward()
        graph.reset_grad()
        graph.backward()
        av, bv = a.value().numpy().copy(), b.value().numpy().copy()
        assert not np.array_equal(av, bv) and abs(np.mean(av > 0) - 0.75) < 0.05
        np.testing.assert_allclose(av[av > 0], 4 / 3, 1e-6)
        np.testing.assert_allclose(x.grad().numpy(), 2 * av * bv, 1e-5)
        seen.append(av)
    assert not np.array_equal(*seen)
    gn.seed(3)
    one = gn.Graph(gn.Dropout(x, 0.25)).forward().numpy().copy()
    gn.seed(3)
    assert np.array_equal(one, gn.Graph(gn.Dropout(x, 0.25)).forward().numpy())
    fixed = gn.Dropout(x, 0.25, seed=7)
    assert np.array_equal(gn.Graph(fixed).forward().numpy(), gn.Graph(gn.Dropout(x, 0.25, seed=7)).forward().numpy())


def test_tied_weights_share_value_and_gradient_and_copies_do_not(place: str) -> None:
    dev = gn.device(place)
    w = gn.Weight(dev, np.array([1.0, 2.0], "float32"))
    tied, own = w.tied(), w.copy()
    for _ in range(3):
        graph = gn.Graph(gn.Sum(w * tied + own))
        graph.forward()
        graph.reset_grad()
        graph.backward()
        assert w.grad().numpy().tolist() == tied.grad().numpy().tolist() == [2, 4]
        assert own.grad().numpy().tolist() == [1, 1]
        assert len(graph.weights()) == 2
    w.set_value(gn.Tensor(dev, values=[5.0, 6.0]))
    assert tied.value().numpy().tolist() == [5, 6] and own.value().numpy().tolist() == [1, 2]
    assert w.is_tied_to(tied) and not w.is_tied_to(own) and w.identity == tied.identity
    model = {"a": w, "b": tied, "c": own}
    deep = copy.deepcopy(model)
    assert deep["a"].is_tied_to(deep["b"]) and not deep["a"].is_tied_to(w)
    assert copy.copy(w).is_tied_to(w)


def test_value_and_gradient_move_together(place: str) -> None:
    w = gn.Weight(np.array([1.0, 2.0], "float32"))
    tied = w.tied()
    graph = gn.Graph(gn.Sum(w * w))
    graph.forward()
    graph.reset_grad()
    graph.backward()
    dev = gn.device(place)
    assert w.move_to(dev) is w and w.move_to(dev) is w
    assert w.dev() is w.value().dev is w.grad().dev is tied.dev() is dev
    assert w.grad().numpy().tolist() == [2, 4]
    if place != "cpu:0":
        graph.reset_forwarded()
        with pytest.raises(NodeError, match=r"has moved to .*\n  Do: make the nodes anew"):
            graph.forward()
    again = gn.Graph(gn.Sum(tied * tied))
    assert float(again.forward()) == 5


class Cube(gn.Node):
    """x ** 3, computed on the host by hand."""

    reads_output = False

    def __init__(self, x: gn.Node) -> None:
        super().__init__([x])

    def forward_(self) -> None:
        x = self.inputs()[0].value()
        self.set_value(gn.Tensor(x.dev, values=x.numpy() ** 3))

    def backward_(self) -> None:
        (x,) = self.inputs()
        if x.has_grad():
            x.add_grad(gn.Tensor(self.dev(), values=3 * x.value().numpy() ** 2 * self.grad().numpy()))


def test_a_node_class_of_ones_own(place: str) -> None:
    dev = gn.device(place)
    x = gn.Data(dev, np.array([1.0, 2.0, -3.0], "float32"))
    y = Cube(x * 2.0)
    graph = gn.Graph(gn.Sum(y + y * x))
    for _ in range(2):
        graph.forward()
        graph.reset_grad()
        graph.backward()
        v = np.array([1.0, 2.0, -3.0])
        np.testing.assert_allclose(x.grad().numpy(), 24 * v**2 + 32 * v**3, 1e-5)
        graph.reset_forwarded()


def test_a_function_of_graph_values_is_a_kind_of_node(place: str) -> None:
    from fluidlite import graph as ng

    swish = gn.node_function("Swish", lambda x, beta: x * ng.sigmoid(x * beta), inplace=(0,))
    dev = gn.device(place)
    x = gn.Data(dev, np.array([1.0, -2.0], "float32"))
    node = swish(x, beta=1.5)
    graph = gn.Graph(gn.Sum(node))
    graph.forward()
    graph.reset_grad()
    graph.backward()
    v = np.array([1.0, -2.0])
    s = 1 / (1 + np.exp(-1.5 * v))
    np.testing.assert_allclose(node.value().numpy(), v * s, 1e-5)
    np.testing.assert_allclose(x.grad().numpy(), s + 1.5 * v * s * (1 - s), 1e-5)
    assert node.name() == "Swish"


def test_nodes_die_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        for inplace in ("asked", "auto"):
            sink, _, _ = _small(gn.cpu())
            graph = gn.Graph(sink, inplace=inplace)
            graph.forward()
            graph.reset_grad()
            graph.backward()
            refs = [weakref.ref(node) for node in graph.nodes]
            del graph, sink, _
            assert not any(ref() is not None for ref in refs)
    finally:
        gc.enable()


def test_values_without_elements(place: str) -> None:
    dev = gn.device(place)
    x = gn.Data(dev, np.zeros((0, 3), "float32"))
    for _ in range(3):
        graph = gn.Graph(gn.Sum(gn.Tanh(x) * 2.0 + x))
        assert float(graph.forward()) == 0
        graph.reset_grad()
        graph.backward()
        assert x.grad().numpy().shape == (0, 3)


def test_leaves_may_be_strided_views(place: str) -> None:
    dev = gn.device(place)
    whole = np.arange(24, dtype="float32").reshape(4, 6) / 10
    x = gn.Data(gn.Tensor(dev, values=whole)[:, 1:4])
    w = gn.Weight(dev, whole[:2, :4].copy())
    for _ in range(3):
        graph = gn.Graph(gn.Sum(gn.Tanh(gn.Prod(w, x))))
        exact = np.tanh(whole[:2, :4].astype("float64") @ whole[:, 1:4])
        np.testing.assert_allclose(float(graph.forward()), exact.sum(), 1e-5)
        graph.reset_grad()
        graph.backward()
        np.testing.assert_allclose(x.grad().numpy(), whole[:2, :4].T @ (1 - exact**2), 1e-3, 1e-5)
        np.testing.assert_allclose(w.grad().numpy(), (1 - exact**2) @ whole[:, 1:4].T, 1e-3, 1e-5)


def test_comparisons_are_conditions_of_select(place: str) -> None:
    dev = gn.device(place)
    v = np.array([0.5, -1.0, 2.0, -0.25], "float32")
    x, y = gn.Data(dev, v), gn.Data(dev, -v)
    for node, exact in ((x < y, v < -v), (x > y, v > -v), (x < 0.0, v < 0), (x > 0.5, v > 0.5)):
        assert not node.has_grad() and gn.Graph(node).forward().numpy().tolist() == exact.tolist()
    graph = gn.Graph(gn.Sum(gn.Select(x < 0.0, x * x, y * 3.0)))
    graph.forward()
    graph.reset_grad()
    graph.backward()
    assert x.grad().numpy().tolist() == [0, -2, 0, -0.5] and y.grad().numpy().tolist() == [3, 0, 3, 0]


def test_dropout_draws_the_same_numbers_on_every_place(place: str) -> None:
    found = []
    for dev in (gn.cpu(), gn.device(place)):
        gn.seed(5)
        node = gn.Dropout(gn.Data(dev, np.ones((3, 40), "float32")), 0.5)
        graph = gn.Graph(node + gn.Dropout(node, 0.5))
        for _ in range(2):
            graph.reset_forwarded()
            found.append(graph.forward().numpy().copy())
    assert np.array_equal(found[0], found[2]) and np.array_equal(found[1], found[3])
    assert not np.array_equal(found[0], found[1])


# Errors ------------------------------------------------------------------------------------------------------------


def test_misuse_raises_and_the_next_run_works() -> None:
    a = gn.Data(np.ones((2, 3), "float32"))
    sum_of = gn.Sum(a)
    graph = gn.Graph(sum_of)
    with pytest.raises(NodeError, match=r"Sum \(test_graph.py:\d+\) has no value yet\n  Do: Graph"):
        sum_of.value()
    for call in (graph.reset_grad, graph.backward):
        with pytest.raises(NodeError, match="before forward"):
            call()
    graph.forward()
    fixed = gn.FixedData(np.ones(2, "float32"))
    with pytest.raises(NodeError, match="has no gradient"):
        fixed.grad()
    other = gn.Graph(gn.Sum(fixed))
    other.forward()
    with pytest.raises(NodeError, match="depends on nothing that has a gradient"):
        other.backward()
    with pytest.raises(ShapeError, match=r"Add \(test_graph.py:\d+\) of Data float32\[2, 3\], Data float32\[4\]"):
        a + gn.Data(np.ones(4, "float32"))
    with pytest.raises(NodeError, match="expected a node"):
        gn.Add(a, 3)  # type: ignore[arg-type]
    with pytest.raises(NodeError, match="Graph takes a node"):
        gn.Graph(3)  # type: ignore[arg-type]
    with pytest.raises(NodeError, match="inplace is 'yes'"):
        gn.Graph(a, inplace="yes")
    with pytest.raises(NodeError, match="defines no forward_"):
        gn.Graph(gn.Node([a])).forward()
    with pytest.raises(NodeError, match=r"a gradient .* was added; expected"):
        graph.sink.add_grad(gn.Tensor(gn.cpu(), (2,)))
    assert float(graph.sink.value()) == 6


def test_indices_out_of_range_raise_and_name_the_node(place: str) -> None:
    dev = gn.device(place)
    table = gn.Weight(dev, np.ones((3, 2), "float32"))
    for index in ([0, 3], [0, -1]):
        for _ in range(3):  # node by node and compiled
            graph = gn.Graph(gn.Sum(gn.Lookup(table, index)))
            with pytest.raises(OutOfRangeError, match=r"test_graph.py:\d+"):
                graph.forward()
    assert float(gn.Graph(gn.Sum(gn.Lookup(table, [0, 2]))).forward()) == 4


def test_inputs_on_different_memory_raise(place: str) -> None:
    if place == "cpu:0":
        return
    with pytest.raises(NodeError, match="DeviceTransfer"):
        gn.Data(gn.cpu(), np.ones(2, "float32")) + gn.Data(gn.device(place), np.ones(2, "float32"))


def test_a_node_without_a_derivative_raises_in_backward() -> None:
    clipped = gn.node_function("Clipped", lambda x: emit("clip_by_norm", {"X": x}, {"max_norm": 1.0}))
    x = gn.Data(np.array([3.0, 4.0], "float32"))
    graph = gn.Graph(gn.Sum(clipped(x)))
    for _ in range(3):
        graph.reset_forwarded()
        np.testing.assert_allclose(float(graph.forward()), 1.4, 1e-6)
        graph.reset_grad()
        with pytest.raises(GradientError, match=r"Clipped \(test_graph.py:\d+\): .*has no derivative"):
            graph.backward()


@pytest.mark.parametrize("make", [lambda x: gn.Reshape(x, [1.5, 4]), lambda x: gn.MaxPool(x, (2.5, 2))])
def test_sizes_that_are_no_ints_are_refused_not_rounded(make: Any) -> None:
    with pytest.raises(NodeError, match="expected a sequence of ints"):
        make(gn.Data(np.ones((1, 1, 2, 2), "float32")))


def test_the_advice_of_a_wrong_dtype_is_for_nodes() -> None:
    one = np.ones((2, 3))
    with pytest.raises(DtypeError, match="expected dtype float32, as X") as caught:
        gn.Data(one.astype("float32")) + gn.Data(one, dtype="float64")
    assert "layers.cast" not in str(caught.value)
    cast = gn.node_function("Cast", ng.cast)  # as the advice says
    node = gn.Data(one.astype("float32")) + cast(gn.Data(one, dtype="float64"), dtype="float32")
    assert gn.Graph(node).forward().numpy().tolist() == (2 * one).tolist()
