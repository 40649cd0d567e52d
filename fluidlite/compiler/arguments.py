"""Arguments of a computation: converts and checks the values that the user passes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fluidlite.base.dtypes import NUMPY, is_float
from fluidlite.base.errors import FeedError
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Lod, Spec
from fluidlite.tensor.var_type import dtype_of


class Argument(NamedTuple):
    """A checked argument."""

    array: np.ndarray[Any, Any]
    lod: Lod


def argument(variable: Variable, value: Any) -> Argument:
    """Return an argument of a computation as an array of the declared dtype and dims, with the LoD of a tensor.

    Raises FeedError if it does not fit, or has not the declared number of LoD levels.
    """
    array = as_declared_array(variable, value)
    lod = value.spec.lod if isinstance(value, Tensor) and value.spec is not None else ()
    if variable.lod_level and len(lod) != variable.lod_level:
        raise FeedError(
            f"the argument of {variable.name!r} has {len(lod)} LoD levels; the program declares {variable.lod_level}"
            "\n  Do: fluid.create_lod_tensor(array, [lengths], place)"
        )
    return Argument(array, lod)


def as_declared_array(variable: Variable, value: Any, what: str = "argument") -> np.ndarray[Any, Any]:
    """Return a C-contiguous array of the variable's dtype and dims.

    Python numbers, integers and wider floats are cast to the variable's dtype if it can hold the values.

    Raises FeedError for values that are no numbers, numbers that the dtype cannot hold, or other dims.
    """
    spec = variable._spec()
    try:
        array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
    except ValueError as exc:
        raise FeedError(f"the {what} of {variable.name!r} cannot become an array: {exc}") from None
    if array.dtype.kind in "OUSMmc":
        raise FeedError(
            f"the {what} of {variable.name!r} is {type(value).__name__} {_shortened(value)}; "
            f"expected numbers, {spec.dtype} {list(spec.dims)}"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    converted = _converted(variable, array, spec.dtype, what)
    if not spec.fits(Spec.of(converted.shape, spec.dtype)):
        raise FeedError(
            f"the {what} of {variable.name!r} has dims {list(converted.shape)}; the graph declares {list(spec.dims)}"
        )
    return np.ascontiguousarray(converted).reshape(converted.shape)


def filled_array(variable: Variable, value: Any, what: str) -> np.ndarray[Any, Any]:
    """Return a new array of the variable's dtype and dims, which a number fills; raises what as_declared_array does."""
    filled = np.full(variable._spec().dims, value) if np.ndim(value) == 0 else value
    return as_declared_array(variable, filled, what).copy()


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _converted(variable: Variable, array: np.ndarray[Any, Any], dtype: str, what: str) -> np.ndarray[Any, Any]:
    if dtype_of(array.dtype) == dtype:
        return array
    if not holds(dtype, array):
        raise FeedError(
            f"the {what} of {variable.name!r} holds numbers that are no {dtype}; it is {array.dtype}, "
            f"the graph declares {dtype}"
        )
    with np.errstate(all="ignore"):
        return array.astype(NUMPY[dtype])


def holds(dtype: str, array: np.ndarray[Any, Any]) -> bool:
    """Whether a dtype can hold the values of an array: exactly, or rounded if the dtype is a float."""
    with np.errstate(all="ignore"):
        cast, values = array.astype(NUMPY[dtype]).astype(np.float64), array.astype(np.float64)
    return np.array_equal(np.isfinite(cast), np.isfinite(values)) if is_float(dtype) else np.array_equal(cast, values)
