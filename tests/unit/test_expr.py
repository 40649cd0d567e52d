"""Tensor expressions: array calls against NumPy, derivatives of first and second order against central differences."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import array_api_strict
import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import expr as e
from fluidlite import loader, unique_name
from fluidlite.base.dtypes import ALL_FLOATS, NUMPY
from fluidlite.base.errors import AttributeValueError, GradientError, OutOfRangeError, ProgramError
from fluidlite.codegen import functions
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.expr.calls import infer
from fluidlite.expr.declare import operator as declare
from fluidlite.expr.decompose import decompose
from fluidlite.expr.derivatives import RULES, derivatives
from fluidlite.expr.primitives import TENSOR_PRIMITIVES
from fluidlite.expr.tensor import ordered, tensor
from fluidlite.expr.traced import Traced, trace, values_of
from fluidlite.framework.call import Call
from fluidlite.framework.choose import choose
from fluidlite.framework.decompose import decompose as parts_of
from fluidlite.framework.opdef import Attr, ExpressionRule
from fluidlite.framework.policy import Policy
from fluidlite.framework.registry import ops, register_op
from fluidlite.framework.spec import Spec
from fluidlite.platform.cpu import NumPyArrays
from fluidlite.platform.devices import devices
from fluidlite.render import array_functions
from fluidlite.render.arrays import array_code

Function = Callable[..., Any]
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
NAMESPACES = {
    "numpy": np,
    "strict": array_api_strict,
    "operators": None,
    "required": SimpleNamespace(
        **{name: getattr(array_api_strict, name) for name in array_functions.REQUIRED + DTYPES}
    ),
}
X = np.random.default_rng(0).standard_normal((3, 5))


LLVM = "llvm:0"


@pytest.fixture(scope="module", autouse=True)
def llvm() -> Iterator[None]:
    """A place that has a kernel language and no arrays."""
    fluid.places()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent.parent / "plugins"))
        assert loader.load("llvm", "llvm_device").state == "loaded"
        yield
        loader.unload("llvm")


def operands(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: [(tuple(x.shape), str(x.dtype).rpartition(".")[2])] for name, x in arrays.items()}


def check_index(index: Any, size: int, io: Any) -> Any:
    assert ((np.asarray(index) >= 0) & (np.asarray(index) < size)).all()
    return index


def traced(function: Function, arrays: dict[str, Any], **floats: float) -> Traced:
    def all_of(given: Any, numbers: Any) -> dict[str, Any]:
        return {"Out": function(*(found[0] for found in given.values()), **numbers)}

    return trace(all_of, operands(arrays), floats, values_of(operands(arrays), floats))


def run(function: Function, arrays: dict[str, Any], namespace: str = "numpy", **floats: float) -> Any:
    if namespace == "operators":
        return run_operators(function, arrays, floats)
    made, xp = traced(function, arrays, **floats), NAMESPACES[namespace]
    code = array_code(made, host=namespace == "numpy")
    given = [xp.asarray(arrays[slot]) for slot, _ in code.operands]
    extra = NumPyArrays().extra if namespace == "numpy" else lambda name: None
    array = SimpleNamespace(eager=True, extra=extra)
    context = SimpleNamespace(xp=xp, array=array, check_index=check_index)
    numbers = code.values(values_of(operands(arrays), floats))
    dims, dtype = made.dims("Out", values_of(operands(arrays), floats)), made.outputs["Out"][0].dtype
    full = np.full if xp is np else array_api_strict.full
    out = full(dims, 77, dtype=getattr(xp, dtype))
    compute, kept = code.function(), list[Any]()
    if all(x.size for x in given):  # a call before, whose constants this one has, but whose operands are others
        before = [xp.flip(x) if x.dtype in (xp.float32, xp.float64) else x for x in given]
        compute(xp, functions, array_functions, context, None, numbers, kept, *before, xp.zeros_like(out))
    compute(xp, functions, array_functions, context, None, numbers, kept, *given, out)
    return np.asarray(out)


def run_operators(function: Function, arrays: dict[str, Any], floats: dict[str, float]) -> Any:
    """The function as an operator, on a place that has kernels of other operators alone."""

    def computed(given: Any, attrs: Any) -> dict[str, Any]:
        return {"Out": function(*(found[0] for found in given.values()), **{name: attrs[name] for name in floats})}

    op = register_op(
        "case", inputs=tuple(arrays), outputs=("Out",), attrs=[Attr(name, "float", 0.0) for name in floats],
        infer=infer, expression=ExpressionRule(computed), decompose=decompose,
    )  # fmt: skip
    try:
        block = fluid.default_main_program().global_block()
        given = {slot: block.create_var(unique_name.generate(slot), x.shape, str(x.dtype), is_data=True)
                 for slot, x in arrays.items()}  # fmt: skip
        out = block.create_var(unique_name.generate("out"))
        block.append_op("case", given, {"Out": out}, floats)
        feed = {given[slot].name: np.array(x, order="C") for slot, x in arrays.items()}
        (found,) = fluid.Executor(LLVM, mode="interpreted").run(fluid.default_main_program(), feed, [out])
        return found
    finally:
        ops.remove(op)


def softmax(x: Any) -> Any:
    powers = e.exp(x - e.reduce_max(x, -1, keep=True))
    return powers / e.reduce_sum(powers, -1, keep=True)


def layer_norm(x: Any) -> Any:
    centred = x - e.reduce_mean(x, 1, keep=True)
    return centred / e.sqrt(e.reduce_mean(centred * centred, 1, keep=True) + 1e-5)


def np_softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def np_layer_norm(x: Any) -> Any:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)


def np_recur(x: Any) -> Any:
    out, last = [], np.zeros(len(x))
    for column in x.T:
        last = 0.5 * column * last + column
        out.append(last)
    return np.stack(out, 1)


INDEX = np.array([[4, 0], [1, 4]])
CASES: dict[str, tuple[Function, Function]] = {
    "softmax": (softmax, np_softmax),
    "layer_norm": (layer_norm, np_layer_norm),
    "logsumexp": (lambda x: e.log(e.reduce_sum(e.exp(x), 1)), lambda x: np.log(np.exp(x).sum(1))),
    "sum": (lambda x: e.reduce_sum(x, 0), lambda x: x.sum(0)),
    "mean": (lambda x: e.reduce_mean(x), lambda x: x.mean()),
    "max": (lambda x: e.reduce_max(x, 1, keep=True), lambda x: x.max(1, keepdims=True)),
    "min": (lambda x: e.reduce_min(x, (0, 1)), lambda x: x.min()),
    "prod": (lambda x: e.reduce_prod(x, 1), lambda x: x.prod(1)),
    "prod of all": (lambda x: e.reduce_prod(x), lambda x: x.prod()),
    "transpose": (lambda x: e.transpose(x) * 2, lambda x: x.T * 2),
    "reshape": (lambda x: e.reshape(x, (5, -1)) * e.reshape(x, (5, 3)), lambda x: x.reshape(5, 3) ** 2),
    "row beside column": (lambda x: e.slice_axis(x, 0, 0, 1) * e.slice_axis(x, 1, 2, 1), lambda x: x[:1] * x[:, 2:3]),
    "assumed dims": (lambda x: x * e.reshape(e.reduce_sum(x, 1), (3, 1)), lambda x: x * x.sum(1)[:, None]),
    "slice": (lambda x: e.slices(x, (2, 4), (2, 3), (-1, -2)), lambda x: x[2:0:-1, ::-2]),
    "slice by steps": (lambda x: e.slices(x, (0, 1), (2, 2), (2, 3)), lambda x: x[::2, 1::3]),
    "nothing": (lambda x: e.slices(x, (1, 0), (0, 5)) * 2, lambda x: x[1:1]),
    "flip": (lambda x: e.flip(x, 1), lambda x: x[:, ::-1]),
    "pad": (lambda x: e.pad(x, (1, 0), (0, 2), 3.0), lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=3)),
    "pad by less": (lambda x: e.pad(x, (-1, -2), (0, -1)), lambda x: x[1:, 2:4]),
    "pad between by a size": (
        lambda x: e.pad(x, (0, 0), (1, 0), 3.0, (x.dims[1], 0)),
        lambda x: np.stack([x[i // (x.shape[1] + 1)] if i % (x.shape[1] + 1) == 0 else np.full(x.shape[1], 3.0)
                            for i in range(2 + (len(x) - 1) * (x.shape[1] + 1))]),
    ),
    "pad between": (
        lambda x: e.pad(x, (-1, 2), (3, -4), 0, (2, 1)),
        lambda x: np.pad(np.pad(np.insert(np.insert(x, [1, 1, 2, 2], 0, 0), [1, 2, 3, 4], 0, 1),
                                ((0, 3), (0, 0)))[1:], ((0, 0), (2, 0)))[:, :-4],
    ),
    "concat": (lambda x: e.concat([x, x * x], 1), lambda x: np.concatenate([x, x * x], 1)),
    "stack": (lambda x: e.stack([x, x * x], -1), lambda x: np.stack([x, x * x], -1)),
    "transposed row": (lambda x: e.reshape(e.transpose(x), (-1,)), lambda x: x.T.reshape(-1)),
    "repeated": (
        lambda x: e.reshape(e.broadcast(e.unsqueeze(x, 1), (3, 2, 5)), (6, 5)), lambda x: np.repeat(x, 2, 0)
    ),
    "rolled": (
        lambda x: e.concat([e.concat([e.slices(x, (r, c), (h, w)) for c, w in ((3, 2), (0, 3))], 1)
                            for r, h in ((1, 2), (0, 1))], 0),
        lambda x: np.roll(x, (-1, -3), (0, 1)),
    ),
    "padded parts": (
        lambda x: e.reshape(e.concat([e.pad(x, (0, 1), (0, -1)), e.pad(x, (0, -1), (0, 1), 2), x], 0), (-1, 3)),
        lambda x: np.concatenate([np.pad(x, ((0, 0), (1, 0)))[:, :-1],
                                  np.pad(x, ((0, 0), (0, 1)), constant_values=2)[:, 1:], x]).reshape(-1, 3),
    ),
    "a part twice": (
        lambda x: e.concat([e.concat([x, x], 0)] * 2, 1), lambda x: np.concatenate([np.concatenate([x, x])] * 2, 1)
    ),
    "iota": (lambda x: x * e.cast(e.iota(x.dims, 1), "float64"), lambda x: x * np.arange(5)),
    "running sum": (lambda x: e.scan("sum", x, 1), lambda x: np.cumsum(x, 1)),
    "running sum behind": (
        lambda x: e.scan("sum", x, 1, reverse=True, exclusive=True),
        lambda x: np.cumsum(x[:, ::-1], 1)[:, ::-1] - x,
    ),
    "running product": (lambda x: e.scan("prod", x, 0), lambda x: np.cumprod(x, 0)),
    "running product behind": (
        lambda x: e.scan("prod", x, 1, reverse=True, exclusive=True),
        lambda x: np.cumprod(np.pad(x[:, :0:-1], ((0, 0), (1, 0)), constant_values=1), 1)[:, ::-1],
    ),
    "recurrence": (lambda x: e.recur(0.5 * x, x, 1), np_recur),
    "recurrence from the end": (
        lambda x: e.recur(0.5 * x, x, 1, reverse=True), lambda x: np_recur(x[:, ::-1])[:, ::-1],
    ),
    "take of padded counts": (
        lambda x: e.take(x, e.pad(e.iota((x.dims[0],), 0), (1,), (2,), -1), 0, "zero"),
        lambda x: np.pad(x, ((1, 2), (0, 0))),
    ),
    "take": (lambda x: e.take(x, e.cast(e.iota((2, 2), 1), "int32"), 1), lambda x: x[:, [[0, 1], [0, 1]]]),
    "put on": (
        lambda x: e.put(x * x, e.cast(e.iota(x.dims, 1), "int32"), 1, x.dims[1], e.exp(x)), lambda x: x * x + np.exp(x),
    ),
    "pick": (
        lambda x: e.pick(x, e.argmin(x, 1, keep=True), 1), lambda x: x.min(1, keepdims=True),
    ),
    "matmul": (lambda x: e.matmul(x, e.transpose(x)), lambda x: x @ x.T),
    "contract": (lambda x: e.contract(x, x * x, "ij,kj->kj"), lambda x: np.einsum("ij,kj->kj", x, x * x)),
    "batches": (
        lambda x: e.contract(e.unsqueeze(x, 0), e.unsqueeze(x, 0), "bij,bkj->bik"), lambda x: (x @ x.T)[None],
    ),
    "window": (lambda x: e.window(x, 1, 2, 2), lambda x: np.stack([x[:, :4:2], x[:, 1::2]], 2)),
    "window of products": (
        lambda x: e.window(x, 1, 3) * e.unsqueeze(e.slice_axis(x, 1, 0, 3), 2),
        lambda x: np.stack([x[:, k : k + 3] for k in range(3)], 2) * x[:, :3, None],
    ),
    "window of rows": (lambda x: e.reduce_sum(e.window(x * x, 0, 2), 1), lambda x: x[:-1] ** 2 + x[1:] ** 2),
    "window with gaps": (lambda x: e.reduce_max(e.window(x, 1, 1, 3), 2), lambda x: x[:, ::3]),
    "window dilated": (
        lambda x: e.reduce_max(e.window(x, 1, 2, 1, 3), 2, keep=True),
        lambda x: np.maximum(x[:, :2], x[:, 3:])[..., None],
    ),
    "windows of windows": (
        lambda x: e.reduce_prod(e.window(e.window(x, 0, 2), 2, 3), (1, 3)),
        lambda x: np.stack([(x[:-1] * x[1:])[:, k : k + 3].prod(1) for k in range(3)], 1),
    ),
    "long window": (lambda x: e.reduce_sum(e.window(x, 1, 5), 2), lambda x: x.sum(1, keepdims=True)),
    "unwindow": (
        lambda x: e.unwindow(e.reshape(e.concat([x, x], 1), (3, 5, 2)), 1, 10, 2, 1),
        lambda x: np.concatenate([x, x], 1),
    ),
    "unwindow of what overlaps": (
        lambda x: e.unwindow(x * x, 0, 7), lambda x: sum(np.pad(row * row, (o, 2 - o)) for o, row in enumerate(x)),
    ),
    "unwindow with gaps": (
        lambda x: e.unwindow(x * x, 0, 16, 3, 2),
        lambda x: sum(np.pad(np.insert(row * row, [1, 2, 3, 4], 0), (3 * o, 7 - 3 * o)) for o, row in enumerate(x)),
    ),
    "where": (lambda x: e.where(x > 0, x * x, e.tanh(x)), lambda x: np.where(x > 0, x * x, np.tanh(x))),
    "numbers": (lambda x: x * (1.0 / e.count(x, 1)) - x.dims[0], lambda x: x / 5 - 3),
    "stop": (lambda x: x * e.stop_gradient(x), None),  # type: ignore[dict-item]
}  # fmt: skip


def _near_a_half(name: str, x: Any) -> Any:
    return getattr(e, name)(0.5 + 0.1 * e.tanh(x))


SMOOTH = ("exp", "expm1", "log", "log1p", "sqrt", "tanh", "sin", "cos", "asin", "acos", "atan", "sinh", "cosh", "erf",
          "normcdf", "normpdf", "gelu", "abs_")  # fmt: skip
for _name in SMOOTH:
    CASES[_name] = (partial(_near_a_half, _name), None)  # type: ignore[assignment]


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("name", [name for name, (_, wanted) in CASES.items() if wanted is not None])
def test_values(name: str, namespace: str) -> None:
    function, wanted = CASES[name]
    np.testing.assert_allclose(run(function, {"X": X}, namespace), wanted(X), rtol=1e-13, atol=1e-14)


def gradient(function: Function) -> Function:
    def derived(x: Any, weights: Any, *others: Any) -> Any:
        (found,) = derivatives([function(x)], [weights], [x])
        return found if found is not None else x * 0

    return derived


def second(function: Function) -> Function:
    """The derivative of the gradient, weighed by a direction: of a symmetric matrix it is its product with that."""

    def derived(x: Any, weights: Any, direction: Any) -> Any:
        first = gradient(function)(x, weights)
        (found,) = derivatives([first], [direction], [x])
        return found if found is not None else x * 0

    return derived


@pytest.mark.parametrize("name", [name for name in CASES if name != "stop"])
def test_derivatives_to_the_second_order(name: str) -> None:
    function, step = CASES[name][0], 1e-5
    rng = np.random.default_rng(1)
    weights, direction = rng.standard_normal(run(function, {"X": X}).shape), rng.standard_normal(X.shape)
    given = {"X": X, "W": weights, "D": direction}
    ahead, behind = X + step * direction, X - step * direction

    def along(function: Function) -> Any:
        return (run(function, {**given, "X": ahead}) - run(function, {**given, "X": behind})) / (2 * step)

    def weighed(x: Any, weights: Any, direction: Any) -> Any:
        return e.reduce_sum(function(x) * weights)

    first = run(gradient(function), given)
    np.testing.assert_allclose((first * direction).sum(), along(weighed), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(run(second(function), given), along(gradient(function)), rtol=1e-6, atol=1e-7)
    for found, namespace in product((gradient(function), second(function)), ("strict", "operators")):
        np.testing.assert_allclose(run(found, given, namespace), run(found, given), rtol=1e-12, atol=1e-13)


def test_zeros_in_products_have_derivatives() -> None:
    x = np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 4.0]])
    given = {"X": x, "W": np.ones(3), "D": np.ones((3, 3))}
    wanted = [[6, 0, 0], [0, 0, 0], [8, 4, 2]]
    np.testing.assert_array_equal(run(gradient(lambda x: e.reduce_prod(x, 1)), given), wanted)
    # d/dt of the products of the others, all moving alike
    np.testing.assert_array_equal(run(second(lambda x: e.reduce_prod(x, 1)), given), [[5, 3, 2], [5, 5, 0], [6, 5, 3]])


def test_equal_maxima_have_all_the_derivative() -> None:
    given = {"X": np.array([[1.0, 3, 3]]), "W": np.array([2.0])}
    np.testing.assert_array_equal(run(gradient(lambda x: e.reduce_max(x, 1)), given), [[0, 2, 2]])


def test_no_derivative_flows_through_stop_gradient() -> None:
    given = {"X": X, "W": np.ones_like(X)}
    np.testing.assert_array_equal(run(gradient(CASES["stop"][0]), given), X)


def test_what_has_no_derivative_raises() -> None:
    with pytest.raises(GradientError, match=r"test_expr.py:\d+\): scan has no derivative"):
        run(gradient(lambda x: e.scan("max", x, 1)), {"X": X, "W": X})


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("mode", ["clamp", "zero"])
def test_indices_out_of_range(mode: str, namespace: str) -> None:
    index = np.array([-1, 0, 5, 4])
    taken = run(lambda x, i: e.take(x, i, 1, mode), {"X": X, "I": index}, namespace)
    wanted = X[:, [0, 0, 4, 4]] * (1 if mode == "clamp" else np.array([0, 1, 0, 1]))
    np.testing.assert_array_equal(taken, wanted)
    each = np.broadcast_to(index, (3, 4)).copy()
    np.testing.assert_array_equal(run(lambda x, i: e.pick(x, i, 1, mode), {"X": X, "I": each}, namespace), wanted)


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_sums_at_indices(namespace: str) -> None:
    index, updates = np.array([[2, 0], [2, 9]]), np.arange(12.0).reshape(3, 2, 2)
    wanted = np.zeros((3, 4))
    for k in range(3):
        np.add.at(wanted[k], [2, 0, 2], updates[k].ravel()[:3])
    found = run(lambda u, i: e.add_at(u, i, 1, 4), {"U": updates, "I": index}, namespace)
    np.testing.assert_array_equal(found, wanted)
    flat, rows = updates.reshape(3, 4), np.array([[2, 0, 2, -1]] * 3)
    np.testing.assert_array_equal(run(lambda u, i: e.put(u, i, 1, 4), {"U": flat, "I": rows}, namespace), wanted)


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_sums_at_indices_begin_with_what_is_given(namespace: str) -> None:
    index, updates, base = np.array([2, 0, 2]), np.arange(15.0).reshape(3, 5), np.full((4, 5), -0.0)
    wanted = base.copy()
    np.add.at(wanted, index, updates)
    given = {"U": updates, "I": index, "B": base}
    found = run(lambda u, i, b: e.add_at(u, e.checked(i, 4), 0, 4, b), given, namespace)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("size", [4, 40])
@pytest.mark.parametrize("columns", [1, 4])
def test_elements_are_put_on_what_is_given(columns: int, size: int, namespace: str) -> None:
    index, updates = np.array([[2, 0, 2, -1], [3, 3, size, 1], [-5, 0, 1, 2]])[:, :columns], X[:, :columns].copy()
    base = np.arange(3.0 * size).reshape(3, size)
    wanted = base.copy()
    for row, column in product(range(3), range(columns)):
        if 0 <= index[row, column] < size:
            wanted[row, index[row, column]] += updates[row, column]
    given = {"U": updates, "I": index, "B": base}
    found = run(lambda u, i, b: e.put(u, i, 1, size, b), given, namespace)
    np.testing.assert_allclose(found, wanted, rtol=1e-15)
    doubled = run(lambda u, i, b: 2 * e.put(u, i, 1, size, b * 1.0), given, namespace)
    np.testing.assert_allclose(doubled, 2 * wanted, rtol=1e-15)


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("axis", [0, 1])
def test_of_several_updates_of_a_part_the_last_counts(axis: int, namespace: str) -> None:
    index, updates = np.array([2, 0, 2, 1, 0]), np.arange(20.0).reshape(5, 4)
    x = np.full((6, 4), -1.0)
    wanted = x.copy()
    for i, at in enumerate(index):
        wanted[at] = updates[i]
    x, updates, wanted = (np.ascontiguousarray(a.T) if axis else a for a in (x, updates, wanted))
    given = {"X": x, "U": updates, "I": index}
    np.testing.assert_array_equal(run(lambda x, u, i: e.set_at(x, u, i, axis), given, namespace), wanted)
    stays = run(lambda i: e.stays(i, 6), {"I": index}, namespace)
    np.testing.assert_array_equal(stays, [False, False, True, True, True])


@pytest.mark.parametrize("axis", [0, 1])
def test_derivatives_of_replaced_parts(axis: int) -> None:
    """What was overwritten has none, in the operand and among the updates."""
    index = np.array([2, 0, 2])
    x, updates, weights = np.ones((4, 5)), np.ones((3, 5)), np.arange(20.0).reshape(4, 5)
    dx, du = weights.copy(), weights[index]
    dx[[0, 2]], du[0] = 0, 0
    x, updates, weights, dx, du = (np.ascontiguousarray(a.T) if axis else a for a in (x, updates, weights, dx, du))
    given = {"X": x, "U": updates, "I": index, "W": weights}
    for k, exact in enumerate((dx, du)):
        found = run(lambda x, u, i, w, k=k: derivatives([e.set_at(x, u, i, axis)], [w], [x, u])[k], given)  # type: ignore[misc]
        np.testing.assert_array_equal(found, exact)


def test_an_index_that_was_checked_is_not_checked_again() -> None:
    """Neither by what reads at it, nor by the derivative, which adds there."""
    arrays = {"X": X, "I": np.array([2, 0])}
    for function in (
        lambda x, i: e.take(x, e.checked(i, x.dims[0])),
        lambda x, i: derivatives([e.take(x, i)], [e.full((i.dims[0], 5), 1, "float64")], [x])[0],
    ):
        source = array_code(traced(function, arrays)).source
        assert source.count("H.checked(") == 1, source
        assert traced(function, arrays).checks_indices
    assert not traced(lambda x, i: e.take(x, i, 0, "zero"), arrays).checks_indices


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dims", [(5, 600), (2, 4, 300), (600, 5), (1, 600)])
def test_running_sums_across_long_slices(dims: tuple[int, ...], reverse: bool, exclusive: bool) -> None:
    """They are added a slice at a time there."""
    x, axis = np.random.default_rng(1).standard_normal(dims), len(dims) - 2
    wanted = np.cumsum(np.flip(x, axis) if reverse else x, axis)
    wanted = np.flip(wanted, axis) if reverse else wanted
    found = run(lambda x: e.scan("sum", x, axis, reverse, exclusive), {"X": x})
    np.testing.assert_allclose(found, wanted - x if exclusive else wanted, atol=1e-12)


PRODUCTS = ("ik,kj->ij", "ki,kj->ij",
            "ik,jk->ji", "ab,cb->ca", "aik,akj->aij", "aki,akj->aji", "abik,kj->abij",
            "ik,akj->aij", "abik,abkj->kij", "ij,ij->", "ij,ij->i", "ij,k->kij", "ij,jk->ki",
            "iab,jba->ij")  # fmt: skip


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("letters", PRODUCTS)
def test_contractions(letters: str, namespace: str) -> None:
    rng, sizes = np.random.default_rng(3), dict(zip("abcijk", (2, 3, 4, 5, 2, 3), strict=True))
    mine, theirs = letters.partition("->")[0].split(",")
    x, y = (rng.standard_normal([sizes[n] for n in names]) for names in (mine, theirs))
    found = run(lambda x, y: e.contract(x, y, letters), {"X": x, "Y": y}, namespace)
    np.testing.assert_allclose(found, np.einsum(letters, x, y), rtol=1e-12, atol=1e-13)


FEW = ("logsumexp", "sum", "prod", "prod of all", "transpose", "flip", "pad", "concat", "stack", "running sum",
       "running sum behind", "running product", "recurrence", "recurrence from the end", "matmul", "batches",
       "where")  # fmt: skip
"""What is of any number of rows and columns."""


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("dims", [(0, 5), (3, 0), (0, 0), (1, 1), (1, 5), (3, 1)])
@pytest.mark.parametrize("name", FEW)
def test_few_elements(name: str, dims: tuple[int, int], namespace: str) -> None:
    function, wanted = CASES[name]
    x = np.full(dims, 0.5)
    if name == "recurrence from the end" and not dims[1]:
        return  # NumPy stacks no columns
    with np.errstate(all="ignore"):
        exact = wanted(x) if dims[1] or not name.startswith("recurrence") else x
        np.testing.assert_allclose(run(function, {"X": x}, namespace), exact)
        weights = np.ones(exact.shape)
        assert run(gradient(function), {"X": x, "W": weights}, namespace).shape == dims


def test_a_slice_beyond_the_tensor_is_refused() -> None:
    def call(rows: int) -> dict[str, Any]:
        return {"X": [((rows, 4), "float32")]}

    made = trace(lambda given, numbers: {"Out": e.slices(given["X"][0], (4, 3), (2, 4), (-3, -1))}, call(-1))
    assert made.failed(values_of(call(5))) is None
    failed = made.failed(values_of(call(4)))
    assert failed is not None
    assert "within" in failed.expected


OFFSETS = np.array([0, 2, 2, 5, 6, 6])


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("kind", ["sum", "max", "min", "mean"])
def test_segments(kind: str, namespace: str) -> None:
    """Runs of different lengths, empty ones among them; first and second derivatives."""
    x = np.random.default_rng(4).standard_normal((6, 2))
    pairs = list(pairwise(OFFSETS))
    wanted = np.stack([getattr(x[a:b], kind)(0) if b > a else np.zeros(2) for a, b in pairs])

    def pooled(x: Any, offsets: Any) -> Any:
        return e.segment_mean(x, offsets) if kind == "mean" else e.segment(kind, x, offsets)

    given = {"X": x, "O": OFFSETS}
    np.testing.assert_allclose(run(pooled, given, namespace), wanted, rtol=1e-14)

    def squares(x: Any, offsets: Any) -> Any:
        found = pooled(x, offsets)
        return derivatives([e.reduce_sum(found * found * found)], [e.reduce_sum(x * 0) + 1], [x])[0]

    def along(x: Any, offsets: Any, direction: Any) -> Any:
        return derivatives([squares(x, offsets)], [direction], [x])[0]

    step, direction = 1e-6, np.random.default_rng(5).standard_normal(x.shape)
    moved = [run(pooled, {**given, "X": x + s * direction}) for s in (step, -step)]
    slope = ((moved[0] ** 3).sum() - (moved[1] ** 3).sum()) / (2 * step)
    np.testing.assert_allclose((run(squares, given, namespace) * direction).sum(), slope, rtol=1e-7)
    change = [run(squares, {**given, "X": x + s * direction}) for s in (step, -step)]
    curve = (change[0] - change[1]) / (2 * step)
    np.testing.assert_allclose(run(along, {**given, "D": direction}, namespace), curve, rtol=1e-5, atol=1e-8)


def sizes() -> Iterator[Any]:
    yield (-1, 5), (-1, 5), (-1, 5)
    yield (-1, 1), (-1, 4), (-1, 4)
    yield (4, -1), (4, 7), (4, 7)
    yield (2, 3), (3,), (2, 3)
    yield (), (3,), (3,)


@pytest.mark.parametrize(("x", "y", "out"), list(sizes()))
def test_dims_that_are_not_known(x: Any, y: Any, out: Any) -> None:
    given = {"X": [(x, "float32")], "Y": [(y, "float32")]}
    made = trace(lambda g, n: {"Out": g["X"][0] + g["Y"][0]}, given)
    found = made.dims("Out", values_of(given))
    assert len(found) == len(out)
    assert all(a in (-1, b) for a, b in zip(found, out, strict=True))


def test_a_trace_serves_calls_that_answer_alike() -> None:
    def function(given: Any, numbers: Any) -> dict[str, Any]:
        return {"Out": given["X"][0] * given["Y"][0]}

    def call(x: tuple[int, ...], y: tuple[int, ...]) -> dict[str, Any]:
        return {"X": [(x, "float32")], "Y": [(y, "float32")]}

    made = trace(function, call((4, 3), (4, 3)))
    assert made.serves(values_of(call((7, 9), (7, 9))))
    assert not made.serves(values_of(call((7, 9), (7, 1))))
    assert not made.serves(values_of(call((7, 9), (8, 9))))
    with pytest.raises(ProgramError, match=r"dims .* do not broadcast"):
        trace(function, call((7, 9), (8, 9)))


def test_requirements_are_looked_at_once_sizes_are_known() -> None:
    def function(given: Any, numbers: Any) -> dict[str, Any]:
        x = given["X"][0]
        e.need(x.dims[1] % 2 == 0, "X", "an even number of columns")
        return {"Out": e.reshape(x, (x.dims[0], 2, -1))}

    def call(columns: int) -> dict[str, Any]:
        return {"X": [((3, columns), "float32")]}

    made = trace(function, call(-1))
    assert made.failed(values_of(call(-1))) is None
    assert made.failed(values_of(call(8))) is None
    failed = made.failed(values_of(call(5)))
    assert failed is not None
    assert failed.expected == "an even number of columns"
    assert made.dims("Out", values_of(call(8))) == (3, 2, 4)


def test_an_attribute_that_does_not_suit_is_named_with_the_sizes_at_hand() -> None:
    """Also where what follows from it cannot be traced, and where the trace was made for other sizes."""

    def function(given: Any, attrs: Any) -> dict[str, Any]:
        (x,) = given["X"]
        e.need_attr(x.dims[1] % attrs["groups"] == 0, "groups", "a divisor of {0}, as X is {X}", x.dims[1])
        return {"Out": e.reshape(x, (x.dims[0], attrs["groups"], x.dims[1] // attrs["groups"]))}

    op = register_op(
        "case", inputs=("X",), outputs=("Out",), attrs=[Attr("groups", "int")], infer=infer,
        expression=ExpressionRule(function),
    )  # fmt: skip
    try:
        for dims in ((3, 5), (3, -1), (3, 7)):
            call = Call(op, {"X": [Spec.of(dims, "float32")]}, {}, {"groups": 2})
            if dims[1] < 0:
                assert infer(call)["Out"] == Spec.of((3, 2, -1), "float32")
                continue
            with pytest.raises(AttributeValueError) as raised:
                infer(call)
            said = f"attribute 'groups' is 2; expected a divisor of {dims[1]}, as X is float32[3, {dims[1]}]."
            assert str(raised.value) == said
    finally:
        ops.remove(op)


def test_sizes_that_are_not_known_are_those_that_they_must_equal() -> None:
    """A concatenation knows of each dim what one of its parts says."""
    given = {"X": [((-1, 2, -1), "float32"), ((3, 4, -1), "float32"), ((-1, 1, 5), "float32")]}
    made = trace(lambda g, n: {"Out": e.concat(g["X"], 1)}, given)
    assert made.dims("Out", values_of(given)) == (-1, 7, -1)
    assert made.dims("Out", made.completed(values_of(given))) == (3, 7, 5)


def test_sizes_that_were_found_equal_are_not_taken_for_a_broadcast_1() -> None:
    given = {"X": [((-1, 4), "float32"), ((3, 4), "float32")]}

    def added(g: Any, n: Any) -> Any:
        a, b = g["X"]
        assert e.all_agree(a.dims, b.dims)
        return {"Out": a + b}

    made = trace(added, given)
    assert made.dims("Out", made.completed(values_of(given))) == (3, 4)


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_the_index_of_the_first_maximum_along_each_axis(dtype: str, namespace: str) -> None:
    """Along a strided axis, along the last one, and with NaN in some lines."""
    x = np.random.default_rng(3).integers(0, 9, (40, 30, 20)).astype(dtype)
    if dtype == "float32":
        x[7, :, 3], x[20, 5, :] = np.nan, np.nan
    for axis in range(3):
        found = run(lambda x, axis=axis: e.argmax(x, axis), {"X": x}, namespace)
        np.testing.assert_array_equal(found, np.argmax(x, axis))


def test_what_was_taken_away_and_put_back_is_the_same_size() -> None:
    """Rows that changed places are as many, under the same name: so they share the sequences of X."""
    made = trace(lambda g, n: {"Out": e.concat([e.slice_axis(g["X"][0], 0, 2, g["X"][0].dims[0] - 2),
                                                e.slice_axis(g["X"][0], 0, 0, 2)], 0)},
                 {"X": [((-1, 3), "float32")]})  # fmt: skip
    assert made.outputs["Out"][0].dims[0].key == made.inputs["X"][0].dims[0].key


def test_an_exact_number_serves_calls_of_that_number() -> None:
    def function(given: Any, numbers: Any) -> dict[str, Any]:
        x = given["X"][0]
        return {"Out": e.concat([x] * e.exactly(x.dims[0]), 0)}

    def call(rows: int) -> dict[str, Any]:
        return {"X": [((rows,), "float32")]}

    made = trace(function, call(3))
    assert made.dims("Out", values_of(call(3))) == (9,)
    assert made.serves(values_of(call(3)))
    assert not made.serves(values_of(call(4)))
    with pytest.raises(ProgramError, match="not known"):
        trace(function, call(-1))


def test_an_open_dim_must_come_out_whole() -> None:
    """6 elements are no rows of 4; a compiled reshape would refuse, or read beyond them."""
    made = trace(lambda given, numbers: {"Out": e.reshape(given["X"][0], (-1, 4))}, {"X": [((-1,), "float32")]})
    assert made.failed(values_of({"X": [((8,), "float32")]})) is None
    failed = made.failed(values_of({"X": [((6,), "float32")]}))
    assert failed is not None
    assert "multiple of 4" in failed.expected


def test_a_condition_decided_and_assumed_has_two_answers() -> None:
    """Dims that are not known differ when they are decided, and are equal when that is assumed."""

    def function(given: Any, numbers: Any) -> dict[str, Any]:
        x, y = given["X"][0], given["Y"][0]
        branch = x if bool(x.dims[0] == y.dims[0]) else x * 2
        return {"Out": e.concat([branch, y], 1)}

    made = trace(function, {"X": [((-1, 3), "float32")], "Y": [((-1, 2), "float32")]})
    assert made.dims("Out", values_of({"X": [((4, 3), "float32")], "Y": [((4, 2), "float32")]})) == (4, 5)


@pytest.mark.parametrize(
    "function", [e.reduce_max, e.reduce_min, lambda x, axes: e.argmax(x, axes[0]), lambda x, axes: e.argmin(x, axes[0])]
)
def test_nothing_has_no_maximum(function: Function) -> None:
    def call(*dims: int) -> dict[str, Any]:
        return {"X": [(dims, "float32")]}

    made = trace(lambda given, numbers: {"Out": function(given["X"][0], (1,))}, call(-1, -1))
    assert made.failed(values_of(call(3, 0))) is not None
    assert made.failed(values_of(call(3, 1))) is None
    assert made.failed(values_of(call(0, 0))) is None  # there are no results either
    assert made.failed(values_of(call(0, 3))) is None
    assert run(lambda x: function(x, (1,)), {"X": np.zeros((0, 3))}).shape == (0,)
    assert run(lambda x: function(x, (1,)), {"X": np.zeros((0, 0))}).shape == (0,)


@pytest.mark.parametrize("divide", [lambda a, b: a // b, lambda a, b: a % b, lambda a, b: a / b])
def test_attributes_that_are_zero_divide_as_floats_do(divide: Function) -> None:
    for value in (3.0, -3.0, 0.0):
        found = run(lambda x, zero, a: x * 0 + divide(a, zero), {"X": X}, zero=0.0, a=value)
        with np.errstate(all="ignore"):
            wanted = divide(np.float64(value), np.float64(0.0))
        np.testing.assert_array_equal(found, np.full_like(X, wanted))


def test_whole_numbers_stand_beside_integers() -> None:
    x = np.arange(4)
    assert run(lambda x: x + 0.0, {"X": x}).dtype == x.dtype
    assert list(run(lambda x: x * 2.0, {"X": x})) == [0, 2, 4, 6]
    with pytest.raises(ProgramError, match="fraction beside int64"):
        run(lambda x, scale: x * scale, {"X": x}, scale=2.0)


def test_float_attributes_are_arguments() -> None:
    for scale in (2.0, 3.5):
        found = run(lambda x, scale: e.exp(x * scale) / (scale + 1), {"X": X}, scale=scale)
        np.testing.assert_allclose(found, np.exp(X * scale) / (scale + 1))


def test_all_that_a_namespace_is_asked_for_is_listed() -> None:
    """Beside what NumPy alone is asked for, and names of other versions."""
    rendered = Path(str(array_functions.__file__)).parent.glob("*.py")
    said = {name for path in (functions.__file__, *rendered)
            for name in re.findall(r"\bxp\.([a-z_]\w*)", Path(str(path)).read_text())}  # fmt: skip
    called = {name for each in PRIMITIVES.values() for name in (each.xp, each.xp_int) if name and name[0] != "@"}
    optional = {name.split(".")[0] for name in array_functions.OPTIONAL}
    host = {"clip", "concatenate", "empty", "empty_like", "errstate", "nonzero", "transpose"}
    assert said | called <= {*array_functions.REQUIRED, *optional, *host, *DTYPES}


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_sizes_may_be_computed_of_attributes(namespace: str) -> None:
    def repeated(x: Any, scale: float) -> Any:
        count = e.whole(e.single(e.single(x.dims[0]) * e.single(scale)))
        return e.take(x, e.clamped(e.iota((count,), 0) // 2, x.dims[0]), 0, "clamp")

    for scale in (2.0, 2.4):
        found = run(repeated, {"X": X}, namespace, scale=scale)
        np.testing.assert_array_equal(found, X[np.minimum(np.arange(int(3 * scale)) // 2, 2)])


def test_indices_that_were_clamped_are_not_looked_at_again() -> None:
    def read(x: Any, index: Any) -> Any:
        return e.take(x, e.clamped(index, x.dims[0]), 0, "clamp")

    made = traced(read, {"X": X, "Index": np.array([-7, 1, 9])})
    assert "checked" not in array_code(made).source
    assert "checked" in array_code(traced(e.take, {"X": X, "Index": np.array([1])})).source


BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne")


@pytest.mark.parametrize("name", BINARY)
def test_numbers_stand_on_either_side_of_a_tensor(name: str) -> None:
    """Of Python's, attributes and sizes alike."""
    operate = getattr(operator, name)
    for function in (lambda x, a: operate(a, x), lambda x, a: operate(x, a)):
        for value, found in (
            (0.25, run(function, {"X": X}, a=0.25)),
            (0.25, run(lambda x, f=function: f(x, 0.25), {"X": X})),
            (5, run(lambda x, f=function: f(x, x.dims[1]), {"X": X})),
        ):
            np.testing.assert_allclose(found, function(X, value))


def test_an_error_shows_the_sizes_of_its_own_call() -> None:
    """A trace serves many calls: what it expects is said with the numbers of each."""

    def function(given: Any, numbers: Any) -> dict[str, Any]:
        x, y = given["X"][0], given["Y"][0]
        e.vector(y, x.dims[1], "as X has columns")
        return {"Out": x + e.reshape(y, (1, x.dims[1]))}

    def call(columns: int, length: int) -> Any:
        return {"X": [((2, columns), "float32")], "Y": [((length,), "float32")]}

    made = trace(function, call(-1, -1))
    assert made.failed(values_of(call(3, 3))) is None
    for columns, length in ((3, 4), (7, 1)):
        values = values_of(call(columns, length))
        failed = made.failed(values)
        assert failed is not None
        assert failed.expected.format(*(n.evaluate(values) for n in failed.numbers)) == f"[{columns}], as X has columns"


def test_half_types_widen_where_they_compute_and_stay_where_they_move() -> None:
    given = {"X": [((3, 4), "bfloat16")]}
    made = trace(lambda g, n: {"Out": e.transpose(g["X"][0]), "Sum": e.reduce_sum(g["X"][0], 0)}, given)
    assert made.outputs["Out"][0].dtype == "bfloat16"
    assert made.outputs["Sum"][0].dtype == "float32"
    back = trace(lambda g, n: {"Out": e.cast(e.transpose(g["X"][0] * 1), "bfloat16")}, given)
    assert back.outputs["Out"][0].dtype == "bfloat16"


@pytest.mark.parametrize("op", sorted(op for op in RULES if not TENSOR_PRIMITIVES[op].moves))
def test_what_computes_has_no_half_types_as_operands(op: str) -> None:
    with pytest.raises(ProgramError, match=f"{op} of half types"):
        trace(lambda g, n: {"Out": tensor(op, g["X"], (), (3, 4), "float32")}, {"X": [((3, 4), "bfloat16")]})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_the_index_of_a_maximum_is_found_in_float32(kind: str, dtype: str) -> None:
    made = trace(lambda g, n: {"Out": getattr(e, kind)(g["X"][0], 1)}, {"X": [((3, 4), dtype)]})
    (arg,) = (x for x in ordered(made.outputs["Out"]) if x.op == "arg")
    assert arg.args[0].dtype == "float32"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: 1 if x > 0 else 2, "no truth value"),
        (lambda x: e.reshape(x, (4, 4)), "changes the number of elements"),
        (lambda x: e.transpose(x, (0, 0)), "by (0, 0)"),
        (lambda x: e.take(x, x, 0), "indices are float64"),
        (lambda x: e.reduce_sum(x, 2), "axis 2 is none of 2 dims"),
        (lambda x: e.cast(x, "int32") + 0.5, "is a fraction beside int32"),
        (lambda x: e.contract(x, x, "ij,jk->ik"), "j is"),
        (lambda x: x.nothing, "AttributeError"),
        (lambda x: range(x.dims[0]), "is not known while an operator is traced"),
        (lambda x: 3, "no tensor"),
    ],
)
def test_errors_name_the_line(function: Function, said: str) -> None:
    with pytest.raises(ProgramError) as caught:
        traced(function, {"X": X})
    assert said in str(caught.value)
    assert "test_expr.py:" in str(caught.value) or said == "no tensor"


def _affine(rows: int, place: fluid.Place) -> Call:
    """A call of an operator that no kernel computes whole."""
    line = (Spec.of((64,), "float32"),)
    ins = {"X": (Spec.of((rows, 64), "float32"),), "Scale": line, "Bias": line}
    return Call(ops.get("affine_channel"), ins, {"Out": (ins["X"][0],)}, {"data_layout": "NHWC"}, place, False)


def test_a_kernel_language_comes_before_array_calls() -> None:
    """An expression without a kernel is said with operators, which may be fused, unless the user asks for arrays."""
    for place in fluid.places():
        unit, call = devices.unit(place), _affine(4096, place)
        found = choose(call, place, Policy())
        if unit.dialect is not None:
            assert found.how == "decomposed"
            assert not any(part.capability == "array" for part in found.part_choices)
        if unit.array is not None:
            policy = Policy(codegen=((place.kind, "array"),))
            arrays = choose(_affine(8, place), place, policy)
            assert (arrays.how, arrays.capability) == ("generated", "array")
            large = choose(call, place, policy)
            if unit.array.out and unit.array.eager:
                assert (large.how, large.capability) == ("generated", "array"), "it is computed in blocks"
            else:
                assert large.how == "decomposed", "its elementwise part is computed in blocks"
                assert all(part.capability in ("array", "memory") for part in large.part_choices)
        if unit.array is not None and getattr(unit.dialect, "least", 0):
            assert choose(_affine(1, place), place, Policy()).capability == "array", "it starts sooner"
            assert choose(_affine(1, place), place, Policy(repeated=True)).how == "decomposed"


def test_a_sum_of_an_elementwise_part_is_one_operator() -> None:
    """Nothing as large as its operands is stored on the way to scale_w@GRAD."""
    x, line = Spec.of((8, 64), "float32"), Spec.of((64,), "float32")
    ins = {"X": (x,), "scale_w": (line,), "bias": (line,), "Means": (line,), "Scales": (line,), "Y@GRAD": (x,)}
    op = ops.get("data_norm_grad")
    attrs = {a.name: a.default for a in op.attrs} | {"enable_scale_and_shift": True}
    parts = parts_of(Call(op, ins, {"scale_w@GRAD": (line,)}, attrs, None, False))
    assert [part.call.op.type for part in parts] == ["elementwise_part", "reshape"]
    assert parts[0].outs[0].dims == (1, 64)
    assert [value.dims for value in parts[0].ins].count((64,)) == 2, "a line of X is read as it lies"


def test_what_an_expression_updates_is_written_in_place_by_parts_that_others_follow() -> None:
    """Moments are made of the old ones by one operator, and all else of the new ones, which no part stores again."""
    large, one = Spec.of((8, 64), "float32"), Spec.of((1,), "float32")
    ins = {slot: (large,) for slot in ("Param", "Grad", "Moment1", "Moment2")}
    ins |= {slot: (one,) for slot in ("LearningRate", "Beta1Pow", "Beta2Pow")}
    outs = {slot: (large,) for slot in ("ParamOut", "Moment1Out", "Moment2Out")}
    attrs = {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6}
    parts = parts_of(Call(ops.get("lamb"), ins, outs, attrs, None, False))
    assert [[value.slot for value in part.outs if value.role == "out"] for part in parts] == [
        ["Moment1Out", "Moment2Out"], [], [], ["ParamOut"],
    ]  # fmt: skip
    assert all(part.outs[0].dims == (1, 1) for part in parts[1:3])
    for i, part in enumerate(parts):
        position = {slot: k for k, slot in enumerate(part.call.ins)}
        for slot, given in part.call.op.must_alias.items():
            old, new = part.ins[position[given]], part.outs[list(part.call.outs).index(slot)]
            assert ops.get("lamb").must_alias[new.slot] == old.slot
            assert not any((v.role, v.slot) == ("in", old.slot) for later in parts[i + 1 :] for v in later.ins)
    assert [len(part.call.op.must_alias) for part in parts] == [2, 0, 0, 1]


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_an_expression_that_finds_a_wrong_index_updates_nothing(place: str, mode: str) -> None:
    """Though what it updates comes first among its outputs, and large enough to be computed in parts."""

    @declare("taken", inputs=("X", "Total", "Ids"), outputs=("TotalOut", "Out"), must_alias={"TotalOut": "Total"})
    def taken(x: Any, total: Any, ids: Any) -> Any:
        return total + 1, e.take(x, ids, 0) * 2

    try:
        fluid.set_fallback("allow")
        x = fluid.layers.data("x", [8], append_batch_size=False)
        ids = fluid.layers.data("ids", [4], dtype="int64", append_batch_size=False)
        total = fluid.layers.create_global_var([1 << 16], 0.0, "float32", persistable=True)
        block = fluid.default_main_program().global_block()
        out = block.create_var("out")
        block.append_op("taken", {"X": x, "Total": total, "Ids": ids}, {"TotalOut": total, "Out": out})
        exe = fluid.Executor(place, mode=mode)
        exe.run(fluid.default_startup_program())

        def run(*ids: int) -> Any:
            feed = {"x": np.arange(8, dtype="float32"), "ids": np.array(ids)}
            return exe.run(feed=feed, fetch_list=[out, total])

        for _ in range(4):
            last = run(1, 2, 3, 7)[1]
        with pytest.raises(OutOfRangeError):
            run(1, 2, 3, 8)
        found, after = run(1, 2, 3, 0)
        np.testing.assert_array_equal(found, [2, 4, 6, 0])
        np.testing.assert_array_equal(after, last + 1)
    finally:
        ops.remove(ops.get("taken"))


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
def test_an_expression_does_not_write_over_what_it_still_reads(mode: str) -> None:
    """Its definition allows Out the memory of X; array calls write the parts of a concatenation one by one."""

    @declare("turned", may_alias={"Out": "X"})
    def turned(x: Any) -> Any:
        half = x.dims[0] // 2
        return e.concat([e.slice_axis(x, 0, half, x.dims[0] - half), e.slice_axis(x, 0, 0, half)], 0)

    try:
        x = fluid.layers.data("x", [4096], append_batch_size=False)
        block, given = fluid.default_main_program().global_block(), fluid.layers.scale(x, 2.0)
        out = block.create_var("out")
        block.append_op("turned", {"X": given}, {"Out": out})
        numbers = np.arange(4096, dtype="float32")
        (found,) = fluid.Executor("cpu", mode=mode, codegen="numpy").run(feed={"x": numbers}, fetch_list=[out])
        np.testing.assert_array_equal(found, 2 * np.roll(numbers, 2048))
    finally:
        ops.remove(ops.get("turned"))


@pytest.mark.parametrize("dtype", ALL_FLOATS)
def test_operators_make_numbers_alone_in_every_dtype(dtype: str) -> None:
    """A fraction stays one where no operand takes part."""
    x = np.zeros((2, 3), "float32")
    found = run(lambda x: e.cast(e.full(x.dims, 0.5, "float32"), dtype), {"X": x}, "operators")
    assert found.dtype == NUMPY[dtype]
    np.testing.assert_array_equal(found.astype("float64"), np.full((2, 3), 0.5))


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_no_derivative_flows_through_a_number(namespace: str) -> None:
    """It stays the number that it is."""
    x = np.arange(4.0)
    for function, expected in (
        (lambda x: e.where(x > 1, x, e.stop_gradient(e.full((), 2.0, "float64"))), [2, 2, 2, 3]),
        (lambda x: x * e.stop_gradient(e.full((), 2.0, "float64")), [0, 2, 4, 6]),
    ):
        np.testing.assert_array_equal(run(function, {"X": x}, namespace), expected)
