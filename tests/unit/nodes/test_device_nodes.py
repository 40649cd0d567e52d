"""DeviceView and DeviceTransfer: values, gradients, memory, and what they refuse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AllocationError, NodeError
from fluidlite.nodes import Add, Affine, CwiseProd, Graph, Prealloc, Sum, Tanh, Tensor, cpu, device
from fluidlite.nodes.device_nodes import DeviceTransfer, DeviceView
from fluidlite.nodes.leaves import Data, FixedData, Weight
from fluidlite.nodes.updaters import Sgd

PLACES = [str(place) for place in fluid.places() if place.kind in ("cpu", "opencl", "fpga", "cuda")]
PAIRS = list(itertools.product(PLACES, repeat=2))
X = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")


def test_a_view_shares_value_and_gradient(place: str) -> None:
    tmp = Prealloc(place, 1 << 16)
    w = Weight(place, X)
    view = DeviceView(w, tmp)
    assert view.dev() is tmp and view.value() is w.value() and view.has_grad() and tmp.used == 0
    y = Tanh(view)
    assert y.dev() is tmp
    graph = Graph(Sum(y))
    graph.forward()
    assert y.value().dev is tmp and y.value().numpy().shape == (3, 4)
    used = tmp.payload
    assert used == 4 * 12 + 4
    graph.backward()
    assert view.grad() is w.grad() and w.grad().dev is device(place)  # what lasts is not temporary
    np.testing.assert_allclose(w.grad().numpy(), 1 - np.tanh(X) ** 2, rtol=1e-4, atol=1e-6)
    kept = w.grad()
    tmp.reset()
    assert np.isfinite(kept.numpy()).all()
    with pytest.raises(AllocationError, match="stale"):
        y.value().numpy()
    Sgd(0.5).update(graph)
    np.testing.assert_allclose(w.value().numpy(), X - 0.5 * (1 - np.tanh(X) ** 2), rtol=1e-4, atol=1e-6)


def test_two_views_and_the_leaf_add_up(place: str) -> None:
    tmp = Prealloc(place, 1 << 16)
    w = Weight(place, X)
    one, two = DeviceView(w, tmp), DeviceView(DeviceView(w, tmp), device(place))
    assert two.dev() is device(place)
    graph = Graph(Sum(Add(CwiseProd(one, two), w)))
    for _ in range(3):
        graph.reset_forwarded()
        graph.forward()
        graph.reset_grad()
        graph.backward(2.0)
        np.testing.assert_allclose(w.grad().numpy(), 2 * (2 * X + 1), rtol=1e-5)
        tmp.reset()
    Sgd(1.0).update(graph)
    np.testing.assert_allclose(w.value().numpy(), X - 2 * (2 * X + 1), rtol=1e-5)


def test_weights_that_last_and_values_that_do_not(place: str) -> None:
    """An arena a batch: only what is temporary lies in it, byte by byte, and each batch takes the same."""
    tmp = Prealloc(place, 1 << 16)
    w, b = Weight(place, np.ones((2, 3), "float32")), Weight(place, np.zeros(2, "float32"))
    used = set()
    for step in range(4):
        x = FixedData(tmp, np.full((3, 4), step + 1.0, "float32"))
        loss = Sum(Tanh(Affine(w, x, b)))
        graph = Graph(loss)
        graph.forward()
        graph.reset_grad()
        graph.backward()
        assert {node.dev() for node in graph.nodes if not isinstance(node, Weight)} == {tmp}
        assert w.grad().dev is b.grad().dev is device(place)
        used.add((tmp.used, tmp.payload))
        Sgd(0.1).update(graph)
        tmp.reset()
    assert len(used) == 1 and w.value().numpy().shape == (2, 3)


def test_a_view_of_other_memory_is_refused() -> None:
    for one, two in PAIRS:
        if one != two:
            for dev in (device(two), Prealloc(two, 64)):
                with pytest.raises(NodeError) as caught:
                    DeviceView(Weight(one, X), dev)
                assert f"lies on {one}; expected in the memory of {dev}" in str(caught.value)
                assert f"Do: DeviceTransfer(node, {dev})" in str(caught.value)


def test_a_leaf_that_moves_away_from_its_view() -> None:
    for one, two in PAIRS:
        if one != two:
            w = Weight(one, X)
            view = DeviceView(w, Prealloc(one, 64))
            w.move_to(two)
            with pytest.raises(NodeError, match="expected in the memory of preallocated"):
                view.value()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("one, two", PAIRS)
def test_a_transfer_goes_there_and_back(one: str, two: str, dtype: str) -> None:
    w = Weight(one, X, dtype=dtype)
    v = Weight(two, 2 * X, dtype=dtype)
    there = DeviceTransfer(Tanh(w), two)
    assert there.dev() is device(two)
    back = DeviceTransfer(CwiseProd(there, v), Prealloc(one, 1 << 12))
    graph = Graph(Sum(CwiseProd(back, w)))
    x = X.astype(dtype).astype("float64")
    t = np.tanh(x)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == "float16" else {"rtol": 1e-5, "atol": 1e-6}
    for _ in range(2):
        graph.reset_forwarded()
        graph.forward()
        assert there.value().dev is device(two) and there.value().allocation is not there.inputs()[0].value().allocation
        np.testing.assert_allclose(graph.sink.value().numpy(), (t * 2 * x * x).sum(), **tolerance)
        graph.reset_grad()
        graph.backward()
        assert (w.grad().dev, v.grad().dev) == (device(one), device(two))
        np.testing.assert_allclose(w.grad().numpy(), 2 * x * x * (1 - t * t) + 2 * t * x, **tolerance)
        np.testing.assert_allclose(v.grad().numpy(), t * x, **tolerance)


@pytest.mark.parametrize("one, two", [pair for pair in PAIRS if pair[0] != pair[1]])
def test_inputs_on_two_places_name_the_transfer(one: str, two: str) -> None:
    w, v = Weight(one, X), Weight(two, X)
    with pytest.raises(NodeError) as caught:
        Add(w, v)
    text = str(caught.value)
    assert "its inputs lie in different memory" in text and f"on {one}" in text and f"on {two}" in text
    assert "Do: DeviceTransfer(" in text and "test_device_nodes.py" in text


def test_what_has_no_gradient_gets_none(place: str) -> None:
    x = FixedData(cpu(), X)
    for node in (DeviceTransfer(x, place), DeviceView(x, cpu())):
        assert not node.has_grad()
        Graph(node).forward()
        assert node.value() == Tensor(cpu(), values=X)
    w = Weight(place, X)
    graph = Graph(Sum(CwiseProd(DeviceTransfer(x, place), w)))
    graph.forward()
    graph.backward()
    np.testing.assert_allclose(w.grad().numpy(), X)
    with pytest.raises(NodeError, match="has no gradient"):
        x.grad()


def test_no_transfer_to_no_memory() -> None:
    from fluidlite.nodes import null_device

    with pytest.raises(NodeError, match="the null device has no memory"):
        DeviceTransfer(Data(cpu(), X), null_device())
    with pytest.raises(fluid.FluidError, match="no device serves place"):
        DeviceTransfer(Data(cpu(), X), "nowhere")
    with pytest.raises(NodeError, match="expected a node"):
        DeviceView(3, cpu())  # type: ignore[arg-type]
