"""Tensor: metadata, late allocation, views, sharing and exchange. Places are tested in tests/places."""

from __future__ import annotations

import dataclasses
import gc
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

import fluidlite as fluid
from fluidlite import Tensor, memory
from fluidlite.base.errors import DtypeError, LayoutError, PlaceError, TensorError
from fluidlite.devices.cpu import CPUDevice
from fluidlite.platform.device_registry import devices
from fluidlite.plugin import ArrayBase
from fluidlite.tensor.layout import NHWC, Layout
from fluidlite.tensor.tensor_spec import Spec

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins"))
from fake_device import installed


class Opaque(Layout):
    """A layout of a library's own."""

    opaque = True


def test_a_new_tensor_knows_nothing() -> None:
    tensor = Tensor()
    assert not tensor.initialized
    assert repr(tensor) == "Tensor(no dims yet)"
    for use in (
        lambda: tensor.dims,
        lambda: tensor.dtype,
        lambda: tensor.layout,
        lambda: tensor.strides,
        lambda: tensor[0],
    ):
        with pytest.raises(TensorError, match="no dims yet"):
            use()
    for use in (tensor.numpy, tensor.data, tensor.span):
        with pytest.raises(TensorError, match="no data yet"):
            use()
    with pytest.raises(TensorError):
        tensor.mutable_data("cpu")
    assert tensor.lod() == []


def test_resize_then_mutable_data_allocates_late() -> None:
    gc.collect()
    used = memory.used("cpu")
    tensor = Tensor().resize([2, 3])
    assert (tensor.dims, tensor.dtype, tensor.shape(), tensor.initialized) == ((2, 3), "float32", [2, 3], False)
    assert memory.used("cpu") == used
    data = tensor.mutable_data(fluid.CPUPlace(), "int64")
    assert memory.used("cpu") == used + 48
    assert (data.shape, data.dtype) == ((2, 3), np.int64)
    data[...] = 7
    assert tensor.data() is data
    assert tensor.numpy().tolist() == [[7] * 3] * 2


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t.mutable_data([4], "cpu", "float64"),
        lambda t: t.mutable_data((4,), fluid.CPUPlace(), dtype="float64"),
        lambda t: t.mutable_data(dims=[4], place="cpu:0", dtype=np.float64),
        lambda t: t.resize([4]).mutable_data("cpu", 6),  # Fluid's number
        lambda t: t.resize([4]).mutable_data(place="cpu", dtype=np.dtype("float64")),
    ],
)
def test_both_forms_of_mutable_data(ask: Any) -> None:
    tensor = Tensor()
    assert ask(tensor).shape == (4,)
    assert (tensor.dims, tensor.dtype) == ((4,), "float64")


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t.mutable_data(),
        lambda t: t.mutable_data([4]),
        lambda t: t.mutable_data([4], "cpu", "float32", 1),
        lambda t: t.mutable_data("cpu", type="float32"),
        lambda t: t.mutable_data([-1, 4], "cpu"),
        lambda t: t.mutable_data([4], "cpu", "float99"),
        lambda t: t.mutable_data([4], "nowhere"),
        lambda t: t.mutable_data([4], 3),
    ],
)
def test_wrong_calls_of_mutable_data(ask: Any) -> None:
    tensor = Tensor().resize([4])
    with pytest.raises((TensorError, DtypeError, PlaceError)):
        ask(tensor)
    assert tensor.mutable_data("cpu").shape == (4,)


def test_mutable_data_keeps_memory_that_is_large_enough() -> None:
    tensor = Tensor()
    tensor.mutable_data([8], "cpu", "float32")
    held = tensor.allocation
    version = tensor.version
    tensor.mutable_data([2, 3], "cpu", "float32")
    assert tensor.allocation is held
    tensor.mutable_data([4], "cpu", "float64")
    assert tensor.allocation is held
    assert tensor.data().dtype == np.float64
    assert tensor.version > version
    tensor.mutable_data([9], "cpu", "float32")
    assert tensor.allocation is not held


def test_negative_dims() -> None:
    with pytest.raises(TensorError, match="every one must be 0 or more"):
        Tensor().resize([2, -1])


@pytest.mark.parametrize("dims", [[2.5, 3], ["2"], [float("inf")], 3, [[2]], [None]])
def test_dims_that_are_no_ints(dims: Any) -> None:
    with pytest.raises(TensorError, match="expected a list of ints"):
        Tensor().resize(dims)


def test_dims_of_numpy_and_whole_floats() -> None:
    assert Tensor().resize(np.array([2, 3])).dims == Tensor().resize([2.0, 3]).dims == (2, 3)  # type: ignore[list-item,arg-type]


def test_set_keeps_memory_of_equal_dims() -> None:
    tensor = Tensor().set(np.zeros((2, 2), "float32"))
    held, view = tensor.allocation, tensor.numpy()
    tensor.set(np.full((2, 2), 3, "float32"))
    assert tensor.allocation is held
    assert (view == 3).all()
    tensor.set(np.zeros(4, "float32"))
    assert tensor.allocation is not held
    assert (view == 3).all()  # the view keeps what it sees alive
    assert tensor.dims == (4,)


@pytest.mark.parametrize("value", [3, 2.5, True, [1, 2], ((1.0,), (2.0,)), np.float16(2), range(3)])
def test_set_takes_what_numpy_takes(value: Any) -> None:
    np.testing.assert_array_equal(Tensor().set(value).numpy(), np.asarray(value))


@pytest.mark.parametrize(
    "value",
    [
        [[1], [2, 3]], "text", None, object(), {1: 2}, np.asarray(["a"]), np.zeros(2, "complex64"), [None],
        np.ma.masked_array([1.0, 2.0], [True, False]),
    ],
)  # fmt: skip
def test_set_refuses_what_is_no_array_of_numbers(value: Any) -> None:
    tensor = Tensor().set([1.0])
    with pytest.raises((TensorError, DtypeError)):
        tensor.set(value)
    assert tensor.numpy().tolist() == [1]


def test_a_scalar() -> None:
    tensor = Tensor().set(np.float32(2.5))
    assert tensor.dims == ()
    assert float(tensor) == 2.5
    assert int(tensor) == 2
    with pytest.raises(TypeError, match="a scalar tensor has no length"):
        len(tensor)
    with pytest.raises(TypeError, match="a scalar tensor has no length"):
        iter(tensor)
    tensor[...] = 3.5
    assert float(tensor[...]) == 3.5
    assert len(Tensor().set([1, 2])) == 2


def test_the_rows_of_a_tensor_are_views_in_turn() -> None:
    tensor = Tensor().set([[1.0, 2.0], [3.0, 4.0]])
    first, second = tensor
    second[...] = 5.0
    assert [row.numpy().tolist() for row in tensor] == [[1, 2], [5, 5]]
    assert first.dims == (2,)


def test_assign_keeps_its_place_and_takes_dims_dtype_and_lod() -> None:
    tensor = Tensor().set(np.zeros(3, "int32"))
    source = Tensor().set(np.ones((4, 2)), "cpu", [[0, 1, 4]])
    assert tensor.assign(source) is tensor
    assert (tensor.dims, tensor.dtype, tensor.lod()) == ((4, 2), "float64", [[0, 1, 4]])
    assert tensor.allocation is not source.allocation
    source[0, 0] = 9
    assert tensor.numpy()[0, 0] == 1
    assert tensor.assign([5, 6]).numpy().tolist() == [5, 6]
    with pytest.raises(TensorError):
        tensor.assign(Tensor())
    fresh = Tensor().assign(source)
    assert fresh.numpy()[0, 0] == 9


def test_assigning_a_tensor_to_itself_changes_nothing() -> None:
    tensor = Tensor().set([1.0, 2.0])
    assert tensor.assign(tensor).numpy().tolist() == [1, 2]


def test_share_data_with() -> None:
    one = Tensor().set([[1.0, 2.0], [3.0, 4.0]], "cpu", [[0, 1, 2]])
    two = Tensor().share_data_with(one)
    assert two.allocation is one.allocation
    assert two.lod() == [[0, 1, 2]]
    two[0, 0] = 9.0
    assert one.numpy()[0, 0] == 9
    three = Tensor().share_data_with(one[1:2])
    assert three.byte_offset == 16
    assert three.numpy().tolist() == [[3, 4]]
    with pytest.raises(TensorError):
        Tensor().share_data_with(Tensor().resize([2]))


# --- views -----------------------------------------------------------------------------------------------------------

axis_keys = st.one_of(
    st.integers(-4, 3), st.slices(4).filter(lambda s: s.step is None or s.step > 0), st.just(Ellipsis)
)


@given(st.lists(axis_keys, max_size=3).filter(lambda keys: keys.count(Ellipsis) <= 1))
def test_basic_indexing_is_numpys(keys: list[Any]) -> None:
    array = np.arange(64, dtype="int32").reshape(4, 4, 4)
    tensor = Tensor().set(array)
    key = tuple(keys)
    view = tensor[key]
    assert view.dims == array[key].shape
    np.testing.assert_array_equal(view.numpy(), array[key])
    assert view.contiguous == (array[key].size < 2 or np.asarray(array[key]).flags.c_contiguous)
    if view.spec is not None and view.spec.size:
        assert view.allocation is tensor.allocation
    tensor[key] = -1
    array[key] = -1
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_views_of_views() -> None:
    array = np.arange(60).reshape(3, 4, 5)
    view = Tensor().set(array)[1:][:, 1:3][1, :, ::2]
    np.testing.assert_array_equal(view.numpy(), array[1:][:, 1:3][1, :, ::2])
    assert view.byte_offset == 8 * (40 + 5)
    assert view.strides == (5, 2)
    assert not view.contiguous
    view[0, 0] = -5
    assert view.numpy()[0, 0] == -5


@pytest.mark.parametrize(
    "key", [5, (0, 9), (0, 0, 0), [0, 1], np.asarray([True, False]), "x", 1.5, slice(None, None, -1)]
)
def test_what_is_no_view(key: Any) -> None:
    tensor = Tensor().set(np.zeros((2, 3)))
    with pytest.raises(TensorError):
        tensor[key]


def test_a_view_keeps_its_holder_alive() -> None:
    gc.collect()
    used = memory.used("cpu")
    view = Tensor().set(np.arange(1000.0))[10:12]
    assert memory.used("cpu") == used + 8000
    assert view.numpy().tolist() == [10, 11]
    del view
    assert memory.used("cpu") == used


def test_slice_is_rows() -> None:
    tensor = Tensor().set(np.arange(6.0).reshape(3, 2))
    assert tensor.slice(1, 3).numpy().tolist() == [[2, 3], [4, 5]]
    assert tensor.slice(1, 1).dims == (0, 2)
    for begin, end in ((-1, 2), (2, 1), (0, 4)):
        with pytest.raises(TensorError, match="do not lie in 0 to 3"):
            tensor.slice(begin, end)


def test_wrong_values_for_a_view() -> None:
    tensor = Tensor().set(np.zeros((2, 3)))
    with pytest.raises(TensorError, match=r"cannot assign dims \[2\] to dims \[2, 3\]"):
        tensor[...] = [1, 2]
    tensor[...] = [1, 2, 3]
    assert tensor.numpy().tolist() == [[1, 2, 3]] * 2


def test_mutable_data_of_a_view_is_memory_of_its_own() -> None:
    tensor = Tensor().set(np.zeros((4, 4)))
    view = tensor[:, 1]
    view.mutable_data("cpu")[...] = 5
    assert tensor.numpy().sum() == 0
    assert view.numpy().tolist() == [5] * 4


def test_resizing_a_view_does_not_write_beyond_it() -> None:
    tensor = Tensor().set(np.zeros(8))
    view = tensor[6:]
    view.mutable_data([4], "cpu", "float64")[...] = 5
    assert tensor.numpy().sum() in (0, 10)  # memory of its own, or what lies in the holder
    assert view.numpy().tolist() == [5] * 4


# --- layouts ---------------------------------------------------------------------------------------------------------


def test_a_strided_layout() -> None:
    spec = Spec.of((1, 2, 2, 3), "float32", layout=NHWC)
    tensor = Tensor.of(spec, fluid.Place("cpu"))
    tensor.mutable_data("cpu")[...] = np.arange(12).reshape(1, 2, 2, 3)
    assert tensor.strides == (12, 1, 6, 2)
    np.testing.assert_array_equal(tensor.numpy(), np.arange(12).reshape(1, 2, 2, 3))


def test_an_opaque_layout_has_no_array() -> None:
    tensor = Tensor.of(Spec.of((8,), "float32", layout=Opaque("blocked")), fluid.Place("cpu"))
    with pytest.raises(LayoutError, match="opaque layout 'blocked'"):
        tensor.mutable_data("cpu")


# --- exchange --------------------------------------------------------------------------------------------------------


def test_the_array_protocol() -> None:
    tensor = Tensor().set(np.arange(3, dtype="int32"))
    assert np.asarray(tensor).dtype == np.int32
    assert np.asarray(tensor, "float64").dtype == np.float64
    one = np.array(tensor)
    one[0] = 9
    assert tensor.numpy()[0] == 0
    two = np.asarray(tensor, copy=False)
    two[0] = 7
    assert tensor.numpy()[0] == 7
    with pytest.raises(ValueError, match="copy"):
        np.asarray(tensor, "float64", copy=False)


def test_dlpack_both_ways() -> None:
    tensor = Tensor().set(np.arange(4, dtype="float32"))
    assert tensor.__dlpack_device__() == (1, 0)
    shared = np.from_dlpack(tensor)
    tensor[0] = 5.0
    assert shared[0] == 5
    array = np.arange(6, dtype="int64").reshape(2, 3)
    back = fluid.from_dlpack(array)
    assert (back.dims, back.dtype, str(back.place)) == ((2, 3), "int64", "cpu:0")
    np.testing.assert_array_equal(back.numpy(), array)
    again = fluid.from_dlpack(Tensor().set([1.0, 2.0]))
    assert again.numpy().tolist() == [1, 2]
    strided = fluid.from_dlpack(array.T)
    np.testing.assert_array_equal(strided.numpy(), array.T)


def test_dlpack_of_what_it_cannot_carry() -> None:
    with pytest.raises(TensorError, match="bfloat16"):
        np.from_dlpack(Tensor().set(np.zeros(2, ml_dtypes.bfloat16)))

    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (99, 0)

    with pytest.raises(TensorError, match="no place here holds memory of DLPack device type 99"):
        fluid.from_dlpack(Elsewhere())


class _HostArrays(ArrayBase):
    """NumPy over host bytes; who made it says whether it reads DLPack, and whether it takes over such an array."""

    xp = np

    def __init__(self, reads: Any, adopts: bool) -> None:
        self.reads, self.adopts = reads, adopts

    def wrap(self, span: Any, dims: Any, dtype: str, strides: Any) -> Any:
        steps = None if strides is None else tuple(step * np.dtype(dtype).itemsize for step in strides)
        return np.ndarray(dims, dtype, span.handle, span.offset, steps)

    def extra(self, name: str) -> Any:
        return self.reads if name == "from_dlpack" else None

    def adopt(self, array: Any) -> Any:
        return array.reshape(-1).view(np.uint8) if self.adopts else None


class _HostDevice(CPUDevice):
    def __init__(self, kind: str, reads: Any, adopts: bool) -> None:
        self.kind = kind
        self.arrays = _HostArrays(reads, adopts)

    def info(self, index: int) -> Any:
        return dataclasses.replace(super().info(index), host=False)

    def array(self, index: int) -> Any:
        return self.arrays

    def language(self, index: int) -> Any:
        return None


def _refuses(source: Any) -> Any:
    raise BufferError("it is not mine")


@pytest.mark.parametrize("adopts", [True, False])
def test_dlpack_where_several_places_share_the_hosts_memory(adopts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(6, dtype="float32").reshape(2, 3)
    with ExitStack() as stack:
        for kind, reads in (("aaa", None), ("aab", _refuses), ("aac", np.from_dlpack)):
            stack.enter_context(installed(_HostDevice(kind, reads, adopts)))
        order = sorted(devices.places(), key=str)  # theirs before the CPU's
        monkeypatch.setattr(devices, "places", lambda: order)
        back = fluid.from_dlpack(array)
        assert str(back.place) == "cpu:0"
        np.testing.assert_array_equal(back.numpy(), array)
        for place in ("aaa:0", "aac:0", "cpu:0"):
            there = fluid.from_dlpack(array, place)
            assert str(there.place) == place
            np.testing.assert_array_equal(there.numpy(), array)
        with pytest.raises(TensorError, match="aab:0 does not take the array: BufferError: it is not mine"):
            fluid.from_dlpack(array, "aab")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "bool", "uint8", "int8", "int16"])
def test_small_dtypes(dtype: str) -> None:
    tensor = Tensor().resize([3])
    tensor.mutable_data("cpu", dtype)
    tensor[...] = [0, 1, 1]
    assert tensor.dtype == dtype
    assert str(tensor.numpy().dtype) == dtype
    assert tensor.numpy().astype(float).tolist() == [0, 1, 1]
    assert tensor.span().nbytes == 3 * tensor.numpy().itemsize


def test_repr_names_what_there_is() -> None:
    assert repr(Tensor().resize([2])) == "Tensor(float32[2], no data yet)"
    assert repr(Tensor().set([1.0, 2.0])) == "Tensor(float64[2] on cpu:0)"


@pytest.mark.parametrize(
    "key", [[1, 2], [0], np.array([1]), [True, False, True], (slice(None), [0, 1]), True, "a", 1.0]
)
def test_only_basic_indices_make_views(key: Any) -> None:
    """An index that NumPy would copy by is refused, wherever its copy would lie in memory."""
    tensor = Tensor().set(np.arange(12.0).reshape(3, 4), "cpu")
    held = []
    for n in range(20):  # copies at other addresses
        held.append(np.empty(n))
        with pytest.raises(TensorError, match="basic index"):
            tensor[key]
        with pytest.raises(TensorError, match="basic index"):
            tensor[key] = 1.0
    np.testing.assert_array_equal(tensor.numpy(), np.arange(12.0).reshape(3, 4))


def test_an_element_of_a_large_tensor_is_a_view() -> None:
    """Only its address is computed; the array that it is computed with has no such memory."""
    tensor = Tensor().set(np.zeros(1 << 26, np.int8), "cpu")
    for key in (-1, (-1,), (..., -1), np.int64(-1)):
        tensor[key] = 7
        assert tensor[key].dims == ()
        assert int(tensor[key]) == 7
        tensor[key] = 0
