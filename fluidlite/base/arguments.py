"""Checks of what a user gives where a list, a number, a truth value or an object of some class is expected."""

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


def instance(what: str, value: Any, kind: type[T], expected: str = "", error: type[FluidError] = ProgramError) -> T:
    """Return ``value`` if it is of a class, or raise ``error``."""
    if not isinstance(value, kind):
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected {expected or f'a {kind.__name__}'}")
    return value


def able(what: str, value: Any, method: str, expected: str, error: type[FluidError] = ProgramError) -> Any:
    """Return ``value`` if it is None or has a method, or raise ``error``: where its class is not known yet."""
    if value is not None and not callable(getattr(value, method, None)):
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected {expected}, or None")
    return value


def listed(what: str, value: Any, expected: str, error: type[FluidError] = ProgramError, one: Kinds = ()) -> list[Any]:
    """Return the items of ``value``, or raise ``error``: it is no list. A text is none.

    ``one``: of what classes a value may stand alone, for a list of itself.
    """
    if isinstance(value, one):
        return [value]
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected {expected}")
    return list(value)


def mapped(what: str, value: Any, expected: str, error: type[FluidError] = ProgramError) -> Mapping[Any, Any]:
    """Return ``value`` if it is a mapping, or raise ``error``."""
    if not isinstance(value, Mapping):
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected {expected}")
    return value


def as_whole(value: Any) -> int | None:
    """The int that a value is (NumPy's too); None if it is none. A bool is none."""
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:  # an array of several, too
        return None


def exact_ints(values: Iterable[Any]) -> list[int]:
    """The ints that values equal, 2 of 2.0 too; raises ValueError, TypeError or OverflowError if one equals none."""
    given = list(values)
    found = list(map(int, given))
    if found != given:
        raise ValueError(f"{given!r:.80} are no ints")
    return found


def as_number(value: Any) -> float | None:
    """The float that a value is, if it is one number; else None. Texts and bools are none."""
    if isinstance(value, (bool, str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # an array of several, of texts; beyond a float
        return None


def as_truth(value: Any) -> bool | None:
    """The bool that a value is: True, False, 0 or 1 (NumPy's too); else None."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    found = as_whole(value)
    return bool(found) if found in (0, 1) else None


def whole_text(value: Any) -> str:
    """The digits of a whole number that no float is; else nothing."""
    found = as_whole(value)
    return str(found) if found is not None and as_number(found) != found else ""


def whole(what: str, value: Any, error: type[FluidError] = ProgramError, least: int | None = None) -> int:
    """Return ``value`` as an int if it is one, of ``least`` or more, or raise ``error``."""
    found = as_whole(value)
    if found is None:
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected an int")
    if least is not None and found < least:
        raise error(f"{what} is {found}; expected {least} or more")
    return found


def number(what: str, value: Any, error: type[FluidError] = ProgramError) -> float:
    """Return ``value`` as a float if it is one number, or raise ``error``."""
    found = as_number(value)
    if found is None:
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected a number")
    return found


def finite(what: str, value: Any, error: type[FluidError] = ProgramError) -> float:
    """Return ``value`` as a float if it is one finite number, or raise ``error``."""
    found = number(what, value, error)
    if not isfinite(found):
        raise error(f"{what} is {found}; expected a finite number")
    return found


def truth(what: str, value: Any, error: type[FluidError] = ProgramError) -> bool:
    """Return ``value`` as a bool if it is one, or raise ``error``."""
    found = as_truth(value)
    if found is None:
        raise error(f"{what} is {type(value).__name__} {value!r:.80}; expected True or False")
    return found


def text(what: str, value: Any, error: type[FluidError] = ProgramError) -> str:
    """Return ``value`` if it is a text, or raise ``error``."""
    return instance(what, value, str, "a text", error)


def name_of(item: Any) -> str | None:
    """The name that an item is, or has; None if it has none.

    Raises
    ------
    ProgramError
        Its ``name`` cannot be read.
    """
    try:
        name = item if isinstance(item, str) else getattr(item, "name", None)
    except Exception as exc:  # a property of the user's
        raise ProgramError(
            f"the name of a {type(item).__name__} raised {type(exc).__name__}: {exc}\n  Do: give a variable or its name"
        ) from exc
    return name if isinstance(name, str) else None


def did_you_mean(name: Any, known: Iterable[str], count: int = 2, cutoff: float = 0.6) -> str:
    """The known names that are nearest to a wrong one, as the end of a sentence of an error; "" if none is near."""
    near = difflib.get_close_matches(str(name), list(known), n=count, cutoff=cutoff)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
