"""``paddle.compat``: texts and bytes, and Python 2's arithmetic, as scripts for both Pythons ask for them."""

from __future__ import annotations

import math
from typing import Any

from fluidlite.base.errors import ProgramError

__all__ = ["floor_division", "get_exception_message", "int_type", "long_type", "round", "to_bytes", "to_text"]

int_type = long_type = int


def to_text(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Return a text for bytes, and a list or set with all of its own for one of these; other objects as they are.

    Parameters
    ----------
    obj : bytes, str, list, set, or another object
    encoding : str
    inplace : bool
        Change the list or set, and return it.
    """
    if isinstance(obj, (list, set)):
        return _each(obj, [to_text(item, encoding) for item in obj], inplace)
    return obj.decode(encoding) if isinstance(obj, bytes) else obj


def to_bytes(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Return bytes for a text, and a list or set with all of its own for one of these; bytes and None as they are.

    Parameters
    ----------
    obj : str, bytes, None, list or set
    encoding : str
    inplace : bool
        Change the list or set, and return it.

    Raises
    ------
    ProgramError
        It is, or holds, something else.
    """
    if isinstance(obj, (list, set)):
        return _each(obj, [to_bytes(item, encoding) for item in obj], inplace)
    if obj is None or isinstance(obj, bytes):
        return obj
    if not isinstance(obj, str):
        raise ProgramError(f"compat.to_bytes got {type(obj).__name__} {obj!r:.60}; expected a text")
    return obj.encode(encoding)


def _each(given: list[Any] | set[Any], items: list[Any], inplace: bool) -> Any:
    if not inplace:
        return type(given)(items)
    given.clear()
    (given.extend if isinstance(given, list) else given.update)(items)
    return given


def round(x: float, d: int = 0) -> float:
    """Return ``x`` with ``d`` decimals; what lies between two goes away from 0, as in Python 2.

    Parameters
    ----------
    x : float
    d : int
    """
    if not math.isfinite(x):
        return x
    scale = 10**d
    return math.copysign(math.floor(abs(x) * scale + 0.5) / scale, x)


def floor_division(x: Any, y: Any) -> Any:
    """Return ``x // y``."""
    return x // y


def get_exception_message(exc: BaseException) -> str:
    """Return what an exception says."""
    return str(exc)
