"""Gradient operators that no definition declares: derived when a program first asks for them, and listed nowhere.

``<type>_grad`` of a gradient operator gives derivatives of the next order. ``<type>_grad_of_all`` of any operator takes
the gradients of all of its outputs: of those too which the declared gradient operator takes for constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.base.fork import new_rlock
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule

Derived = tuple[GradRule, OpDef]
NEXT, ALL = "_grad", "_grad_of_all"


def derive(op: OpDef, type: str) -> Derived | None:
    """The gradient operator of an operator under a type, and the rule that asks for it; the expressions say it."""
    return None


_lock = new_rlock()


def gradient_rule(op: OpDef) -> GradRule | Callable[..., Any] | None:
    """The gradient rule of an operator; of one that computes gradients, and declares none, a derived one."""
    return op.grad if op.grad is not None else _rule(op, NEXT)


def whole_rule(op: OpDef) -> GradRule | None:
    """The rule that takes the gradients of all outputs of an operator; None if it cannot be derived."""
    return _rule(op, ALL)


def _rule(op: OpDef, suffix: str) -> GradRule | None:
    found = _derived(op, suffix)
    return found[0] if found is not None else None


def _derived(op: OpDef, suffix: str) -> Derived | None:
    computes_gradients = any(GRAD in slot.name for slot in op.outputs)
    if (op.grad is not None or not computes_gradients) if suffix == NEXT else op.grad is None:
        return None
    with _lock:
        if suffix not in op.derived:
            op.derived[suffix] = derive(op, op.type + suffix)
        found: Derived | None = op.derived[suffix]
        return found


def find_derived(type: str) -> OpDef | None:
    """The derived operator of that type; None if there is none."""
    for suffix in (ALL, NEXT):
        base = ops.find(type.removesuffix(suffix)) if type.endswith(suffix) else None
        found = _derived(base, suffix) if base is not None else None
        if found is not None:
            return found[1]
    return None


ops.find_derived = find_derived
