"""TensorArray: an array of tensors of one dtype and rank, with value semantics: a write returns a new array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fluidlite.base.errors import DtypeError, OutOfRangeError, ShapeError, TensorError
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.place import Place
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Spec, merged_dims

MAX_ELEMENTS = 1 << 24
"""Limit of an index: a larger one is refused as a mistake, since all elements before it would be allocated."""


def array_spec(dtype: str, dims: Sequence[int] = (), lod_level: int = 0) -> Spec:
    """The metadata of an array whose elements have these dims (-1: they differ); (): it has no element yet."""
    return Spec.of(dims, dtype, lod_level=lod_level, kind=TENSOR_ARRAY)


def joined_spec(array: Spec, element: Spec) -> Spec:
    """The metadata of an array with one more element, or with the elements of another array.

    Raises DtypeError or ShapeError if the element's dtype or rank differs from the array's, or it has no dim.
    """
    is_array = element.kind == TENSOR_ARRAY
    if is_array and not element.dims:
        return array
    if element.dtype != array.dtype:
        raise DtypeError(f"X is {element!r}; expected dtype {array.dtype}, that of the array")
    if not element.rank:
        raise ShapeError(f"X is {element!r}; expected one dim or more\n  Do: layers.reshape(x, [1])")
    if array.dims and array.rank != element.rank:
        raise ShapeError(
            f"X is {element!r}; expected rank {array.rank}, that of the elements that the array holds "
            f"({list(array.dims)})"
        )
    dims = merged_dims(array.dims, element.dims) if array.dims else element.dims
    return array_spec(array.dtype, dims, max(array.lod_level, element.lod_level))


class TensorArray(Tensor):
    """An array of tensors on one place (Fluid's LoDTensorArray).

    Elements are never written in place, and arrays derived from each other share them. A variable of a scope keeps one
    array object, to which runs assign values (:meth:`share_data_with`).

    Parameters
    ----------
    dtype : str
    place : Place, optional
    """

    def __init__(self, dtype: str = "float32", place: Place | None = None) -> None:
        super().__init__()
        self.spec = array_spec(dtype)
        self.place = place
        self._items: list[Tensor | None] = []
        self._length = 0

    def element(self, index: int) -> Tensor | None:
        """The element at an index; None if it was never written.

        Raises
        ------
        OutOfRangeError
            If the index is negative, or not below the length.
        """
        if not 0 <= index < self._length:
            do = "\n  Do: compare with layers.array_length" if index >= 0 else ""
            raise OutOfRangeError(f"index {index} is outside of the array, which has {self._length} element(s){do}")
        return self._items[index]

    def present(self) -> list[Tensor]:
        """All elements.

        Raises
        ------
        OutOfRangeError
            If one was never written.
        """
        items = [item for item in self.elements() if item is not None]
        if len(items) != self._length:
            missing = next(i for i, item in enumerate(self._items) if item is None)
            raise OutOfRangeError(f"element {missing} of the array of {self._length} was never written")
        return items

    def elements(self) -> list[Tensor | None]:
        """All elements; None for those that were never written."""
        return self._items[: self._length]

    def with_element(self, index: int, tensor: Tensor | None) -> TensorArray:
        """Return an array that differs in one element, with ``index + 1`` elements or more; this one is unchanged.

        Raises
        ------
        OutOfRangeError
            If the index is negative or too large.
        DtypeError, ShapeError
            If the element does not fit the others.
        """
        if not 0 <= index < MAX_ELEMENTS:
            raise OutOfRangeError(f"index {index} of the array; expected 0 to {MAX_ELEMENTS - 1}")
        array = self.copy()
        if tensor is not None:
            array.spec = joined_spec(self._required_spec(), tensor._required_spec())
        if index < self._length or len(self._items) != self._length:  # other arrays share the list
            array._items = self._items[: self._length]
        if index < self._length:
            array._items[index] = tensor
        else:
            array._items += [None] * (index - self._length)
            array._items.append(tensor)
            array._length = index + 1
        return array

    def copy(self) -> TensorArray:
        """An array of the same elements."""
        array = TensorArray(self._required_spec().dtype, self.place)
        array.spec, array._items, array._length = self.spec, self._items, self._length
        return array

    def share_data_with(self, other: Tensor) -> TensorArray:
        """Become an array of the elements of another."""
        if not isinstance(other, TensorArray):
            raise TensorError(f"a tensor array cannot become {other!r}; expected a tensor array")
        self.spec, self._items, self._length = other.spec, other._items, other._length
        if self.allocation is None or self.place != other.place:
            self.place = other.place
            if other.place is not None:
                self.allocate(get_context(other.place))  # of no bytes: it identifies the state
        self.wrote()
        return self

    def clear(self) -> None:
        """Remove all elements."""
        self._items, self._length = [], 0

    def append(self, tensor: Tensor) -> None:
        """Add an element, as Fluid's LoDTensorArray does."""
        if not isinstance(tensor, Tensor) or isinstance(tensor, TensorArray):
            raise TensorError(f"a tensor array got {type(tensor).__name__}; expected a Tensor")
        start = self if self._length else TensorArray(tensor.dtype, tensor.place)
        self.share_data_with(start.with_element(self._length, tensor))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self.elements()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements())

    def numpy(self) -> Any:
        """Raise TensorError: the elements are not one array.

        Raises
        ------
        TensorError
        """
        raise TensorError("a tensor array is no tensor\n  Do: [each.numpy() for each in array]")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy()

    def __repr__(self) -> str:
        return f"TensorArray({self._length} of {self.spec!r} on {self.place})"


LoDTensorArray = TensorArray
