"""Attributes that are another object's."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def forwarded(path: str, doc: str) -> Any:
    """An attribute that is read from ``path``, without a call of Python's."""
    return property(attrgetter(path), doc=doc)
