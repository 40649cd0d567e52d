"""Tensors on every place that is here, and copies between any two."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from grouped import grouped

import fluidlite as fluid
from fluidlite import nodes
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import TensorError
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices

KINDS = ("cpu", "opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})
DTYPES = tuple(NUMPY)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return f"{request.param}:0"


@pytest.fixture(params=KINDS)
def other(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return f"{request.param}:0"


def values(dtype: str, dims: tuple[int, ...]) -> np.ndarray[Any, Any]:
    numbers = np.random.default_rng(3).integers(0, 100, dims)
    return np.asarray(numbers % 2 if dtype == "bool" else numbers).astype(NUMPY[dtype])


DIMS: list[tuple[int, ...]] = [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (3, 0, 2)]


@grouped(("dtype", "dims"), product(DTYPES, DIMS), ("dtype",))
def test_there_and_back(place: str, dtype: str, dims: tuple[int, ...]) -> None:
    array = values(dtype, dims)
    tensor = fluid.Tensor().set(array, place)
    assert (tensor.dims, tensor.dtype, str(tensor.place)) == (dims, dtype, place)
    back = tensor.numpy()
    assert back.dtype == array.dtype
    assert back.shape == dims
    np.testing.assert_array_equal(back, array)
    again = np.asarray(tensor)
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64"])
@pytest.mark.parametrize("dims", [(), (4, 6), (0, 3)])
def test_between_two_places(place: str, other: str, dtype: str, dims: tuple[int, ...]) -> None:
    lod = [[0, 1, 4]] if dims == (4, 6) else None
    source = fluid.Tensor().set(values(dtype, dims), place, lod)
    copy = source.to(other)
    assert str(copy.place) == other
    assert (copy is source) == (place == other)
    np.testing.assert_array_equal(copy.numpy(), values(dtype, dims))
    assert copy.lod() == (lod or [])
    moved = fluid.Tensor().set(values(dtype, dims), place, lod).move_to(other)
    assert str(moved.place) == other
    np.testing.assert_array_equal(moved.numpy(), values(dtype, dims))
    held = fluid.Tensor().set(np.zeros(dims, NUMPY[dtype]), other)
    held.assign(source)
    assert str(held.place) == other
    assert held.lod() == (lod or [])
    np.testing.assert_array_equal(held.numpy(), values(dtype, dims))
    np.testing.assert_array_equal(source.numpy(), values(dtype, dims))


@pytest.mark.parametrize(
    "key",
    [np.s_[1:3], np.s_[:, 1], np.s_[1:, 2:5], np.s_[..., ::2], np.s_[2], np.s_[1, 3], np.s_[3:3], np.s_[::3, ::2]],
)
def test_a_view_of_one_place_goes_to_another(place: str, other: str, key: Any) -> None:
    array = values("float32", (4, 6))
    tensor = fluid.Tensor().set(array, place)
    view = tensor[key]
    assert view.dims == array[key].shape
    np.testing.assert_array_equal(view.numpy(), array[key])
    np.testing.assert_array_equal(view.to(other).numpy(), array[key])
    held = fluid.Tensor().set(np.zeros(array[key].shape, "float32"), other).assign(view)
    np.testing.assert_array_equal(held.numpy(), array[key])
    assert held.contiguous


@pytest.mark.parametrize(
    "key", [np.s_[1:3], np.s_[:, 1], np.s_[1:, 2:5], np.s_[..., ::2], np.s_[2], np.s_[...], np.s_[3:3]]
)
def test_writing_into_a_view(place: str, other: str, key: Any) -> None:
    array = values("float32", (4, 6))
    tensor = fluid.Tensor().set(array, place)
    version = tensor.version
    tensor[key] = -1.5
    array[key] = -1.5
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert tensor.version > version
    new = np.arange(array[key].size, dtype="float32").reshape(array[key].shape)
    tensor[key] = fluid.Tensor().set(new, other)
    array[key] = new
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert str(tensor.place) == place


def test_assigning_into_a_strided_view_keeps_what_lies_between(place: str, other: str) -> None:
    array = values("int32", (4, 6))
    tensor = fluid.Tensor().set(array, place)
    tensor[:, ::2].assign(fluid.Tensor().set(np.full((4, 3), -7, "int32"), other))
    array[:, ::2] = -7
    np.testing.assert_array_equal(tensor.numpy(), array)
    tensor[1:3].assign(fluid.Tensor().set(np.full((2, 6), 5, "int32"), other))
    array[1:3] = 5
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_copies_are_counted_once(place: str) -> None:
    context = get_context(place)
    context.counts.reset()
    tensor = fluid.Tensor().set(values("float32", (8, 8)), place)
    tensor.numpy().sum()
    host = devices.unit(place).info.host
    assert (context.counts.copy_in, context.counts.bytes_in) == (1, 256)
    assert (context.counts.copy_out, context.counts.bytes_out) == ((0, 0) if host else (1, 256))


def test_numpy_is_a_view_on_the_host_and_a_copy_elsewhere(place: str) -> None:
    tensor = fluid.Tensor().set(np.zeros(4, "float32"), place)
    view = tensor.numpy()
    tensor[1:2] = 5.0
    assert view[1] == (5 if devices.unit(place).info.host else 0)
    assert tensor.numpy()[1] == 5


def test_data_is_the_native_array_or_the_span(place: str) -> None:
    tensor = fluid.Tensor().resize([2, 3])
    with pytest.raises(TensorError, match="no data yet; call mutable_data"):
        tensor.data()
    data = tensor.mutable_data(place, "float64")
    unit = devices.unit(place)
    if unit.array is None:
        assert data.nbytes == 48
    else:
        assert tuple(data.shape) == (2, 3)
        data[...] = 2.5
        assert (tensor.numpy() == 2.5).all()
    assert tensor.span().nbytes == 48


def test_dlpack_of_a_place_without_it(place: str) -> None:
    tensor = fluid.Tensor().set([1.0, 2.0], place)
    if devices.unit(place).info.dlpack is not None:
        pytest.skip(f"{place} takes part in DLPack")
    with pytest.raises(TensorError, match=f"{place} takes no part in DLPack; use numpy"):
        np.from_dlpack(tensor)


def test_the_dtypes_are_all_here() -> None:
    wanted = {"bool", "int8", "int16", "int32", "int64", "uint8", "float16", "bfloat16", "float32", "float64"}
    assert wanted <= set(DTYPES)
    assert NUMPY["bfloat16"] == np.dtype(ml_dtypes.bfloat16)


def test_views_of_one_tensor_are_copied_to_each_other(place: str) -> None:
    """Views that begin at one element, or that overlap, as NumPy copies them."""
    for to, source in (
        (np.s_[0], np.s_[:, 0]),
        (np.s_[:, 0], np.s_[0]),
        (np.s_[0], np.s_[0]),
        (np.s_[1:], np.s_[:-1]),
        (np.s_[:-1], np.s_[1:]),
        (np.s_[:, 1:], np.s_[:, :-1]),
    ):
        array = values("float32", (4, 4))
        tensor, node = fluid.Tensor().set(array, place), nodes.Tensor(place, values=array)
        tensor[to].assign(tensor[source])
        node[to] = node[source]
        array[to] = array[source].copy()
        np.testing.assert_array_equal(tensor.numpy(), array)
        np.testing.assert_array_equal(node.numpy(), array)
