"""The number that fill_constant and its kin write."""

from __future__ import annotations

from typing import Any

from fluidlite.framework.call import Call


def fill_number(call: Call) -> bool | int | float:
    """Return what Out is filled with, as a number of its dtype's kind.

    The slot ValueTensor wins over the attribute ``str_value``, and that over ``value``.
    """
    dtype, given, text = call.dtype("Out"), call.value("ValueTensor"), call.attrs.get("str_value")
    value: Any = given[0] if given else text or call.attr("value")
    if dtype == "bool":
        return bool(float(value))
    if "int" in dtype:
        whole = not isinstance(value, str) or value.strip().lstrip("+-").isdigit()
        return int(value if whole else float(value))
    return float(value)
