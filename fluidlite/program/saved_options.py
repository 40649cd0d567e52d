"""Records of a parameter's training options (regularizers, clips) in saved programs. Reading runs no code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fluidlite.base.errors import SavedModelError

T = TypeVar("T")
_FIELDS: dict[tuple[str, str], tuple[type, tuple[str, ...]]] = {}


def saved(role: str, *fields: str) -> Callable[[type[T]], type[T]]:
    """Register a class whose objects are saved with programs.

    ``role``: their role for a variable; ``fields``: the attributes that are ``__init__``'s arguments, in order.
    """

    def mark(kind: type[T]) -> type[T]:
        _FIELDS[role, kind.__name__] = (kind, fields)
        return kind

    return mark


def option_record(role: str, option: Any) -> list[Any] | None:
    """Return the name of an option's class and its fields; None for a user's class, or if a field is a function."""
    name = type(option).__name__
    kind, fields = _FIELDS.get((role, name), (None, ()))
    values = [getattr(option, field) for field in fields]
    is_plain = kind is type(option) and all(value is None or isinstance(value, (int, float, str)) for value in values)
    return [name, *values] if is_plain else None


def option_of(role: str, record: list[Any], where: str) -> Any:
    """Return the object of a record, or raise SavedModelError."""
    name = record[0] if record and isinstance(record[0], str) else ""
    kind, fields = _FIELDS.get((role, name), (None, ()))
    if kind is None or len(record) != 1 + len(fields):
        names = ", ".join(name for of, name in _FIELDS if of == role)
        raise SavedModelError(f"not a program: {where} is {record!r:.80}; known are {names}, with their numbers")
    return kind(*record[1:])
