"""Each primitive on each rendering: one rule for what is NaN, infinite or zero, and a bound for the rest.

The arguments are special numbers and any bits; they come at once and ten by ten, and are compared with references of
their own (``primitive_cases``). ``docs/reference/primitives.md`` states what is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_strict
import numpy as np
import pytest
from codegen_harness import ArrayContext, CContext, DeviceContext, execute
from grouped import grouped
from primitive_cases import FEW, REFERENCES, binary_arguments, expected, off, special, unary_arguments
from test_codegen_primitives import operator

from fluidlite.codegen.expr import constant, node
from fluidlite.codegen.primitives import PRIMITIVES

CONTEXTS: dict[str, Callable[[], Any]] = {
    "numpy": ArrayContext,
    "pure-numpy": lambda: ArrayContext(np, out=False),
    "strict": lambda: ArrayContext(array_api_strict, out=False),
    "c": CContext,
    "c-float32-alone": lambda: CContext(doubles=False),
    "llvm": lambda: DeviceContext("cpu:0"),
    "opencl": lambda: DeviceContext("opencl:0"),
    "cuda": lambda: DeviceContext("cuda:0"),
}
"""Renderings: of array calls, of C by the framework's own functions, and of the places that compile."""
_contexts: dict[str, Any] = {}
MARKS = {"opencl": pytest.mark.opencl, "cuda": pytest.mark.cuda,
         "c": pytest.mark.skipif(not CContext.available, reason="gcc compiles the C of this test")}  # fmt: skip
FLOATING = [name for name, p in PRIMITIVES.items() if p.kind in ("arithmetic", "float", "whole")]


def cases() -> list[Any]:
    found = []
    for context in CONTEXTS:
        dtypes = ["float32", "float64"] if context != "c-float32-alone" else ["float32"]
        if context in ("numpy", "llvm", "opencl", "cuda"):
            dtypes.append("float16")
        mark = MARKS.get(context.partition("-")[0])
        for name in FLOATING:
            for dtype in dtypes:
                found.append(
                    pytest.param(context, name, dtype, marks=[mark] if mark else [], id=f"{context}-{name}-{dtype}")
                )
    return found


def context_of(name: str) -> Any:
    if name not in _contexts:
        _contexts[name] = CONTEXTS[name]()
    return _contexts[name]


def compute(context: str, name: str, dtype: str, arguments: tuple[Any, ...]) -> Any:
    function = (lambda x: node(name, x)) if len(arguments) == 1 else (lambda x, y: node(name, x, y))
    slots = ("X", "Y")[: len(arguments)]
    return execute(context_of(context), operator(function, slots, dtype), dict(zip(slots, arguments, strict=True)))[
        "Out"
    ]


def compare(got: Any, exact: Any, dtype: str, bound: float, arguments: tuple[Any, ...], absolute: float = 0.0) -> None:
    """What is NaN or infinite, and signs, agree; the rest is within the bound, and so is what is 0."""
    error = off(got, exact, dtype, absolute)
    limits = np.finfo(dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype)
        largest = np.longdouble(limits.max) * (1 - bound * np.longdouble(limits.eps))
        most = np.abs(exact).astype(np.longdouble) >= largest  # it may be infinite

    def wrong(found: Any) -> str:
        at = np.flatnonzero(found)[:4]
        return "; ".join(f"{[a[i] for a in arguments]}: {got[i]}, not {rounded[i]}" for i in at)

    nan = np.isnan(got) != np.isnan(rounded)
    infinite = ~nan & (np.isinf(got) != np.isinf(rounded)) & ~most
    signs = ~np.isnan(got) & ~nan & (np.signbit(got) != np.signbit(rounded))
    for what, found in (("NaN", nan), ("infinite", infinite), ("sign", signs)):
        assert not found.any(), f"{what}: {wrong(found)}"
    worst = int(np.argmax(error))
    assert error[worst] <= bound + 1e-3, f"{error[worst]} ulp: {[a[worst] for a in arguments]}"


@grouped(("context", "name", "dtype"), cases(), by=("context", "name"))
def test_rule_and_bound(context: str, name: str, dtype: str) -> None:
    primitive = PRIMITIVES[name]
    arguments = (unary_arguments(dtype),) if primitive.arity == 1 else binary_arguments(dtype)
    bound = primitive.bound(dtype)
    got = compute(context, name, dtype, arguments)
    exact = expected(name, dtype, *arguments)
    absolute = primitive.absolute if dtype != "float64" else 0.0
    compare(got, exact, dtype, bound, arguments, absolute)
    step = 1 if primitive.arity == 1 else 11  # of pairs, not all: each call takes a while
    count = special(dtype).size * step
    for start in range(0, count, FEW * step):
        few = tuple(argument[start : start + FEW * step : step].copy() for argument in arguments)
        part = compute(context, name, dtype, few)
        compare(part, exact[start : start + FEW * step : step], dtype, bound, few, absolute)


@pytest.mark.parametrize("context", [pytest.param(c, marks=MARKS.get(c.partition("-")[0], ())) for c in CONTEXTS])
@pytest.mark.parametrize("exponent", [0.5, -0.5, 2.0, 3.0, 0.0, 1.0, -1.0])
def test_powers_to_one_number(context: str, exponent: float) -> None:
    """Namespaces have shorter ways for a number than for an array of them."""
    dtype = "float32"
    x = unary_arguments(dtype)
    op = operator(lambda x: node("pow", x, constant(exponent)), ("X",), dtype)
    y = np.full(x.shape, exponent, dtype)
    for few in (x, *(x[i : i + FEW].copy() for i in range(0, special(dtype).size, FEW))):
        exact = expected("pow", dtype, few, y[: few.size])
        compare(
            execute(context_of(context), op, {"X": few})["Out"], exact, dtype, PRIMITIVES["pow"].bound(dtype), (few,)
        )


@pytest.mark.parametrize("context", ["c", "llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_a_function_of_a_function_of_a_huge_number(context: str, name: str) -> None:
    """The inner argument is large, or the outer one, or a broadcast one: the branch looks at each."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-3, 3, (40, 300))
    x[7, 5], x[31, 299] = 3.4e15, -1e300
    y = np.array([[1.0], [1e10]] * 20)
    op = operator(lambda x, y: node(name, node(name, x) * y) + y * 0.0, ("X", "Y"), "float64")
    got = execute(context_of(context), op, {"X": x, "Y": y})["Out"]
    inner = expected(name, "float64", x.reshape(-1)).reshape(x.shape)
    near = y[:, 0] == 1
    exact = expected(name, "float64", inner.astype("f8").reshape(-1)).reshape(x.shape)
    np.testing.assert_allclose(got[near], exact[near].astype("f8"), rtol=1e-13)
    step = 1e10 * np.finfo("f8").eps * 4  # how far the outer argument may be off
    outer = expected(name, "float64", (inner * y).astype("f8").reshape(-1)).reshape(x.shape)
    np.testing.assert_allclose(got[~near], outer[~near].astype("f8"), rtol=0, atol=step)


def test_every_primitive_of_floats_has_a_reference() -> None:
    assert set(FLOATING) == {*REFERENCES, "floordiv"}


def test_the_bits_of_two_over_pi() -> None:
    from primitive_cases import BITS, half_pi

    from fluidlite.codegen.language_functions import TWO_OVER_PI, TWO_OVER_PI_BITS

    assert (1 << (BITS + TWO_OVER_PI_BITS)) // half_pi() == TWO_OVER_PI
