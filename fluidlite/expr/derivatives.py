"""Derivatives of results with respect to sources: the rules of primitives, applied from the results back."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.derivative_rules import RESULTS, RULES, SEVERAL, no_derivative
from fluidlite.expr.functions import (
    where,
)
from fluidlite.expr.number import number
from fluidlite.expr.tensor import Tensor, broadcast_to, ordered, wide
from fluidlite.expr.tracing import current
from fluidlite.expr.views import concat


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
            pairs: Iterable[tuple[Tensor, Tensor | None]] = zip(x.args, SEVERAL[x.op](x, parts[x]), strict=True)
        else:
            given = RULES[x.op](x, d) if x.op in RULES else no_derivative(x)
            pairs = zip(x.args, given, strict=True)
            if saved is not None and x in saved:
                pairs = of_result(x, d) or pairs
        for arg, part in pairs:
            if part is not None and arg in needed:
                add(arg, part)
    return [joined(found[x]) if x in found else None for x in sources]


def of_result(x: Tensor, d: Tensor) -> Iterable[tuple[Tensor, Tensor | None]] | None:
    """Derivatives that read the result in place of its operands: of a logistic function, and of a limit; else None."""
    if x.op != "map" or len(x.args) != 2:
        return None
    a, b = x.args
    if (
        x.params[0] == "div"
        and _is_number(a, 1)
        and b.op == "map"
        and b.params[0] == "add"
        and _is_number(b.args[0], 1)
    ):
        power = b.args[1]
        turned = power.args[0] if power.op == "map" and power.params[0] == "exp" else power
        if turned.op == "map" and turned.params[0] == "neg":
            return [(turned.args[0], d * x * (1 - x))]
    if x.params[0] == "maximum" and b.op == "number":
        return [(a, where(x > b, d, 0))]
    if x.params[0] == "minimum" and b.op == "number":
        return [(a, where(x < b, d, 0))]
    return None


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
