"""Tensors on devices: assignment keeps the device, moves and copies between any two places, contents."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import nodes
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import NodeError, TensorError
from fluidlite.nodes import Device, Prealloc, Tensor, cpu, device, null_device

DTYPES = tuple(NUMPY)


def every_device() -> list[Device]:
    found: list[Device] = []
    for place in fluid.places():
        if place.kind in ("cpu", "opencl", "fpga", "cuda"):
            found += [device(place), Prealloc(place, 1 << 14)]
    return found


def test_made_of_values(place: str) -> None:
    t = Tensor(device(place), [2, 3], values=range(6))
    assert (t.shape(), t.dtype, t.dev) == ([2, 3], "float32", device(place))
    assert t.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert Tensor(place, values=[[1, 2]], dtype="int64").shape() == [1, 2]
    assert Tensor(place, [2, 0]).numpy().shape == (2, 0)
    assert Tensor(place, []).numpy().shape == ()
    assert not Tensor(place).initialized


@pytest.mark.parametrize("shape", [[-1], [2, -3], "ab", [1.5, None], [2**40, 2**40], 3])
def test_bad_shapes(shape: Any) -> None:
    with pytest.raises(NodeError, match="Tensor: the shape"):
        Tensor(cpu(), shape)


def test_values_that_do_not_fit() -> None:
    with pytest.raises(NodeError, match=r"5 values were given for shape \[2, 3\]"):
        Tensor(cpu(), [2, 3], values=range(5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_between_any_two_devices(dtype: str) -> None:
    values = np.array([[0, 1, 2], [1, 0, 3]]).astype(NUMPY[dtype])
    for one, two in itertools.product(every_device(), repeat=2):
        source = Tensor(one, [2, 3], dtype, values=values)
        copied = source.copy_to(two)
        assert copied.dev is two and copied.allocation is not source.allocation
        assert (copied.numpy() == values).all() and copied.dtype == dtype
        same = source.maybe_copy_to(two)
        assert (same is source) == one.same_memory(two)
        assert same.place == two.place and same == source
        assert (source.to(two) is source) == (one is two)
        assigned = Tensor(two, [2, 3], dtype).assign(source)
        assert assigned.dev is two and assigned == source
        taken = Tensor(two)
        taken[...] = source
        assert taken.dev is two and taken == source
        part = Tensor(two, [4, 3], dtype, values=np.zeros((4, 3)))
        part[1:3] = source
        assert (part.numpy()[1:3] == values).all() and not part.numpy()[::3].any()
        moved = source.move_to(two)
        assert moved is source and moved.dev is two and (moved.numpy() == values).all()


def test_assignment_copies(place: str) -> None:
    a, b = Tensor(place, values=[1.0, 2.0]), Tensor(cpu(), values=[3.0, 4.0])
    held = a.allocation
    a.assign(b)
    assert a.allocation is held  # equal dims: others who hold it see the new values
    b.fill(0)
    assert a.numpy().tolist() == [3, 4]
    a.assign(np.ones((2, 2), "float64"))
    assert (a.shape(), a.dtype, a.dev) == ([2, 2], "float64", device(place))
    version = a.version
    a[...] = a
    assert a.version == version + 1
    a[...] = 7.0
    a[0, :] = [1.0, 2.0]
    a[:, 1] = Tensor(cpu(), values=[8.0, 9.0])
    assert a.numpy().tolist() == [[1, 8], [7, 9]]
    with pytest.raises(TensorError, match=r"cannot assign dims \[3\] to dims \[2, 2\]"):
        a[...] = np.zeros(3)


def test_views_share_memory_and_device(place: str) -> None:
    dev = Prealloc(place, 4096)
    whole = Tensor(dev, [3, 4], values=range(12))
    before = dev.payload
    row, column = whole[1], whole[:, 2]
    assert (row.dev, column.dev, dev.payload) == (dev, dev, before)
    whole.fill(1.0)
    row.assign(np.full(4, 5.0, "float32"))
    column[...] = 6.0
    assert whole.numpy().tolist() == [[1, 1, 6, 1], [5, 5, 6, 5], [1, 1, 6, 1]]
    assert dev.payload == before
    assert column.copy_to(cpu()).numpy().tolist() == [6, 6, 6]
    shared = Tensor(device(place)).share_data_with(whole)
    assert shared.dev is device(place) and shared.allocation is whole.allocation


def test_no_memory_of_another_place_is_shared() -> None:
    for one, two in itertools.permutations(fluid.places(), 2):
        with pytest.raises(NodeError, match="cannot share memory on"):
            Tensor(one).share_data_with(Tensor(two, [2]))
        with pytest.raises(NodeError, match="keeps its device"):
            Tensor(one, [2]).set(np.zeros(3, "float32"), two)
        with pytest.raises(NodeError, match="cannot take memory of"):
            Tensor(one, [2]).mutable_data(two)


def test_a_null_device_takes_the_first(place: str) -> None:
    dev = Prealloc(place, 4096)
    t = Tensor()
    assert t.dev is null_device() and t.place is None
    t.assign(Tensor(dev, [2], values=[1, 2]))
    assert t.dev is dev and dev.payload == 16  # the other's 8, and its own
    other = Tensor()
    other.assign(fluid.Tensor().set(np.ones(2, "float32"), place))
    assert other.dev is device(place)
    host = Tensor()
    host[...] = [1, 2]
    assert host.dev is cpu()
    assert Tensor().move_to(dev).dev is dev
    with pytest.raises(TensorError, match="has no dims yet"):
        Tensor(place).copy_to(cpu())


def test_an_unallocated_tensor_changes_its_device_only(place: str) -> None:
    t = Tensor(cpu())
    t.resize([3])
    t.move_to(place)
    assert t.dev is device(place) and not t.initialized
    t.mutable_data(place)
    assert t.place == fluid.Place.parse(place)


def test_equality_is_of_contents(place: str) -> None:
    a, b = Tensor(place, values=[1.0, 2.0]), Tensor(cpu(), values=[1.0, 2.0])
    assert a == b and b == a
    assert a == fluid.Tensor().set(np.float32([1, 2]), "cpu")
    assert a != Tensor(cpu(), values=[1.0, 3.0])
    assert a != Tensor(cpu(), values=[[1.0, 2.0]])
    assert a != Tensor(cpu(), values=[1.0, 2.0], dtype="float64")
    assert Tensor(place, values=[np.nan]) != Tensor(place, values=[np.nan])
    assert Tensor() == Tensor() and Tensor() != a
    assert a != 3
    with pytest.raises(TypeError):
        hash(a)


def test_no_arena_that_is_no_device() -> None:
    with pytest.raises(NodeError, match="use Prealloc"):
        Tensor(cpu(), [2]).move_to(fluid.memory.arena("cpu", 64))
    with pytest.raises(NodeError, match="use Prealloc"):
        Tensor(cpu(), [2]).to(fluid.memory.arena("cpu", 64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_fill_zeros_ones(place: str, dtype: str) -> None:
    dev = Prealloc(place, 4096)
    for made, value in ((Tensor.zeros(dev, [2, 3], dtype), 0), (Tensor.ones(dev, [2, 3], dtype), 1)):
        assert (made.dev, made.shape(), made.dtype) == (dev, [2, 3], dtype)
        assert (made.numpy() == np.full((2, 3), value, NUMPY[dtype])).all()
        held = made.allocation
        assert made.set_ones() is made and (made.numpy() == 1).all() and made.allocation is held
        assert (made.set_zero().numpy() == 0).all()


@pytest.mark.parametrize(
    "dtype, value", [("uint8", -1), ("uint8", 256), ("int32", 0.5), ("int64", float("nan")), ("bool", 2), ("int8", 1e9)]
)
def test_no_number_of_the_dtype(dtype: str, value: float) -> None:
    with pytest.raises(NodeError, match=f"is no {dtype}"):
        Tensor(cpu(), [2], dtype).fill(value)


def test_random_numbers_are_the_same_on_every_place(place: str) -> None:
    right = Tensor.random(cpu(), [50, 40], seed=7).numpy()
    assert (Tensor.random(place, [50, 40], seed=7).numpy() == right).all()
    assert (Tensor.random(Prealloc(place, 1 << 14), [50, 40], seed=7).numpy() == right).all()
    assert (Tensor.random(place, [50, 40], seed=8).numpy() != right).mean() > 0.99
    assert -1 <= right.min() < -0.99 and 0.99 < right.max() < 1 and abs(right.mean()) < 0.05
    half = Tensor(place, [2000], "float64").set_random(3, 5.0, 6.0).numpy()
    assert 5 <= half.min() < 5.01 and 5.99 < half.max() < 6


def test_seeds(place: str) -> None:
    def draw() -> list[Any]:
        return [Tensor.random(place, [10]).numpy().tolist() for _ in range(3)]

    nodes.seed(5)
    first = draw()
    assert first[0] != first[1] != first[2]
    assert draw() != first
    nodes.seed(5)
    assert draw() == first
    nodes.seed(6)
    assert draw() != first
    with pytest.raises(NodeError, match="expected an int"):
        nodes.seed(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
def test_cast(place: str, dtype: str) -> None:
    values = np.array([[0, 1, 2.5], [-3.75, 100, 7]])
    if dtype == "uint8":
        values = abs(values)
    dev = Prealloc(place, 4096)
    source = Tensor(dev, [2, 3], values=values)
    made = source.cast(dtype)
    assert (made.dev, made.dtype) == (dev, dtype)
    assert (made.numpy() == values.astype("float32").astype(NUMPY[dtype])).all()
    assert source[:, 1].cast(dtype).numpy().tolist() == values[:, 1].astype(NUMPY[dtype]).tolist()
