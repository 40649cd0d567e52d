"""The memory of a tensor: dims and dtype over a range of an allocation, which is allocated lazily."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from fluidlite.base.arguments import exact_ints
from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.base.errors import LayoutError, TensorError
from fluidlite.base.forwarded import forwarded
from fluidlite.memory import memory_of
from fluidlite.memory.allocation import Allocation
from fluidlite.memory.arena import arenas_in_use, current_arena
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_memory import Span
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.tensor.layout import PLAIN, Layout
from fluidlite.tensor.tensor_spec import Dims, Spec
from fluidlite.tensor.var_type import dtype_of


class TensorMemory:
    """Metadata of a tensor, and its range of an allocation."""

    __slots__ = ("__weakref__", "_array", "_byte_offset", "_rises", "_strides", "allocation", "place", "spec")
    spec: Spec | None
    place: Place | None
    allocation: Allocation | None

    def __init__(self) -> None:
        self.spec = None
        self.place = None
        self.allocation = None
        self._rises = 0
        self._array: Any = None
        self._byte_offset = 0
        self._strides: tuple[int, ...] | None = None

    def _required_spec(self) -> Spec:
        if self.spec is None:
            raise TensorError("the tensor has no dims yet; call resize(dims), or set(array, place)")
        return self.spec

    @property
    def dims(self) -> Dims:
        """Logical dims; () is a scalar."""
        return self._required_spec().dims

    @property
    def dtype(self) -> str:
        """Text of the data type."""
        return self._required_spec().dtype

    @property
    def layout(self) -> Layout:
        """The physical layout."""
        return self._required_spec().layout

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        return self._strides if self._strides is not None else self.layout.strides(self.dims)

    byte_offset: int = forwarded("_byte_offset", "Bytes from the start of the holder.")

    @property
    def contiguous(self) -> bool:
        """Whether the elements are in C order without gaps."""
        return self._strides is None

    def shape(self) -> list[int]:
        """Fluid's spelling of dims."""
        return list(self.dims)

    def resize(self, dims: Sequence[int]) -> Self:
        """Set the dims; :meth:`mutable_data` allocates the memory, and keeps it while it is large enough."""
        try:
            clean = tuple(exact_ints(dims))
        except (TypeError, ValueError, OverflowError):
            raise TensorError(f"dims are {dims!r:.80}; expected a list of ints") from None
        if any(d < 0 for d in clean):
            raise TensorError(f"dims are {list(clean)}; every one must be 0 or more")
        old = self.spec
        self.spec = Spec.of(clean, old.dtype if old else "float32")
        if old is None or old.dims != clean:
            self._array = None
            self._strides = None
        return self

    @property
    def version(self) -> int:
        """A counter that increases at each write to its memory, through any tensor, and when its memory changes."""
        allocation = self.allocation
        return self._rises if allocation is None else self._rises + allocation.version

    def wrote(self) -> None:
        """Record that its memory was written through ``span``, ``address`` or ``native``, outside of a run."""
        if self.allocation is not None:
            self.allocation.version += 1
        else:
            self._rises += 1

    def _rise_from(self, before: int) -> None:
        """Raise the version above an earlier one, after its memory may have changed."""
        self._rises += before + 1 - self.version

    # Memory

    def mutable_data(self, *args: Any, **kwargs: Any) -> Any:
        """Return the native array for writing, allocating if there is none that fits.

        ``mutable_data(place, dtype=None)`` or ``mutable_data(dims, place, dtype=None)``. ``dtype`` defaults to
        the current one (initially float32).

        Raises
        ------
        TensorError
            If the dims are unknown, or the arguments have neither form.
        OutOfMemoryError
        """
        dims, place, dtype = _mutable_arguments(args, kwargs)
        version_before = self.version
        if dims is not None:
            self.resize(dims)
        spec = self._required_spec()
        where = Place.parse(place)
        requested = spec.with_(dtype=dtype_of(dtype)) if dtype is not None else spec
        allocation = self.allocation
        fits = (
            allocation is not None
            and allocation.block is not None
            and self.place == where
            and self._strides is None
            and self._byte_offset + requested.nbytes <= allocation.nbytes
        )
        if not fits or requested.dtype != spec.dtype:
            self._array = None
        self.spec, self.place = requested, where
        if not fits:
            self.allocation = None
            self.allocate(get_context(where))
        self._rise_from(version_before)
        return self.data()

    def allocate(self, context: Context) -> None:
        """Allocate memory for the current dims and dtype on the context's place."""
        spec = self.spec or self._required_spec()
        memory = context.memory
        if memory is None:
            memory = memory_of(context.place, context)
        self.place = context.place
        self._byte_offset = 0
        self._strides = None
        self._array = None
        arena = current_arena(memory) if arenas_in_use() else None
        if arena is not None:
            self.allocation = arena.alloc(spec.nbytes, context)
        else:
            allocation = self.allocation = memory.alloc(spec.nbytes, context)
            self._array = allocation.block.views.get(spec.uid)  # the array of an earlier use, or None

    @property
    def initialized(self) -> bool:
        """Whether it has memory."""
        return self.allocation is not None

    def _required_allocation(self) -> Allocation:
        if self.allocation is None:
            raise TensorError("the tensor has no data yet; call mutable_data(place, dtype), or set(array, place)")
        return self.allocation

    def data(self) -> Any:
        """Return the place's native array (or, on a place without arrays of the dtype, the Span), for kernels.

        The caller may write it at any time, so values derived from it are no longer cached between runs.

        Raises
        ------
        TensorError
            If nothing was allocated yet.
        LayoutError
            If the layout is opaque.
        """
        allocation = self._required_allocation()
        assert self.place is not None
        unit = devices.unit(self.place)
        if unit.array is None or self._required_spec().dtype in unit.lacks["array"]:
            allocation.live_block()
            allocation.export_forever()
            return self.span()
        return self.array()

    def array(self) -> Any:
        """The native array of a place that has the array capability; see :meth:`data`."""
        self._required_allocation().export_forever()
        return self.native()

    def native(self) -> Any:
        """The native array, for the kernels of a run, which records its writes itself."""
        array = self._array
        if array is not None and self.allocation.block is not None:  # type: ignore[union-attr]  # an array has memory
            return array
        array = None
        allocation, spec = self.allocation or self._required_allocation(), self.spec or self._required_spec()
        if spec.layout.opaque:
            raise LayoutError(f"the tensor has the opaque layout {spec.layout.name!r}; numpy() reorders it first")
        is_plain = self._strides is None and not self._byte_offset and spec.layout is PLAIN
        array_cache = allocation.array_cache(spec.uid) if is_plain else None
        if array_cache is not None:
            array = array_cache[0].get(array_cache[1])
        if array is None:
            context = allocation.context
            if spec.dtype in context.unit.lacks["array"]:
                raise TensorError(
                    f"the arrays of {context.place} have no {spec.dtype}"
                    "\n  Do: cast to float32 first; numpy() copies the values to the host, and span() is their memory"
                )
            strides = self._strides if self._strides is not None else (spec.layout.permutation and self.strides)
            array = context.array.wrap(self.span(), spec.dims, spec.dtype, strides or None)
            if array_cache is not None:
                arrays, key, capacity = array_cache
                if len(arrays) >= capacity:
                    arrays.clear()
                arrays[key] = array
        self._array = array
        return array

    def _location(self) -> tuple[Any, int]:
        """The raw handle, and the byte offset of the first element in it."""
        allocation = self.allocation or self._required_allocation()
        return allocation.live_block().handle, allocation.offset + self._byte_offset

    def span(self) -> Span:
        """The bytes as a range of the raw handle (of a strided view: from its first to its last element)."""
        location, spec = self._location(), self.spec or self._required_spec()
        nbytes = spec.nbytes
        if self._strides is not None and spec.size:
            reach = sum((d - 1) * s for d, s in zip(spec.dims, self._strides, strict=True))
            nbytes = (reach + 1) * ITEMSIZE[spec.dtype]
        return Span(*location, nbytes)

    def address(self) -> int:
        """The address of the first element, on places whose allocator has addresses."""
        return (self.allocation or self._required_allocation()).address() + self._byte_offset


def _mutable_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    names = ("dims", "place", "dtype") if args and not isinstance(args[0], (Place, str)) else ("place", "dtype")
    arguments = dict(zip(names, args, strict=False)) if len(args) <= len(names) else {}
    arguments.update(kwargs)
    if "place" not in arguments or set(arguments) - {"dims", "place", "dtype"}:
        raise TensorError("mutable_data takes (place, dtype=None) or (dims, place, dtype=None)")
    return arguments.get("dims"), arguments["place"], arguments.get("dtype")
