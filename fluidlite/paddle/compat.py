"""``paddle.compat``: conversion of texts and bytes, and Python 2's arithmetic, for scripts of both Pythons."""

from __future__ import annotations

import math
from typing import Any

from fluidlite.base.errors import ProgramError

__all__ = ["floor_division", "get_exception_message", "int_type", "long_type", "round", "to_bytes", "to_text"]

int_type = long_type = int

_MIN_WHOLE = 2.0**52  # floats from here on have no fraction, and adding 0.5 would change them


def to_text(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Decode bytes, also in nested lists and sets; other objects are returned unchanged.

    Parameters
    ----------
    obj : bytes, str, list, set, or another object
    encoding : str
    inplace : bool
        Change the list or set itself.
    """
    if isinstance(obj, (list, set)):
        return _converted(obj, [to_text(item, encoding) for item in obj], inplace)
    return obj.decode(encoding) if isinstance(obj, bytes) else obj


def to_bytes(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Encode texts, also in nested lists and sets; bytes and None are returned unchanged.

    Parameters
    ----------
    obj : str, bytes, None, list or set
    encoding : str
    inplace : bool
        Change the list or set itself.

    Raises
    ------
    ProgramError
        An object is none of these.
    """
    if isinstance(obj, (list, set)):
        return _converted(obj, [to_bytes(item, encoding) for item in obj], inplace)
    if obj is None or isinstance(obj, bytes):
        return obj
    if not isinstance(obj, str):
        raise ProgramError(f"compat.to_bytes got {type(obj).__name__} {obj!r:.60}; expected a text")
    return obj.encode(encoding)


def _converted(container: list[Any] | set[Any], items: list[Any], inplace: bool) -> Any:
    if not inplace:
        return type(container)(items)
    container.clear()
    (container.extend if isinstance(container, list) else container.update)(items)
    return container


def round(x: float, d: int = 0) -> float:
    """Round ``x`` to ``d`` decimals, halves away from 0, as in Python 2; infinity and NaN are returned unchanged.

    Parameters
    ----------
    x : float
    d : int
    """
    try:
        scale = 10**d
        scaled = abs(x) * scale
    except OverflowError:  # more decimals than a float has
        return x
    if not scaled < _MIN_WHOLE:
        return x
    return math.copysign(math.floor(scaled + 0.5) / scale, x)


def floor_division(x: Any, y: Any) -> Any:
    """Return ``x // y``."""
    return x // y


def get_exception_message(exc: BaseException) -> str:
    """Return the message of an exception."""
    return str(exc)
