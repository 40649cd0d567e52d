"""Attributes that some versions of Fluid had under another name, or that say what an input says."""

from __future__ import annotations

from typing import Any

_RENAMED = {("hard_shrink", "lambda"): "threshold", ("softshrink", "threshold"): "lambda"}
_SAID_BY_AN_INPUT = {("ftrl", "learning_rate"): "LearningRate"}


def renamed(type: str, attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an operator under today's names; those that an input says are left out."""
    found = {}
    for name, value in attrs.items():
        if (type, name) in _SAID_BY_AN_INPUT:
            continue
        today = _RENAMED.get((type, name), name)
        if today != name and today in attrs:
            today = name  # both: the old one is refused
        found[today] = value
    return found
