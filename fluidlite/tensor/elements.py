"""Fluid's underscored tensor methods, which operator tests of other people use: dims, kinds of memory, one element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fluidlite.base.errors import TensorError
from fluidlite.platform.place import Place, PlaceLike

if TYPE_CHECKING:
    from fluidlite.tensor.tensor import Tensor


def _element(self: Tensor, index: int) -> Any:
    size = self._known().size
    if not 0 <= index < size:
        raise TensorError(f"the tensor has no element {index}; it has {size}")
    return np.asarray(self.numpy()).reshape(-1)[index]


def _put(self: Tensor, index: int, value: float) -> None:
    _element(self, index)
    array = np.array(self.numpy())
    array.reshape(-1)[index] = value
    dims = np.unravel_index(index, array.shape) if array.ndim else ()
    whole: Any = tuple(slice(int(i), int(i) + 1) for i in dims) or ...
    self[whole] = array[whole]


class TensorElements:
    """Methods of :class:`fluidlite.Tensor` under Fluid's names."""

    __slots__ = ()

    def _get_dims(self: Any) -> list[int]:
        """The dims."""
        return list(self.dims)

    def _set_dims(self: Any, dims: Sequence[int]) -> None:
        """Fix the dims, as ``resize``."""
        self.resize(dims)

    def _dtype(self: Any) -> str:
        """The data type, as ``core.VarDesc.VarType`` has it."""
        return str(self.dtype)

    def _place(self: Any) -> Place | None:
        """Where the data is."""
        place: Place | None = self.place
        return place

    def _is_initialized(self: Any) -> bool:
        """Whether it has memory."""
        return bool(self.initialized)

    def _alloc_float(self: Any, place: PlaceLike) -> None:
        """Allocate for float32."""
        self.mutable_data(place, "float32")

    def _alloc_double(self: Any, place: PlaceLike) -> None:
        """Allocate for float64."""
        self.mutable_data(place, "float64")

    def _alloc_int(self: Any, place: PlaceLike) -> None:
        """Allocate for int32."""
        self.mutable_data(place, "int32")

    def _get_float_element(self: Any, index: int) -> float:
        """The element of that number in C order."""
        return float(_element(self, index))

    def _set_float_element(self: Any, index: int, value: float) -> None:
        """Write the element of that number in C order."""
        _put(self, index, value)

    _get_double_element = _get_float_element
    _set_double_element = _set_float_element

    def _share_data_with(self: Any, other: Tensor) -> None:
        """Become a view of the same memory, dims and LoD as another tensor."""
        self.share_data_with(other)

    def _slice(self: Any, begin: int, end: int) -> Tensor:
        """Rows ``begin`` to ``end`` as a view."""
        rows: Tensor = self.slice(begin, end)
        return rows
