"""The value that fill_constant and its variants write."""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import integer_limits
from fluidlite.program.op_call import Call


def fill_number(call: Call) -> bool | int | float:
    """Return the value of Out as a bool, int or float, by its dtype.

    The slot ValueTensor takes precedence over the attribute ``str_value``, and that over ``value``. Integers are
    converted as by cast: they saturate, and NaN becomes 0.
    """
    dtype, tensor_value, text = call.dtype("Out"), call.value("ValueTensor"), call.attrs.get("str_value")
    value: Any = tensor_value[0] if tensor_value else text or call.attr("value")
    if dtype == "bool":
        return bool(float(value))
    if "int" in dtype:
        if isinstance(value, str):
            value = int(value) if value.strip().lstrip("+-").isdigit() else float(value)
        return _saturated(value, dtype)
    return float(value)


def _saturated(value: int | float, dtype: str) -> int:
    if value != value:
        return 0
    low, high = integer_limits(dtype)
    return low if value <= low else high if value >= high else int(value)
