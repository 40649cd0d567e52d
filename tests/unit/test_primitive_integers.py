"""Each primitive on integers and bools, on each rendering, against Python's own unbounded integers.

The numbers are the ends of each dtype, those around 0, and any bits; they come at once (4,096, which places compile a
kernel for) and ten by ten (which they may compute with an array namespace). The rules are those of
``docs/reference/primitives.md``.
"""

from __future__ import annotations

import math
import operator as python
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from codegen_harness import execute
from grouped import grouped
from primitive_cases import COUNT, FEW
from test_codegen_primitives import operator
from test_primitive_rules import CONTEXTS, MARKS, context_of

from fluidlite import expr
from fluidlite.codegen.expr import node
from fluidlite.codegen.primitives import PRIMITIVES

Array = np.ndarray[Any, Any]
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")


def truncated(x: int, y: int) -> int:
    return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def power(x: int, y: int) -> int:
    if y < 0:
        return 1 if x == 1 or (x == -1 and y % 2 == 0) else -1 if x == -1 else 0
    return pow(x, y, 2**64)  # what wraps to 64 bits wraps to fewer


SLOWER = {"c": ("uint8", "int32"), "opencl": ("int8", "int16")}
"""Left out where it takes a tenth of a second to compile each; the text is that of the other C cases."""
RULES: dict[str, Callable[..., int | bool]] = {
    "add": python.add, "sub": python.sub, "mul": python.mul, "div": truncated,
    "floordiv": lambda x, y: x // y if y else 0, "mod": lambda x, y: x % y if y else 0, "pow": power,
    "rem": lambda x, y: x - y * truncated(x, y) if y else 0,
    "neg": python.neg, "abs": abs, "sign": lambda x: (x > 0) - (x < 0), "maximum": max, "minimum": min,
    "floor": int, "ceil": int, "round": int,
    "less": python.lt, "less_equal": python.le, "greater": python.gt, "greater_equal": python.ge, "equal": python.eq,
    "not_equal": python.ne, "logical_and": lambda x, y: bool(x and y), "logical_or": lambda x, y: bool(x or y),
    "logical_xor": lambda x, y: bool(x) != bool(y), "logical_not": lambda x: not x,
    "where": lambda c, x, y: x if c else y,
}  # fmt: skip
"""What a primitive gives, before it wraps to the dtype."""


def wrapped(number: int, dtype: str) -> int:
    limits = np.iinfo(dtype)
    return (number - int(limits.min)) % 2**limits.bits + int(limits.min)


def numbers(dtype: str, count: int, seed: int) -> Array:
    """The ends and what lies around 0, each many times, and any bits."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    ends = [low, low + 1, high, high - 1, high // 2, 0, 0, 1, 2, 3, 7, *([-1, -1, -2, -3, -7] if low else [255, 128])]
    picked = rng.choice(np.asarray(ends, dtype), count)
    words = rng.integers(low, high, count, dtype=dtype, endpoint=True)
    small = rng.integers(max(low, -9), 9, count).astype(dtype)
    return np.where(rng.random(count) < 0.4, picked, np.where(rng.random(count) < 0.5, words, small))


def cases() -> Iterator[Any]:
    for context in CONTEXTS:
        if context == "c-float32-alone":
            continue  # its integers are those of "c"
        mark = MARKS.get(context.partition("-")[0])
        for name, primitive in PRIMITIVES.items():
            if name not in RULES:
                continue
            for dtype in (*INTEGERS, "bool") if primitive.kind in ("compare", "logical") else INTEGERS:
                if dtype in SLOWER.get(context, ()):
                    continue
                yield pytest.param(context, name, dtype, marks=[mark] if mark else [], id=f"{context}-{name}-{dtype}")


def test_every_primitive_of_integers_has_its_rule() -> None:
    kinds = ("arithmetic", "whole", "compare", "logical", "where")
    assert RULES.keys() == {name for name, primitive in PRIMITIVES.items() if primitive.kind in kinds}


@grouped(("context", "name", "dtype"), cases(), by=("context", "name"))
def test_integers(context: str, name: str, dtype: str) -> None:
    primitive = PRIMITIVES[name]
    arguments = [numbers(dtype, COUNT, seed) for seed in range(primitive.arity)]
    if name == "where":
        arguments[0] = arguments[0] > 0
    truth = primitive.kind in ("compare", "logical")
    made: Callable[..., Any] = {
        1: lambda x: node(name, x), 2: lambda x, y: node(name, x, y),
        3: lambda x, y, z: node(name, x, y, z),
    }[primitive.arity]  # fmt: skip
    slots = ("X", "Y", "Z")[: primitive.arity]
    op = operator(made, slots, "bool" if truth else dtype)
    for part in (slice(None), *(slice(start, start + FEW) for start in range(0, 5 * FEW, FEW))):
        given = [argument[part].copy() for argument in arguments]
        got = execute(context_of(context), op, dict(zip(slots, given, strict=True)))["Out"]
        exact = [RULES[name](*each) for each in zip(*(argument.tolist() for argument in given), strict=True)]
        wanted = exact if truth else [wrapped(int(value), dtype) for value in exact]
        wrong = [(each, a, b) for *each, a, b in zip(*given, got.tolist(), wanted, strict=True) if a != b]
        assert not wrong, wrong[:5]


def as_integer(number: float | int, dtype: str) -> int:
    """A float is cut off and saturates, NaN gives 0; an integer wraps."""
    if isinstance(number, int):
        return wrapped(number, dtype)
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if math.isnan(number):
        return 0
    return (high if number > 0 else low) if math.isinf(number) else max(low, min(high, int(number)))


GIVEN = {"float32": "u4", "float64": "u8"}


def casts() -> Iterator[Any]:
    for context in CONTEXTS:
        if context == "c-float32-alone":
            continue
        mark = MARKS.get(context.partition("-")[0])
        for given in (*GIVEN, "int64", "int8", "uint8", "bool"):
            if context == "opencl" and given not in (*GIVEN, "int64"):
                continue
            for target in (*INTEGERS, "bool"):
                yield pytest.param(
                    context, given, target, marks=[mark] if mark else [], id=f"{context}-{given}-{target}"
                )


def floats(dtype: str, count: int) -> Array:
    """Any bits, and what lies next to the ends of each integer type."""
    rng = np.random.default_rng(11)
    words = rng.integers(0, 2 ** (8 * int(GIVEN[dtype][1])), count, dtype=GIVEN[dtype]).view(dtype)
    ends = np.array([s * 2.0**b for b in (0, 7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1)], dtype)
    near = np.concatenate([ends, np.nextafter(ends, dtype_of(0, dtype)), np.nextafter(ends, 2 * ends), ends + 1])
    usual = (rng.normal(size=count) * 10.0 ** rng.uniform(0, 20, count)).astype(dtype)
    special = np.array([0.0, -0.0, 0.5, -0.5, 0.999, -0.999, np.inf, -np.inf, np.nan], dtype)
    return np.concatenate([special, near, words[: count // 2], usual])[:count]


def dtype_of(number: float, dtype: str) -> Any:
    return np.dtype(dtype).type(number)


@grouped(("context", "given", "target"), casts(), by=("context", "given"))
def test_casts(context: str, given: str, target: str) -> None:
    x = floats(given, COUNT) if given in GIVEN else numbers(given, COUNT, 5)
    op = operator(lambda x: expr.cast(x, target), ("X",), target)
    for part in (x, *(x[start : start + FEW].copy() for start in range(0, 8 * FEW, FEW))):
        got = execute(context_of(context), op, {"X": part})["Out"].tolist()
        wanted = [bool(v) if target == "bool" else as_integer(int(v) if given == "bool" else v, target)
                  for v in part.tolist()]  # fmt: skip
        wrong = [each for each in zip(part.tolist(), got, wanted, strict=True) if each[1] != each[2]]
        assert not wrong, wrong[:5]
