"""Derivatives of results with respect to sources: the rules of primitives, applied from the results back."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.derivative_rules import RESULTS, RULES, SEVERAL, no_derivative
from fluidlite.expr.functions import where
from fluidlite.expr.number import number
from fluidlite.expr.tensor import Tensor, broadcast_to, ordered, wide
from fluidlite.expr.tracing import current
from fluidlite.expr.views import concat

Pairs = Iterable["tuple[Tensor, Tensor | None]"]
"""Tensors, each with a part of its derivative."""


def derivatives(
    results: Sequence[Tensor],
    seeds: Sequence[Tensor | None],
    sources: Sequence[Tensor],
    saved: Container[Tensor] | None = None,
) -> list[Tensor | None]:
    """The derivatives of the results, weighed by the seeds, with respect to the sources.

    ``seeds``: the derivative of each result, of its dims; None: zero.
    ``sources``: tensors of which the results were made.
    ``saved``: what will be there: a derivative that can be said with it reads nothing else.
    A derivative is None where the results do not depend on the source by derivatives.
    Raises GradientError if a primitive on a path has no derivative.
    """
    found: dict[Tensor, Tensor] = {}
    parts: dict[Tensor, dict[int, Tensor]] = {}

    def add(x: Tensor, more: Tensor) -> None:
        before = found.get(x)
        found[x] = more if before is None else before + more

    order = ordered(results)
    needed = _depending(order, sources)
    for result, seed in zip(results, seeds, strict=True):
        if seed is not None and result in needed:
            add(result, broadcast_to(wide(seed), result.dims))
    ends = set(sources)
    for x in reversed(order):
        if x not in found or (x in ends and not any(arg in needed for arg in x.args)) or not x.args:
            continue
        d = joined(found[x])
        if x.op in RESULTS:
            parts.setdefault(x.args[0], {})[x.params[0]] = found[x.args[0]] = d
            continue
        if x.op in SEVERAL:
            pairs: Pairs = zip(x.args, SEVERAL[x.op](x, parts[x]), strict=True)
        else:
            given = RULES[x.op](x, d) if x.op in RULES else no_derivative(x)
            pairs = zip(x.args, given, strict=True)
            pairs = _of_logistic(x, d) or (saved is not None and x in saved and _of_limit(x, d)) or pairs
        for arg, part in pairs:
            if part is not None and arg in needed:
                add(arg, part)
    return [joined(found[x]) if x in found else None for x in sources]


def _of_logistic(x: Tensor, d: Tensor) -> Pairs | None:
    """The derivatives of ``a / (1 + exp(p))`` by the result, since the exponential may be infinite; else None."""
    if not _is_map(x, "div") or not _is_map(x.args[1], "add"):
        return None
    a, b = x.args
    one, power = b.args
    if not _is_number(one, 1) or not _is_map(power, "exp"):
        return None
    part = x if _is_number(a, 1) else 1 / b
    return [(a, d / b), (power.args[0], -d * x * (1 - part))]


def _of_limit(x: Tensor, d: Tensor) -> Pairs | None:
    """The derivatives of a limit by the result, where it is there; else None."""
    if _is_map(x, "maximum") and x.args[1].op == "number":
        return [(x.args[0], where(x > x.args[1], d, 0))]
    if _is_map(x, "minimum") and x.args[1].op == "number":
        return [(x.args[0], where(x < x.args[1], d, 0))]
    return None


def _is_map(x: Tensor, name: str) -> bool:
    return x.op == "map" and x.params[0] == name


def _is_number(x: Tensor, value: int) -> bool:
    return x.op == "number" and x.params[0].op == "const" and x.params[0].value == value


def joined(x: Tensor) -> Tensor:
    """A sum of parts that lie beside each other, each with zeros around it, as their concatenation."""
    parts, pending = list[Tensor](), [x]
    while pending:
        one = pending.pop()
        if one.op == "map" and one.params[0] == "add":
            pending += one.args
        else:
            parts.append(one)
    if len(parts) < 2 or any(one.op != "pad" or not _is_number(one.args[1], 0) for one in parts):
        return x
    cut = {
        axis
        for one in parts
        for axis in range(x.rank)
        if any(number(n[axis]).key != "0" for n in one.params[:2]) or number(one.params[2][axis]).key != "0"
    }
    if len(cut) != 1:
        return x
    (axis,) = cut
    known = current().values
    lows = [number(one.params[0][axis]).evaluate(known) for one in parts]
    if None in lows:
        return x
    parts = [one for _, one in sorted(zip(lows, parts, strict=True), key=lambda pair: pair[0])]
    at = number(0)
    for one in parts:
        if number(one.params[2][axis]).key != "0" or not current().assume(number(one.params[0][axis]) == at):
            return x
        at = at + one.args[0].dims[axis]
    return concat([one.args[0] for one in parts], axis) if current().assume(at == x.dims[axis]) else x


def _depending(order: Sequence[Tensor], sources: Sequence[Tensor]) -> set[Tensor]:
    """The floating tensors that depend on the sources."""
    found = {x for x in sources if x.dtype in ALL_FLOATS}
    for x in order:
        if x.op != "stop" and x.dtype in ALL_FLOATS and any(arg in found for arg in x.args):
            found.add(x)
    return found
