"""Fluid's numbers for types, so that old programs and attributes that hold them are understood."""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import dtype_name
from fluidlite.base.errors import DtypeError

_BY_NUMBER = {
    0: "bool", 1: "int16", 2: "int32", 3: "int64", 4: "float16", 5: "float32", 6: "float64", 20: "uint8", 21: "int8",
    22: "bfloat16",
}  # fmt: skip


def dtype_of(value: Any) -> str:
    """Return the canonical name of a dtype given as text, NumPy type or Fluid's ``VarType`` number.

    Raises
    ------
    DtypeError
        If it names none.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return _BY_NUMBER[value]
        except KeyError:
            raise DtypeError(f"{value} is not the number of a data type; Fluid's are {sorted(_BY_NUMBER)}") from None
    return dtype_name(value)


class VarType:
    """Fluid's ``core.VarDesc.VarType``: data types and kinds of variable, as texts."""

    BOOL, INT8, UINT8, INT16, INT32, INT64 = "bool", "int8", "uint8", "int16", "int32", "int64"
    FP16, BF16, FP32, FP64 = "float16", "bfloat16", "float32", "float64"
    LOD_TENSOR, SELECTED_ROWS, LOD_TENSOR_ARRAY = "dense", "selected_rows", "tensor_array"
    FEED_MINIBATCH, FETCH_LIST, STEP_SCOPES, RAW = "feed", "fetch", "step_scopes", "raw"
