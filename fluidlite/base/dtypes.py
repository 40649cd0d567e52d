"""Data types: one text name for each, and its NumPy type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from fluidlite.base.errors import DtypeError

NUMPY: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
}
NUMPY["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
_NAMES = {dtype: name for name, dtype in NUMPY.items()}
ITEMSIZE: dict[str, int] = {name: dtype.itemsize for name, dtype in NUMPY.items()}

HALVES = ("float16", "bfloat16")
FLOATS = ("float32", "float64")
ALL_FLOATS = HALVES + FLOATS
INTS = ("int32", "int64")
ALL_INTS = ("uint8", "int8", "int16", "int32", "int64")
ALL = ("bool", *ALL_INTS, *ALL_FLOATS)


def dtype_name(dtype: Any) -> str:
    """Return the canonical text of ``dtype``.

    ``dtype``: anything that names one of fluidlite's data types.
    Raises DtypeError if it names none of them.
    """
    if isinstance(dtype, str):
        if dtype in NUMPY:
            return str(dtype)  # np.str_, too
        if dtype == "float":
            return "float32"
    try:
        name = _NAMES.get(dtype)
        if name is not None:
            return name
        return _NAMES[np.dtype(dtype)]
    except (KeyError, TypeError, ValueError):
        raise DtypeError(f"{dtype!r} is not a data type of fluidlite; use one of {', '.join(NUMPY)}") from None


def is_float(dtype: str) -> bool:
    return dtype in ALL_FLOATS


def compute_dtype(dtype: str) -> str:
    """The type of scalar arithmetic on ``dtype``: half types compute in float32."""
    return "float32" if dtype in HALVES else dtype


def integer_limits(dtype: str) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of a dtype's name (bfloat16 by ml_dtypes)."""
    return NUMPY[name]
