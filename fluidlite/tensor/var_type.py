"""Fluid's numbers for data types, so that old programs and saved attributes can be read."""

from __future__ import annotations

from enum import Enum
from typing import Any

from fluidlite.base.dtypes import dtype_name
from fluidlite.base.errors import DtypeError

_BY_NUMBER = {
    0: "bool",
    1: "int16",
    2: "int32",
    3: "int64",
    4: "float16",
    5: "float32",
    6: "float64",
    20: "uint8",
    21: "int8",
    22: "bfloat16",
}


def dtype_of(value: Any) -> str:
    """Return the canonical name of a dtype given as text, NumPy type or Fluid's ``VarType`` number.

    Raises
    ------
    DtypeError
        If it names no data type.
    """
    if value is None:
        raise DtypeError("the data type is None; name one, such as 'float32'")
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return _BY_NUMBER[value]
        except KeyError:
            raise DtypeError(f"{value} is not the number of a data type; Fluid's are {sorted(_BY_NUMBER)}") from None
    return dtype_name(value)


def dtype_number(dtype: str) -> int:
    """Fluid's number of a data type."""
    return next(number for number, name in _BY_NUMBER.items() if name == dtype)


class _DataType(str):
    """A data type's name that is also Fluid's number for it."""

    __slots__ = ()

    def __index__(self) -> int:
        return dtype_number(str(self))

    __int__ = __index__


class VarType:
    """Fluid's ``core.VarDesc.VarType``: data types and kinds of variable, as texts."""

    BOOL, INT8, UINT8 = _DataType("bool"), _DataType("int8"), _DataType("uint8")
    INT16, INT32, INT64 = _DataType("int16"), _DataType("int32"), _DataType("int64")
    FP16, BF16 = _DataType("float16"), _DataType("bfloat16")
    FP32, FP64 = _DataType("float32"), _DataType("float64")
    LOD_TENSOR, SELECTED_ROWS, LOD_TENSOR_ARRAY = "dense", "selected_rows", "tensor_array"
    FEED_MINIBATCH, FETCH_LIST, STEP_SCOPES, RAW = "feed", "fetch", "step_scopes", "raw"
    LOD_RANK_TABLE = "lod_rank_table"


class AttrType(Enum):
    """Fluid's ``core.AttrType``: kinds of attribute, with Fluid's numbers; the texts are those of ``Attr.type``."""

    INT, FLOAT, STRING, INTS, FLOATS, STRINGS, BOOL, BOOLS, BLOCK, LONG, BLOCKS, LONGS = range(12)

    @staticmethod
    def of(text: str) -> AttrType:
        """The kind that ``Attr.type`` names."""
        return AttrType[_ATTR_KINDS.get(text, text).upper()]


_ATTR_KINDS = {"str": "string", "strs": "strings", "dtype": "int"}
"""Kinds whose name differs in Fluid; a data type is a number there."""
