"""Derived gradient operators: created when a program first needs them, and not listed in the registry.

``<type>_grad`` of a gradient operator computes derivatives of the next order. ``<type>_grad_of_all`` of any operator
reads the gradients of all outputs, including those that the declared gradient operator treats as constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.base.fork import new_rlock
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule

Derived = tuple[GradRule, OpDef]
NEXT_ORDER, ALL_OUTPUTS = "_grad", "_grad_of_all"  # suffixes of the types of derived operators


def derive(op: OpDef, type: str) -> Derived | None:
    """Return the rule and the definition of a gradient operator, or None; ``fluidlite.expr`` replaces this function."""
    return None


_lock = new_rlock()


def gradient_rule(op: OpDef) -> GradRule | Callable[..., Any] | None:
    """Return the declared gradient rule of an operator, or the derived one of a gradient operator without a rule."""
    return op.grad if op.grad is not None else _rule(op, NEXT_ORDER)


def whole_rule(op: OpDef) -> GradRule | None:
    """Return the rule that reads the gradients of all outputs of an operator; None if it cannot be derived."""
    return _rule(op, ALL_OUTPUTS)


def _rule(op: OpDef, suffix: str) -> GradRule | None:
    derived = _derived(op, suffix)
    return derived[0] if derived is not None else None


def _derived(op: OpDef, suffix: str) -> Derived | None:
    computes_gradients = any(GRAD in slot.name for slot in op.outputs)
    if (op.grad is not None or not computes_gradients) if suffix == NEXT_ORDER else op.grad is None:
        return None
    with _lock:
        if suffix not in op.derived:
            op.derived[suffix] = derive(op, op.type + suffix)
        derived: Derived | None = op.derived[suffix]
        return derived


def find_derived(type: str) -> OpDef | None:
    """Return the derived operator of that type, or None."""
    for suffix in (ALL_OUTPUTS, NEXT_ORDER):
        base = ops.find(type.removesuffix(suffix)) if type.endswith(suffix) else None
        derived = _derived(base, suffix) if base is not None else None
        if derived is not None:
            return derived[1]
    return None


ops.find_derived = find_derived
