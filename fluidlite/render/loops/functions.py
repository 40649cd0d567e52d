"""Expensive elements: function evaluations by polynomials, and random numbers."""

from __future__ import annotations

from collections.abc import Iterable

from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.render.loops.element import Element
from fluidlite.render.loops.elements import Elements

_MAX_INSTRUCTION_ULP = 0.5
POLYNOMIALS = frozenset(name for name, primitive in PRIMITIVES.items() if primitive.ulp[0] > _MAX_INSTRUCTION_ULP)
"""Scalar primitives with a larger error than a correctly rounded instruction: polynomials compute them."""
SLOW_OPS = POLYNOMIALS | {"div", "sqrt"}
"""Scalar primitives that take longer than a load."""


def is_expensive(x: Element) -> bool:
    """Whether an element itself evaluates a function."""
    return x.op == "random" or (x.op == "map" and x.params[0] in POLYNOMIALS)


def costs_functions(x: Element, e: Elements) -> bool:
    """Whether an element evaluates functions of loaded or reduced values."""
    if ("costs", x) not in e.facts:
        operands = () if x.op in ("reduce", "arg", "load", "number") else x.args
        e.facts["costs", x] = is_expensive(x) or any(costs_functions(arg, e) for arg in operands)
    return e.facts["costs", x]


def expensive_dependencies(roots: Iterable[Element], e: Elements) -> set[Element]:
    """The expensive elements that elements depend on, not counting those within reductions."""
    visited: set[Element] = set()
    pending = list(roots)
    while pending:
        x = pending.pop()
        if x not in visited and costs_functions(x, e):
            visited.add(x)
            pending.extend(x.args)
    return {x for x in visited if is_expensive(x)}
