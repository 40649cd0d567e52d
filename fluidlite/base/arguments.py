"""Validation and conversion of user arguments: lists, numbers, truth values, objects of some class."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from math import isfinite
from operator import index
from typing import Any, TypeVar

import numpy as np

from fluidlite.base.errors import FluidError, ProgramError

T = TypeVar("T")
Kinds = type | tuple[type, ...]


def check_instance(
    what: str, value: Any, kind: type[T], expected: str = "", error: type[FluidError] = ProgramError
) -> T:
    """Return ``value`` if it is an instance of ``kind``, or raise ``error``."""
    if not isinstance(value, kind):
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected {expected or f'a {kind.__name__}'}")
    return value


def check_method(what: str, value: Any, method: str, expected: str, error: type[FluidError] = ProgramError) -> Any:
    """Return ``value`` if it is None or has ``method``, or raise ``error``. For classes not imported here."""
    if value is not None and not callable(getattr(value, method, None)):
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected {expected}, or None")
    return value


def check_list(
    what: str, value: Any, expected: str, error: type[FluidError] = ProgramError, one: Kinds = ()
) -> list[Any]:
    """Return the items of ``value``, or raise ``error`` if it is not iterable or is a text.

    ``one``: classes whose instances are accepted in place of a list of one item.
    """
    if isinstance(value, one):
        return [value]
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected {expected}")
    return list(value)


def check_mapping(what: str, value: Any, expected: str, error: type[FluidError] = ProgramError) -> Mapping[Any, Any]:
    """Return ``value`` if it is a mapping, or raise ``error``."""
    if not isinstance(value, Mapping):
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected {expected}")
    return value


def is_masked(value: Any) -> bool:
    """Whether ``value`` is a masked array, whose mask ``np.asarray`` would drop."""
    # np.ma takes 10 ms to import: no plain array asks for it
    return type(value) is not np.ndarray and isinstance(value, np.ndarray) and isinstance(value, np.ma.MaskedArray)


def refuse_mask(what: str, value: Any, error: type[FluidError] = ProgramError) -> None:
    """Raise ``error`` if ``value`` is a masked array."""
    if is_masked(value):
        raise error(
            f"{what} is a masked array; no variable has a mask"
            "\n  Do: array.filled(0), or feed array.data and array.mask"
        )


def as_int(value: Any) -> int | None:
    """Return a value as an int (NumPy integers too), or None if it is no integer. A bool is none."""
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:  # also an array of several elements
        return None


def exact_ints(values: Iterable[Any]) -> list[int]:
    """Return values as equal ints (2 for 2.0); raise ValueError, TypeError or OverflowError if one equals no int."""
    items = list(values)
    ints = list(map(int, items))
    if ints != items:
        raise ValueError(f"{items!r:.80} are no ints")
    return ints


def as_number(value: Any) -> float | None:
    """Return a value as a float, or None if it is not one number. Texts and bools are none."""
    if isinstance(value, (bool, str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        return None
    try:
        return float(value)
    except (
        TypeError,
        ValueError,
        OverflowError,
    ):  # an array of several elements or of texts; a number beyond float's range
        return None


def as_truth(value: Any) -> bool | None:
    """Return a value as a bool (True, False, 0 or 1, NumPy's too), or None."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    integer = as_int(value)
    return bool(integer) if integer in (0, 1) else None


def exact_int_text(value: Any) -> str:
    """Return the digits of an integer that no float represents exactly; else ""."""
    integer = as_int(value)
    return str(integer) if integer is not None and as_number(integer) != integer else ""


def check_int(what: str, value: Any, error: type[FluidError] = ProgramError, least: int | None = None) -> int:
    """Return ``value`` as an int if it is one, of ``least`` or more, or raise ``error``."""
    integer = as_int(value)
    if integer is None:
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected an int")
    if least is not None and integer < least:
        raise error(f"{what} is {integer}; expected {least} or more")
    return integer


def number(what: str, value: Any, error: type[FluidError] = ProgramError) -> float:
    """Return ``value`` as a float if it is one number, or raise ``error``."""
    result = as_number(value)
    if result is None:
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected a number")
    return result


def finite(what: str, value: Any, error: type[FluidError] = ProgramError) -> float:
    """Return ``value`` as a float if it is one finite number, or raise ``error``."""
    result = number(what, value, error)
    if not isfinite(result):
        raise error(f"{what} is {result}; expected a finite number")
    return result


def check_bool(what: str, value: Any, error: type[FluidError] = ProgramError) -> bool:
    """Return ``value`` as a bool if it is one, or raise ``error``."""
    result = as_truth(value)
    if result is None:
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected True or False")
    return result


def text(what: str, value: Any, error: type[FluidError] = ProgramError) -> str:
    """Return ``value`` if it is a text, or raise ``error``."""
    return check_instance(what, value, str, "a text", error)


def name_of(item: Any) -> str | None:
    """Return an item that is a name, or the item's ``name``; None if it has none.

    Raises
    ------
    ProgramError
        Its ``name`` cannot be read.
    """
    try:
        name = item if isinstance(item, str) else getattr(item, "name", None)
    except Exception as exc:  # user code: a property
        raise ProgramError(
            f"the name of a {type(item).__name__} raised {type(exc).__name__}: {exc}\n  Do: give a variable or its name"
        ) from exc
    return name if isinstance(name, str) else None


def did_you_mean(name: Any, candidates: Iterable[str], count: int = 2, cutoff: float = 0.6) -> str:
    """Return the candidates closest to a wrong name, as the end of an error's sentence; "" if none is close."""
    matches = difflib.get_close_matches(str(name), list(candidates), n=count, cutoff=cutoff)
    return f"; did you mean {' or '.join(map(repr, matches))}?" if matches else ""
