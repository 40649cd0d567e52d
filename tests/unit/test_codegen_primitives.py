"""Every emitter against the table of primitives, over special values, for every dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import array_api_strict
import numpy as np
import pytest
from codegen_harness import ArrayContext, CContext, DeviceContext, execute
from grouped import grouped

from fluidlite import expr
from fluidlite.base.dtypes import ALL_INTS, HALVES, NUMPY, compute_dtype
from fluidlite.codegen.expr import node
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.program.opdef import OpDef, Slot
from fluidlite.program.rules import ScalarRule
from fluidlite.tensor.tensor_spec import Spec

llvm = pytest.mark.skipif(not (find_spec("llvmlite") and find_spec("pycparser")), reason="needs llvmlite and pycparser")
gcc = pytest.mark.skipif(not CContext.available, reason="gcc compiles the C of this test")

CONTEXTS: dict[str, Callable[[], Any]] = {
    "numpy": ArrayContext,
    "pure-numpy": lambda: ArrayContext(np, out=False),
    "strict": lambda: ArrayContext(array_api_strict, out=False),
    "c-own": CContext,
    "c-libm": lambda: CContext(libm=True),
    "opencl": lambda: DeviceContext("opencl:0"),
    "llvm": lambda: DeviceContext("cpu:0"),
}
_contexts: dict[str, Any] = {}

SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, 3.0, -7.0, 1e-3, 88.0, -90.0, 1e-40, -1e-40,
    3e38, -3e38, np.inf, -np.inf, np.nan, 0.1, -0.3, 20.0, 1e4, 4.75, -3.91, 123.456, 0.9999, 1.0001,
]  # fmt: skip


def context_of(name: str) -> Any:
    if name not in _contexts:
        _contexts[name] = CONTEXTS[name]()
    return _contexts[name]


def marked(name: str, *values: Any, **options: Any) -> Any:
    """A case with the mark of what its context needs."""
    marks = (
        [pytest.mark.opencl]
        if name == "opencl"
        else [gcc]
        if name.startswith("c-")
        else [llvm]
        if name == "llvm"
        else []
    )
    return pytest.param(name, *values, marks=marks, **options)


def operator(function: Any, names: tuple[str, ...], out_dtype: str) -> OpDef:
    def infer(call: Any) -> dict[str, Spec]:
        return {"Out": Spec.of(call.dims("X"), out_dtype)}

    return OpDef("primitive", tuple(map(Slot, names)), (Slot("Out"),), (), infer, scalar=ScalarRule(function, ("Out",)))


def values(dtype: str) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        if dtype in ALL_INTS:
            limits = np.iinfo(dtype)
            small = [0, 1, 2, 3, 5, 7, 100, limits.max, limits.max - 1, limits.min]
            small += [-1, -2, -3, -7, limits.min + 1] if limits.min else []
            return np.array(small, dtype)
        return np.array(SPECIAL, np.float64).astype(NUMPY[dtype])


def ulps(dtype: str) -> float:
    return {"float16": 1e-3, "bfloat16": 8e-3, "float32": 6e-7, "float64": 2e-15}[dtype]


APPROXIMATED = (
    "exp", "log", "tanh", "erf", "expm1", "log1p", "sin", "cos", "sqrt", "asin", "acos", "atan", "sinh", "cosh",
)  # fmt: skip
"""Those whose reference in the table is as exact as float64; test_primitive_rules has the normal distribution."""
WITHOUT_FUNCTIONS = ("compare", "logical", "test", "where")
FLOATING = ("float16", "bfloat16", "float32", "float64")


def cases() -> list[Any]:
    found = []
    for context in CONTEXTS:
        for name, primitive in PRIMITIVES.items():
            for dtype in (*FLOATING, *ALL_INTS, "bool"):
                integer = dtype in ALL_INTS
                if primitive.kind in ("float", "whole", "test") and (integer or dtype == "bool"):
                    continue
                if dtype == "bool" and primitive.kind in ("arithmetic", "where"):
                    continue
                if context == "strict" and dtype in HALVES:
                    continue  # the namespace has no half types
                if context == "c-libm" and (dtype not in FLOATING or primitive.kind in WITHOUT_FUNCTIONS):
                    continue  # no function of the library computes it: the text is that of c-own
                if context == "c-own" and dtype in ALL_INTS and dtype not in ("int32", "uint8"):
                    continue  # the text is that of llvm
                if context == "opencl" and dtype not in ("float32", "float64", "int32", "uint8"):
                    continue  # a tenth of a second to compile each; the text is that of the other C cases
                found.append(marked(context, name, dtype, id=f"{context}-{name}-{dtype}"))
    return found


@grouped(("context", "name", "dtype"), cases(), by=("context", "name"))
def test_primitive(context: str, name: str, dtype: str) -> None:
    primitive = PRIMITIVES[name]
    base = np.array([False, True]) if dtype == "bool" else values(dtype)
    if primitive.arity == 1:
        inputs = {"X": base}
    else:
        first, second = (a.ravel() for a in np.meshgrid(base, base, indexing="ij"))
        inputs = {"X": np.ascontiguousarray(first), "Y": np.ascontiguousarray(second)}
    if name == "where":
        inputs = {"X": inputs["X"] != inputs["Y"], "Y": inputs["X"], "Z": inputs["Y"]}
    compute = compute_dtype(dtype)
    wide = "float64" if compute == "float32" else compute
    result_dtype = "bool" if primitive.kind in ("compare", "logical", "test") else dtype
    slots = tuple(inputs)
    functions = {
        1: lambda x: node(name, x),
        2: lambda x, y: node(name, x, y),
        3: lambda x, y, z: node(name, x, y, z),
    }
    op = operator(functions[primitive.arity], slots, result_dtype)
    got = execute(context_of(context), op, inputs)["Out"]
    with np.errstate(all="ignore"):
        given = [v if v.dtype == bool else v.astype(wide) for v in inputs.values()]
        if primitive.kind == "logical":
            given = [v != 0 for v in given]
        expected = np.asarray(primitive.reference(*given))
        if name == "floordiv" and compute == "float32":  # the floor of the quotient as rounded to float32
            expected = np.floor((given[0].astype("f4") / given[1].astype("f4")).astype("f8"))
        expected = expected.astype(NUMPY[compute]).astype(NUMPY[result_dtype])
    compare(got, expected, name, dtype)


def compare(got: Any, expected: Any, name: str, dtype: str) -> None:
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(got, expected)
        return
    a, b = got.astype("f8"), expected.astype("f8")
    tolerance = ulps(dtype)
    smallest = 6e-8 if dtype == "float16" else 1e-37 if dtype != "float64" else 1e-307  # below, rounding is absolute
    if name in ("sin", "cos"):
        smallest = max(smallest, tolerance * 1e-3)
    if dtype != "float64" and name in PRIMITIVES and PRIMITIVES[name].absolute:  # what the table says of it alone
        tolerance = max(tolerance, PRIMITIVES[name].ulp[0] * float(np.finfo("float32").eps))
        smallest += PRIMITIVES[name].absolute
    finite = np.isfinite(b)
    np.testing.assert_array_equal(a[~finite], b[~finite])
    np.testing.assert_allclose(a[finite], b[finite], rtol=tolerance, atol=smallest)


def casts() -> list[Any]:
    return [
        marked(context, given, target, id=f"{context}-{given}-{target}")
        for context in CONTEXTS
        for given in ("bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
        for target in ("bool", *ALL_INTS, *FLOATING)
        if context != "strict" or not {given, target} & set(HALVES)  # the namespace has no half types
        if context != "c-libm" or given in FLOATING  # no function of the library casts others
        if context != "opencl" or given in ("float16", "float32", "int64")  # the text is that of the other C cases
    ]


@grouped(("context", "given", "target"), casts(), by=("context", "given"))
def test_cast(context: str, given: str, target: str) -> None:
    x = np.array([False, True]) if given == "bool" else values(given)
    op = operator(lambda x: expr.cast(x, target), ("X",), target)
    got = execute(context_of(context), op, {"X": x})["Out"]
    with np.errstate(all="ignore"):
        if target in ALL_INTS and given in FLOATING:
            limits = np.iinfo(target)
            expected = np.array(
                [0 if v != v else limits.max if v >= limits.max else limits.min if v <= limits.min else int(v)
                 for v in x.astype("f8").tolist()], target)  # fmt: skip
        else:
            compute = x.astype(NUMPY[compute_dtype(given)])
            through = compute.astype(NUMPY[compute_dtype(target)])
            expected = (compute != 0) if target == "bool" else through.astype(NUMPY[target])
    np.testing.assert_array_equal(got.astype("f8") if target in FLOATING else got,
                                  expected.astype("f8") if target in FLOATING else expected)  # fmt: skip


@gcc
@pytest.mark.parametrize("half", HALVES)
def test_half_words_both_ways(half: str) -> None:
    """Every 16-bit word is read, and every rounding is to nearest, ties to even."""
    words = np.arange(65536, dtype=np.uint16).view(NUMPY[half])
    op = operator(lambda x: x + 0.0, ("X",), "float32")
    context = context_of("c-own")
    got = execute(context, op, {"X": words})["Out"]
    np.testing.assert_array_equal(got, words.astype("f4"))
    near = got[np.isfinite(got)]
    with np.errstate(over="ignore"):
        middle = (near[1:] + near[:-1]) / 2
    steps = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), middle, near * np.float32(1.0003)])
    store = operator(lambda x: x + 0.0, ("X",), half)
    with np.errstate(all="ignore"):
        expected = steps.astype(NUMPY[half])
    np.testing.assert_array_equal(execute(context, store, {"X": steps})["Out"].view("u2"), expected.view("u2"))


def test_rules_are_written_down() -> None:
    for primitive in PRIMITIVES.values():
        assert primitive.arity in (1, 2, 3)
        assert primitive.kind in ("arithmetic", "float", "whole", "compare", "logical", "test", "where")


@pytest.mark.parametrize("context", [marked(name, id=name) for name in ("numpy", "c-own", "opencl")])
@pytest.mark.parametrize("name", APPROXIMATED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_accuracy(context: str, name: str, dtype: str) -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-8, 8, 4000), rng.uniform(-1, 1, 4000), 10.0 ** rng.uniform(-30, 2, 2000)])
    x = np.abs(x) if name in ("log", "sqrt") else np.where(x <= -1, -x, x) if name == "log1p" else x
    x = np.clip(x, -1, 1) if name in ("asin", "acos") else x
    x = x.astype(dtype)
    op = operator(lambda x: node(name, x), ("X",), dtype)
    got = execute(context_of(context), op, {"X": x})["Out"].astype("f8")
    exact = PRIMITIVES[name].reference(x.astype("f8"))
    scale = np.maximum(np.abs(exact), 1e-2 if name in ("sin", "cos") else 1e-30)
    finite = np.abs(exact) < 3e38
    error = np.abs(got - exact)[finite] / scale[finite] / np.finfo(dtype).eps
    assert np.nanmax(error) < 4, (np.nanmax(error), x[finite][np.nanargmax(error)])


@pytest.mark.parametrize("context", [marked(name, id=name) for name in ("c-own", "opencl", "llvm")])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_turns_of_any_argument(context: str, name: str) -> None:
    """Of huge float32 arguments, too, whole turns go without a loss, and so near a multiple of pi / 2."""
    words = np.random.default_rng(5).integers(0, 2**32, 20000, dtype=np.uint32)
    x = np.concatenate([words.view("f4"), np.float32([63.999996, 64, -64, 16367173 * 2.0**72, 3.4e38, -3.4e38])])
    x = x[np.isfinite(x)]
    got = execute(context_of(context), operator(lambda x: node(name, x), ("X",), "float32"), {"X": x})["Out"]
    exact = np.array([getattr(math, name)(value) for value in x.tolist()])
    assert (np.abs(got - exact) <= 4 * np.spacing(np.abs(exact).astype("f4"))).all()


@pytest.mark.parametrize("context", [marked(name, id=name) for name in ("c-own", "opencl", "llvm")])
def test_powers_are_nearly_rounded(context: str) -> None:
    """With doubles, float32 powers are within 0.6 ulp."""
    rng = np.random.default_rng(6)
    x = np.exp(rng.uniform(-80, 80, 20000)).astype("f4")
    y = (rng.uniform(-85, 85, 20000) / np.log(x.astype("f8"))).astype("f4")
    op = operator(lambda x, y: node("pow", x, y), ("X", "Y"), "float32")
    got = execute(context_of(context), op, {"X": x, "Y": y})["Out"]
    exact = np.power(x.astype("f8"), y.astype("f8"))
    assert (np.abs(got - exact) <= 0.6 * np.spacing(exact.astype("f4"))).all()


@pytest.mark.parametrize("context", [marked(name, id=name) for name in ("c-own", "opencl", "llvm")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_are_exact(context: str, dtype: str) -> None:
    """Of quotients from none to all that the exponents allow, and next to whole ones."""
    rng, word = np.random.default_rng(7), "u4" if dtype == "float32" else "u8"
    any_bits = rng.integers(0, 2 ** (8 * int(word[1])), (2, 3000), dtype=word).view(dtype)
    y = np.exp2(rng.uniform(-9, 9, 6000)).astype(dtype)
    near = (y * rng.integers(1, 2**22, y.size)).astype(dtype)
    x = np.concatenate([any_bits[0], near, np.nextafter(near, dtype_zero := np.dtype(dtype).type(0)), y * 0.75])
    y = np.concatenate([any_bits[1], y, -y, y])
    known = np.isfinite(x) & np.isfinite(y) & (y != dtype_zero)
    x, y = x[known], y[known]
    op = operator(lambda x, y: node("mod", x, y), ("X", "Y"), dtype)
    got = execute(context_of(context), op, {"X": x, "Y": y})["Out"]
    exact = [math.fmod(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    exact = [r + b if r and (r < 0) != (b < 0) else r for r, b in zip(exact, y.tolist(), strict=True)]
    np.testing.assert_array_equal(got, np.array(exact).astype(dtype))


@pytest.mark.parametrize("context", [marked(name, id=name) for name in CONTEXTS])
def test_the_sign_of_no_zero_is_negative(context: str) -> None:
    op = operator(lambda x: node("sign", x), ("X",), "float32")
    got = execute(context_of(context), op, {"X": np.float32([-0.0, 0.0, -2.0, 3.0])})["Out"]
    assert [math.copysign(1, value) for value in got.tolist()] == [1, 1, -1, 1]
    assert got.tolist() == [0, 0, -1, 1]
