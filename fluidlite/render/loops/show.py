"""Prints nests as readable pseudocode."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.expr.number import COMPARISONS, Condition, Number
from fluidlite.render.loops.elements import Axis, BufferKey, Element
from fluidlite.render.loops.nest import Nest

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%"}


def nest_text(nest: Nest) -> str:
    """The work-items of a nest, and for each store the loops and the expression."""
    items = " and ".join(_axis(axis) for axis in nest.items) or "one item"
    lines = [f"for each {items}:"]
    for store in nest.stores:
        indent = "  "
        for axis in store.loops:
            lines.append(f"{indent}{'in order ' if store.ordered else ''}for each {_axis(axis)}:")
            indent += "  "
        sign = "+=" if store.combine == "add" else "="
        where = f" where {_holds(store.conditions)}" if store.conditions else ""
        value = _element(store.value, nest)
        lines.append(f"{indent}{_source(store.target)}[{_number(store.offset, nest)}] {sign} {value}{where}")
    return "\n".join(lines)


def _axis(axis: Axis) -> str:
    begin, end = axis.bounds
    return f"{axis.name} from {_number(begin)} to {_number(end)}"


def _source(source: BufferKey) -> str:
    kind, *which = source
    if kind == "made":
        return f"made{which[0]}"
    return f"{which[0]}" if kind in ("in", "out") and which[1] == 0 else ".".join(map(str, which))


def _number(n: Number, nest: Nest | None = None) -> str:
    if n.op == "const":
        return str(n.value)
    if n.op == "element" and nest is not None:
        return _element(nest.elements.computed[n.value], nest)
    if not n.args:
        return str(n.value)
    parts = [f"({_number(arg, nest)})" if arg.op in _SIGNS else _number(arg, nest) for arg in n.args]
    if n.op in _SIGNS:
        return f"{parts[0]} {_SIGNS[n.op]} {parts[1]}"
    return f"{n.op}({', '.join(parts)})"


def _holds(conditions: Sequence[Condition]) -> str:
    return " and ".join(f"{_number(c.a)} {COMPARISONS[c.op]} {_number(c.b)}" for c in conditions)


def _element(x: Element, nest: Nest) -> str:
    args = [_element(arg, nest) for arg in x.args]
    if x.op == "load":
        return f"{_source(x.params[0])}[{_number(x.params[1], nest)}]"
    if x.op in ("number", "index"):
        return _number(x.params[0], nest)
    if x.op == "select":
        return f"({args[0]} if {_holds(x.params[0])} else {args[1]})"
    if x.op in ("reduce", "arg", "running"):
        axes = x.params[1] if x.op != "running" else (x.params[1],)
        label = x.params[0] if x.op == "reduce" else f"{x.op} {x.params[0]}"
        return f"{label}({args[0]} for {', '.join(axis.name for axis in axes)})"
    name = x.params[0] if x.op == "map" else x.dtype if x.op == "cast" else x.op
    if x.op == "map" and name in _SIGNS and len(args) == 2:
        return f"({args[0]} {_SIGNS[name]} {args[1]})"
    return f"{name}({', '.join(args)})"
