"""Generic sizes for a trace: two sizes are equal only if all calls of the trace have them equal, not by chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fluidlite.expr.number import Condition, Number

_FACTOR = 2**12 * 3**3 * 5**2 * 7**2
"""A number with many divisors: expressions divide sizes by divisors of it."""
_FIRST_MULTIPLE = 10_007
"""The first size is this multiple of the factor; the other sizes are every second multiple after it."""


def generic_sizes(names: Iterable[str], equal: Iterable[Condition]) -> dict[str, int]:
    """A size for each leaf: equal sizes for leaves that conditions equate, distinct ones for all others.

    ``names``: the leaves.
    ``equal``: equalities that hold; those with more than a leaf on either side may have no effect.
    """
    pairs = [pair for c in equal for pair in _pairs(c)]
    first: dict[str, str] = {}

    def representative(name: str) -> str:
        while name in first:
            name = first[name]
        return name

    for a, b in pairs:
        if a.op == b.op == "size" and representative(a.value) != representative(b.value):
            first[representative(a.value)] = representative(b.value)
    leaves = list(names)
    sizes = {name: _FACTOR * (_FIRST_MULTIPLE + 2 * k) for k, name in enumerate(leaves)}
    for a, b in pairs:
        for leaf, formula in ((a, b), (b, a)):
            if leaf.op == "size" and formula.op != "size":
                value = generic_value(formula, {name: sizes[representative(name)] for name in leaves})
                if value is not None and leaf.value in sizes:
                    sizes[representative(leaf.value)] = value
                    break
    return {name: sizes[representative(name)] for name in leaves}


def _pairs(equal: Condition) -> list[tuple[Number, Number]]:
    """Pairs of equal numbers. Equal products of equally many sizes are paired factor by factor: an operand and a result
    usually have the same dims; if they do not, the sizes of the call show it.
    """
    a, b = _factors(equal.a), _factors(equal.b)
    if len(a) == len(b) and all(n.op == "size" for n in (*a, *b)):
        return list(zip(a, b, strict=True))
    return [(equal.a, equal.b)]


def _factors(n: Number) -> list[Number]:
    """The factors of a product, sorted."""
    if n.op != "mul":
        return [n]
    return sorted((factor for arg in n.args for factor in _factors(arg)), key=lambda each: each.key)


def generic_value(n: Number, sizes: Mapping[str, int]) -> int | None:
    """The value of an integer at generic sizes; None if it depends on anything else."""
    for part in subexpressions(n):
        is_computable = part.value in sizes if part.op == "size" else part.op == "const" or bool(part.args)
        if not is_computable or part.op == "pow" or not part.whole:
            return None
    return int(n.evaluate(sizes))


def subexpressions(n: Number) -> Iterator[Number]:
    """A number and all its subexpressions."""
    yield n
    for arg in n.args:
        yield from subexpressions(arg)
