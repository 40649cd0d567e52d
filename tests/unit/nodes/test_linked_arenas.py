"""Graphs on preallocated devices run linked: bytes, errors and numbers are those of node by node."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import nodes as gn
from fluidlite.base.errors import AllocationError, OutOfMemoryError
from fluidlite.nodes.linked import LinkedGraph
from fluidlite.nodes.routine import IMAGE_AFTER
from fluidlite.platform.device_registry import devices


@pytest.fixture(autouse=True)
def _images() -> None:
    fluid.places()
    if getattr(devices.unit("cpu").language, "image", None) is None:
        pytest.skip("llvmlite compiles the kernels of this test")


@pytest.fixture
def by_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    true = LinkedGraph.forward

    def choose(wanted: bool) -> None:
        monkeypatch.setattr(LinkedGraph, "forward", staticmethod(lambda nodes, context: None) if wanted else true)

    yield choose
    choose(False)


class Model:
    """Weights that last, values that do not: products, sums of gradients, a result that is kept, views, ties."""

    def __init__(self, dtype: str = "float32") -> None:
        rng = np.random.default_rng(1)
        self.w = gn.Weight(rng.normal(size=(5, 5)).astype(dtype))
        self.b = gn.Weight(rng.normal(size=5).astype(dtype))
        self.x = rng.normal(size=(5, 5)).astype(dtype)
        self.products = dtype != "float16"  # no library has them
        self.leaves = [self.w, self.b]

    def loss(self, dev: gn.Device, other: gn.Device | None = None) -> gn.Node:
        h: gn.Node = gn.Data(dev, self.x)
        scaled = gn.DeviceView(self.w.tied() * 0.5, dev)  # computed where the weight lies
        for _ in range(3):
            if self.products:
                h = gn.Tanh(gn.Affine(self.w, h, self.b)) + gn.Reshape(gn.Prod(scaled, h), (5, 5))
            else:
                h = gn.Tanh(self.w * h + self.b) + gn.Reshape(scaled * h, (5, 5))
        if other is not None:
            h = gn.DeviceView(gn.Square(h), other) * 2.0
        target = gn.FixedData(other or dev, np.array([0, 4, 2, 1, 1]))
        return gn.Sum(gn.PickNegLogSoftmax(h, target))

    def run(self, dev: gn.Device, other: gn.Device | None = None) -> gn.Graph:
        for leaf in self.leaves:
            leaf.reset_grad()
        graph = gn.Graph(self.loss(dev, other))
        graph.forward()
        graph.backward(0.5)
        return graph


def warm(run: Callable[[], gn.Graph], *devs: gn.Prealloc) -> None:
    for _ in range(IMAGE_AFTER + 1):
        graph = run()
        for dev in devs:
            dev.reset()
    assert graph._linked is not None


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("several", [False, True], ids=["one", "two"])
def test_bytes_and_numbers_are_those_of_node_by_node(by_node: Any, dtype: str, several: bool) -> None:
    model, devs = Model(dtype), [gn.PreallocCpu(1 << 16) for _ in range(1 + several)]
    warm(lambda: model.run(*devs), *devs)
    found = []
    for wanted in (True, False):
        by_node(wanted)
        graph = model.run(*devs)
        assert (graph._linked is None) == wanted
        assert "whose memory each run takes" in graph.why_not_compiled
        values = [node.value() for node in graph.nodes]
        grads = [node.grad() for node in graph.nodes if node.has_grad()]
        assert [value.dev for value in values] == [node.value().dev for node in graph.nodes]
        found.append(
            (
                [(dev.used, dev.payload) for dev in devs],
                [str(item.dev) for item in values + grads],
                [item.numpy().astype("float64") for item in values + grads],
            )
        )
        for dev in devs:
            dev.reset()
    (bytes_by_node, where_by_node, plain), (linked_bytes, where, fast) = found
    assert linked_bytes == bytes_by_node
    assert where == where_by_node
    tolerance = 2e-5 if dtype == "float32" else 2e-2
    for mine, its in zip(plain, fast, strict=True):
        np.testing.assert_allclose(its, mine, tolerance, tolerance)


def test_exact_fill_and_overflow_of_forward_and_backward(by_node: Any) -> None:
    """What fits exactly runs; a byte less raises as node by node, and takes what that takes."""
    model, large = Model(), gn.PreallocCpu(1 << 16)
    warm(lambda: model.run(large), large)
    for leaf in model.leaves:
        leaf.reset_grad()
    graph = gn.Graph(model.loss(large))
    graph.forward()
    after_forward = large.used
    graph.backward(0.5)
    after_backward = large.used
    assert graph._linked is not None
    loss, right = float(graph.sink.value()), model.w.grad().numpy().copy()
    exact = gn.PreallocCpu(after_backward)
    graph = model.run(exact)
    assert graph._linked is not None
    assert exact.used == exact.size
    assert float(graph.sink.value()) == loss
    for size in (after_forward - 1, after_backward - 1):
        taken = []
        for wanted in (True, False):
            by_node(wanted)
            for leaf in model.leaves:
                leaf.reset_grad()
            small = gn.PreallocCpu(size)
            graph = gn.Graph(model.loss(small))
            with pytest.raises(OutOfMemoryError, match="full"):
                graph.forward()
                graph.backward(0.5)
            taken.append((small.used, small.payload, graph.sink._forwarded))
            small.reset()
            assert small.used == 0
        assert taken[0] == taken[1]
    by_node(False)
    large.reset()
    model.run(large)
    np.testing.assert_array_equal(model.w.grad().numpy(), right)


def test_what_outlives_a_reset_raises() -> None:
    model, dev = Model(), gn.PreallocCpu(1 << 16)
    warm(lambda: model.run(dev), dev)
    graph = model.run(dev)
    assert graph._linked is not None
    inner = graph.nodes[-2]
    tensor, array = inner.value(), inner.value().numpy()
    kept, weights = array.copy(), model.w.grad().numpy().copy()
    dev.reset()
    for stale in (lambda: tensor.numpy(), lambda: inner.value().numpy(), lambda: graph.sink.grad().numpy()):
        with pytest.raises(AllocationError, match="stale arena memory"):
            stale()
    with pytest.raises(AllocationError, match="stale arena memory"):
        graph.backward()
    np.testing.assert_array_equal(array, kept)  # NumPy has a copy
    np.testing.assert_array_equal(model.w.grad().numpy(), weights)  # weights and their gradients lie elsewhere
    graph.reset_forwarded()
    with pytest.raises(AllocationError, match="stale arena memory"):
        graph.forward()  # its input is gone too
    before = gn.Graph(model.loss(dev))
    before.forward()
    dev.reset()
    for leaf in model.leaves:
        leaf.reset_grad()
    with pytest.raises(AllocationError, match="stale arena memory"):
        before.backward()
    assert np.all(model.w.grad().numpy() == 0)
    model.run(dev)
    np.testing.assert_array_equal(model.w.grad().numpy(), weights)


def test_memory_goes_back_with_the_device() -> None:
    model = Model()

    def use() -> int:
        dev = gn.PreallocCpu(1 << 20)
        warm(lambda: model.run(dev), dev)
        gc.collect()
        return fluid.memory.used("cpu")

    before = use()
    gc.collect()
    assert before - fluid.memory.used("cpu") >= 1 << 20


def test_a_place_that_is_an_arena_takes_back_what_linked_graphs_computed() -> None:
    """Parts of memory are as stale as the whole."""
    from fluidlite.memory.allocation import Allocation
    from fluidlite.nodes.lent import LentAllocation, part_of

    whole = fluid.memory.alloc("cpu", 256)
    part = part_of(whole, 64, 16)
    assert isinstance(part, LentAllocation)
    assert isinstance(part, Allocation)
    assert part.address() == whole.address() + 64
    fluid.memory.free(whole)
    with pytest.raises(AllocationError):
        part.address()
    assert part.block is None
