"""Check a layer's argument against its attribute; errors name the argument and the user's line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fluidlite.base.arguments import as_int, as_number, as_truth
from fluidlite.base.errors import AttributeValueError, ProgramError
from fluidlite.layer_helper import refuse
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable
from fluidlite.tensor.var_type import dtype_of


def check_attribute(argument: str, value: Any, attr: Attr) -> Any:
    """Return the value in canonical form, or raise an error that names the argument."""
    if attr.type == "dtype":
        return None if value is None and attr.optional else dtype_of(value)
    kind, is_list = attr.type.removesuffix("s"), attr.type.endswith("s")
    expected = expected_of(attr)
    if is_list and (isinstance(value, (str, bytes, Variable)) or not isinstance(value, Iterable)):
        value = [value]
    items = list(value) if is_list else [value]
    converted = [_CONVERTERS[kind](item) for item in items]
    if any(item is None for item in converted):
        invalid = next(item for item, number in zip(items, converted, strict=True) if number is None)
        refuse(argument, invalid, _KINDS[kind], error=AttributeValueError if kind in ("bool", "str") else ProgramError)
    minimum, maximum = attr.minimum, attr.maximum
    for number in converted:
        if (minimum is not None and not number >= minimum) or (maximum is not None and not number <= maximum):
            refuse(argument, value, expected, error=AttributeValueError)
    canonical = converted if is_list else converted[0]
    if attr.choices is not None and canonical not in attr.choices:
        refuse(argument, value, expected, error=AttributeValueError)
    return canonical


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "int": as_int,
    "float": as_number,
    "bool": as_truth,
    "str": lambda value: value if isinstance(value, str) else None,
}
_KINDS = {"int": "an int", "float": "a number", "bool": "True or False", "str": "a text"}


def expected_of(attr: Attr) -> str:
    """The text of an error that describes the valid values of an attribute."""
    if attr.choices is not None:
        *choices, last = map(repr, attr.choices)
        return f"one of {', '.join(choices)}, {last}" if len(choices) > 2 else f"{', '.join(choices)} or {last}"
    kind, is_list = attr.type.removesuffix("s"), attr.type.endswith("s")
    words = (
        {"int": "ints", "float": "numbers", "bool": "truth values", "str": "texts"}[kind] if is_list else _KINDS[kind]
    )
    minimum, maximum = (f"{bound:g}" if bound is not None else "" for bound in (attr.minimum, attr.maximum))
    if minimum and maximum:
        return f"{words} from {minimum} to {maximum}"
    return words + (f" of {minimum} or more" if minimum else "") + (f" of {maximum} or less" if maximum else "")
