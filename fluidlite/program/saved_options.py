"""What says how a parameter is trained (regularizers, clips), as records of saved programs. Reading runs no code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fluidlite.base.errors import SavedModelError

T = TypeVar("T")
_FIELDS: dict[tuple[str, str], tuple[type, tuple[str, ...]]] = {}


def saved(role: str, *fields: str) -> Callable[[type[T]], type[T]]:
    """Mark a class whose objects programs keep.

    ``role``: what they are of a variable; ``fields``: attributes that the class's ``__init__`` takes, in its order.
    """

    def mark(kind: type[T]) -> type[T]:
        _FIELDS[role, kind.__name__] = (kind, fields)
        return kind

    return mark


def option_record(role: str, option: Any) -> list[Any] | None:
    """The name of its class and its fields; None of a user's class, and of one that holds a function."""
    name = type(option).__name__
    kind, fields = _FIELDS.get((role, name), (None, ()))
    held = [getattr(option, field) for field in fields]
    plain = kind is type(option) and all(each is None or isinstance(each, (int, float, str)) for each in held)
    return [name, *held] if plain else None


def option_of(role: str, record: list[Any], where: str) -> Any:
    """The object of a record; or SavedModelError."""
    name = record[0] if record and isinstance(record[0], str) else ""
    kind, fields = _FIELDS.get((role, name), (None, ()))
    if kind is None or len(record) != 1 + len(fields):
        known = ", ".join(name for of, name in _FIELDS if of == role)
        raise SavedModelError(f"not a program: {where} is {record!r:.80}; known are {known}, with their numbers")
    return kind(*record[1:])
