"""Which elements cost functions: polynomials, or the rounds of random numbers."""

from __future__ import annotations

from collections.abc import Iterable

from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.render.loops.element import Element
from fluidlite.render.loops.elements import Elements

_COSTLY = 0.5
POLYNOMIALS = frozenset(name for name, primitive in PRIMITIVES.items() if primitive.ulp[0] > _COSTLY)
"""Scalar primitives that are off by more ulp than this: polynomials compute them."""
SLOW = POLYNOMIALS | {"div", "sqrt"}
"""Scalar primitives that take longer than to read a number."""


def costly(x: Element) -> bool:
    """Whether an element itself costs a function."""
    return x.op == "random" or (x.op == "map" and x.params[0] in POLYNOMIALS)


def costs_functions(x: Element, e: Elements) -> bool:
    """Whether an element costs functions of what is loaded and of what was reduced."""
    if ("costs", x) not in e.facts:
        inner = () if x.op in ("reduce", "arg", "load", "number") else x.args
        e.facts["costs", x] = costly(x) or any(costs_functions(arg, e) for arg in inner)
    return e.facts["costs", x]


def functions_behind(roots: Iterable[Element], e: Elements) -> set[Element]:
    """What elements cost of functions, beside those of what was reduced."""
    found: set[Element] = set()
    pending = list(roots)
    while pending:
        x = pending.pop()
        if x not in found and costs_functions(x, e):
            found.add(x)
            pending.extend(x.args)
    return {x for x in found if costly(x)}
