"""Fits the polynomials of fluidlite/codegen/polynomials.py, by Remez' exchange in 60 digits.

    python tools/minimax.py [NAME ...]

prints each as it stands there, with its largest error. Those of float32 are rounded one after the other, the lowest
first, and those that follow are fitted anew, so that they make up for it.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal, getcontext
from typing import NamedTuple

getcontext().prec = 60
POINTS = 800
ROUNDS = 30
Function = Callable[[Decimal], Decimal]
ONE = Decimal(1)
LN2 = Decimal(2).ln()
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
ROOT2 = Decimal(2).sqrt()


def series(terms: Callable[[int], Decimal], z: Decimal) -> Decimal:
    """The sum of terms(k) z**k, until they no longer count."""
    total, power, k = Decimal(0), ONE, 0
    while True:
        term = terms(k) * power
        total += term
        if abs(term) < Decimal("1e-58"):
            return total
        power, k = power * z, k + 1


def expm1_rest(r: Decimal) -> Decimal:
    """(exp(r) - 1 - r) / r**2."""
    return series(lambda k: ONE / math.factorial(k + 2), r)


def expm1(r: Decimal) -> Decimal:
    return r * series(lambda k: ONE / math.factorial(k + 1), r)


def exp(r: Decimal) -> Decimal:
    return 1 + expm1(r)


def atanh_rest(z: Decimal) -> Decimal:
    """(atanh(s) / s - 1) / z, z = s * s."""
    return series(lambda k: ONE / (2 * k + 3), z)


def atanh_later(z: Decimal) -> Decimal:
    """(atanh(s) / s - 1 - z / 3) / z**2, z = s * s."""
    return series(lambda k: ONE / (2 * k + 5), z)


def normal_tail(a: Decimal) -> Decimal:
    """exp(a * a / 2) times the normal distribution function of -a."""
    if a < 4:
        odd = series(lambda k: ONE / math.prod(range(1, 2 * k + 2, 2)), a * a)
        return (a * a / 2).exp() / 2 - a * odd / (2 * PI).sqrt()
    fraction = a  # Laplace's continued fraction
    for k in range(400, 0, -1):
        fraction = a + Decimal(k) / fraction
    return 1 / (fraction * (2 * PI).sqrt())


def atan_rest(z: Decimal) -> Decimal:
    """(atan(t) / t - 1) / z, z = t * t."""
    return series(lambda k: -(ONE if k % 2 == 0 else -ONE) / (2 * k + 3), z)


def asin_rest(z: Decimal) -> Decimal:
    """(asin(s) / s - 1) / z, z = s * s."""
    return series(lambda k: Decimal(math.comb(2 * k + 2, k + 1)) / (4 ** (k + 1) * (2 * k + 3)), z)


def sine_rest(z: Decimal) -> Decimal:
    """(sin(r) / r - 1) / z, z = r * r."""
    return series(lambda k: -(ONE if k % 2 == 0 else -ONE) / math.factorial(2 * k + 3), z)


def cosine_rest(z: Decimal) -> Decimal:
    """(cos(r) - 1 + z / 2) / z**2, z = r * r."""
    return series(lambda k: (ONE if k % 2 == 0 else -ONE) / math.factorial(2 * k + 4), z)


class Fit(NamedTuple):
    """What is fitted, where, with what weight, and by how many coefficients of float32 and of float64."""

    function: Function
    low: Decimal
    high: Decimal
    weight: Function
    single: int
    double: int
    anew: bool = True
    """Whether those that follow a rounded one are fitted anew; around 0 they cannot make up for it."""


EIGHTH = (ROOT2 - 1) ** 2
"""The square of tan(pi / 8)."""
QUARTER = Decimal("0.61685027506808491367715568749226")
"""The square of pi / 4."""
THIRD = ((ROOT2 - 1) / (ROOT2 + 1)) ** 2
"""The square of (m - 1) / (m + 1), m = sqrt(2)."""
WIDER = Decimal("1.0001")
"""Arguments are reduced by rounded numbers, so they may lie a little farther out."""

FITS = {
    "EXP": Fit(expm1_rest, -LN2 / 2 * WIDER, LN2 / 2 * WIDER, lambda r: r * r / exp(r), 5, 10),
    "EXPM1": Fit(expm1_rest, -LN2 / 2 * WIDER, LN2 / 2 * WIDER, lambda r: r * r / expm1(r) if r else Decimal(0), 6, 11),
    "ATANH": Fit(atanh_rest, Decimal(0), THIRD * WIDER, lambda z: z, 3, 7),
    "ATANH_REST": Fit(atanh_later, Decimal(0), THIRD * WIDER, lambda z: z * z, 3, 9),
    "ATAN": Fit(atan_rest, Decimal(0), EIGHTH * WIDER, lambda z: z, 5, 11),
    "ASIN": Fit(asin_rest, Decimal(0), Decimal("0.25") * WIDER, lambda z: z, 5, 12),
    "SINE": Fit(sine_rest, Decimal(0), QUARTER * WIDER, lambda z: z, 3, 6),
    "COSINE": Fit(cosine_rest, Decimal(0), QUARTER * WIDER, lambda z: z * z, 3, 6),
}


def exp2(r: Decimal) -> Decimal:
    return (r * LN2).exp()


def normal_power(y: Decimal) -> Decimal:
    """log2 of twice the normal distribution function of -y, over y."""
    return ((normal_tail(y).ln() - y * y / 2) / LN2 + 1) / y


def normal_tolerance(y: Decimal) -> Decimal:
    """How far y times that function may be off, over it: as a rounded y changes it, and 3e-13 as a number."""
    size = y * normal_tail(y) * (-y * y / 2).exp()
    return min(Decimal("1e-7") * (1 + y * y / 4) + (Decimal("3e-13") / size if size else 0), ONE)


SINGLES = {
    "EXP2_SINGLE": Fit(exp2, Decimal("-0.5"), Decimal("0.5"), lambda r: 1 / exp2(r), 6, 0, anew=False),
    "NORMAL_POWER": Fit(normal_power, Decimal(0), Decimal("12.8"), lambda y: y * LN2 / normal_tolerance(y), 11, 0),
}
"""Of float32 alone."""


def solve(rows: list[list[Decimal]]) -> list[Decimal]:
    size = len(rows)
    for k in range(size):
        pivot = max(range(k, size), key=lambda i: abs(rows[i][k]))
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [entry / rows[k][k] for entry in rows[k]]
        for i in range(size):
            if i != k and rows[i][k]:
                factor = rows[i][k]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return [row[-1] for row in rows]


def extremes(errors: Sequence[Decimal], most: int) -> list[int]:
    """Where the errors are largest: among neighbours of one sign, and so often at most."""
    groups: list[int] = []
    for i, error in enumerate(errors):
        if groups and (error < 0) == (errors[groups[-1]] < 0):
            groups[-1] = max(groups[-1], i, key=lambda j: abs(errors[j]))
        else:
            groups.append(i)
    while len(groups) > most:
        groups.pop(0 if abs(errors[groups[0]]) < abs(errors[groups[-1]]) else -1)
    return groups


def remez(
    points: Sequence[Decimal], wanted: Sequence[Decimal], weights: Sequence[Decimal], low: int, count: int
) -> list[Decimal]:
    """Coefficients of ``count`` powers from ``low``, whose largest weighted error at the points is least."""
    at = [round(i * (len(points) - 1) / count) for i in range(count + 1)]
    found: list[Decimal] = []
    for _ in range(ROUNDS):
        rows = [
            [*(points[i] ** (low + k) * weights[i] for k in range(count)), Decimal((-1) ** n), wanted[i] * weights[i]]
            for n, i in enumerate(at)
        ]
        *found, level = solve(rows)
        errors = [
            (sum((c * x ** (low + k) for k, c in enumerate(found)), Decimal(0)) - g) * w
            for x, g, w in zip(points, wanted, weights, strict=True)
        ]
        groups = extremes(errors, count + 1)
        if len(groups) < count + 1 or groups == at or max(map(abs, errors)) < abs(level) * Decimal("1.001"):
            break
        at = groups
    return found


def rounded(value: Decimal, single: bool) -> Decimal:
    """The nearest number of float32, or float64."""
    number = float(value)
    return Decimal(struct.unpack("<f", struct.pack("<f", number))[0] if single else number)


def fit(what: Fit, single: bool) -> tuple[list[Decimal], Decimal]:
    """Coefficients, and the largest error."""
    count = what.single if single else what.double
    middle, half = (what.low + what.high) / 2, (what.high - what.low) / 2
    points = [middle - half * Decimal(math.cos(math.pi * (k + 0.5) / POINTS)) for k in range(POINTS)]
    exact = [what.function(x) for x in points]
    weights = [what.weight(x) for x in points]
    first = remez(points, exact, weights, 0, count)
    left, done = list(exact), list[Decimal]()
    for k in range(count):
        best = remez(points, left, weights, k, count - k)[0] if single and what.anew else first[k]
        done.append(rounded(best, single))
        left = [g - done[k] * x**k for g, x in zip(left, points, strict=True)]
    return done, max(abs(g * w) for g, w in zip(left, weights, strict=True))


class Fraction(NamedTuple):
    """What a fraction of polynomials fits from 0 on: where it ends and the degree above, below one more, of each type.

    The polynomial below begins with 1, and the weight is one over the function.
    """

    function: Function
    ends: tuple[Decimal, Decimal]
    degrees: tuple[int, int]


FRACTIONS = {"NORMAL_TAIL": Fraction(normal_tail, (Decimal("14.5"), Decimal(39)), (4, 10))}


def polynomial(coefficients: Sequence[Decimal], x: Decimal) -> Decimal:
    """Its value, the lowest power first."""
    return sum((c * x**k for k, c in enumerate(coefficients)), Decimal(0))


def fit_fraction(what: Fraction, single: bool) -> tuple[list[Decimal], list[Decimal], Decimal]:
    """Coefficients above and below, rounded, and the largest error.

    At as many points as there are unknown numbers, P - g Q = level g Q in turns of the sign; Q of the right side is the
    one found before.
    """
    end, degree = what.ends[not single], what.degrees[not single]
    count = 2 * degree + 2
    nodes = [Decimal(math.cos(math.pi * (k + 0.5) / POINTS)) for k in range(POINTS)]
    reach = (end - 3) / (end + 3)  # more points near 0
    moved = [(reach - 1) / 2 - (reach + 1) / 2 * u for u in nodes]
    points = [3 * (1 + q) / (1 - q) for q in moved]
    exact = [what.function(x) for x in points]
    at = [round(i * (POINTS - 1) / count) for i in range(count + 1)]
    above, below = [ONE], [ONE]
    for _ in range(ROUNDS):
        rows = []
        for turn, i in enumerate(at):
            x, g = points[i], exact[i]
            level = (-1) ** turn * g * polynomial(below, x)
            rows.append([*(x**k for k in range(degree + 1)), *(-g * x**k for k in range(1, degree + 2)), level, g])
        found = solve(rows)
        above, below = found[: degree + 1], [ONE, *found[degree + 1 : count]]
        errors = [polynomial(above, x) / polynomial(below, x) / g - 1 for x, g in zip(points, exact, strict=True)]
        groups = extremes(errors, count + 1)
        if len(groups) < count + 1 or max(map(abs, errors)) < abs(found[-1]) * Decimal("1.01"):
            break
        at = groups
    above, below = ([rounded(c, single) for c in part] for part in (above, below))
    worst = max(abs(polynomial(above, x) / polynomial(below, x) / g - 1) for x, g in zip(points, exact, strict=True))
    return above, below, worst


def text(numbers: Sequence[Decimal], single: bool) -> str:
    """The coefficients as Python has them, in lines that fit."""
    lines, line = [], ""
    for number in numbers:
        word = format(float(number), ".9g") if single else repr(float(number))
        if len(line) + len(word) > 110:
            lines.append(line.rstrip())
            line = ""
        line += word + ", "
    return "\n    ".join([*lines, line.rstrip()])


def main() -> None:
    for name in sys.argv[1:] or (*FITS, *FRACTIONS, *SINGLES):
        if name in SINGLES:
            numbers, error = fit(SINGLES[name], True)
            print(f"{name} = (\n    {text(numbers, True)}\n)  # within {error:.1e}")
            continue
        for dtype in ("float32", "float64"):
            single = dtype == "float32"
            if name in FRACTIONS:
                above, below, error = fit_fraction(FRACTIONS[name], single)
                print(f'{name}["{dtype}"] = ((\n    {text(above, single)}\n), (\n    {text(below, single)}')
                print(f"))  # within {error:.1e}")
                continue
            numbers, error = fit(FITS[name], single)
            print(f'{name}["{dtype}"] = (\n    {text(numbers, single)}\n)  # within {error:.1e}')


if __name__ == "__main__":
    main()
