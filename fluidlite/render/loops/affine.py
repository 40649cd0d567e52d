"""Numbers as polynomials: by which step an index goes along an axis, and which bounds conditions mean for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

from fluidlite.base.lru_cache import LRUCache
from fluidlite.expr.number import Condition, Number, number, product
from fluidlite.render.loops.indices import leaves_of
from fluidlite.render.loops.sizes import Sizes, alike, size_of

_Terms = dict[tuple[str, ...], tuple[int, tuple[Number, ...]]]
"""By the keys of its factors, how often a product is added."""


_known: LRUCache[_Terms] = LRUCache(4096, "polynomials")
_key = attrgetter("key")


def _terms(n: Number) -> _Terms:
    return _known.get(n.key, lambda: _expanded(n))


def _expanded(n: Number) -> _Terms:
    if n.op == "const" and n.whole:
        return {(): (int(n.value), ())} if n.value else {}
    if n.op in ("add", "sub"):
        return _sum(_terms(n.args[0]), _terms(n.args[1]), 1 if n.op == "add" else -1)
    if n.op == "neg":
        return _sum({}, _terms(n.args[0]), -1)
    if n.op == "mul":
        found: _Terms = {}
        for count, factors in _terms(n.args[0]).values():
            for times, others in _terms(n.args[1]).values():
                both = tuple(sorted((*factors, *others), key=_key))
                found = _sum(found, {tuple([each.key for each in both]): (count * times, both)}, 1)
        return found
    if n.op == "mod" and n.whole:  # so that it meets its quotient, and both are one again
        a, b = n.args
        return _sum(_terms(a), _terms(b * (a // b)), -1)
    return {(n.key,): (1, (n,))}


def _sum(a: _Terms, b: _Terms, sign: int) -> _Terms:
    found = dict(a)
    for key, (count, factors) in b.items():
        total = found.get(key, (0, ()))[0] + sign * count
        if total:
            found[key] = total, factors
        else:
            found.pop(key, None)
    return found


def _step(count: int, factors: tuple[Number, ...]) -> tuple[tuple[Number, ...], Number]:
    """Of a term the axes, and what a step along them is worth."""
    bound = tuple([each for each in factors if leaves_of(each)])
    return bound, product([each for each in factors if not leaves_of(each)]) * count


def _number(terms: _Terms) -> Number:
    total = number(0)
    for key in sorted(terms):
        count, factors = terms[key]
        total = total + product(factors) * count
    return total


def normal(n: Number, sized: Callable[[Number], Number]) -> Number:
    """An index as a sum of axes by steps, which do not depend on any."""
    terms = _terms(n)
    factors = [factor for _, each in terms.values() for factor in each]
    if any([factor.op not in ("axis", "element") and leaves_of(factor) for factor in factors]):
        return n
    return _steps(terms, sized)


def _steps(terms: _Terms, sized: Callable[[Number], Number]) -> Number:
    steps: dict[tuple[str, ...], tuple[tuple[Number, ...], Number]] = {}
    for count, factors in terms.values():
        bound, step = _step(count, factors)
        key = tuple([each.key for each in bound])
        steps[key] = bound, steps.get(key, ((), number(0)))[1] + step
    total = number(0)
    for key in sorted(steps):  # those of inner loops last
        bound, step = steps[key]
        total = total + product(bound) * sized(step)
    return total


def divided(
    n: Number, by: Number, values: Sizes, sizes: Mapping[str, int], sized: Callable[[Number], Number]
) -> tuple[Number, Number]:
    """Quotient and remainder of an index, without a division where the sizes of axes say both, and else of the rest."""
    divisor = size_of(by, values)
    whole: _Terms = {}
    rest: _Terms = {}
    most = 0
    for key, (count, factors) in _terms(n).items():
        bound, step = _step(count, factors)
        size = size_of(step, values)
        if len(bound) > 1 or any(each.op != "axis" for each in bound) or size < 0 or divisor <= 0:
            return n // by, n % by
        if size % divisor == 0:
            quotient = sized(step // by) if step.op != "const" else number(int(size // divisor))
            whole = _sum(whole, _terms(product(bound) * quotient), 1)
            continue
        rest[key] = count, factors
        most += size * (sizes[bound[0].value] - 1 if bound else 1)
    quotient, left = _steps(whole, sized), _steps(rest, sized)
    return (quotient, left) if most < divisor else (quotient + left // by, left % by)


def span_of(n: Number, values: Sizes, sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """The minimum and the maximum that an index can be in the call at hand; None if it is no sum of axes by steps."""
    least = most = 0
    for count, factors in _terms(n).values():
        bound, one = _step(count, factors)
        if len(bound) > 1 or any([each.op != "axis" or each.value not in sizes for each in bound]):
            return None
        step = size_of(one, values)
        end = step * (sizes[bound[0].value] - 1) if bound else step
        start = 0 if bound else step
        least, most = least + (start if start < end else end), most + (end if start < end else start)
    return least, most


def quotients_in(n: Number) -> Iterator[Number]:
    """The divisions of what is computed without any."""
    inner = [q for arg in n.args for q in quotients_in(arg)]
    if n.op in ("floordiv", "mod") and leaves_of(n) and not inner:
        yield n
    yield from inner


def axis_to_split(n: Number, by: Number, values: Sizes, sizes: Mapping[str, int]) -> tuple[str, Number] | None:
    """The axis which, taken as two, makes a division one of axes; and how long the inner one is."""
    if leaves_of(by):
        return None
    divisor, longest, name = size_of(by, values), 0, ""
    for count, factors in _terms(n).values():
        bound, one = _step(count, factors)
        step = size_of(one, values)
        if len(bound) > 1 or any([each.op != "axis" for each in bound]) or step < 0:
            return None
        if bound and divisor > 0 and step % divisor != 0 and step > longest:
            longest, name = step, bound[0].value
    if not name or name not in sizes or divisor % longest != 0:
        return None
    inner = divisor // longest
    if inner <= 1 or inner >= sizes[name] or sizes[name] % inner != 0:
        return None
    return name, number(int(inner)) if by.op == "const" else by // int(longest)


def step_of(n: Number, axis: str) -> Number | None:
    """How much a number grows from one index of an axis to the next; None if that differs."""
    found: _Terms = {}
    for count, factors in _terms(n).values():
        mine = [each for each in factors if _has(each, axis)]
        if len(mine) > 1 or (mine and mine[0].op != "axis"):
            return None
        if mine:
            rest = tuple(each for each in factors if each is not mine[0])
            found = _sum(found, {tuple([each.key for each in rest]): (count, rest)}, 1)
    return _number(found)


def step_is_one(n: Number, axis: str) -> bool:
    """Whether elements lie side by side along an axis."""
    step = step_of(n, axis)
    return step is not None and step.key == "1"


def _has(n: Number, axis: str) -> bool:
    return any([leaf.value == axis for leaf in leaves_of(n) if leaf.op == "axis"])


def same(a: Number, b: Number, values: Sizes) -> bool:
    """Whether two numbers are equal, whatever the axes are, and not by chance."""
    if a.key == b.key:
        return True
    if leaves_of(a) or leaves_of(b):
        return not _sum(_terms(a), _terms(b), -1)
    return alike(a, b, values)


def bound_of(condition: Condition, axis: str) -> tuple[Number, bool] | None:
    """The bound of an axis that a condition is, and whether it is one above, which is not reached; or None.

    A bound may be below 0 where any number below 0 means the same.
    """
    step = step_of(condition.a - condition.b, axis)
    if step is None or step.op != "const" or int(step.value) == 0:
        return None
    rest, slope, op = with_axes(condition.a - condition.b, {axis: number(0)}), int(step.value), condition.op
    if slope < 0:
        turned = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
        rest, slope, op = -rest, -slope, turned.get(op, op)
    if op in ("less", "greater_equal"):
        return (-rest + (slope - 1)) // slope, op == "less"
    if op in ("less_equal", "greater"):
        return (-rest + slope) // slope, op == "less_equal"
    return None


def with_axes(n: Number, values: Mapping[str, Number]) -> Number:
    """A number in which others stand for axes."""
    if n.op == "axis":
        return values.get(n.value, n)
    if not n.args or not any(_has(n, axis) for axis in values):
        return n
    return n.arithmetic(n.op, *(with_axes(arg, values) for arg in n.args))
