"""Columns: collect one variable's fields over the samples of a batch into one array with its LoD."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.arguments import is_masked, refuse_mask
from fluidlite.base.dtypes import ALL_INTS, NUMPY, integer_limits, is_float
from fluidlite.base.errors import FeedError
from fluidlite.tensor.lod import lod_from_lengths
from fluidlite.tensor.tensor_spec import Lod, Spec

Array = np.ndarray[Any, Any]
_BFLOAT16 = NUMPY["bfloat16"]  # of kind "V", for NumPy


class Column:
    """One variable's values over a batch.

    ``spec``: the declared dtype, dims (the batch's first) and number of LoD levels. Without one the samples' own dims
    and dtype are used.
    """

    def __init__(self, name: str, spec: Spec | None = None) -> None:
        self.name = name
        self.spec = spec
        self.rows: list[Any] = []
        self.lengths: list[list[int]] = [[] for _ in range(spec.lod_level if spec is not None else 0)]

    def take(self, value: Any, number: int) -> None:
        """Add one sample's field: a row, or with LoD levels a list of rows (of lists of rows, ..., by levels).

        Raises FeedError if the field of a sequence is no list, or a row is a masked array.
        """
        self._take(value, self.lengths, number)

    def _take(self, value: Any, lengths: list[list[int]], number: int) -> None:
        if is_masked(value):  # of each row: no text is made for the others
            refuse_mask(f"sample {number}: the value of {self.name!r}", value, FeedError)
        if not lengths:
            self.rows.append(value)
            return
        if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
            raise FeedError(
                f"sample {number}: variable {self.name!r} has {len(self.lengths)} LoD level(s), so its field is a list "
                f"of rows; got {value!r:.60}"
            )
        lengths[0].append(len(value))
        for item in value:
            self._take(item, lengths[1:], number)

    def values(self) -> tuple[Array, Lod]:
        """The array of all fields, in the declared dims and dtype, and its LoD.

        Raises FeedError if the samples differ in dims, are no numbers, or do not fit the declaration.
        """
        array = self._array()
        if self.spec is not None:
            array = fitted(self.name, self.spec, array, len(self.rows))
        lod = lod_from_lengths(self.lengths, array.shape[0]) if self.lengths else ()
        return array, lod

    def _array(self) -> Array:
        rows = self.rows
        if rows and hasattr(rows[0], "__array__") and not isinstance(rows[0], (np.ndarray, np.generic)):
            rows = [np.asarray(row) for row in rows]  # arrays of another library: NumPy would read them by element
        try:
            array = np.asarray(rows)
        except ValueError:
            array = np.asarray(None)
        if array.dtype.kind not in "biuf" and array.dtype != _BFLOAT16:
            declared = f" {self.spec!r}" if self.spec is not None else ""
            raise FeedError(
                f"variable {self.name!r}{declared}: the samples' fields do not make an array: "
                f"they differ in dims, or hold something else than numbers{self._difference()}"
            )
        return array

    def _difference(self) -> str:
        """The first field with other dims than field 0, as the end of a sentence."""
        try:
            shapes = [np.shape(row) for row in self.rows]
        except ValueError:
            return ""
        for number, shape in enumerate(shapes):
            if shape != shapes[0]:
                hint = "" if self.lengths else "\n  Do: pad them, or declare lod_level=1 where they are sequences"
                return f": row 0 has dims {list(shapes[0])}, row {number} has {list(shape)}{hint}"
        return ""


def fitted(name: str, spec: Spec, array: Array, rows: int) -> Array:
    """Return an array in the declared dims and dtype.

    ``spec``: its first dim is that of the batch. A flat row is reshaped to the other dims.
    Raises FeedError if the dtype cannot represent a value (a fraction, or a number beyond its limits), or the dims
    differ.
    """
    dtype = NUMPY[spec.dtype]
    if array.dtype != dtype and array.size:
        _check_numbers(name, spec, array)
    shaped = _shaped(name, spec, array, rows)
    try:
        with np.errstate(over="raise"):
            result = shaped.astype(dtype, copy=False)
        if dtype == _BFLOAT16 != shaped.dtype and (np.isinf(result) & ~np.isinf(shaped)).any():
            raise FloatingPointError  # that of ml_dtypes sets no flag
        return result
    except FloatingPointError:
        raise FeedError(
            f"variable {name!r} is {spec.dtype}, but it is fed {array.dtype} numbers that are too large for it"
        ) from None


def _check_numbers(name: str, spec: Spec, array: Array) -> None:
    kind = array.dtype.kind
    if (kind == "f" or array.dtype == _BFLOAT16) and not is_float(spec.dtype):
        raise FeedError(f"variable {name!r} is {spec.dtype}, but it is fed {array.dtype} numbers")
    if kind in "iu" and spec.dtype in ALL_INTS and not np.can_cast(array.dtype, NUMPY[spec.dtype], "safe"):
        low, high = integer_limits(spec.dtype)
        smallest, largest = int(array.min()), int(array.max())
        if smallest < low or largest > high:
            raise FeedError(
                f"variable {name!r} is {spec.dtype}, which goes from {low} to {high}, but it is fed numbers from "
                f"{smallest} to {largest}"
            )


def _is_flat_or_equal(dims: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    """Whether dims of a row are those declared, or a single one, apart from dims of 1; -1 is any, or a further 1."""
    own, want = [d for d in dims if d != 1], [d for d in declared if d != 1]
    if len(own) <= 1 or own == [d for d in want if d != -1]:
        return True
    return len(own) == len(want) and all(b in (-1, a) for a, b in zip(own, want, strict=True))


def _shaped(name: str, spec: Spec, array: Array, rows: int) -> Array:
    declared = spec.dims
    if array.ndim == len(declared) and all(a in (-1, b) for a, b in zip(declared, array.shape, strict=True)):
        return array
    row = declared[1:]
    try:
        if not rows:
            return array.reshape((0, *(max(d, 0) for d in row)))
        is_open = row.count(-1) <= 1 and (rows == declared[0] or declared[0] == -1)
        if is_open and _is_flat_or_equal(array.shape[1:], row):
            return array.reshape((rows, *row))
    except (ValueError, IndexError):
        pass
    raise FeedError(f"variable {name!r} is declared {spec!r}; the batch has dims {list(array.shape)}") from None
