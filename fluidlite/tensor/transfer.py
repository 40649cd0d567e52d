"""Copies of tensors: host to device and back, inside a place, and between any two places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np

from fluidlite.base.dtypes import ITEMSIZE, NUMPY
from fluidlite.base.errors import TensorError
from fluidlite.memory import memory_of
from fluidlite.memory.allocation import Allocation
from fluidlite.memory.sharing import Use, turn
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_memory import Span
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

_Result = TypeVar("_Result")


def _host_bytes(span: Span) -> memoryview:
    """Host memory as bytes: handles of a ``host`` device support the buffer protocol."""
    return memoryview(span.handle).cast("B")[span.offset : span.offset + span.nbytes]


def bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of a C-contiguous array, of any dtype and rank."""
    return array.reshape(-1).view(np.uint8).data


def bytes_at(span: Span, context: Context) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A copy of a range of a place's memory."""
    content = np.empty(span.nbytes, np.uint8)
    context.copy_out(content.data, span)
    context.wait()
    return content


def is_host(context: Context) -> bool:
    return context.unit.info.host


def uses(context: Context, read: Tensor | None = None, written: Tensor | None = None) -> Iterator[Use]:
    """The uses of tensors' memory by a copy on a context's queue."""
    for tensor, writes in ((read, False), (written, True)):
        if tensor is not None and tensor.allocation is not None:
            yield Use(tensor.allocation, context, writes)


def can_use_without_waiting(tensor: Tensor | None, context: Context, writes: bool = False) -> bool:
    """Whether a context may read a tensor, or write it, without waiting for another context."""
    allocation = tensor.allocation if tensor is not None else None
    if allocation is None or (allocation.sharing is None and allocation.context is context):
        return True
    return not Use(allocation, context, writes).conflicting_contexts()


def order_after_writes(tensor: Tensor, context: Context) -> None:
    """Order later work of ``context`` after the writes of the tensor, and later writes of it after that work."""
    if not can_use_without_waiting(tensor, context):
        with turn((context,), lambda: uses(context, tensor)):
            pass


def at_its_place(tensor: Tensor, action: Callable[[Context], _Result], writes: bool = False) -> _Result:
    """Call ``action(context)`` with the context of the tensor's place, while no other use of the tensor conflicts.

    Another thread may move the tensor before the context is locked; the new place's context is then taken.
    """
    while True:
        place = tensor.place
        assert place is not None
        context = get_context(place)
        with context.lock:  # the fast path
            if tensor.place is place and can_use_without_waiting(tensor, context, writes):
                return action(context)
        with turn((context,), partial(uses, context, *((None, tensor) if writes else (tensor, None)))):
            if tensor.place is place:
                return action(context)


def transfer(source: Tensor, context: Context, into: Tensor | None = None) -> Tensor:
    """Copy a contiguous tensor with its LoD to the context's place: one copy, or two through the host."""
    while True:
        place, target_place = places = _places(source, into)
        assert source.spec is not None and place is not None
        if target_place is not None and target_place != context.place:  # another thread has moved it
            context = get_context(target_place)
        owner = context if place == context.place else get_context(place)
        if can_use_without_waiting(source, owner) and can_use_without_waiting(
            into, context, True
        ):  # the fast path, for the copies of a run
            with owner.lock, context.lock:
                if (
                    _places(source, into) == places
                    and can_use_without_waiting(source, owner)
                    and can_use_without_waiting(into, context, True)
                ):
                    return _transfer(source, owner, context, into)
        with turn({owner, context}, partial(_transfer_uses, source, owner, context, into)):
            if _places(source, into) == places:
                return _transfer(source, owner, context, into)


def _places(source: Tensor, into: Tensor | None) -> tuple[Place | None, Place | None]:
    return source.place, into.place if into is not None else None


def _transfer_uses(source: Tensor, owner: Context, context: Context, into: Tensor | None) -> tuple[Use, ...]:
    return (*uses(owner, source), *uses(context, None, into))


def _transfer(source: Tensor, owner: Context, context: Context, into: Tensor | None) -> Tensor:
    """Copy; the caller holds the queues of both contexts, and it is their turn."""
    spec = source.spec
    assert spec is not None
    target = into if into is not None else Tensor.of(spec, context.place)
    if target.allocation is None:
        target.allocate(context)
    if source._strides is not None:
        write_host(target, read_host(source))
        return target
    if not spec.nbytes:
        return target
    target.wrote()
    dst = target.span()
    src = source.span()
    if owner is context:
        overlap = dst.handle is src.handle and abs(dst.offset - src.offset) < src.nbytes
        if overlap and not is_host(context):  # drivers refuse it, or copy in any order
            context.copy_in(dst, bytes_at(src, context).data)
        else:
            context.copy_within(dst, src)
    elif is_host(context):
        owner.copy_out(_host_bytes(dst), src)
        owner.wait()
    elif is_host(owner):
        context.copy_in(dst, _host_bytes(src))
    elif not owner.copy_peer(dst, context, src):
        context.copy_in(dst, bytes_at(src, owner).data)
    return target


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy of a strided view on the same place."""
    if tensor._strides is None:
        return tensor
    assert tensor.place is not None
    context = get_context(tensor.place)
    return _transfer(tensor, context, context, None)


def copy_into(target: Tensor, source: Tensor) -> None:
    """Copy between two tensors of equal dims and dtype, wherever they are."""
    assert target.place is not None
    is_same = target.allocation is source.allocation and target._byte_offset == source._byte_offset
    if is_same and target._strides == source._strides:
        target.wrote()
        return
    transfer(source, get_context(target.place), target)


def write_host(target: Tensor, array: np.ndarray[Any, Any]) -> None:
    """Copy a host array into an allocated tensor of the same dims and dtype."""
    spec = target.spec
    assert spec is not None
    if not spec.size:
        target.wrote()
        return
    contiguous_array = np.ascontiguousarray(array, NUMPY[spec.dtype])
    at_its_place(target, lambda context: _write(target, contiguous_array, spec, context), writes=True)


def _write(target: Tensor, array: np.ndarray[Any, Any], spec: Spec, context: Context) -> None:
    """Copy a host array in; the caller holds the queue, and it is its turn."""
    target.wrote()
    span = target.span()
    if target._strides is None:
        context.copy_in(span, bytes_of(array))
        return
    content = bytes_at(span, context)  # a strided view: bytes between its elements are kept
    _strided(content, spec, target._strides)[...] = array.reshape(spec.dims)
    context.copy_in(span, content.data)


def _strided(raw: np.ndarray[Any, Any], spec: Spec, strides: tuple[int, ...]) -> np.ndarray[Any, Any]:
    size = ITEMSIZE[spec.dtype]
    return np.ndarray(spec.dims, NUMPY[spec.dtype], raw, strides=tuple(s * size for s in strides))


class _Keeper:
    """Keeps an allocation alive as long as a NumPy view of it."""

    def __init__(self, view: np.ndarray[Any, Any], allocation: Allocation) -> None:
        self.allocation = allocation
        self._outside = allocation.export()
        self._outside.live.add(id(self))
        self.__array_interface__ = view.__array_interface__

    def __del__(self) -> None:
        self._outside.end(id(self))


def begin_read(source: Tensor, context: Context) -> np.ndarray[Any, Any]:
    """Enqueue a copy to a fresh host array, which is valid after ``context.wait()``."""
    spec = source.spec
    assert spec is not None
    if source._strides is not None:
        return read_host(source, copied=True)
    order_after_writes(source, context)
    out = np.empty(spec.dims, NUMPY[spec.dtype])
    if spec.nbytes:
        context.copy_out(bytes_of(out), source.span())
    return out


def read_host(source: Tensor, copied: bool = False) -> np.ndarray[Any, Any]:
    """The values as a NumPy array: a view of host memory (of an arena's, or with ``copied``: a copy), else a copy."""
    if source.spec is None or source.place is None or source.allocation is None:
        raise TensorError("the tensor has no data yet; call mutable_data(place, dtype), or set(array, place)")
    return at_its_place(source, lambda context: _read(source, context, copied))


def _read(source: Tensor, context: Context, copied: bool) -> np.ndarray[Any, Any]:
    """See `read_host`; the caller holds the queue, and it is its turn."""
    spec, allocation = source.spec, source.allocation
    assert spec is not None and allocation is not None
    allocation.live_block()
    if is_host(context):
        view = source.native()
        if copied or not allocation.is_permanent or not spec.size:
            array = np.array(view)
        else:
            array = np.asarray(_Keeper(view, allocation))
        return array if array.dtype == NUMPY[spec.dtype] else array.view(NUMPY[spec.dtype])
    if source._strides is None:
        out = begin_read(source, context)
        context.wait()
        return out
    return np.array(_strided(bytes_at(source.span(), context), spec, source._strides))


def borrow(array: np.ndarray[Any, Any], spec: Spec, context: Context) -> Tensor:
    """A tensor over a caller's C-contiguous host array, which must not be written while the tensor is in use."""
    flat = array.reshape(-1).view(np.uint8)
    allocation = memory_of(context.place, context).adopt(flat, spec.nbytes, context, counted=False)
    return Tensor.of(spec, context.place, allocation)


def adopt(array: Any, spec: Spec, context: Context) -> Tensor | None:
    """A tensor over an array that a kernel returned, without a copy; None if the place cannot."""
    handle = context.array.adopt(array)
    if handle is None:
        return None
    return Tensor.of(spec, context.place, memory_of(context.place, context).adopt(handle, spec.nbytes, context))


def dlpack_source(tensor: Tensor) -> Any:
    """The array whose DLPack methods export the tensor."""
    assert tensor.place is not None
    unit = devices.unit(tensor.place)
    if unit.array is None or unit.info.dlpack is None:
        raise TensorError(f"{tensor.place} takes no part in DLPack; use numpy(), or to('cpu') first")
    if tensor.dtype == "bfloat16" and unit.info.host:
        raise TensorError("NumPy cannot hand out bfloat16 by DLPack; cast to float32 first")
    return tensor.numpy() if unit.info.host else tensor.array()


def from_dlpack(source: Any, place: PlaceLike | None = None) -> Tensor:
    """Return a tensor over another library's array, without a copy if the place supports that.

    Parameters
    ----------
    source : array
        An object with ``__dlpack__`` and ``__dlpack_device__``.
    place : Place or str, optional
        The tensor's place. Default: the place whose memory holds the array; the host's, if there are several.

    Raises
    ------
    TensorError
        If no place has memory of that DLPack device type, or its namespace does not accept the array.
    """
    if not hasattr(source, "__dlpack_device__"):
        raise TensorError(f"from_dlpack got {type(source).__name__}; expected an array that has __dlpack__")
    kind, index = (int(number) for number in source.__dlpack_device__())
    requested = None if place is None else Place.parse(place)
    candidates = [
        (unit, read)
        for unit in map(devices.unit, devices.places())
        if unit.info.dlpack == kind
        and (unit.info.host or unit.place.index == index)
        and unit.array is not None
        and (read := unit.array.extra("from_dlpack")) is not None
    ]
    if not candidates:
        raise TensorError(f"no place here holds memory of DLPack device type {kind}")
    unit, read = min(candidates, key=lambda each: (each[0].place != requested, not each[0].info.host))
    try:
        array = read(source)
    except Exception as exc:
        raise TensorError(f"{unit.place} does not take the array: {type(exc).__name__}: {exc}") from exc
    spec = Spec.of(tuple(array.shape), str(array.dtype).rpartition(".")[2])
    tensor = adopt(array, spec, get_context(unit.place))
    if tensor is not None and tensor.allocation is not None:
        tensor.allocation.export_forever()  # the other library may write it at any time
    if tensor is None and unit.info.host:
        tensor = Tensor().set(np.asarray(array), unit.place)
    elif tensor is None:
        tensor = Tensor.of(spec, unit.place)
        tensor.allocate(get_context(unit.place))
        tensor.native()[...] = array
    return tensor if place is None else tensor.to(place)
