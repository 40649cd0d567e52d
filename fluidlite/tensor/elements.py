"""Fluid's underscored tensor methods, which existing operator tests use: dims, allocation, access to one element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fluidlite.base.errors import TensorError
from fluidlite.platform.place import PlaceLike

if TYPE_CHECKING:
    from fluidlite.tensor.tensor import Tensor


def _element(self: Tensor, index: int) -> Any:
    size = self._required_spec().size
    if not 0 <= index < size:
        raise TensorError(f"the tensor has no element {index}; it has {size}")
    return np.asarray(self.numpy()).reshape(-1)[index]


def _put(self: Tensor, index: int, value: float) -> None:
    _element(self, index)
    array = np.array(self.numpy())
    array.reshape(-1)[index] = value
    dims = np.unravel_index(index, array.shape) if array.ndim else ()
    selection: Any = tuple(slice(int(i), int(i) + 1) for i in dims) or ...
    self[selection] = array[selection]


def _alloc(dtype: str) -> Callable[[Any, PlaceLike], None]:
    def allocate(self: Any, place: PlaceLike) -> None:
        self.mutable_data(place, dtype)

    return allocate


class TensorElements:
    """Methods of :class:`fluidlite.Tensor` under Fluid's names."""

    __slots__ = ()

    _alloc_float = _alloc("float32")
    _alloc_double = _alloc("float64")
    _alloc_int = _alloc("int32")

    def _get_dims(self: Any) -> list[int]:
        return list(self.dims)

    def _set_dims(self: Any, dims: Sequence[int]) -> None:
        self.resize(dims)

    def _dtype(self: Any) -> str:
        return str(self.dtype)

    def _place(self: Any) -> Any:
        return self.place

    def _is_initialized(self: Any) -> bool:
        return bool(self.initialized)

    def _get_float_element(self: Any, index: int) -> float:
        """The element at an index in C order."""
        return float(_element(self, index))

    def _set_float_element(self: Any, index: int, value: float) -> None:
        _put(self, index, value)

    _get_double_element = _get_float_element
    _set_double_element = _set_float_element

    def _share_data_with(self: Any, other: Tensor) -> None:
        self.share_data_with(other)

    def _slice(self: Any, begin: int, end: int) -> Any:
        return self.slice(begin, end)
