"""Generated kernels on every capability: broadcasting, sums over broadcast dims, updates in place, blocks, guards."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import array_api_strict
import numpy as np
import pytest
from codegen_harness import ArrayContext, CContext, call_of, execute, unit_of
from grouped import grouped

from fluidlite import expr
from fluidlite.base.dtypes import NUMPY
from fluidlite.codegen.array import BLOCK
from fluidlite.program.codegen_registry import generators
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.rules import ScalarRule
from fluidlite.tensor.tensor_spec import Spec

LARGE = (BLOCK // 300 + 20, 300)
"""More than one block."""
CONTEXTS = {
    "numpy": ArrayContext(),
    "pure-numpy": ArrayContext(np, out=False),
    "strict": ArrayContext(array_api_strict, out=False),
    **({"c": CContext()} if CContext.available else {}),
}
AXIS = Attr("axis", "int", -1)


def define(function: Any, inputs: Any, outputs: Any, attrs: Any = (), **options: Any) -> OpDef:
    """An operator whose outputs are given as ``{slot: (input slot whose dims it has, dtype or None)}``."""

    def infer(call: Any) -> dict[str, Spec]:
        return {
            out: Spec.of(call.dims(like) if isinstance(like, str) else like, dtype or call.dtype(inputs[0]))
            for out, (like, dtype) in outputs.items()
        }

    slots = tuple(slot if isinstance(slot, Slot) else Slot(slot) for slot in inputs)
    inputs = [slot.name for slot in slots]
    return OpDef("tested", slots, tuple(map(Slot, outputs)), tuple(attrs), infer,
                 scalar=ScalarRule(function, tuple(outputs)), **options)  # fmt: skip


def rand(*dims: int, seed: int = 0, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(0.5, 2, dims).astype(NUMPY[dtype])


def add(x: Any, y: Any) -> Any:
    return x + y


BROADCASTS = [
    ((1,), (1,), -1), ((), (), -1), ((), (1,), -1), ((5, 7), (5, 7), -1), ((5, 7), (1,), -1), ((5, 7), (7,), -1),
    ((5, 7), (5,), 0), ((2, 3, 4, 5), (3, 4), 1), ((2, 3, 4), (3, 1), 1), ((2, 3, 4), (2, 1, 4), -1),
    ((4, 3), (4, 1), -1), ((1, 1), (1,), -1), ((0, 3), (3,), -1), ((40, 65), (65,), -1),
    ((3, 1, 5), (1, 4, 1), -1), ((2, 1, 3), (3,), -1),
    ((300, 260), (260,), -1), ((2, 3, 2, 2, 3, 2), (1, 3, 1, 2, 1, 2), -1),
]  # fmt: skip


@pytest.mark.parametrize("context", list(CONTEXTS))
@pytest.mark.parametrize(("x", "y", "axis"), BROADCASTS)
def test_broadcast(context: str, x: tuple[int, ...], y: tuple[int, ...], axis: int) -> None:
    a, b = rand(*x), rand(*y, seed=1)
    placed = b
    if len(y) < len(x) and axis >= 0:
        kept = y[:-1] if y[-1] == 1 else y
        placed = b.reshape((1,) * axis + kept + (1,) * (len(x) - axis - len(kept)))
    expected = (a * placed + a).reshape(np.broadcast_shapes(x, placed.shape) if len(x) >= len(y) else x)
    op = define(lambda x, y: x * y + x, ("X", "Y"), {"Out": (expected.shape, None)}, (AXIS,))
    got = execute(CONTEXTS[context], op, {"X": a, "Y": b}, {"axis": axis})["Out"]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def product_grad() -> OpDef:
    """The gradient of a product: each operand's is a sum where that was broadcast."""
    return define(
        lambda x, y, dout: (dout * y, dout * x), ("X", "Y", "Out@GRAD"), {"X@GRAD": ("X", None), "Y@GRAD": ("Y", None)},
        (AXIS,), may_alias={"X@GRAD": "Out@GRAD"},
    )  # fmt: skip


SUMS = [case for case in BROADCASTS if case[0] not in ((), (3, 1, 5))] + [
    ((5000, 3), (3,), -1), ((3, 5000), (3,), 0), ((100000,), (1,), -1), ((4, 3, 2500), (3,), 1), ((2, 40000), (1,), -1),
    ((900, 40), (40,), -1), ((3, 40, 700), (40,), 1),
]  # fmt: skip


@grouped(
    ("context", "dtype", "x", "y", "axis"),
    ((context, dtype, *given) for context in CONTEXTS for dtype in ("float32", "float16", "int32") for given in SUMS),
    ("context", "dtype"),
)
def test_broadcast_gradient_is_a_sum(context: str, dtype: str, x: Any, y: Any, axis: int) -> None:
    if context == "strict" and dtype == "float16":
        pytest.skip("the namespace has no half types")
    a, b, d = ((rand(*dims, seed=k) * 3).astype(dtype) for k, dims in enumerate((x, y, x)))
    if dtype == "float16":
        d = d / np.float16(64)
    placed = b
    if len(y) < len(x) and axis >= 0:
        kept = y[:-1] if y[-1] == 1 else y
        placed = b.reshape((1,) * axis + kept + (1,) * (len(x) - axis - len(kept)))
    wide = np.int64 if dtype == "int32" else np.float64
    shape = (1,) * (len(x) - placed.ndim) + placed.shape
    axes = tuple(k for k, size in enumerate(shape) if size == 1)
    expected = (d.astype(wide) * a).sum(axis=axes, keepdims=True).reshape(y)
    got = execute(CONTEXTS[context], product_grad(), {"X": a, "Y": b, "Out@GRAD": d}, {"axis": axis})
    tolerance = 1e-3 if dtype == "float16" else 2e-5
    np.testing.assert_allclose(got["Y@GRAD"].astype(wide), expected, rtol=tolerance)
    np.testing.assert_allclose(got["X@GRAD"].astype(wide), (d.astype(wide) * placed).reshape(x), rtol=tolerance)
    inputs = {"X": a, "Y": b, "Out@GRAD": d}
    only = execute(CONTEXTS[context], product_grad(), inputs, {"axis": axis}, wanted=("Y@GRAD",))
    np.testing.assert_array_equal(only["Y@GRAD"], got["Y@GRAD"])


@pytest.mark.parametrize("context", list(CONTEXTS))
@pytest.mark.parametrize("dims", [(5, 7), (300, 260)])
def test_outputs_may_share_memory_with_inputs(context: str, dims: tuple[int, ...]) -> None:
    x, y = rand(*dims), rand(*dims, seed=1)
    op = define(lambda x, y: (x + y, x * y, x), ("X", "Y"), {"A": ("X", None), "B": ("X", None), "C": ("X", None)})
    for share in ({"A": "X"}, {"A": "Y"}, {"B": "X"}, {"A": "Y", "B": "X"}, {"C": "X"}):
        got = execute(CONTEXTS[context], op, {"X": x, "Y": y}, share=share)
        np.testing.assert_array_equal(got["A"], x + y)
        np.testing.assert_array_equal(got["B"], x * y)
        np.testing.assert_array_equal(got["C"], x)
    slots = (Slot("X", metadata_only=True), Slot("Y", metadata_only=True), "Out@GRAD")
    outputs = {"X@GRAD": ("X", None), "Y@GRAD": ("Y", None)}
    grad = define(lambda dout: (dout, -dout), slots, outputs, (AXIS,), may_alias={"X@GRAD": "Out@GRAD"})
    inputs = {"X": x, "Y": y[0], "Out@GRAD": y}
    got = execute(CONTEXTS[context], grad, inputs, share={"X@GRAD": "Out@GRAD"})
    np.testing.assert_array_equal(got["X@GRAD"], y)
    np.testing.assert_allclose(got["Y@GRAD"], -y.sum(0), rtol=1e-4)


@pytest.mark.parametrize("context", list(CONTEXTS))
def test_swapped_in_place(context: str) -> None:
    op = define(lambda x, y: (y, x), ("X", "Y"), {"A": ("X", None), "B": ("X", None)}, must_alias={"A": "X", "B": "Y"})
    x, y = rand(9), rand(9, seed=1)
    got = execute(CONTEXTS[context], op, {"X": x, "Y": y})
    np.testing.assert_array_equal(got["A"], y)
    np.testing.assert_array_equal(got["B"], x)


def momentum(param: Any, grad: Any, velocity: Any, learning_rate: Any, *, mu: Any, nesterov: bool) -> Any:
    speed = mu * velocity + grad
    return (param - learning_rate * (grad + mu * speed) if nesterov else param - learning_rate * speed), speed


MOMENTUM = define(
    momentum, ("Param", "Grad", "Velocity", "LearningRate"),
    {"ParamOut": ("Param", None), "VelocityOut": ("Param", None)},
    (Attr("mu", "float"), Attr("nesterov", "bool", False)),
    must_alias={"ParamOut": "Param", "VelocityOut": "Velocity"},
)  # fmt: skip


@grouped(
    ("context", "bound", "nesterov", "dims", "dtype"),
    product(CONTEXTS, (False, True), (False, True), [(1,), (5, 7), LARGE], ("float32", "float64", "bfloat16")),
    ("context", "dtype"),
)
def test_update(context: str, bound: bool, nesterov: bool, dims: tuple[int, ...], dtype: str) -> None:
    if context == "strict" and dtype == "bfloat16":
        pytest.skip("the namespace has no half types")
    p, g, v = (rand(*dims, seed=k, dtype=dtype) for k in range(3))
    rate = np.array([0.1]).astype(NUMPY[dtype])
    inputs = {"Param": p, "Grad": g, "Velocity": v, "LearningRate": rate}
    got = execute(CONTEXTS[context], MOMENTUM, inputs, {"mu": 0.9, "nesterov": nesterov}, bound=bound)
    wide = [a.astype("f8") for a in (p, g, v, rate)]
    expected = momentum(*wide, mu=0.9, nesterov=nesterov)
    tolerance = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 1e-2}[dtype]
    np.testing.assert_allclose(got["ParamOut"].astype("f8"), expected[0], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(got["VelocityOut"].astype("f8"), expected[1], rtol=tolerance)


def counted(param: Any, power: Any, spare: Any, *, decay: Any) -> Any:
    return param * power + (1 if spare is None else spare), power * decay


COUNTED = define(
    counted, ("Param", "Power", Slot("Spare", dispensable=True)),
    {"ParamOut": ("Param", None), "PowerOut": ("Power", None)}, (Attr("decay", "float"),),
    must_alias={"ParamOut": "Param", "PowerOut": "Power"},
)  # fmt: skip


@pytest.mark.parametrize("context", list(CONTEXTS))
@pytest.mark.parametrize("dims", [(0, 3), (5, 7), LARGE])
@pytest.mark.parametrize("power", [(1,), (1, "rows")])
def test_small_state_is_updated_after_it_was_read(context: str, dims: tuple[int, ...], power: tuple[Any, ...]) -> None:
    x, spare = rand(*dims), rand(1, seed=2)
    y = rand(*(dims[1:] if "rows" in power else power), seed=1)
    for given, added in (({}, 1.0), ({"Spare": spare}, spare)):
        got = execute(CONTEXTS[context], COUNTED, {"Param": x, "Power": y, **given}, {"decay": 0.5})
        np.testing.assert_allclose(got["ParamOut"], x * y + added, rtol=1e-6)
        np.testing.assert_allclose(got["PowerOut"], y * np.float32(0.5), rtol=1e-6)


def test_small_outputs_leave_the_blocks() -> None:
    inputs = {"Param": rand(*LARGE), "Power": rand(1)}
    run = generators["array"].prepare(call_of(COUNTED, inputs, {"decay": 0.5}), CONTEXTS["numpy"])
    assert "range(0" in run.source


@pytest.mark.parametrize("context", [each for each in CONTEXTS if each != "c"])
@pytest.mark.parametrize("dims", [(0, 3), (5, 7), LARGE])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_sums_over_all_beside_other_outputs(context: str, dims: tuple[int, ...], dtype: str) -> None:
    if context == "strict" and dtype == "float16":
        pytest.skip("the namespace has no half types")
    wide = "float64" if dtype == "float64" else "float32"
    outputs = {"Out": ("X", None), "Squares": ((1,), wide), "Product": ((1,), wide)}
    op = define(lambda x, y: (x + y, x * x, x * y), ("X", "Y"), outputs, must_alias={"Out": "X"})
    x, y = rand(*dims, dtype=dtype), rand(*dims, seed=1, dtype=dtype)
    got = execute(CONTEXTS[context], op, {"X": x, "Y": y})
    np.testing.assert_array_equal(got["Out"], x + y)
    a, b = x.astype("float64"), y.astype("float64")
    np.testing.assert_allclose(got["Squares"], [np.sum(a * a)], rtol=1e-5)
    np.testing.assert_allclose(got["Product"], [np.sum(a * b)], rtol=1e-5)
    if dims == LARGE and context == "numpy":
        call = call_of(op, {"X": x, "Y": y}, {})
        assert "range(0" in generators["array"].prepare(call, CONTEXTS[context]).source


def test_a_static_attribute_is_a_constant() -> None:
    def root(x: Any, *, power: float) -> Any:
        return expr.sqrt(x) if power == 0.5 else x**power

    op = define(root, ("X",), {"Out": ("X", None)}, (Attr("power", "float", static=True),))
    x = rand(9)
    sources = {}
    for power in (0.5, 3.0, 1.5):
        np.testing.assert_allclose(
            execute(CONTEXTS["numpy"], op, {"X": x}, {"power": power})["Out"], x**power, rtol=1e-6
        )
        run = generators["array"].prepare(call_of(op, {"X": x}, {"power": power}), CONTEXTS["numpy"])
        sources[power] = run.source
    assert "sqrt" in sources[0.5] and "1.5" in sources[1.5]


def test_large_problems_go_in_blocks() -> None:
    run = prepare(CONTEXTS["numpy"], MOMENTUM, LARGE)
    assert "range(0" in run.source and run.workspace > 0
    small = prepare(CONTEXTS["numpy"], MOMENTUM, (5, 7))
    assert "range(0" not in small.source and not small.workspace


@pytest.mark.parametrize("context", list(CONTEXTS))
@pytest.mark.parametrize(("x", "y"), [((3, 5), (5,)), ((5, 300), (1,)), ((900, 40), (40,))])
def test_sums_of_integers_wrap(context: str, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    inputs = {"X": np.full(x, 3, "int64"), "Y": np.ones(y, "int64"), "Out@GRAD": np.full(x, 2**61, "int64")}
    got = execute(CONTEXTS[context], product_grad(), inputs, wanted=("Y@GRAD",))["Y@GRAD"]
    total = 3 * 2**61 * (prod(x) // prod(y))
    np.testing.assert_array_equal(got, np.full(y, (total + 2**63) % 2**64 - 2**63, "int64"))
    if context == "c":  # of signed numbers, C leaves open what becomes
        run = generators["language"].prepare(call_of(product_grad(), inputs, {}, ("Y@GRAD",)), CONTEXTS[context])
        assert "(long)((unsigned long)" in run.source


def prepare(context: Any, op: OpDef, dims: tuple[int, ...]) -> Any:
    inputs = {s: rand(*dims) for s in ("Param", "Grad", "Velocity")} | {"LearningRate": rand(1)}
    return generators[context.capability].prepare(call_of(op, inputs, {"mu": 0.9}), context)


def test_one_addition_is_one_call() -> None:
    op = define(add, ("X", "Y"), {"Out": ("X", None)})
    run = generators["array"].prepare(call_of(op, {"X": rand(1), "Y": rand(1)}, {}), CONTEXTS["numpy"])
    assert "f_add(a0, a1, o0)" in run.source
    assert "reshape" not in run.source


@pytest.mark.skipif(not CContext.available, reason="needs gcc")
def test_sizes_and_attributes_are_arguments() -> None:
    context = CContext()
    for rows in (3, 4, 500):
        for mu in (0.1, 0.9):
            p, g, v = (rand(rows, 7, seed=k) for k in range(3))
            execute(context, MOMENTUM, {"Param": p, "Grad": g, "Velocity": v, "LearningRate": rand(1)}, {"mu": mu})
    assert len(context.compiled) == 1
    for rows in (30, 40):
        execute(context, product_grad(), {"X": rand(rows, 5), "Y": rand(5), "Out@GRAD": rand(rows, 5)})
    assert len(context.compiled) == 3
    context.may_have_error = True
    for rows in (3, 4):
        arrays = {slot: rand(rows, 7) for slot in ("Param", "Grad", "Velocity")}
        execute(context, MOMENTUM, {**arrays, "LearningRate": rand(1)}, {"mu": 0.1})
    assert len(context.compiled) == 4  # one that heeds the status word, since it may be set


@pytest.mark.skipif(not CContext.available, reason="needs gcc")
def test_status_word_stops_an_update() -> None:
    context = CContext()
    inputs = {s: rand(9, seed=k) for k, s in enumerate(("Param", "Grad", "Velocity"))} | {"LearningRate": rand(1)}
    context.may_have_error = True
    context.status[0] = 5
    got = execute(context, MOMENTUM, inputs, {"mu": 0.5})
    np.testing.assert_array_equal(got["ParamOut"], inputs["Param"])
    context.status[0] = 0
    assert not np.array_equal(execute(context, MOMENTUM, inputs, {"mu": 0.5})["ParamOut"], inputs["Param"])


def test_status_word_stops_an_update_of_arrays() -> None:
    context = ArrayContext(np, out=True, eager=False)
    status = np.zeros(4, np.int64)
    context.status_array = lambda: status  # type: ignore[attr-defined]
    inputs = {s: rand(9, seed=k) for k, s in enumerate(("Param", "Grad", "Velocity"))} | {"LearningRate": rand(1)}
    status[0] = 5
    got = execute(context, MOMENTUM, inputs, {"mu": 0.5})
    np.testing.assert_array_equal(got["ParamOut"], inputs["Param"])
    status[0] = 0
    assert not np.array_equal(execute(context, MOMENTUM, inputs, {"mu": 0.5})["ParamOut"], inputs["Param"])


def test_refusals() -> None:
    op = define(add, ("X", "Y"), {"Out": ("X", None)})
    call = call_of(op, {"X": rand(2, dtype="float64"), "Y": rand(2, dtype="float64")}, {})
    numpy = CONTEXTS["numpy"]
    assert generators["array"].refuse(call, unit_of(numpy)) is None
    assert "float64" in str(generators["array"].refuse(call, unit_of(numpy, ("float32",))))
    assert generators["language"].refuse(call, unit_of(numpy)) == "the device has no kernel language"
    assert generators["language"].refuse(call, unit_of(CContext(doubles=False))) == "the kernel language has no float64"
    squares = define(lambda x: x * x, ("X",), {"Squares": ((1,), "float32")})
    reason = generators["language"].refuse(call_of(squares, {"X": rand(2)}, {}), unit_of(CContext()))
    assert reason == "Squares adds elements up, and is the gradient of no operand"
    plain = OpDef("plain", (Slot("X"),), (Slot("Out"),), infer=lambda call: {"Out": call.spec("X")})
    assert generators["array"].refuse(call_of(plain, {"X": rand(2)}, {}), unit_of(numpy)) == "no expression"


@pytest.mark.parametrize("context", list(CONTEXTS))
def test_constant_and_copied_outputs(context: str) -> None:
    op = define(lambda x: (expr.zeros_like(x), x, 1, expr.cast(x > 1, "uint8")), ("X",),
                {"A": ("X", None), "B": ("X", None), "C": ("X", "uint8"), "D": ("X", "uint8")})  # fmt: skip
    x = rand(4, 5)
    got = execute(CONTEXTS[context], op, {"X": x})
    np.testing.assert_array_equal(got["A"], np.zeros_like(x))
    np.testing.assert_array_equal(got["B"], x)
    np.testing.assert_array_equal(got["C"], np.ones(x.shape, "u1"))
    np.testing.assert_array_equal(got["D"], (x > 1).astype("u1"))


@pytest.mark.parametrize("context", list(CONTEXTS))
@pytest.mark.parametrize("dims", [(9,), (270, 300)])
def test_random_mask(context: str, dims: tuple[int, ...]) -> None:
    def drop(x: Any, *, p: Any) -> Any:
        keep = expr.uniform() >= p
        return expr.where(keep, x / (1 - p), 0), expr.cast(keep, "uint8")

    op = define(drop, ("X",), {"Out": ("X", None), "Mask": ("X", "uint8")}, (Attr("p", "float"),))
    x = rand(*dims)
    got = execute(CONTEXTS[context], op, {"X": x}, {"p": 0.25})
    reference = execute(CONTEXTS["pure-numpy"], op, {"X": x}, {"p": 0.25})
    np.testing.assert_array_equal(got["Mask"], reference["Mask"])
    np.testing.assert_allclose(got["Out"], np.where(got["Mask"] == 1, x / 0.75, 0), rtol=1e-6)


@pytest.mark.parametrize("context", list(CONTEXTS))
def test_numbers_take_the_inputs_dtype(context: str) -> None:
    op = define(lambda x, *, scale: x * scale + 0.75, ("X",), {"Out": ("X", None)}, (Attr("scale", "float"),))
    x = np.array([1, 2, -3], np.int32)
    np.testing.assert_array_equal(execute(CONTEXTS[context], op, {"X": x}, {"scale": 2.9})["Out"], x * 2)
    y = np.array([1, 2, -3], np.float64)
    got = execute(CONTEXTS[context], op, {"X": y}, {"scale": 0.1})["Out"]
    np.testing.assert_array_equal(got, y * 0.1 + 0.75)


@pytest.mark.parametrize("context", list(CONTEXTS))
@pytest.mark.parametrize("dims", [(), (1,), (3, 5), (50, 60), (256, 256), (300, 300), (2, BLOCK // 2 + 3000)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_limits_by_numbers(context: str, dims: tuple[int, ...], dtype: str) -> None:
    if context == "strict" and dtype == "float16":
        pytest.skip("the namespace has no half types")
    op = define(lambda x, *, top: expr.minimum(expr.maximum(x, 0), top), ("X",), {"Out": ("X", None)},
                (Attr("top", "float"),))  # fmt: skip
    x = np.asarray((rand(*dims) - 1) * 9).astype(dtype)
    for top in (4.0, 2.0):
        got = execute(CONTEXTS[context], op, {"X": x}, {"top": top})["Out"]
        np.testing.assert_array_equal(got, np.clip(x, 0, x.dtype.type(top)))


@pytest.mark.parametrize("steps", [1, 8, 9, 10, 20, 100])
@pytest.mark.parametrize("context", list(CONTEXTS))
def test_blocks_read_what_is_computed_before_them(context: str, steps: int) -> None:
    """An operand of that alone has no part in a block, whatever the names of other values begin with."""

    def function(x: Any, y: Any) -> Any:
        for _ in range(steps):
            y = expr.sqrt(y + 1)
        return (x - y) * y

    x, y = rand(*LARGE), rand(LARGE[0], 1, seed=1)
    wanted = y.astype("float64")
    for _ in range(steps):
        wanted = np.sqrt(wanted + 1)
    op = define(function, ("X", "Y"), {"Out": ("X", None)})
    got = execute(CONTEXTS[context], op, {"X": x, "Y": y})["Out"]
    np.testing.assert_allclose(got, (x - wanted) * wanted, rtol=1e-4, atol=1e-5)
