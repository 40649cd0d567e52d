"""Every kind of node: how to make one, what it is of, and its value by NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import erf, expit, log_softmax, softmax

from fluidlite import nodes as gn

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class NodeCase:
    """A node of inputs.

    Attributes
    ----------
    name : str
    make : callable
        Of nodes.
    reference : callable
        Of float64 arrays (integers stay integers).
    inputs : sequence of arrays or dims
        Dims: numbers of a seed, between 1/4 and 1 in magnitude, apart from each other.
    fixed : sequence of int
        Inputs without a gradient.
    """

    name: str
    make: Callable[..., Any]
    reference: Callable[..., Array]
    inputs: Sequence[Any]
    fixed: Sequence[int] = ()
    positive: bool = False
    outputs: str = ""
    smooth: bool = field(default=True)

    def arrays(self, dtype: str) -> list[Array]:
        rng = np.random.default_rng(len(self.name))
        found = []
        for number, item in enumerate(self.inputs):
            if isinstance(item, np.ndarray):
                found.append(item)
                continue
            count = int(np.prod(item))
            numbers = (rng.permutation(count) + 0.5) / max(count, 1) * 0.7 + 0.25 + number / 64
            if not self.positive:
                numbers = numbers * rng.choice([-1.0, 1.0], count)
            found.append(numbers.reshape(item).astype(dtype))
        return found


def _pick(x: Array, i: Array) -> Array:
    return np.take_along_axis(x, i.reshape(1, -1), 0)


def _conv2d(x: Array, w: Array, stride: int, padding: int) -> Array:
    x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    views = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,fcij->nfhw", views, w)


def _norm(x: Array, axis: int) -> Array:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-5)


_CLASSES = np.array([2, 0, 1, 2])
_BITS = np.array([[1, 0, 1, 0], [0, 0, 1, 1], [1, 1, 0, 0]])

NODE_CASES = [
    NodeCase("Add", gn.Add, lambda a, b: a + b, [(3, 4), (3, 4)]),
    NodeCase("Add of three", gn.Add, lambda a, b, c: a + b + c, [(3, 4)] * 3),
    NodeCase("Add, broadcast", gn.Add, lambda a, b: a + b, [(3, 4), (4,)]),
    NodeCase("AddScalar", lambda a: gn.AddScalar(a, 1.5), lambda a: a + 1.5, [(3, 4)]),
    NodeCase("Subtract", gn.Subtract, lambda a, b: a - b, [(3, 4), (3, 1)]),
    NodeCase("SubtractScalar", lambda a: gn.SubtractScalar(2.0, a), lambda a: 2 - a, [(3, 4)]),
    NodeCase("ProdScalar", lambda a: gn.ProdScalar(a, 1.5), lambda a: a * 1.5, [(3, 4)]),
    NodeCase("CwiseProd", gn.CwiseProd, lambda a, b: a * b, [(3, 4), (3, 4)]),
    NodeCase("CwiseDiv", gn.CwiseDiv, lambda a, b: a / b, [(3, 4), (3, 4)], positive=True),
    NodeCase("CwiseProdAdd", gn.CwiseProdAdd, lambda a, b, c: a * b + c, [(3, 4)] * 3),
    NodeCase("CwiseMax", gn.CwiseMax, np.maximum, [(3, 4), (3, 4)], smooth=False),
    NodeCase(
        "operators",
        lambda a, b: -(a + b * 2.0 - 1.0) / 4.0 - a * b + 3.0 * (1.0 - b) + a / b + 2.0 / b,
        lambda a, b: -(a + b * 2 - 1) / 4 - a * b + 3 * (1 - b) + a / b + 2 / b,
        [(3, 4), (3, 4)],
        positive=True,
    ),
    NodeCase("Prod", gn.Prod, lambda a, b: a @ b, [(3, 4), (4, 5)]),
    NodeCase("Prod with a vector", gn.Prod, lambda a, b: a @ b, [(3, 4), (4,)]),
    NodeCase("BatchedProd", gn.BatchedProd, np.matmul, [(2, 3, 4), (2, 4, 5)]),
    NodeCase("Transpose", gn.Transpose, lambda a: a.T, [(3, 4)]),
    NodeCase("Affine", gn.Affine, lambda w, x, b: w @ x + b[:, None], [(3, 4), (4, 5), (3,)]),
    NodeCase("Affine of two", gn.Affine, lambda w, x, u, h, b: w @ x + u @ h + b, [(3, 4), (4,), (3, 2), (2,), (3,)]),
    NodeCase("Identity", gn.Identity, lambda a: a, [(3, 4)]),
    NodeCase("Tanh", gn.Tanh, np.tanh, [(3, 4)]),
    NodeCase("Sigmoid", gn.Sigmoid, expit, [(3, 4)]),
    NodeCase("Relu", gn.Relu, lambda a: np.maximum(a, 0), [(3, 4)]),
    NodeCase("Gelu", gn.Gelu, lambda a: a * 0.5 * (1 + erf(a / np.sqrt(2))), [(3, 4)]),
    NodeCase("Softmax", gn.Softmax, lambda a: softmax(a, 0), [(3, 4)]),
    NodeCase("Softmax of rows", lambda a: gn.Softmax(a, -1), lambda a: softmax(a, -1), [(3, 4)]),
    NodeCase("Log", gn.Log, np.log, [(3, 4)], positive=True),
    NodeCase("Exp", gn.Exp, np.exp, [(3, 4)]),
    NodeCase("Sqrt", gn.Sqrt, np.sqrt, [(3, 4)], positive=True),
    NodeCase("Square", gn.Square, np.square, [(3, 4)]),
    NodeCase("LayerNorm", gn.LayerNorm, lambda a: _norm(a, 0), [(5, 3)]),
    NodeCase("LayerNorm of rows", lambda a: gn.LayerNorm(a, axis=-1), lambda a: _norm(a, -1), [(2, 3, 5)]),
    NodeCase("Cat", gn.Cat, lambda a, b: np.concatenate([a, b], 0), [(3, 4), (2, 4)]),
    NodeCase("RowwiseCat", gn.RowwiseCat, lambda a, b: np.concatenate([a, b], 1), [(3, 4), (3, 2)]),
    NodeCase("Stack", gn.Stack, lambda a, b: np.stack([a, b]), [(3, 4), (3, 4)]),
    NodeCase(
        "Stack of blocks",
        lambda a, b, c, d: gn.Stack([[a, b], [c, d]]),
        lambda a, b, c, d: np.block([[a, b], [c, d]]),
        [(2, 3), (2, 1), (1, 3), (1, 1)],
    ),
    NodeCase("Reshape", lambda a: gn.Reshape(a, (2, -1)), lambda a: a.reshape(2, 6), [(3, 4)]),
    NodeCase("RankView", lambda a: gn.RankView(a, 2), lambda a: a.reshape(2, 12), [(2, 3, 4)]),
    NodeCase("RankView, wider", lambda a: gn.RankView(a, 3), lambda a: a.reshape(3, 4, 1), [(3, 4)]),
    NodeCase("Slice", lambda a: gn.Slice(a, (1, 2), (2, 1)), lambda a: a[1:3, 2:3], [(3, 4)]),
    NodeCase("Chip", lambda a: gn.Chip(a, 1, 1), lambda a: a[:, 1], [(3, 4)]),
    NodeCase("Permute", lambda a: gn.Permute(a, (2, 0, 1)), lambda a: a.transpose(2, 0, 1), [(2, 3, 4)]),
    NodeCase("RowBroadcast", lambda a: gn.RowBroadcast(a, 3), lambda a: np.repeat(a, 3, 0), [(1, 4)]),
    NodeCase("ColBroadcast", lambda a: gn.ColBroadcast(a, 3), lambda a: np.repeat(a, 3, 1), [(4, 1)]),
    NodeCase("Sum", gn.Sum, np.sum, [(3, 4)]),
    NodeCase("Sum of two", gn.Sum, lambda a, b: np.sum(a + b), [(3, 4), (3, 4)]),
    NodeCase("AxisSum", lambda a: gn.AxisSum(a, (0, 2)), lambda a: a.sum((0, 2)), [(2, 3, 4)]),
    NodeCase("AxisMean", lambda a: gn.AxisMean(a, 1), lambda a: a.mean(1), [(2, 3, 4)]),
    NodeCase("Mean", gn.Mean, np.mean, [(3, 4)]),
    NodeCase("Variance", gn.Variance, np.var, [(3, 4)]),
    NodeCase("Select", gn.Select, lambda c, a, b: np.where(c, a, b), [_BITS, (3, 4), (3, 4)], fixed=[0]),
    NodeCase("Mask", lambda a, m: gn.Mask(a, m, -2.0), lambda a, m: np.where(m, a, -2), [(3, 4), _BITS], fixed=[1]),
    NodeCase("LessThan", gn.LessThan, lambda a, b: a < b, [(3, 4), (3, 4)], fixed=[0, 1]),
    NodeCase("Pick", gn.Pick, _pick, [(3, 4), _CLASSES], fixed=[1]),
    NodeCase("PickSoftmax", gn.PickSoftmax, lambda a, i: _pick(softmax(a, 0), i), [(3, 4), _CLASSES], fixed=[1]),
    NodeCase(
        "PickNegLogSoftmax",
        gn.PickNegLogSoftmax,
        lambda a, i: -_pick(log_softmax(a, 0), i),
        [(3, 4), _CLASSES],
        fixed=[1],
    ),
    NodeCase(
        "PickNegLogSoftmax of a vector", lambda a: gn.PickNegLogSoftmax(a, 2), lambda a: -log_softmax(a)[2:3], [(5,)]
    ),
    NodeCase(
        "PickNegLogSigmoid",
        gn.PickNegLogSigmoid,
        lambda a, y: -np.where(y, np.log(expit(a)), np.log(expit(-a))),
        [(3, 4), _BITS],
        fixed=[1],
    ),
    NodeCase("Lookup", gn.Lookup, lambda a, i: a[i], [(3, 4), _CLASSES], fixed=[1]),
    NodeCase(
        "Conv1d",
        lambda a, w: gn.Conv1d(a, w, 2, 1),
        lambda a, w: _conv2d(np.pad(a, [(0, 0), (0, 0), (1, 1)])[:, :, None], w[:, :, None], 1, 0)[:, :, 0, ::2],
        [(2, 3, 6), (4, 3, 3)],
    ),
    NodeCase(
        "Conv2d", lambda a, w: gn.Conv2d(a, w, 1, 1), lambda a, w: _conv2d(a, w, 1, 1), [(2, 3, 4, 4), (2, 3, 3, 3)]
    ),
    NodeCase(
        "MaxPool",
        lambda a: gn.MaxPool(a, 2),
        lambda a: a.reshape(1, 2, 2, 2, 2, 2).max((3, 5)),
        [(1, 2, 4, 4)],
        smooth=False,
    ),
    NodeCase("Dropout", lambda a: gn.Dropout(a, 0.0), lambda a: a, [(3, 4)]),
]
