"""Layers of reductions, products and activations with parameters: values, names of arguments and their defaults."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import ProgramError

X = np.random.default_rng(0).uniform(0.2, 0.9, (4, 3)).astype("float32")
Y = np.random.default_rng(1).uniform(-1, 1, (4, 3)).astype("float32")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    with (
        fluid.unique_name.guard(),
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield


def run(*fetch: Any, **feed: Any) -> list[Any]:
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    found: list[Any] = exe.run(fluid.default_main_program(), feed=feed, fetch_list=list(fetch))
    return found


def data(name: str, array: Any, batch: bool = False) -> Any:
    dims = [-1, *array.shape[1:]] if batch else list(array.shape)
    return layers.data(name, dims, dtype=str(array.dtype), append_batch_size=False)


# Signatures --------------------------------------------------------------------------------------------------------

FLUIDS = {
    "acos": {}, "asin": {}, "atan": {}, "cosh": {}, "sinh": {}, "erf": {}, "rsqrt": {}, "sign": {}, "relu": {},
    "brelu": {"t_min": 0.0, "t_max": 24.0}, "cumsum": {"axis": None, "exclusive": None, "reverse": None},
    "elu": {"alpha": 1.0}, "gelu": {"approximate": False}, "hard_shrink": {"threshold": None},
    "hard_sigmoid": {"slope": 0.2, "offset": 0.5}, "hard_swish": {"threshold": 6.0, "scale": 6.0, "offset": 3.0},
    "leaky_relu": {"alpha": 0.02}, "mish": {"threshold": 20.0}, "pow": {"factor": 1.0}, "relu6": {"threshold": 6.0},
    "selu": {"scale": None, "alpha": None}, "soft_relu": {"threshold": 40.0}, "softshrink": {"alpha": None},
    "stanh": {"scale_a": 0.67, "scale_b": 1.7159}, "swish": {"beta": 1.0}, "thresholded_relu": {"threshold": None},
}  # fmt: skip
REDUCED = ("sum", "mean", "max", "min", "prod", "all", "any")
OTHERS = {
    "clip": ("x", "min", "max", "name"),
    "clip_by_norm": ("x", "max_norm", "name"),
    "cos_sim": ("X", "Y"),
    "bilinear_tensor_product": ("x", "y", "size", "act", "name", "param_attr", "bias_attr"),
    "prelu": ("x", "mode", "param_attr", "name"),
    "matmul": ("x", "y", "transpose_x", "transpose_y", "alpha", "name"),
    "mul": ("x", "y", "x_num_col_dims", "y_num_col_dims", "name"),
    "mean": ("x", "name"),
    "isfinite": ("x",),
    "has_inf": ("x",),
    "has_nan": ("x",),
    **{f"reduce_{name}": ("input", "dim", "keep_dim", "name") for name in REDUCED},
    **{f"elementwise_{name}": ("x", "y", "axis", "act", "name") for name in ("add", "sub", "mul", "div", "max", "pow")},
    **{f"logical_{name}": ("x", "y", "out", "name") for name in ("and", "or", "xor")},
    "logical_not": ("x", "out", "name"),
    "less_than": ("x", "y", "force_cpu", "cond", "name"),
}


@pytest.mark.parametrize("name", FLUIDS)
def test_an_activation_has_fluids_arguments(name: str) -> None:
    parameters = inspect.signature(getattr(layers, name)).parameters
    assert list(parameters) == ["x", *FLUIDS[name], "name"]
    for argument, default in FLUIDS[name].items():
        assert parameters[argument].default == default, argument


@pytest.mark.parametrize("name", OTHERS)
def test_a_layer_has_fluids_arguments(name: str) -> None:
    assert tuple(inspect.signature(getattr(layers, name)).parameters) == OTHERS[name]


# Values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("reduce_sum", np.sum), ("reduce_mean", np.mean), ("reduce_max", np.max), ("reduce_min", np.min),
        ("reduce_prod", np.prod),
    ],
)  # fmt: skip
def test_reductions(name: str, function: Any) -> None:
    x, layer = data("x", X, batch=True), getattr(layers, name)
    made = [layer(x), layer(x, dim=[]), layer(x, dim=1), layer(x, dim=[0, -1], keep_dim=True), layer(x, -2, True)]
    assert [v.shape for v in made] == [(1,), (1,), (-1,), (1, 1), (1, 3)]
    found = run(*made, x=X)
    wanted = [function(X).reshape(1)] * 2 + [function(X, 1), function(X).reshape(1, 1), function(X, 0, keepdims=True)]
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_truths() -> None:
    given = np.array([[True, True], [False, True]])
    x = data("x", given)
    made = layers.reduce_all(x), layers.reduce_any(x), layers.reduce_all(x, dim=0), layers.reduce_any(x, 1, True)
    assert all(v.dtype == "bool" and v.stop_gradient for v in made)
    found = [a.tolist() for a in run(*made, x=given)]
    assert found == [[False], [True], [False, True], [[True], [True]]]


def test_finiteness_is_one_answer() -> None:
    x = data("x", X)
    made = layers.isfinite(x), layers.has_inf(x), layers.has_nan(x)
    assert all(v.shape == (1,) and v.dtype == "bool" for v in made)
    for value, wanted in ((1.0, [1, 0, 0]), (np.inf, [0, 1, 0]), (-np.inf, [0, 1, 0]), (np.nan, [0, 0, 1])):
        given = X.copy()
        given[2, 1] = value
        assert [int(a[0]) for a in run(*made, x=given)] == wanted


def test_cos_sim_and_dot() -> None:
    x, y = data("x", X, batch=True), data("y", Y, batch=True)
    one = layers.slice(y, axes=[0], starts=[0], ends=[1])
    found = run(layers.cos_sim(x, y), layers.cos_sim(X=x, Y=one), layers.dot(x, y), x=X, y=Y)
    size = np.linalg.norm(X, axis=1) * np.linalg.norm(Y, axis=1)
    np.testing.assert_allclose(found[0], ((X * Y).sum(1) / size)[:, None], rtol=1e-5)
    np.testing.assert_allclose(found[1][:, 0], X @ Y[0] / np.linalg.norm(X, axis=1) / np.linalg.norm(Y[0]), rtol=1e-5)
    np.testing.assert_allclose(found[2], (X * Y).sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [None, False])
def test_bilinear_tensor_product(bias: Any) -> None:
    x, y = data("x", X, batch=True), data("y", Y[:, :2].copy(), batch=True)
    out = layers.bilinear_tensor_product(x, y, 5, act="tanh", bias_attr=bias)
    assert out.shape == (-1, 5)
    parameters = fluid.default_main_program().all_parameters()
    dims = {"bilinear_tensor_product_0.w_0": (5, 3, 2), "bilinear_tensor_product_0.b_0": (1, 5)}
    assert {p.name: p.shape for p in parameters} == dict(list(dims.items())[: 2 if bias is None else 1])
    found, weight = run(out, parameters[0], x=X, y=Y[:, :2].copy())
    np.testing.assert_allclose(found, np.tanh(np.einsum("bm,imn,bn->bi", X, weight, Y[:, :2])), rtol=1e-4, atol=1e-6)


def test_bilinear_tensor_product_needs_matrices() -> None:
    with pytest.raises(ProgramError, match="rows, width"):
        layers.bilinear_tensor_product(layers.data("x", [2, 3]), layers.data("y", [3]), 5)
    with pytest.raises(ProgramError, match="one ParamAttr"):
        layers.bilinear_tensor_product(layers.data("a", [2]), layers.data("b", [3]), 5, param_attr=[None, None])


@pytest.mark.parametrize(("mode", "dims"), [("all", (1,)), ("channel", (1, 3, 1)), ("element", (1, 3, 2))])
def test_prelu(mode: str, dims: Any) -> None:
    given = np.random.default_rng(2).uniform(-1, 1, (2, 3, 2)).astype("float32")
    x = layers.data("x", [3, 2])
    first, out = layers.prelu(x, mode), layers.prelu(x, mode, param_attr=fluid.initializer.Uniform(0.1, 0.9))
    alpha = fluid.default_main_program().all_parameters()
    assert [(p.name, p.shape) for p in alpha] == [("prelu_0.w_0", dims), ("prelu_1.w_0", dims)]
    same, found, slopes = run(first, out, alpha[1], x=given)
    np.testing.assert_array_equal(same, given)  # alpha is 1 at first
    np.testing.assert_allclose(found, np.where(given > 0, given, slopes * given), rtol=1e-6)


def test_prelu_refuses() -> None:
    with pytest.raises(ProgramError, match="'all', 'channel' or 'element'"):
        layers.prelu(layers.data("x", [3]), "each")
    with pytest.raises(ProgramError, match="rows, channels"):
        layers.prelu(layers.data("v", [3], append_batch_size=False), "channel")
    with pytest.raises(ProgramError, match="known dims"):
        layers.prelu(layers.data("w", [3, -1]), "element")


def test_prelu_trains_its_slope() -> None:
    given = -np.ones((2, 3), "float32")
    loss = layers.mean(layers.prelu(layers.data("x", [3]), "all"))
    fluid.optimizer.SGD(0.5).minimize(loss)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": given})
    assert fluid.global_scope().find_var("prelu_0.w_0").get_tensor().numpy().tolist() == [1.5]


def test_pow_takes_a_number_or_a_variable() -> None:
    x = data("x", X)
    found = run(layers.pow(x, 3.0), layers.pow(x, factor=layers.fill_constant([1], "float32", 2.5)), layers.pow(x), x=X)
    for a, factor in zip(found, (3.0, 2.5, 1.0), strict=True):
        np.testing.assert_allclose(a, X**factor, rtol=1e-5)


def test_a_variable_as_exponent_leaves_the_gradient_of_x() -> None:
    x = layers.data("x", [4, 3], append_batch_size=False, stop_gradient=False)
    out = layers.reduce_sum(layers.pow(x, layers.fill_constant([1], "float32", 3.0)))
    (grad,) = fluid.backward.gradients([out], [x])
    np.testing.assert_allclose(run(grad, x=X)[0], 3 * X**2, rtol=1e-5)


def test_clip_by_norm() -> None:
    x = data("x", X)
    clipped, kept = layers.clip_by_norm(x, 0.5), layers.clip_by_norm(x=x, max_norm=100.0)
    found = run(clipped, kept, x=X)
    np.testing.assert_allclose(found[0], X * 0.5 / np.linalg.norm(X), rtol=1e-5)
    np.testing.assert_array_equal(found[1], X)
    assert [op.type for op in fluid.default_main_program().global_block().ops] == ["clip_by_norm"] * 2


def test_arguments_that_are_none_leave_the_default() -> None:
    x = data("y", Y)
    made = {
        "softshrink": (layers.softshrink(x), np.sign(Y) * np.maximum(np.abs(Y) - 0.5, 0)),
        "softshrink 0.2": (layers.softshrink(x, alpha=0.2), np.sign(Y) * np.maximum(np.abs(Y) - 0.2, 0)),
        "hard_shrink": (layers.hard_shrink(x, None), Y * (np.abs(Y) > 0.5)),
        "thresholded_relu": (layers.thresholded_relu(x, threshold=0.25), Y * (Y > 0.25)),
        "cumsum": (layers.cumsum(x), np.cumsum(Y, -1)),
        "cumsum 0": (layers.cumsum(x, axis=0, reverse=True), np.cumsum(Y[::-1], 0)[::-1]),
        "selu": (layers.selu(x, scale=2.0), 2 * np.where(Y > 0, Y, 1.6732632 * np.expm1(Y))),
        "hard_swish": (layers.hard_swish(x), Y * np.clip(Y + 3, 0, 6) / 6),
    }
    found = run(*(v for v, _ in made.values()), y=Y)
    for (name, (_, wanted)), a in zip(made.items(), found, strict=True):
        np.testing.assert_allclose(a, wanted, rtol=1e-5, atol=1e-6, err_msg=name)


def test_unary_layers_compute_what_their_names_say() -> None:
    x = data("x", X)
    exact = {
        "acos": np.arccos, "asin": np.arcsin, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "log1p": np.log1p,
        "rsqrt": lambda a: 1 / np.sqrt(a), "erf": np.vectorize(math.erf), "sign": np.sign,
    }  # fmt: skip
    found = run(*(getattr(layers, name)(x) for name in exact), x=X)
    for (name, function), a in zip(exact.items(), found, strict=True):
        np.testing.assert_allclose(a, function(X), rtol=1e-5, err_msg=name)


def test_gradients_at_the_edges_are_fluids() -> None:
    """At its kink each activation takes the side that Fluid takes."""
    zero = np.zeros((1,), "float32")
    x = layers.data("x", [1], append_batch_size=False, stop_gradient=False)
    wanted = {"relu": 0, "leaky_relu": 1, "elu": 0, "abs": 0, "relu6": 0, "softplus": 0.5, "swish": 0.5, "brelu": 0}
    outs = [getattr(layers, name)(x) for name in wanted]
    grads = [fluid.backward.gradients([out], [x])[0] for out in outs]
    assert [float(a[0]) for a in run(*grads, x=zero)] == list(wanted.values())


def test_two_way_broadcasting() -> None:
    """Since Fluid 1.8 the first operand may be the smaller one."""
    x, y = data("x", X[0]), data("y", Y)
    made = layers.elementwise_sub(x, y), layers.less_than(x, y)
    assert [v.shape for v in made] == [(4, 3)] * 2
    found = run(*made, x=X[0], y=Y)
    np.testing.assert_allclose(found[0], X[0] - Y, rtol=1e-6)
    np.testing.assert_array_equal(found[1], X[0] < Y)
