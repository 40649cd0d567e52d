"""Tensor expressions: array calls against NumPy, derivatives of first and second order against central differences."""

from __future__ import annotations

import itertools
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from expr_harness import NAMESPACES, Function, X, llvm, run  # noqa: F401
from grouped import grouped

from fluidlite import expr as e
from fluidlite.base.errors import GradientError
from fluidlite.expr.derivatives import derivatives


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


@grouped(
    ("name", "namespace"),
    product([name for name, (_, wanted) in CASES.items() if wanted is not None], NAMESPACES),
    ("namespace",),
)
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


FEW = ("logsumexp", "sum", "prod", "prod of all", "transpose", "flip", "pad", "concat", "stack", "running sum",
       "running sum behind", "running product", "recurrence", "recurrence from the end", "matmul", "batches",
       "where")  # fmt: skip
"""What is of any number of rows and columns."""


@grouped(
    ("name", "dims", "namespace"),
    itertools.product(FEW, [(0, 5), (3, 0), (0, 0), (1, 1), (1, 5), (3, 1)], NAMESPACES),
    by=("name",),
)
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
