"""Tensor: a view of memory on a place, with copies, slices and reads on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fluidlite.base.arguments import refuse_mask
from fluidlite.base.dtypes import ITEMSIZE, NUMPY
from fluidlite.base.errors import TensorError
from fluidlite.memory.allocation import Allocation
from fluidlite.memory.arena import Arena, ArenaAllocation
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.tensor.elements import TensorElements
from fluidlite.tensor.layout import PLAIN
from fluidlite.tensor.lod import lod_from_offsets
from fluidlite.tensor.tensor_lod import TensorLod
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.var_type import dtype_of

_new = object.__new__


def _is_basic_index(item: Any) -> bool:
    """Whether an index selects a view: an int, a slice, ``...`` or None. A bool is a mask."""
    if item is None or item is ...:
        return True
    return isinstance(item, (int, np.integer, slice)) and not isinstance(item, (bool, np.bool_))


class Tensor(TensorLod, TensorElements):
    """A view of memory on a place (Fluid's LoDTensor).

    ``resize`` sets the dims; ``mutable_data`` allocates the memory, lazily; ``data`` is the place's native
    array, for kernels; ``numpy`` and ``numpy.asarray`` copy it to the host. Operators do the arithmetic.
    """

    __slots__ = ()

    def __init__(self, recursive_sequence_lengths: Any = None) -> None:
        super().__init__()
        if recursive_sequence_lengths is not None:
            self.set_recursive_sequence_lengths(recursive_sequence_lengths)

    @staticmethod
    def of(spec: Spec, place: Place, allocation: Allocation | None = None, byte_offset: int = 0) -> Tensor:
        """Return a tensor of known metadata; without an allocation it allocates at its first use."""
        self = _new(Tensor)  # without __init__, for speed: called for each output of each operator
        self.spec = spec
        self.place = place
        self.allocation = allocation
        self._rises = 0
        self._array = None
        self._byte_offset = byte_offset
        self._strides = None
        return self

    def set(self, value: Any, place: PlaceLike | None = None, lod: Any = None) -> Tensor:
        """Copy an array in. With equal dims, dtype and place the memory stays, else new memory is allocated.

        Parameters
        ----------
        value : array_like or Tensor
        place : Place or str, optional
            Default: the tensor's place, or the host.
        lod : offsets, optional
        """
        from fluidlite.tensor.transfer import write_host

        if isinstance(value, Tensor):
            lod = value.lod() if lod is None else lod
            value = value.numpy()
        refuse_mask("the value of a tensor", value, TensorError)
        try:
            array = np.asarray(value)
        except ValueError as exc:
            raise TensorError(f"cannot make a tensor of {type(value).__name__}: {exc}") from None
        if array.dtype == object:
            raise TensorError(
                f"cannot make a tensor of {type(value).__name__}: the rows have different lengths or no number type"
            )
        spec = Spec.of(
            array.shape,
            dtype_of(array.dtype),
            lod_from_offsets(lod, array.shape[0] if array.ndim else 1) if lod else (),
        )
        where = Place.parse(place) if place is not None else (self.place or devices.host())
        old_lod = self.spec.lod if lod is None and self.spec is not None and array.ndim else ()
        if old_lod and old_lod[-1][-1] == array.shape[0]:  # as in Fluid: LoD that still covers the rows stays
            spec = spec.with_(lod=old_lod)
        has_memory = self.allocation is not None and self.allocation.block is not None
        fits = has_memory and self.place == where and self._required_spec().with_(lod=()) == spec.with_(lod=())
        if fits:
            self.spec = spec
            write_host(self, array)
        else:
            replacement = self._sibling(spec, where)
            write_host(replacement, array)
            self._replace(lambda: replacement)
        return self

    def _sibling(self, spec: Spec, where: Place) -> Tensor:
        """A new tensor of other metadata whose memory this one may take over; a subclass may allocate it elsewhere."""
        sibling = Tensor.of(spec, where)
        sibling.allocate(get_context(where))
        return sibling

    def _replace(self, make: Callable[[], Tensor]) -> None:
        """Take over the memory and metadata of a tensor that ``make`` returns, while no run uses this one's memory."""
        from fluidlite.tensor.transfer import at_its_place

        def replace(context: object = None) -> None:
            source, version_before = make(), self.version
            if source is not self:
                self.spec, self.allocation = source.spec, source.allocation
                self._byte_offset, self._strides, self._array = source._byte_offset, source._strides, source._array
                self._rise_from(version_before)
                self.place = source.place  # last: the new place's queue is not held, and others may use it now

        if self.allocation is None or self.place is None:
            replace()
        else:
            at_its_place(self, replace, writes=True)

    def assign(self, other: Any) -> Tensor:
        """Copy the contents of another tensor or array in, and keep this tensor's place."""
        from fluidlite.tensor.transfer import copy_into

        if not isinstance(other, Tensor):
            return self.set(other, self.place)
        spec = other._required_spec()
        where = self.place or other.place
        assert where is not None
        if self.allocation is None or self.place != where or self._required_spec() != spec or self._strides is not None:
            if self._strides is not None and self.spec is not None and self.spec.dims == spec.dims:
                self[...] = other
                return self
            replacement = self._sibling(spec, where)
            copy_into(replacement, other)
            self._replace(lambda: replacement)
            return self
        copy_into(self, other)
        return self

    def __getitem__(self, key: Any) -> Tensor:
        """A view that shares this tensor's memory: ints, slices and ``...`` (NumPy's basic indexing)."""
        spec = self._required_spec()
        items = key if isinstance(key, tuple) else (key,)
        if not all(map(_is_basic_index, items)):
            raise TensorError(f"{key!r} is no basic index; a view takes ints, slices and ...")
        size = ITEMSIZE[spec.dtype]
        byte_strides = tuple(s * size for s in self.strides)
        shadow = np.lib.stride_tricks.as_strided(np.empty(1, NUMPY[spec.dtype]), spec.dims, byte_strides)
        try:
            # a view, also of one element: the shadow has no memory that may be read
            part = shadow[items if any(item is ... for item in items) else (*items, ...)]
        except IndexError as exc:
            raise TensorError(f"cannot index dims {list(spec.dims)} with {key!r}: {exc}") from None
        if any(s < 0 for s in part.strides):
            raise TensorError("a view cannot run backwards; use the reverse operator")
        view = Tensor()
        view.spec = Spec.of(part.shape, spec.dtype)
        view.place = self.place
        view.allocation = self._required_allocation()
        start = part.__array_interface__["data"][0] - shadow.__array_interface__["data"][0] if part.size else 0
        view._byte_offset = self._byte_offset + start
        strides = tuple(s // size for s in part.strides)
        steps = zip(part.shape, strides, PLAIN.strides(part.shape), strict=True)
        if view.spec.size > 1 and any(dim > 1 and a != b for dim, a, b in steps):  # a stride of one element is free
            view._strides = strides
        return view

    def __setitem__(self, key: Any, value: Any) -> None:
        """Copy an array or tensor into a view; the place stays."""
        from fluidlite.tensor.transfer import write_host

        view = self[key]
        array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
        try:
            array = np.broadcast_to(array.astype(NUMPY[view.dtype], copy=False), view.dims)
        except ValueError as exc:
            raise TensorError(f"cannot assign dims {list(array.shape)} to dims {list(view.dims)}") from exc
        write_host(view, array)

    def slice(self, begin: int, end: int) -> Tensor:
        """Rows ``begin`` to ``end`` as a view (Fluid's Slice)."""
        rows = self.dims[0] if self.dims else 0
        if not 0 <= begin <= end <= rows:
            raise TensorError(f"rows {begin} to {end} do not lie in 0 to {rows}")
        return self[begin:end]

    def share_data_with(self, other: Tensor) -> Tensor:
        """Become a view of the same memory, dims and LoD as another tensor."""
        before = self.version
        self.spec, self.place, self.allocation = other._required_spec(), other.place, other._required_allocation()
        self._byte_offset, self._strides, self._array = other._byte_offset, other._strides, other._array
        self._rise_from(before)
        return self

    def to(self, place: PlaceLike | Arena) -> Tensor:
        """Return a copy on a place, or in an arena (itself, if it is already there)."""
        from fluidlite.tensor.transfer import transfer

        if isinstance(place, Arena):
            if isinstance(self.allocation, ArenaAllocation) and self.allocation.arena is place:
                return self
            context, spec = get_context(place.place), self._required_spec()
            return transfer(self, context, Tensor.of(spec, place.place, place.alloc(spec.nbytes, context)))
        where = Place.parse(place)
        return self if where == self.place else transfer(self, get_context(where))

    def move_to(self, place: PlaceLike | Arena) -> Tensor:
        """Move this tensor's contents to a place or into an arena, if they are not already there."""
        if isinstance(place, Arena) or Place.parse(place) != self.place:
            self._replace(lambda: self.to(place))
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values on the host: a view where the place is the host's (and no arena), else a copy."""
        from fluidlite.tensor.transfer import read_host

        return read_host(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        from fluidlite.tensor.transfer import read_host

        array = read_host(self, copied=copy is not False)
        if dtype is not None and array.dtype != np.dtype(dtype):
            if copy is False:
                raise ValueError(f"a {self.dtype} tensor cannot become an array of {np.dtype(dtype)} without a copy")
            return array.astype(dtype)
        return array

    def __dlpack__(self, **options: Any) -> Any:
        from fluidlite.tensor.transfer import dlpack_source

        return dlpack_source(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        from fluidlite.tensor.transfer import dlpack_source

        device: tuple[int, int] = dlpack_source(self).__dlpack_device__()
        return device

    def __iter__(self) -> Iterator[Tensor]:
        """Rows, as views."""
        return (self[row] for row in range(len(self)))

    def __len__(self) -> int:
        if not self.dims:
            raise TypeError("a scalar tensor has no length")
        return self.dims[0]

    def __float__(self) -> float:
        return float(self.numpy().reshape(()))

    def __int__(self) -> int:
        return int(self.numpy().reshape(()))

    def __repr__(self) -> str:
        if self.spec is None:
            return "Tensor(no dims yet)"
        if self.allocation is None:
            return f"Tensor({self.spec!r}, no data yet)"
        return f"Tensor({self.spec!r} on {self.place})"


LoDTensor = Tensor
