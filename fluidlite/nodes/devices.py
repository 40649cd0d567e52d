"""Devices of nodes: where the memory of tensors is, and how it is allocated."""

from __future__ import annotations

from contextlib import AbstractContextManager

from fluidlite.base.errors import NodeError
from fluidlite.base.fork import new_lock
from fluidlite.memory import arena, memory_of
from fluidlite.memory.allocation import Allocation
from fluidlite.memory.arena import Arena
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices, named_place
from fluidlite.platform.place import CPUPlace, CUDAPlace, Place, PlaceLike
from fluidlite.tensor.tensor_spec import Spec

_singletons: dict[Place, Device] = {}
_lock = new_lock()
MAX_TYPES = 4096
"""Value types that a device caches."""


class ValueType:
    """Metadata of a value that node programs depend on: one object for all equal metadata on a device."""

    __slots__ = ("has_grad", "spec")

    def __init__(self, spec: Spec, has_grad: bool) -> None:
        self.spec = spec
        self.has_grad = has_grad


class Device:
    """Memory of a place, allocated by the place's strategy. Make one with :func:`device`, :func:`cpu`, ...

    Attributes
    ----------
    place : Place or None
        Where the memory is; None of the null device, which has none.
    precedence : int
        A node is on the device of highest precedence among its inputs: null -1, a place 0, preallocated 1.
    """

    __slots__ = ("__weakref__", "_types", "place")
    precedence = 0

    def __init__(self, place: Place | None) -> None:
        self.place = place
        self._types: dict[int, ValueType] = {}

    def type_of(self, spec: Spec, has_grad: bool) -> ValueType:
        """The type of values on this device."""
        key = 2 * spec.uid + has_grad
        value_type = self._types.get(key)
        if value_type is None:
            if len(self._types) >= MAX_TYPES:  # later types are new objects, so caches keyed by old ones miss
                self._types.clear()
            value_type = self._types[key] = ValueType(spec, has_grad)
        return value_type

    def same_memory(self, other: Device) -> bool:
        """Whether tensors of both are in the same memory, so that no copy is needed between them."""
        return self.place == other.place

    def known_place(self) -> Place:
        """The place.

        Raises
        ------
        NodeError
            Of the null device.
        """
        if self.place is None:
            raise NodeError(
                "the null device has no memory; expected a device of a place"
                "\n  Do: make the tensor or node on cpu(), device(place) or a preallocated device"
            )
        return self.place

    def context(self) -> Context:
        """The context of this thread for the place."""
        return get_context(self.known_place())

    def allocation(self, nbytes: int, context: Context) -> Allocation:
        """Allocate ``nbytes`` for the work of a context.

        Raises
        ------
        OutOfMemoryError
            The device is unchanged.
        """
        self.known_place()
        return memory_of(context.place, context).alloc(nbytes, context)

    def __reduce__(self) -> tuple[object, ...]:
        return (device, (str(self.known_place()),))

    def __str__(self) -> str:
        return "null" if self.place is None else str(self.place)

    def __repr__(self) -> str:
        return f"Device({self})"


class NullDevice(Device):
    """The device of tensors that have none yet: a tensor takes the device of the first tensor assigned to it."""

    __slots__ = ()
    precedence = -1

    def __reduce__(self) -> tuple[object, ...]:
        return (null_device, ())


_null = NullDevice(None)


class Prealloc(Device):
    """Preallocated memory of a place: a bump allocator that :meth:`reset` frees as a whole.

    Tensors that outlive :meth:`reset` raise when they are used. Each starts at a multiple of the place's alignment;
    a request that fits exactly succeeds; one that does not fit raises and leaves the device unchanged.

    Parameters
    ----------
    place : Place or str
    nbytes : int
        Its size; a float with an integer value, such as ``1e8``, is accepted.

    Raises
    ------
    NodeError
        If ``nbytes`` is no number of bytes.
    PlaceError, DeviceUnavailable
        If the place cannot be used.
    OutOfMemoryError
        If the place has less.
    """

    __slots__ = ("arena",)
    precedence = 1

    def __init__(self, place: PlaceLike, nbytes: int | float) -> None:
        in_range = isinstance(nbytes, (int, float)) and not isinstance(nbytes, bool) and 0 <= nbytes < 1 << 63
        if not in_range or nbytes != int(nbytes):
            raise NodeError(f"{type(self).__name__}: nbytes is {nbytes!r}; expected a number of bytes, 0 or more")
        super().__init__(devices.unit(place).place)
        self.arena = arena(self.known_place(), int(nbytes))

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.arena.size

    @property
    def used(self) -> int:
        """Bytes allocated since the last reset, with the padding between tensors."""
        return self.arena.used

    @property
    def payload(self) -> int:
        """Bytes of the tensors themselves."""
        return self.arena.payload

    @property
    def generation(self) -> int:
        """The number of resets."""
        return self.arena.generation

    def allocation(self, nbytes: int, context: Context) -> Allocation:
        return self.arena.alloc(nbytes, context)

    def reset(self) -> None:
        """Free all memory at once; tensors that used it raise when they are used.

        Raises
        ------
        AllocationError
            In the middle of a run of this thread.
        """
        self.arena.reset()

    def __call__(self) -> AbstractContextManager[Arena]:
        """``with dev():`` this thread allocates all memory of the place from it, also in runs of programs."""
        return self.arena()

    def close(self) -> None:
        """Reset, and free the memory."""
        self.arena.close()

    def __reduce__(self) -> tuple[object, ...]:
        raise NodeError(
            f"{self!r} is memory of this process, and cannot be copied or pickled"
            "\n  Do: move the tensor or node to cpu() or device(place) first"
        )

    def __str__(self) -> str:
        return f"preallocated {self.place}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.used:,} of {self.size:,} bytes on {self.place})"


class PreallocCpu(Prealloc):
    """``Prealloc("cpu", nbytes)``."""

    __slots__ = ()

    def __init__(self, nbytes: int | float) -> None:
        super().__init__(CPUPlace(), nbytes)


class PreallocGpu(Prealloc):
    """Preallocated memory of a GPU, ``gpu(index)``."""

    __slots__ = ()

    def __init__(self, nbytes: int | float, index: int = 0) -> None:
        super().__init__(CUDAPlace(index), nbytes)


class PreallocOpenCL(Prealloc):
    """Preallocated memory of an OpenCL device, ``opencl(index)``."""

    __slots__ = ()

    def __init__(self, nbytes: int | float, index: int = 0) -> None:
        super().__init__(named_place("OpenCLPlace", __name__)(index), nbytes)


def device(place: PlaceLike) -> Device:
    """The device of a place: one object for each place in a process.

    Raises
    ------
    PlaceError, DeviceUnavailable
        With the root cause, if the place cannot be used.
    """
    cached = _singletons.get(place) if isinstance(place, Place) else None
    if cached is None:
        canonical_place = devices.unit(place).place
        with _lock:
            cached = _singletons.setdefault(canonical_place, Device(canonical_place))
    return cached


def cpu() -> Device:
    """The CPU."""
    return device(CPUPlace())


def gpu(index: int = 0) -> Device:
    """A GPU (CUDA)."""
    return device(CUDAPlace(index))


def opencl(index: int = 0) -> Device:
    """An OpenCL device."""
    return device(named_place("OpenCLPlace", __name__)(index))


def null_device() -> Device:
    """The device of tensors and nodes that have none yet."""
    return _null


def as_device(dev: Device | PlaceLike) -> Device:
    """The device itself, or the device of a place."""
    return dev if isinstance(dev, Device) else device(dev)
