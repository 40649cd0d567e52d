"""Attributes with other names in some versions of Fluid, and attributes that duplicate an input."""

from __future__ import annotations

from typing import Any

_RENAMED = {("hard_shrink", "lambda"): "threshold", ("softshrink", "threshold"): "lambda"}
_DUPLICATES_OF_INPUTS = {("ftrl", "learning_rate"): "LearningRate"}


def current_attributes(type: str, attrs: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of an operator under current names, without those that duplicate an input."""
    current_attrs = {}
    for name, value in attrs.items():
        if (type, name) in _DUPLICATES_OF_INPUTS:
            continue
        current = _RENAMED.get((type, name), name)
        if current != name and current in attrs:
            current = name  # both are present: the old name is refused
        current_attrs[current] = value
    return current_attrs
