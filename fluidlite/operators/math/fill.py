"""The number that fill_constant and its kin write."""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import integer_limits
from fluidlite.program.op_call import Call


def fill_number(call: Call) -> bool | int | float:
    """Return what Out is filled with, as a number of its dtype's kind.

    The slot ValueTensor wins over the attribute ``str_value``, and that over ``value``. Whole numbers are converted as
    cast does it: what is beyond their range becomes the end of it, NaN becomes 0.
    """
    dtype, given, text = call.dtype("Out"), call.value("ValueTensor"), call.attrs.get("str_value")
    value: Any = given[0] if given else text or call.attr("value")
    if dtype == "bool":
        return bool(float(value))
    if "int" in dtype:
        if isinstance(value, str):
            value = int(value) if value.strip().lstrip("+-").isdigit() else float(value)
        return _whole(value, dtype)
    return float(value)


def _whole(value: int | float, dtype: str) -> int:
    if value != value:
        return 0
    low, high = integer_limits(dtype)
    return low if value <= low else high if value >= high else int(value)
