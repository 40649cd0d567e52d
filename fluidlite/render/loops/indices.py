"""Index arithmetic: the axes of loops are numbers, as sizes are, and where an element lies is computed of both."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.expr.number import Condition, Number, number, product

Index = tuple[Number, ...]
Conditions = tuple[Condition, ...]


def axis_leaf(name: str) -> Number:
    """The number that an axis of a loop is: an integer of 0 or more, and less than the size of the axis."""
    return Number("axis", (), name)


def element_leaf(name: str) -> Number:
    """An integer that an element of a tensor holds: an index that was computed."""
    return Number("element", (), name)


def leaves_of(n: Number) -> list[Number]:
    """The axes and elements that a number is computed of."""
    found: dict[str, Number] = {}
    pending = [n]
    while pending:
        one = pending.pop()
        if one.op in ("axis", "element"):
            found[one.key] = one
        pending.extend(one.args)
    return list(found.values())


def linear(index: Sequence[Number], dims: Sequence[Number]) -> Number:
    """Where an element lies among all, the last axis first."""
    total = number(0)
    for i, d in zip(index, dims, strict=True):
        total = total * d + i
    return total


def _factors(dims: Sequence[Number]) -> tuple[int, tuple[str, ...]]:
    """What a product of dims is, whatever their order: numbers that are known, and the others by their keys."""
    known, others = 1, []
    pending = list(dims)
    while pending:
        one = pending.pop()
        if one.op == "const":
            known *= int(one.value)
        elif one.op == "mul":
            pending.extend(one.args)
        else:
            others.append(one.key)
    return known, tuple(sorted(others))


def through_reshape(index: Index, dims: Sequence[Number], source: Sequence[Number]) -> Index:
    """The index in ``source`` dims of what is at ``index`` in ``dims``, which have as many elements.

    Axes are taken together no further than their products are equal, so that those which stay cost nothing.
    """
    found: list[Number] = []
    here, there = 0, 0
    while there < len(source) or here < len(dims):
        mine, theirs = here, there
        here, there = min(here + 1, len(dims)), min(there + 1, len(source))
        while (here < len(dims) or there < len(source)) and _factors(dims[mine:here]) != _factors(source[theirs:there]):
            few = here - mine <= there - theirs
            if there == len(source) or (few and here < len(dims)):
                here += 1
            else:
                there += 1
        found += _split(linear(index[mine:here], dims[mine:here]), source[theirs:there], index[mine:here])
    return tuple(found)


def _split(at: Number, dims: Sequence[Number], index: Sequence[Number]) -> list[Number]:
    """A linear index as one for each of dims."""
    if len(dims) == len(index) == 1:
        return list(index)
    found: list[Number] = []
    for k, d in enumerate(dims):
        if d.key == "1":
            found.append(number(0))
            continue
        after = product(dims[k + 1 :])
        part = at // after
        found.append(part if all(each.key == "1" for each in dims[:k]) else part % d)
    return found
