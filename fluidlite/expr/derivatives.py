"""Reverse-mode differentiation: applies the rules of primitives from the results back to the sources."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.derivative_rules import MULTI_RESULT_RULES, RESULT_PRIMITIVES, RULES, no_derivative
from fluidlite.expr.functions import where
from fluidlite.expr.number import number
from fluidlite.expr.tensor import Tensor, broadcast_to, topological_order, wide
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
    """The vector-Jacobian products of the results with the seeds, for each source.

    ``seeds``: the derivative of each result, with its dims; None: zero.
    ``sources``: subexpressions of the results.
    ``saved``: tensors that are available in memory; derivatives are written in terms of them where possible.
    A derivative is None where no derivative flows from the results to the source.
    Raises GradientError if a primitive on a path has no derivative.
    """
    gradients: dict[Tensor, Tensor] = {}
    parts: dict[Tensor, dict[int, Tensor]] = {}

    def add(x: Tensor, more: Tensor) -> None:
        total = gradients.get(x)
        gradients[x] = more if total is None else total + more

    order = topological_order(results)
    needed = _dependent(order, sources)
    for result, seed in zip(results, seeds, strict=True):
        if seed is not None and result in needed:
            add(result, broadcast_to(wide(seed), result.dims))
    ends = set(sources)
    for x in reversed(order):
        if x not in gradients or (x in ends and not any(arg in needed for arg in x.args)) or not x.args:
            continue
        d = joined(gradients[x])
        if x.op in RESULT_PRIMITIVES:
            parts.setdefault(x.args[0], {})[x.params[0]] = gradients[x.args[0]] = d
            continue
        if x.op in MULTI_RESULT_RULES:
            pairs: Pairs = zip(x.args, MULTI_RESULT_RULES[x.op](x, parts[x]), strict=True)
        else:
            adjoints = RULES[x.op](x, d) if x.op in RULES else no_derivative(x)
            pairs = zip(x.args, adjoints, strict=True)
            pairs = _of_logistic(x, d) or (saved is not None and x in saved and _of_limit(x, d)) or pairs
        for arg, part in pairs:
            if part is not None and arg in needed:
                add(arg, part)
    return [joined(gradients[x]) if x in gradients else None for x in sources]


def _of_logistic(x: Tensor, d: Tensor) -> Pairs | None:
    """The derivatives of ``a / (1 + exp(p))`` in terms of the result, since ``exp(p)`` may be infinite; else None."""
    if not _is_map(x, "div") or not _is_map(x.args[1], "add"):
        return None
    a, b = x.args
    one, power = b.args
    if not _is_number(one, 1) or not _is_map(power, "exp"):
        return None
    part = x if _is_number(a, 1) else 1 / b
    return [(a, d / b), (power.args[0], -d * x * (1 - part))]


def _of_limit(x: Tensor, d: Tensor) -> Pairs | None:
    """The derivatives of a maximum or minimum with a number, in terms of the saved result; else None."""
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
    """A sum of zero-padded parts that are adjacent along an axis, as their concatenation; else the tensor itself."""
    parts, pending = list[Tensor](), [x]
    while pending:
        part = pending.pop()
        if part.op == "map" and part.params[0] == "add":
            pending += part.args
        else:
            parts.append(part)
    if len(parts) < 2 or any(part.op != "pad" or not _is_number(part.args[1], 0) for part in parts):
        return x
    cut = {
        axis
        for part in parts
        for axis in range(x.rank)
        if any(number(n[axis]).key != "0" for n in part.params[:2]) or number(part.params[2][axis]).key != "0"
    }
    if len(cut) != 1:
        return x
    (axis,) = cut
    values = current().values
    lows = [number(part.params[0][axis]).evaluate(values) for part in parts]
    if None in lows:
        return x
    parts = [part for _, part in sorted(zip(lows, parts, strict=True), key=lambda pair: pair[0])]
    at = number(0)
    for part in parts:
        if number(part.params[2][axis]).key != "0" or not current().assume(number(part.params[0][axis]) == at):
            return x
        at = at + part.args[0].dims[axis]
    return concat([part.args[0] for part in parts], axis) if current().assume(at == x.dims[axis]) else x


def _dependent(order: Sequence[Tensor], sources: Sequence[Tensor]) -> set[Tensor]:
    """The floating-point tensors that depend on the sources."""
    dependent = {x for x in sources if x.dtype in ALL_FLOATS}
    for x in order:
        if x.op != "stop" and x.dtype in ALL_FLOATS and any(arg in dependent for arg in x.args):
            dependent.add(x)
    return dependent
