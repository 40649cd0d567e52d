"""Functions of the functional front: each against NumPy, on the cpu and on one more place, in turn.

A function appends operators, whichever the place is; these have samples on every place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite.transformers import Transformer

RNG = np.random.default_rng(0)
A = RNG.uniform(0.5, 2, (3, 4)).astype("float32")
B = RNG.uniform(0.5, 2, (4,)).astype("float32")
C = RNG.uniform(-2, 2, (4, 2)).astype("float32")
I = np.array([[7, -7, 5], [0, 3, -1]], "int64")  # noqa: E741
T = RNG.uniform(-2, 2, (2, 3, 4)).astype("float32")
K = np.array([2, 0, 1], "int64")
P = np.float32([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1]])
Q = np.float32([[0, 0, 1], [1, 0, 0]])
V = np.ones((2, 4), "bool")

Case = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]

CASES: dict[str, Case] = {
    "add": (ng.add, np.add, (A, B)), "subtract": (ng.subtract, np.subtract, (B, A)),
    "multiply": (ng.multiply, np.multiply, (A[:, :1], B)), "divide": (ng.divide, np.divide, (A, B)),
    "power": (ng.power, np.power, (A, B)), "mod": (ng.mod, np.mod, (I, np.int64(4))),
    "maximum": (ng.maximum, np.maximum, (A, B)), "minimum": (ng.minimum, np.minimum, (A, B)),
    "floordivide": (ng.floordivide, np.floor_divide, (A, B)),
    "floordivide int": (ng.floordivide, np.floor_divide, (I, np.int64(3))),
    "divide int": (ng.divide, lambda x, y: np.trunc(x / y).astype("int64"), (I, np.int64(3))),
    "equal": (ng.equal, np.equal, (A, A[0])), "not_equal": (ng.not_equal, np.not_equal, (A, A[0])),
    "less": (ng.less, np.less, (A, B)), "less_equal": (ng.less_equal, np.less_equal, (A, A[0])),
    "greater": (ng.greater, np.greater, (A, B)), "greater_equal": (ng.greater_equal, np.greater_equal, (A, A[0])),
    "where": (ng.where, np.where, (A > 1, A, -A)),
    "dot": (ng.dot, np.dot, (A, C)), "dot vectors": (ng.dot, np.dot, (B, B)), "dot tensor": (ng.dot, np.dot, (T, C)),
    "dot tensor vector": (ng.dot, np.dot, (T, B)), "dot scalar": (ng.dot, np.dot, (A, np.float32(3))),
    "dot vector matrix": (ng.dot, np.dot, (B, C)), "matmul": (ng.matmul, np.matmul, (T, T.transpose(0, 2, 1))),
    "negative": (ng.negative, np.negative, (A,)), "absolute": (ng.absolute, np.abs, (C,)),
    "sqrt": (ng.sqrt, np.sqrt, (A,)), "square": (ng.square, np.square, (C,)), "exp": (ng.exp, np.exp, (C,)),
    "log": (ng.log, np.log, (A,)), "tanh": (ng.tanh, np.tanh, (C,)), "sin": (ng.sin, np.sin, (C,)),
    "cos": (ng.cos, np.cos, (C,)), "floor": (ng.floor, np.floor, (C,)), "sign": (ng.sign, np.sign, (C,)),
    "reciprocal": (ng.reciprocal, np.reciprocal, (A,)), "relu": (ng.relu, lambda x: np.maximum(x, 0), (C,)),
    "sigmoid": (ng.sigmoid, lambda x: 1 / (1 + np.exp(-x)), (C,)),
    "erf": (ng.erf, lambda x: np.float32([0, 0.8427008]), (np.float32([0, 1]),)),
    "safelog": (ng.safelog, lambda x: np.float32([-50, 0]), (np.float32([0, 1]),)),
    "cast": (lambda x: ng.cast(x, "int32"), lambda x: x.astype("int32"), (C,)),
    "stop_gradient": (ng.stop_gradient, lambda x: x, (C,)),
    "sum": (ng.sum, np.sum, (T,)), "sum axis": (lambda x: ng.sum(x, -1), lambda x: x.sum(-1), (T,)),
    "sum axes": (lambda x: ng.sum(x, (0, 2), True), lambda x: x.sum((0, 2), keepdims=True), (T,)),
    "sum keepdims": (lambda x: ng.sum(x, keepdims=True), lambda x: x.sum(keepdims=True), (T,)),
    "sum scalar": (ng.sum, np.sum, (np.float32(3),)), "sum int": (ng.sum, np.sum, (I,)),
    "prod": (lambda x: ng.prod(x, 0), lambda x: x.prod(0), (A,)), "max": (ng.max, np.max, (T,)),
    "max of infinities": (lambda x: ng.max(x, 1), lambda x: x.max(1), (np.full((2, 3), -np.inf, "float32"),)),
    "max float64": (ng.max, np.max, (T.astype("float64"),)),
    "max int": (lambda x: ng.max(x, 1), lambda x: x.max(1), (I,)),
    "equal bool": (ng.equal, np.equal, (V, ~V)), "mod float": (ng.mod, np.mod, (-A, B)),
    "mean float64": (ng.mean, np.mean, (T.astype("float64"),)),
    "min": (lambda x: ng.min(x, 1), lambda x: x.min(1), (T,)), "mean": (ng.mean, np.mean, (T,)),
    "mean axis": (lambda x: ng.mean(x, 1), lambda x: x.mean(1), (T,)),
    "variance": (lambda x: ng.variance(x, 1), lambda x: x.var(1), (T,)), "variance all": (ng.variance, np.var, (T,)),
    "squared_L2": (ng.squared_L2, lambda x: np.sum(x * x), (T,)),
    "any": (lambda x: ng.any(x, 1), lambda x: x.any(1), (V,)), "all": (ng.all, np.all, (V,)),
    "argmax": (ng.argmax, np.argmax, (T,)), "argmax axis": (lambda x: ng.argmax(x, 1), lambda x: x.argmax(1), (T,)),
    "argmin": (lambda x: ng.argmin(x, -1), lambda x: x.argmin(-1), (T,)), "argmin vector": (ng.argmin, np.argmin, (B,)),
    "reshape": (lambda x: ng.reshape(x, (6, -1)), lambda x: x.reshape(6, -1), (T,)),
    "reshape scalar": (lambda x: ng.reshape(x, ()), lambda x: x.reshape(()), (B[:1],)),
    "reshape empty": (lambda x: ng.reshape(x, (2, 0)), lambda x: x.reshape(2, 0), (A[:0],)),
    "flatten": (ng.flatten, np.ravel, (T,)), "transpose": (ng.transpose, np.transpose, (T,)),
    "transpose axes": (lambda x: ng.transpose(x, (1, 0, -1)), lambda x: x.transpose(1, 0, 2), (T,)),
    "transpose scalar": (ng.transpose, np.transpose, (np.float32(2),)),
    "expand_dims": (lambda x: ng.expand_dims(x, 1), lambda x: x[:, None], (A,)),
    "squeeze": (lambda x: ng.squeeze(x, 1), lambda x: x[:, 0], (A[:, :1],)),
    "squeeze all": (ng.squeeze, np.squeeze, (A[:, :1],)),
    "broadcast": (lambda x: ng.broadcast(x, (2, 3, 4)), lambda x: np.broadcast_to(x, (2, 3, 4)), (B,)),
    "broadcast inner": (lambda x: ng.broadcast(x, (3, 4)), lambda x: np.broadcast_to(x, (3, 4)), (A[:, :1],)),
    "tensor_slice": (lambda x: ng.tensor_slice(x, (1, slice(None, None, 2))), lambda x: x[1, ::2], (T,)),
    "index": (lambda x: x[..., -1], lambda x: x[..., -1], (T,)),
    "index scalar": (lambda x: x[1, 2, 3], lambda x: x[1, 2, 3], (T,)),
    "index back": (lambda x: x[::-1, None, 1:], lambda x: x[::-1, None, 1:], (A,)),
    "stack": (lambda x, y: ng.stack([x, y], 1), lambda x, y: np.stack([x, y], 1), (A, A + 1)),
    "stack scalars": (lambda x, y: ng.stack([x, y]), lambda x, y: np.stack([x, y]), (np.float32(1), np.float32(2))),
    "concat": (lambda x, y: ng.concat([x, y], 1), lambda x, y: np.concatenate([x, y], 1), (A, A[:, :1])),
    "pad": (lambda x: ng.pad(x, [1, (0, 2)], 9.0), lambda x: np.pad(x, [(1, 1), (0, 2)], constant_values=9), (A,)),
    "one_hot": (lambda x: ng.one_hot(x, 3), lambda x: np.eye(3)[x], (K,)),
    "one_hot first": (lambda x: ng.one_hot(x, 3, 0), lambda x: np.eye(3)[:, x], (K,)),
    "one_hot scalar": (lambda x: ng.one_hot(x, 3), lambda x: np.eye(3)[x], (np.int64(2),)),
    "lookup_table": (ng.lookup_table, lambda w, i: w[i], (A, np.array([[2, 0]], "int64"))),
    "softmax": (ng.softmax, lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True), (T,)),
    "softmax axis": (lambda x: ng.softmax(x, 1), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True), (T,)),
    "cross_entropy_multi": (ng.cross_entropy_multi, lambda y, t: -(t * np.log(y)).sum(-1), (P, Q)),
    "cross_entropy_multi axis": (lambda y, t: ng.cross_entropy_multi(y, t, 0), lambda y, t: -(t * np.log(y)).sum(0),
                                 (P, Q)),
    "cross_entropy_multi of softmax": (lambda x, t: ng.cross_entropy_multi(ng.softmax(x), t),
                                       lambda x, t: -(t * np.log(x / x.sum(-1, keepdims=True))).sum(-1) if x is P
                                       else np.float32([50, 0]), (np.float32([[60, 0, -60], [90, 0, 0]]), Q)),
    "cross_entropy_multi of softmax, axis": (
        lambda x, t: ng.cross_entropy_multi(ng.softmax(ng.log(x), 0), t, 0),
        lambda x, t: -(t * np.log(x / x.sum(0))).sum(0), (P, Q)),
    "cross_entropy_binary": (ng.cross_entropy_binary, lambda y, t: -(t * np.log(y) + (1 - t) * np.log(1 - y)), (P, Q)),
    "cross_entropy_binary of sigmoid": (lambda x, t: ng.cross_entropy_binary(ng.sigmoid(x), t),
                                        lambda x, t: np.float32([50, 0, 49, 40, 50]),
                                        (np.float32([-200, 200, -49, 40, 90]), np.float32([1, 1, 1, 0, 0]))),
    "number left": (lambda x: 1 - 2 / x, lambda x: 1 - 2 / x, (A,)),
    "operators": (lambda x: -(x**2) + 3 * x - x / 2, lambda x: -(x**2) + 3 * x - x / 2, (A,)),
    "operators int": (lambda x: (7 // x) + (x % 3) - abs(x), lambda x: (7 // x) + (x % 3) - abs(x), (K + 1,)),
    "number mod": (lambda x: 7 % x, lambda x: 7 % x, (K + 1,)),
    "compare": (lambda x: x <= 1.0, lambda x: x <= 1, (A,)),
    "array left": (lambda x: B + x, lambda x: B + x, (A,)), "at left": (lambda x: A @ x, lambda x: A @ x, (C,)),
    "at": (lambda x: x @ C, lambda x: x @ C, (A,)),
    "list": (lambda x: x * [1, 2, 3, 4], lambda x: x * [1, 2, 3, 4], (A,)),
}  # fmt: skip


def run(transformer: Transformer, case: Case) -> None:
    function, reference, arrays = case
    inputs = [ng.placeholder(np.shape(array), array.dtype) for array in arrays]
    out = function(*inputs)
    want = np.asarray(reference(*arrays))
    with warnings.catch_warnings():
        if transformer.place.kind != "fpga":  # which has memory, and few kernels
            warnings.simplefilter("error", fluid.FallbackWarning)
        found = transformer.computation(out, *inputs)(*arrays)
    assert out.shape == want.shape
    assert found.shape == want.shape
    assert found.dtype == out.dtype
    np.testing.assert_allclose(found.astype("float64"), want.astype("float64"), rtol=2e-5, atol=2e-6)


PLACED = [(name, kind) for i, name in enumerate(CASES) for kind in ("cpu", ("opencl", "fpga")[i % 2])]


@pytest.mark.parametrize(("name", "transformer"), PLACED, indirect=["transformer"])
def test_function(name: str, transformer: Transformer) -> None:
    run(transformer, CASES[name])


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32", "int64"])
def test_dtypes(dtype: str, transformer: Transformer) -> None:
    x = ng.placeholder((3,), dtype)
    found = transformer.computation([x * 2 + 1, ng.max(x)], x)([1, 2, 4])
    assert str(found[0].dtype) == dtype
    np.testing.assert_array_equal(found[0].astype("float64"), [3, 5, 9])
    assert found[1] == 4


def test_convolution_and_pooling(transformer: Transformer) -> None:
    image = np.arange(16, dtype="float32").reshape(1, 1, 4, 4)
    x = ng.placeholder((1, 1, 4, 4))
    w = ng.constant(np.float32([[[[1, 0], [0, -1]]]]))
    conv = ng.convolution(x, w, strides=2)
    results = [conv, ng.deconvolution(conv, w, 2), ng.pooling(x, np.int64(2)), ng.pooling(x, (2, 2), "avg", 1)]
    found = transformer.computation(results, x)(image)
    np.testing.assert_array_equal(found[0], np.full((1, 1, 2, 2), -5))
    np.testing.assert_array_equal(found[1][0, 0], np.kron(np.ones((2, 2)), [[-5, 0], [0, 5]]))
    np.testing.assert_array_equal(found[2][0, 0], [[5, 7], [13, 15]])
    np.testing.assert_array_equal(found[3][0, 0], [[2.5, 3.5, 4.5], [6.5, 7.5, 8.5], [10.5, 11.5, 12.5]])


def test_volumes(cpu: Transformer) -> None:
    x, w = ng.constant(np.ones((1, 1, 2, 2, 2), "float32")), ng.constant(np.ones((1, 1, 2, 2, 2), "float32"))
    assert cpu.computation(ng.convolution(x, w))() == 8
    assert cpu.computation(ng.pooling(x, 2, "avg"))() == 1


def test_random_values(transformer: Transformer) -> None:
    like = ng.constant(np.zeros((100, 100)), dtype="float64")
    found = transformer.computation([ng.uniform(like, -1, 3), ng.normal((100, 100), 5.0, 0.5)])()
    assert found[0].dtype == np.float64
    assert found[0].min() >= -1
    assert found[0].max() < 3
    assert abs(found[0].mean() - 1) < 0.05
    assert abs(found[1].mean() - 5) < 0.02
    assert abs(found[1].std() - 0.5) < 0.02


def test_constants(cpu: Transformer) -> None:
    made = [
        ng.constant(4), ng.constant([1, 2]), ng.constant(np.arange(3)), ng.constant(2, (2, 2)),
        ng.constant(True, dtype="bool"),
        ng.constant(2**60 + 1, dtype="int64"), ng.constant(1.5, dtype="float64"),
    ]  # fmt: skip
    found = cpu.computation(made)()
    assert [str(array.dtype) for array in found] == [
        "float32",
        "float32",
        "int64",
        "float32",
        "bool",
        "int64",
        "float64",
    ]
    assert [array.shape for array in found] == [(), (2,), (3,), (2, 2), (), (), ()]
    assert found[5] == 2**60 + 1


def test_every_function_builds_in_the_program_of_its_inputs() -> None:
    x = ng.placeholder(())
    with fluid.program_guard(fluid.Program()):
        y = ng.exp(x) + 1
        assert y.block.program is x.block.program
        assert not fluid.default_main_program().global_block().ops
