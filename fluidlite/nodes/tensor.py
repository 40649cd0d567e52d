"""Tensor of a device: a fluidlite tensor that allocates on its device, and stays on it when assigned to."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import NodeError, TensorError
from fluidlite.memory.arena import Arena
from fluidlite.nodes.devices import Device, as_device, null_device
from fluidlite.nodes.seeds import next_seed
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.tensor.tensor import Tensor as PlacedTensor
from fluidlite.tensor.tensor_spec import Dims, Spec, dims_problem
from fluidlite.tensor.transfer import contiguous, copy_into, transfer, write_host
from fluidlite.tensor.var_type import dtype_of

_new = object.__new__


class Tensor(PlacedTensor):
    """A tensor on a device.

    Parameters
    ----------
    dev : Device or Place or str, optional
        Default: the null device; then the first assignment sets the device.
    shape : sequence of int, optional
        Dims; memory is allocated at once, its contents are undefined. Without, the tensor has no memory yet.
    dtype : str
    values : array_like, optional
        Contents, of as many elements as ``shape`` has (default: of their own dims).

    Raises
    ------
    NodeError
        If the number of ``values`` does not match ``shape``, or there is a shape and no device.
    OutOfMemoryError
        If the device is full; it is unchanged.
    """

    __slots__ = ("dev",)
    dev: Device

    def __init__(
        self,
        dev: Device | PlaceLike | None = None,
        shape: Sequence[int] | None = None,
        dtype: Any = "float32",
        values: Any = None,
    ) -> None:
        super().__init__()
        self.dev = null_device() if dev is None else as_device(dev)
        self.place = self.dev.place
        if shape is None and values is None:
            return
        array = None
        if values is not None:
            array = np.asarray(values).astype(NUMPY[dtype_of(dtype)])
            if shape is not None:
                array = self._reshape_values(array, shape)
            shape = array.shape
        assert shape is not None
        self.spec = Spec.of(_clean_dims(shape, dtype_of(dtype)), dtype_of(dtype))
        self.allocate(self.dev.context())
        if array is not None:
            write_host(self, array)

    @staticmethod
    def _reshape_values(array: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
        try:
            return array.reshape(tuple(shape))
        except ValueError:
            raise NodeError(
                f"Tensor: {array.size} values were given for shape {list(shape)}; expected as many as it has elements"
            ) from None

    @staticmethod
    def on(dev: Device, spec: Spec) -> Tensor:
        """Make a tensor with metadata; its memory is allocated on first use."""
        self: Tensor = _new(Tensor)
        self.spec = spec
        self.place = dev.place
        self.dev = dev
        self.allocation = None
        self._rises = 0
        self._array = None
        self._byte_offset = 0
        self._strides = None
        return self

    # Memory

    def allocate(self, context: Context) -> None:
        """Allocate on the device for the present dims and dtype."""
        dev = self.dev
        if dev.place is not context.place and dev.place != context.place:
            raise NodeError(
                f"a tensor on {dev} cannot take memory of {context.place}\n  Do: move_to({context.place}) first"
            )
        if not dev.precedence:
            super().allocate(context)
            return
        spec = self.spec or self._required_spec()
        allocation = self.allocation = dev.allocation(spec.nbytes, context)  # if this raises, nothing changes
        self.place = dev.place
        self._byte_offset = 0
        self._strides = None
        self._array = allocation.cached_array(spec.uid)

    def resize(self, dims: Sequence[int]) -> Tensor:
        """Set the dims; memory is allocated on the next write, and reused while it is large enough."""
        super().resize(dims)
        return self

    def _sibling(self, spec: Spec, where: Place) -> Tensor:
        if self.dev.place is not None and where != self.dev.place:
            raise NodeError(
                f"a tensor on {self.dev} keeps its device, and cannot be set on {where}"
                f"\n  Do: move_to({where}) first, or leave the place out"
            )
        sibling = Tensor.on(self.dev if self.dev.place is not None else as_device(where), spec)
        sibling.allocate(get_context(where))
        return sibling

    def _replace(self, make: Any) -> None:
        def replacement() -> PlacedTensor:
            new_tensor: PlacedTensor = make()
            if isinstance(new_tensor, Tensor):
                self.dev = new_tensor.dev
            return new_tensor

        super()._replace(replacement)

    def share_data_with(self, other: PlacedTensor) -> Tensor:
        """Become a view of another tensor, with its memory, dims and LoD; the device stays.

        Raises
        ------
        NodeError
            If the other is in the memory of another place.
        """
        if self.dev.place is None:
            self.dev = other.dev if isinstance(other, Tensor) else as_device(other.place or null_device())
        elif other.place != self.dev.place:
            raise NodeError(
                f"a tensor on {self.dev} cannot share memory on {other.place}\n  Do: assign it, which copies"
            )
        super().share_data_with(other)
        return self

    # Values

    def assign(self, other: Any) -> Tensor:
        """Copy the contents, dims and dtype of another tensor or array in; the device stays.

        A tensor that has no device yet takes the other's.
        """
        if self.dev.place is None and isinstance(other, Tensor):
            self.dev, self.place = other.dev, other.place
        usable = self.allocation is None or self.allocation.block is not None
        if isinstance(other, PlacedTensor) and usable:
            super().assign(other)
        elif isinstance(other, PlacedTensor):  # its memory was freed, so its contents are not read
            new_tensor = self._sibling(other._required_spec(), self.dev.known_place())
            copy_into(new_tensor, other)
            self._replace(lambda: new_tensor)
        else:
            super().assign(other)
        return self

    def __getitem__(self, key: Any) -> Tensor:
        """A view on the same device: ints, slices and ``...``."""
        view = Tensor(self.dev)
        super(Tensor, view).share_data_with(super().__getitem__(key))
        return view

    def __setitem__(self, key: Any, value: Any) -> None:
        """Copy an array or tensor in; the device stays. A tensor without dims takes those of ``t[...] = value``."""
        if self.spec is None and key is ...:
            self.assign(value)
            return
        if isinstance(value, PlacedTensor):
            view = self[key]
            if view.spec is value.spec and view.contiguous and view.allocation is not None:
                copy_into(view, value)
                return
        super().__setitem__(key, value)

    def copy_to(self, dev: Device | PlaceLike) -> Tensor:
        """A copy on a device, which may be this one's.

        Raises
        ------
        OutOfMemoryError
            If the device is full; it is unchanged.
        """
        target = as_device(dev)
        context = target.context()
        copy = Tensor.on(target, self._required_spec())
        copy.allocate(context)
        transfer(self._with_data(), context, copy)
        return copy

    def maybe_copy_to(self, dev: Device | PlaceLike) -> Tensor:
        """The tensor itself, if it is in the device's memory; else a copy on the device."""
        target = as_device(dev)
        return self if self.dev.same_memory(target) else self.copy_to(target)

    def to(self, place: Device | PlaceLike | Arena) -> Any:
        """A copy on a device; the tensor itself, if it is on it."""
        target = _target_device(self, place)
        return self if target is self.dev else self.copy_to(target)

    def move_to(self, place: Device | PlaceLike | Arena) -> Tensor:
        """Move the contents to a device; nothing happens if they are on it.

        A tensor without memory only changes its device.

        Raises
        ------
        OutOfMemoryError
            If the device is full; the tensor stays where it is.
        """
        target = _target_device(self, place)
        if target is self.dev:
            return self
        if self.allocation is None:
            self.dev, self.place = target, target.place
        else:
            self._replace(lambda: self.copy_to(target))
        return self

    # Contents

    @staticmethod
    def zeros(dev: Device | PlaceLike, shape: Sequence[int], dtype: Any = "float32") -> Tensor:
        """A tensor of zeros."""
        return Tensor(dev, shape, dtype).fill(0)

    @staticmethod
    def ones(dev: Device | PlaceLike, shape: Sequence[int], dtype: Any = "float32") -> Tensor:
        """A tensor of ones."""
        return Tensor(dev, shape, dtype).fill(1)

    @staticmethod
    def random(dev: Device | PlaceLike, shape: Sequence[int], dtype: Any = "float32", seed: int = 0) -> Tensor:
        """A tensor of uniform random numbers in [-1, 1); see :meth:`set_random`."""
        return Tensor(dev, shape, dtype).set_random(seed)

    def fill(self, value: float) -> Tensor:
        """Set all elements to one number.

        Raises
        ------
        NodeError
            If the dtype has no such number.
        """
        numpy_dtype = NUMPY[self.dtype]
        kind = np.dtype(numpy_dtype).kind
        fits = kind != "b" or value in (0, 1)
        if kind in "iu":
            limits = np.iinfo(numpy_dtype)
            fits = value == value and limits.min <= value <= limits.max and value == int(value)
        if not fits:
            raise NodeError(f"{value!r} is no {self.dtype}; expected a number that a {self.dtype} tensor can hold")
        self[...] = np.asarray(value).astype(numpy_dtype)
        return self

    def set_zero(self) -> Tensor:
        """Set all elements to 0."""
        return self.fill(0)

    def set_ones(self) -> Tensor:
        """Set all elements to 1."""
        return self.fill(1)

    def set_random(self, seed: int = 0, low: float = -1.0, high: float = 1.0) -> Tensor:
        """Set all elements to uniform random numbers in [low, high); equal seeds give equal numbers on every place.

        Parameters
        ----------
        seed : int
            0: the next of the process's sequence, which :func:`fluidlite.nodes.seed` restarts.
        low, high : float
        """
        attrs = {"shape": list(self.dims), "dtype": self.dtype, "min": low, "max": high, "seed": seed or next_seed()}
        run_operator = _run_operator()
        run_operator("uniform_random", {}, attrs, as_device(self._with_data().dev.known_place()), {"Out": [self]})
        return self

    def cast(self, dtype: Any) -> Tensor:
        """A tensor of another dtype on the same device, computed by the operator ``cast``."""
        attrs = {"in_dtype": self.dtype, "out_dtype": dtype_of(dtype)}
        run_operator = _run_operator()
        result: Tensor = run_operator("cast", {"X": [contiguous(self._with_data())]}, attrs, self.dev)["Out"][0]
        return result

    def _with_data(self) -> Tensor:
        if self.allocation is None or self.place is None:
            raise TensorError("the tensor has no data yet; call mutable_data(place, dtype), or set(array, place)")
        self.allocation.live_block()  # stale memory raises
        return self

    def __eq__(self, other: object) -> bool:
        """Whether dims, dtype and all elements are equal, on whatever devices; NaN equals nothing."""
        if not isinstance(other, PlacedTensor):
            return NotImplemented
        if self.spec is None or other.spec is None:
            return self.spec is other.spec
        if self.spec.dims != other.spec.dims or self.spec.dtype != other.spec.dtype:
            return False
        return bool(np.array_equal(self.numpy(), other.numpy()))

    __hash__ = None  # type: ignore[assignment]  # equal by contents, which change

    def __repr__(self) -> str:
        if self.spec is None:
            return f"Tensor(no dims yet, on {self.dev})"
        return f"Tensor({self.spec!r}{'' if self.allocation is not None else ', no data yet,'} on {self.dev})"


def _run_operator() -> Any:
    from fluidlite.nodes.operator_call import run_operator  # which imports this module

    return run_operator


def _target_device(tensor: Tensor, place: Device | PlaceLike | Arena) -> Device:
    if isinstance(place, Arena):
        raise NodeError(f"a tensor on {tensor.dev} goes to devices, and {place!r} is none\n  Do: use Prealloc")
    return as_device(place)


def _clean_dims(shape: Sequence[int], dtype: str) -> Dims:
    try:
        dims = tuple(index(d) for d in shape)
    except (TypeError, ValueError):
        raise NodeError(f"Tensor: the shape is {shape!r:.60}; expected a sequence of ints") from None
    problem = dims_problem(dims, dtype)
    if problem or any(d < 0 for d in dims):
        raise NodeError(f"Tensor: the shape {problem or f'is {list(dims)}; every dim must be 0 or more'}")
    return dims
