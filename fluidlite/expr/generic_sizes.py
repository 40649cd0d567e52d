"""Sizes at which only that is equal which all calls of a trace have equal: those at hand may be so by chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fluidlite.expr.number import Condition, Number

_FACTOR = 2**12 * 3**3 * 5**2 * 7**2
"""Sizes are usually divided by one of its divisors."""
_FIRST = 10_007
"""The first size is so many times that factor; the others are the next odd multiples of it."""


def generic_sizes(names: Iterable[str], equal: Iterable[Condition]) -> dict[str, int]:
    """A size for each leaf: equal ones where conditions say so of leaves, and others for all the rest.

    ``names``: the leaves.
    ``equal``: equalities that hold; what they say of more than a leaf on one side may be missed.
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
    own = {name: _FACTOR * (_FIRST + 2 * k) for k, name in enumerate(leaves)}
    for a, b in pairs:
        for leaf, made in ((a, b), (b, a)):
            if leaf.op == "size" and made.op != "size":
                value = generic(made, {name: own[representative(name)] for name in leaves})
                if value is not None and leaf.value in own:
                    own[representative(leaf.value)] = value
                    break
    return {name: own[representative(name)] for name in leaves}


def _pairs(equal: Condition) -> list[tuple[Number, Number]]:
    """Numbers that are equal; of equal products of as many sizes each is taken to be the one at its place: so it is
    where an operand and a result have the same dims, and where they have others, those at hand will say so.
    """
    a, b = _factors(equal.a), _factors(equal.b)
    if len(a) == len(b) and all(n.op == "size" for n in (*a, *b)):
        return list(zip(a, b, strict=True))
    return [(equal.a, equal.b)]


def _factors(n: Number) -> list[Number]:
    """Of which numbers one is the product, in one order."""
    if n.op != "mul":
        return [n]
    return sorted((factor for arg in n.args for factor in _factors(arg)), key=lambda each: each.key)


def generic(n: Number, sizes: Mapping[str, int]) -> int | None:
    """An integer at generic sizes; None if it is computed of anything else."""
    for one in parts_of(n):
        known = one.value in sizes if one.op == "size" else one.op == "const" or bool(one.args)
        if not known or one.op == "pow" or not one.whole:
            return None
    return int(n.evaluate(sizes))


def parts_of(n: Number) -> Iterator[Number]:
    """A number, and all that it is computed of."""
    yield n
    for arg in n.args:
        yield from parts_of(arg)
