"""Attributes that forward to an attribute of another object."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def forwarded(path: str, doc: str) -> Any:
    """A property that reads the dotted ``path`` of the object, without a call of a Python function."""
    return property(attrgetter(path), doc=doc)
