"""Affine index analysis: numbers as polynomials of axes, strides along an axis, bounds that conditions imply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

from fluidlite.base.lru_cache import LRUCache
from fluidlite.expr.number import Condition, Number, number, product
from fluidlite.render.loops.indices import leaves_of
from fluidlite.render.loops.sizes import Sizes, is_equal_size, size_of

MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
"""By comparison, the one with swapped operands; equal ones are omitted."""
_Terms = dict[tuple[str, ...], tuple[int, tuple[Number, ...]]]
"""A polynomial: by the keys of its factors, the coefficient and the factors of each monomial."""


_cache: LRUCache[_Terms] = LRUCache(4096, "polynomials")
_key = attrgetter("key")


def _terms(n: Number) -> _Terms:
    return _cache.get(n.key, lambda: _expanded(n))


def _expanded(n: Number) -> _Terms:
    if n.op == "const" and n.whole:
        return {(): (int(n.value), ())} if n.value else {}
    if n.op in ("add", "sub"):
        return _sum(_terms(n.args[0]), _terms(n.args[1]), 1 if n.op == "add" else -1)
    if n.op == "neg":
        return _sum({}, _terms(n.args[0]), -1)
    if n.op == "mul":
        terms: _Terms = {}
        for count, factors in _terms(n.args[0]).values():
            for other_count, other_factors in _terms(n.args[1]).values():
                both = tuple(sorted((*factors, *other_factors), key=_key))
                terms = _sum(terms, {tuple([each.key for each in both]): (count * other_count, both)}, 1)
        return terms
    if n.op == "mod" and n.whole:  # a - b * (a // b), so that it cancels against the quotient
        a, b = n.args
        return _sum(_terms(a), _terms(b * (a // b)), -1)
    return {(n.key,): (1, (n,))}


def _sum(a: _Terms, b: _Terms, sign: int) -> _Terms:
    total_terms = dict(a)
    for key, (count, factors) in b.items():
        total = total_terms.get(key, (0, ()))[0] + sign * count
        if total:
            total_terms[key] = total, factors
        else:
            total_terms.pop(key, None)
    return total_terms


def _stride(count: int, factors: tuple[Number, ...]) -> tuple[tuple[Number, ...], Number]:
    """Split a monomial into its axes and computed indices, and the stride along them."""
    axes = tuple([each for each in factors if leaves_of(each)])
    return axes, product([each for each in factors if not leaves_of(each)]) * count


def _number(terms: _Terms) -> Number:
    total = number(0)
    for key in sorted(terms):
        count, factors = terms[key]
        total = total + product(factors) * count
    return total


def normal(n: Number, sized: Callable[[Number], Number]) -> Number:
    """Normalize an index to a sum of axes times strides that do not depend on axes, if it is affine."""
    terms = _terms(n)
    factors = [factor for _, term_factors in terms.values() for factor in term_factors]
    if any([factor.op not in ("axis", "element") and leaves_of(factor) for factor in factors]):
        return n
    return _collected(terms, sized)


def _collected(terms: _Terms, sized: Callable[[Number], Number]) -> Number:
    steps: dict[tuple[str, ...], tuple[tuple[Number, ...], Number]] = {}
    for count, factors in terms.values():
        axes, stride = _stride(count, factors)
        key = tuple([each.key for each in axes])
        steps[key] = axes, steps.get(key, ((), number(0)))[1] + stride
    total = number(0)
    for key in sorted(steps):  # inner axes last
        axes, stride = steps[key]
        total = total + product(axes) * sized(stride)
    return total


def divided(
    n: Number, by: Number, values: Sizes, sizes: Mapping[str, int], sized: Callable[[Number], Number]
) -> tuple[Number, Number]:
    """Quotient and remainder of an index; only terms that the divisor does not divide may need a division."""
    divisor = size_of(by, values)
    divisible: _Terms = {}
    remainder_terms: _Terms = {}
    maximum = 0
    for key, (count, factors) in _terms(n).items():
        axes, stride = _stride(count, factors)
        stride_value = size_of(stride, values)
        if len(axes) > 1 or any(each.op != "axis" for each in axes) or stride_value < 0 or divisor <= 0:
            return n // by, n % by
        if stride_value % divisor == 0:
            quotient = sized(stride // by) if stride.op != "const" else number(int(stride_value // divisor))
            divisible = _sum(divisible, _terms(product(axes) * quotient), 1)
            continue
        remainder_terms[key] = count, factors
        maximum += stride_value * (sizes[axes[0].value] - 1 if axes else 1)
    quotient, remainder = _collected(divisible, sized), _collected(remainder_terms, sized)
    return (quotient, remainder) if maximum < divisor else (quotient + remainder // by, remainder % by)


def span_of(n: Number, values: Sizes, sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """The minimum and the maximum of an index in the call; None if it is not affine."""
    minimum = maximum = 0
    for count, factors in _terms(n).values():
        axes, stride = _stride(count, factors)
        if len(axes) > 1 or any([each.op != "axis" or each.value not in sizes for each in axes]):
            return None
        stride_value = size_of(stride, values)
        end = stride_value * (sizes[axes[0].value] - 1) if axes else stride_value
        start = 0 if axes else stride_value
        minimum, maximum = minimum + (start if start < end else end), maximum + (end if start < end else start)
    return minimum, maximum


def quotients_in(n: Number) -> Iterator[Number]:
    """The innermost divisions and remainders in a number."""
    inner = [q for arg in n.args for q in quotients_in(arg)]
    if n.op in ("floordiv", "mod") and leaves_of(n) and not inner:
        yield n
    yield from inner


def axis_to_split(n: Number, by: Number, values: Sizes, sizes: Mapping[str, int]) -> tuple[str, Number] | None:
    """The axis whose split removes a division, and the length of the inner axis; None if there is none."""
    if leaves_of(by):
        return None
    divisor, longest, name = size_of(by, values), 0, ""
    for count, factors in _terms(n).values():
        axes, stride = _stride(count, factors)
        stride_value = size_of(stride, values)
        if len(axes) > 1 or any([each.op != "axis" for each in axes]) or stride_value < 0:
            return None
        if axes and divisor > 0 and stride_value % divisor != 0 and stride_value > longest:
            longest, name = stride_value, axes[0].value
    if not name or name not in sizes or divisor % longest != 0:
        return None
    inner = divisor // longest
    if inner <= 1 or inner >= sizes[name] or sizes[name] % inner != 0:
        return None
    return name, number(int(inner)) if by.op == "const" else by // int(longest)


def stride_of(n: Number, axis: str) -> Number | None:
    """The stride of a number along an axis; None if it is not constant."""
    terms: _Terms = {}
    for count, factors in _terms(n).values():
        axis_factors = [each for each in factors if _depends_on(each, axis)]
        if len(axis_factors) > 1 or (axis_factors and axis_factors[0].op != "axis"):
            return None
        if axis_factors:
            other_factors = tuple(each for each in factors if each is not axis_factors[0])
            terms = _sum(terms, {tuple([each.key for each in other_factors]): (count, other_factors)}, 1)
    return _number(terms)


def is_contiguous(n: Number, axis: str) -> bool:
    """Whether an index is contiguous along an axis."""
    step = stride_of(n, axis)
    return step is not None and step.key == "1"


def _depends_on(n: Number, axis: str) -> bool:
    return any([leaf.value == axis for leaf in leaves_of(n) if leaf.op == "axis"])


def is_equal_number(a: Number, b: Number, values: Sizes) -> bool:
    """Whether two numbers are equal for every value of the axes, and not only by coincidence of sizes."""
    if a.key == b.key:
        return True
    if leaves_of(a) or leaves_of(b):
        return not _sum(_terms(a), _terms(b), -1)
    return is_equal_size(a, b, values)


def bound_of(condition: Condition, axis: str) -> tuple[Number, bool] | None:
    """The bound of an axis that a condition implies, and whether it is an upper one (excluded); or None.

    A bound may be negative, which means the same as 0.
    """
    step = stride_of(condition.a - condition.b, axis)
    if step is None or step.op != "const" or int(step.value) == 0:
        return None
    rest, slope, op = with_axes(condition.a - condition.b, {axis: number(0)}), int(step.value), condition.op
    if slope < 0:
        rest, slope, op = -rest, -slope, MIRRORED.get(op, op)
    if op in ("less", "greater_equal"):
        return (-rest + (slope - 1)) // slope, op == "less"
    if op in ("less_equal", "greater"):
        return (-rest + slope) // slope, op == "less_equal"
    return None


def with_axes(n: Number, values: Mapping[str, Number]) -> Number:
    """Substitute numbers for axes."""
    if n.op == "axis":
        return values.get(n.value, n)
    if not n.args or not any(_depends_on(n, axis) for axis in values):
        return n
    return n.arithmetic(n.op, *(with_axes(arg, values) for arg in n.args))
