"""Devices: singletons, preallocated memory with exact byte counts, precedence."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers, memory
from fluidlite.base.errors import AllocationError, NodeError, OutOfMemoryError, PlaceError
from fluidlite.nodes import (
    Prealloc,
    PreallocCpu,
    PreallocGpu,
    PreallocOpenCL,
    Tensor,
    cpu,
    device,
    gpu,
    null_device,
    opencl,
)
from fluidlite.nodes.precedence import common_device
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices


def alignment(place: str) -> int:
    return devices.unit(place).info.alignment


def test_devices_are_singletons(place: str) -> None:
    dev = device(place)
    assert dev is device(fluid.Place.parse(place))
    assert (dev.place, str(dev), dev.precedence) == (fluid.Place.parse(place), place, 0)
    assert copy.deepcopy(dev) is dev
    assert pickle.loads(pickle.dumps(dev)) is dev


def test_named_devices() -> None:
    assert cpu() is device("cpu")
    assert null_device().precedence == -1
    assert pickle.loads(pickle.dumps(null_device())) is null_device()
    for named, kind in ((gpu, "cuda"), (opencl, "opencl")):
        if fluid.Place(kind) in fluid.places():
            assert named(0) is device(kind)
        else:
            with pytest.raises(fluid.FluidError, match=kind):
                named(0)
    with pytest.raises(PlaceError):
        device("nowhere")


def test_named_preallocated_devices() -> None:
    assert PreallocCpu(1e3).size == 1000
    for named, kind in ((PreallocGpu, "cuda"), (PreallocOpenCL, "opencl")):
        if fluid.Place(kind) in fluid.places():
            assert str(named(64).place) == f"{kind}:0"
        else:
            with pytest.raises(fluid.FluidError, match=kind):
                named(64)


@pytest.mark.parametrize("nbytes", [-1, 1.5, "8", True, None, float("nan"), float("inf"), 2**63])
def test_bad_sizes_of_preallocated_memory(nbytes: Any) -> None:
    with pytest.raises(NodeError, match=r"nbytes is .*expected a number of bytes"):
        Prealloc("cpu", nbytes)


def test_more_than_there_is(place: str) -> None:
    memory.set_limit(place, memory.stats(place).used + memory.stats(place).padding + 4096)
    try:
        with pytest.raises(OutOfMemoryError):
            Prealloc(place, 1 << 20)
    finally:
        memory.set_limit(place, None)
    assert Prealloc(place, 1 << 12).size == 1 << 12


def test_bytes_are_counted_exactly(place: str) -> None:
    step = alignment(place)
    rng = np.random.default_rng(0)
    sizes = [int(n) for n in rng.integers(0, 3 * step, 40)]
    dev = Prealloc(place, 40 * 4 * step)
    used = payload = 0
    held = []
    for n in sizes:
        used = -(-used // step) * step + n
        payload += n
        held.append(Tensor(dev, [n], "uint8", values=np.full(n, n % 251)))
        assert (dev.used, dev.payload) == (used, payload)
        if n:
            assert held[-1].span().offset % step == 0
    for n, tensor in zip(sizes, held, strict=True):  # none lies over another
        assert (tensor.numpy() == n % 251).all()
    held.clear()
    gc.collect()
    assert (dev.used, dev.payload) == (used, payload)  # freeing one gives nothing back
    dev.reset()
    assert (dev.used, dev.payload, dev.generation) == (0, 0, 1)


def test_exact_fill_and_overflow(place: str) -> None:
    step = alignment(place)
    dev = Prealloc(place, 2 * step + 12)
    first = Tensor(dev, [step], "uint8", values=np.arange(step) % 200)
    for size in (step + 13, 1 << 20):
        with pytest.raises(OutOfMemoryError, match=rf"arena on {place} is full: asked for [\d,]+ bytes, used {step}"):
            Tensor(dev, [size], "uint8")
        assert (dev.used, dev.payload) == (step, step)
    Tensor(dev, [step + 12], "uint8")  # to the last byte
    assert dev.used == dev.size
    with pytest.raises(OutOfMemoryError):
        Tensor(dev, [1], "uint8")
    assert (first.numpy() == np.arange(step) % 200).all()
    dev.reset()
    Tensor(dev, [2 * step + 12], "uint8")
    assert dev.used == dev.size


def test_overflow_leaves_a_tensor_as_it_was(place: str) -> None:
    dev = Prealloc(place, 64)
    kept = Tensor(dev, [16], values=np.arange(16))
    with pytest.raises(OutOfMemoryError):
        kept.assign(np.zeros(17, "float32"))
    with pytest.raises(OutOfMemoryError):
        Tensor(device(place), [4], values=range(4)).move_to(dev)
    assert kept.numpy().tolist() == list(range(16))


USES = {
    "numpy": lambda t: t.numpy(),
    "data": lambda t: t.data(),
    "copy_to": lambda t: t.copy_to(cpu()),
    "move_to": lambda t: t.move_to(Prealloc(t.place, 64)),
    "assigned": lambda t: Tensor(cpu()).assign(t),
    "view": lambda t: t[1:].numpy(),
    "set_item": lambda t: t.__setitem__(..., 1.0),
    "equal": lambda t: t == Tensor(cpu(), [4], values=range(4)),
    "cast": lambda t: t.cast("float64"),
    "fill": lambda t: t.fill(2.0),
}


@pytest.mark.parametrize("use", USES)
def test_what_outlives_a_reset_raises(place: str, use: str) -> None:
    dev = Prealloc(place, 1024)
    tensor = Tensor(dev, [4], values=range(4))
    dev.reset()
    Tensor(dev, [4], values=[9, 9, 9, 9])
    with pytest.raises(AllocationError, match="stale arena memory: 16 bytes"):
        USES[use](tensor)


def test_new_contents_after_a_reset_get_new_memory(place: str) -> None:
    dev = Prealloc(place, 1024)
    tensor = Tensor(dev, [4], values=range(4))
    dev.reset()
    tensor.assign(Tensor(cpu(), [4], values=[5, 6, 7, 8]))
    assert (tensor.numpy().tolist(), tensor.dev, dev.payload) == ([5, 6, 7, 8], dev, 16)
    dev.reset()
    tensor.set(np.ones(3, "float32"))
    assert (tensor.numpy().tolist(), dev.payload) == ([1, 1, 1], 12)


def test_a_closed_device(place: str) -> None:
    gc.collect()
    before = memory.used(place)
    dev = Prealloc(place, 1 << 16)
    tensor = Tensor(dev, [4], values=range(4))
    assert memory.used(place) == before + (1 << 16)
    dev.close()
    assert memory.used(place) == before
    with pytest.raises(AllocationError, match="stale"):
        tensor.numpy()
    with pytest.raises(OutOfMemoryError):
        Tensor(dev, [4])


def test_memory_goes_back_with_the_last_that_holds_it(place: str) -> None:
    gc.collect()
    before = memory.used(place)
    tensor = Tensor(Prealloc(place, 1 << 16), [4], values=range(4))
    gc.collect()
    assert memory.used(place) == before + (1 << 16)
    assert tensor.numpy().tolist() == [0, 1, 2, 3]
    del tensor
    gc.collect()
    assert memory.used(place) == before


def test_memory_of_this_process_is_not_copied() -> None:
    with pytest.raises(NodeError, match="cannot be copied or pickled"):
        pickle.dumps(PreallocCpu(8))


def test_programs_run_in_a_preallocated_device(place: str) -> None:
    x = layers.data("x", [4, 8], append_batch_size=False)
    y = layers.reduce_sum(layers.exp(layers.matmul(x, x, transpose_y=True)))
    feed = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype("float32")}
    exe = fluid.Executor(place)
    right = exe.run(feed=feed, fetch_list=[y])[0]
    dev = Prealloc(place, 1 << 16)
    for _ in range(3):
        with dev():
            for _ in range(4):
                np.testing.assert_allclose(exe.run(feed=feed, fetch_list=[y])[0], right, rtol=1e-5)
        assert dev.used > 0
        dev.reset()
    np.testing.assert_allclose(exe.run(feed=feed, fetch_list=[y])[0], right, rtol=1e-5)
    assert dev.used == 0


def test_precedence(place: str) -> None:
    plain, first, second = device(place), Prealloc(place, 64), Prealloc(place, 64)

    def names() -> tuple[str, ...]:
        raise AssertionError("names are for errors")

    assert common_device([], names, "f") is null_device()
    assert common_device([null_device(), plain, null_device()], names, "f") is plain
    assert common_device([plain, second, first], names, "f") is second  # the first of equals
    assert common_device([first, plain, second], names, "f") is first
    assert common_device([null_device(), plain, first], names, "f") is first


@pytest.mark.opencl
def test_inputs_in_different_memory_are_refused() -> None:
    with pytest.raises(NodeError) as caught:
        common_device([null_device(), PreallocCpu(64), opencl()], lambda: ("z", "W", "x"), "Prod (user.py:3)")
    text = str(caught.value)
    assert text.startswith("Prod (user.py:3): its inputs lie in different memory: W on preallocated cpu:0, x on opencl")
    assert "Do: DeviceTransfer(x, preallocated cpu:0)" in text


def test_the_null_device_has_no_memory() -> None:
    with pytest.raises(NodeError, match="the null device has no memory"):
        Tensor(None, [2])
    with pytest.raises(NodeError, match="the null device has no memory"):
        null_device().allocation(8, get_context("cpu"))


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_programs_train_in_a_preallocated_device(place: str, mode: str) -> None:
    """Temporaries of each step lie in it; parameters and what an optimiser keeps outlast its resets."""
    feed = {"x": np.random.default_rng(0).standard_normal((6, 8)).astype("float32")}
    found = []
    for tmp in (None, Prealloc(place, 1 << 18)):
        main, startup = fluid.Program(), fluid.Program()
        startup.random_seed = 3
        with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
            x = layers.data("x", [8])
            loss = layers.mean(layers.square(layers.fc(layers.tanh(layers.fc(x, 16)), 1)))
            fluid.optimizer.Adam(layers.exponential_decay(0.1, 2, 0.9)).minimize(loss)
            exe = fluid.Executor(place, mode=mode, fallback="allow")
            exe.run(startup)
            losses = []
            for _ in range(6):
                if tmp is None:
                    losses += exe.run(main, feed, [loss])
                else:
                    with tmp():
                        losses += exe.run(main, feed, [loss])
                    assert tmp.used > 0
                    tmp.reset()
            found.append(np.concatenate(losses))
    assert (found[0] == found[1]).all() and found[0][-1] < found[0][0]
