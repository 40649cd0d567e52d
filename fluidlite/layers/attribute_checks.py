"""Checks of a layer's argument by the attribute that it becomes: the argument is named, and the user's line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fluidlite.base.arguments import as_number, as_truth, as_whole
from fluidlite.base.errors import AttributeValueError, ProgramError
from fluidlite.layer_helper import refuse
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable
from fluidlite.tensor.var_type import dtype_of


def check_attribute(argument: str, value: Any, attr: Attr) -> Any:
    """Return what an attribute may be, in canonical form, or raise: the argument is named, not the attribute."""
    if attr.type == "dtype":
        return None if value is None and attr.optional else dtype_of(value)
    one, several = attr.type.removesuffix("s"), attr.type.endswith("s")
    expected = expected_of(attr)
    if several and (isinstance(value, (str, bytes, Variable)) or not isinstance(value, Iterable)):
        value = [value]
    items = list(value) if several else [value]
    found = [_AS[one](item) for item in items]
    if any(item is None for item in found):
        wrong = next(item for item, number in zip(items, found, strict=True) if number is None)
        refuse(argument, wrong, _WORDS[one], error=AttributeValueError if one in ("bool", "str") else ProgramError)
    least, most = attr.minimum, attr.maximum
    for number in found:
        if (least is not None and not number >= least) or (most is not None and not number <= most):
            refuse(argument, value, expected, error=AttributeValueError)
    canonical = found if several else found[0]
    if attr.choices is not None and canonical not in attr.choices:
        refuse(argument, value, expected, error=AttributeValueError)
    return canonical


_AS: dict[str, Callable[[Any], Any]] = {
    "int": as_whole,
    "float": as_number,
    "bool": as_truth,
    "str": lambda value: value if isinstance(value, str) else None,
}
_WORDS = {"int": "an int", "float": "a number", "bool": "True or False", "str": "a text"}


def expected_of(attr: Attr) -> str:
    """What an attribute may be, in words."""
    if attr.choices is not None:
        *shown, last = map(repr, attr.choices)
        return f"one of {', '.join(shown)}, {last}" if len(shown) > 2 else f"{', '.join(shown)} or {last}"
    one, several = attr.type.removesuffix("s"), attr.type.endswith("s")
    words = {"int": "ints", "float": "numbers", "bool": "truth values", "str": "texts"}[one] if several else _WORDS[one]
    least, most = (f"{bound:g}" if bound is not None else "" for bound in (attr.minimum, attr.maximum))
    if least and most:
        return f"{words} from {least} to {most}"
    return words + (f" of {least} or more" if least else "") + (f" of {most} or less" if most else "")
