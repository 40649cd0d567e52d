"""Operators with large inputs, and what a NumPy user would write for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ROWS, COLUMNS = 512, 1024


@dataclass(frozen=True)
class Case:
    """One operator on one set of inputs.

    Attributes
    ----------
    type : str
    inputs : mapping of slot to array or list of arrays
    numpy : callable
        ``numpy(*arrays, out)``: the same with NumPy, into an array where NumPy can; returns the first output.
    outputs : tuple of slot names
        The first one is compared.
    attrs : mapping
    updates : mapping of output slot to the input slot that it updates in place
    name : str
        Beside the type, where a type has several cases.
    """

    type: str
    inputs: Mapping[str, Any]
    numpy: Callable[..., Any]
    outputs: tuple[str, ...] = ("Out",)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    updates: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    @property
    def label(self) -> str:
        """Type, name and dims of the first input."""
        first = next(iter(self.inputs.values()))
        dims = "x".join(map(str, (first[0] if isinstance(first, list) else first).shape))
        return f"{self.type}{' ' + self.name if self.name else ''} [{dims}]"


def cases() -> list[Case]:
    """Make them."""
    random = np.random.default_rng(3)

    def normal(*dims: int) -> Array:
        return random.standard_normal(dims, np.float32)

    def positive(*dims: int) -> Array:
        return random.random(dims, np.float32) + np.float32(0.1)

    x, y, row = normal(ROWS, COLUMNS), normal(ROWS, COLUMNS), normal(COLUMNS)
    return [
        *_elementwise(x, y, row, positive(ROWS, COLUMNS)),
        *_reductions(x),
        *_products(normal),
        *_movement(x, y, random),
        *_losses(normal, random),
        *_updates(normal, positive),
    ]


def _elementwise(x: Array, y: Array, row: Array, positive: Array) -> list[Case]:
    two, one = np.float32(2), np.float32(1)

    def sigmoid(x: Array, out: Array) -> Any:
        np.negative(x, out)
        np.exp(out, out)
        np.add(out, one, out)
        return np.divide(one, out, out)

    def tanh_grad(value: Array, dout: Array, out: Array) -> Any:
        np.multiply(value, value, out)
        np.subtract(one, out, out)
        return np.multiply(out, dout, out)

    def relu_grad(value: Array, dout: Array, out: Array) -> Array:
        out[...] = np.where(value > 0, dout, np.float32(0))
        return out

    value = np.maximum(x, 0)
    return [
        Case("elementwise_add", {"X": x, "Y": y}, lambda x, y, out: np.add(x, y, out)),
        Case("elementwise_add", {"X": x, "Y": row}, lambda x, y, out: np.add(x, y, out), name="of a row"),
        Case("elementwise_mul", {"X": x, "Y": y}, lambda x, y, out: np.multiply(x, y, out)),
        Case("elementwise_max", {"X": x, "Y": y}, lambda x, y, out: np.maximum(x, y, out=out)),
        Case("less_than", {"X": x, "Y": y}, lambda x, y, out: np.less(x, y, out)),
        Case("scale", {"X": x}, lambda x, out: np.multiply(x, two, out), attrs={"scale": 2.0}),
        Case("relu", {"X": x}, lambda x, out: np.maximum(x, np.float32(0), out=out)),
        Case("relu_grad", {"Out": value, "Out@GRAD": y}, relu_grad, ("X@GRAD",)),
        Case("sigmoid", {"X": x}, sigmoid),
        Case("tanh", {"X": x}, lambda x, out: np.tanh(x, out)),
        Case("tanh_grad", {"Out": np.tanh(x), "Out@GRAD": y}, tanh_grad, ("X@GRAD",)),
        Case("exp", {"X": x}, lambda x, out: np.exp(x, out)),
        Case("log", {"X": positive}, lambda x, out: np.log(x, out)),
        Case("sqrt", {"X": positive}, lambda x, out: np.sqrt(x, out)),
    ]


def _reductions(x: Array) -> list[Case]:
    def softmax(x: Array, out: Array) -> Any:
        np.subtract(x, x.max(-1, keepdims=True), out)
        np.exp(out, out)
        return np.divide(out, out.sum(-1, keepdims=True), out)

    return [
        Case("mean", {"X": x}, lambda x, out: np.mean(x, keepdims=True).reshape(1)),
        Case("reduce_sum", {"X": x}, lambda x, out: np.sum(x, 0, out=out), attrs={"dim": [0]}, name="of columns"),
        Case("reduce_sum", {"X": x}, lambda x, out: np.sum(x, 1, out=out), attrs={"dim": [1]}, name="of rows"),
        Case("reduce_max", {"X": x}, lambda x, out: np.max(x, 1, out=out), attrs={"dim": [1]}, name="of rows"),
        Case("softmax", {"X": x}, softmax),
    ]


def _products(normal: Callable[..., Array]) -> list[Case]:
    a, b = normal(512, 512), normal(512, 512)
    batch = normal(16, 128, 64), normal(16, 64, 128)
    return [
        Case("mul", {"X": a, "Y": b}, lambda x, y, out: np.matmul(x, y, out)),
        Case("matmul", {"X": a, "Y": b}, lambda x, y, out: np.matmul(x, y.T, out), attrs={"transpose_Y": True},
             name="with Y transposed"),
        Case("matmul", {"X": batch[0], "Y": batch[1]}, lambda x, y, out: np.matmul(x, y, out), name="of a batch"),
    ]  # fmt: skip


def _movement(x: Array, y: Array, random: np.random.Generator) -> list[Case]:
    rows = random.integers(0, ROWS, 1024)

    def transposed(x: Array, out: Array) -> Array:
        out[...] = x.T
        return out

    def sliced(x: Array, out: Array) -> Array:
        out[...] = x[100:500, 50:950]
        return out

    def as_integers(x: Array, out: Array) -> Array:
        out[...] = x
        return out

    def scattered(x: Array, index: Array, dout: Array, out: Array) -> Array:
        out[...] = 0
        np.add.at(out, index, dout)
        return out

    return [
        Case("transpose2", {"X": x}, transposed, attrs={"axis": [1, 0]}),
        Case("concat", {"X": [x, y]}, lambda x, y, out: np.concatenate((x, y), 1, out=out), attrs={"axis": 1}),
        Case("slice", {"Input": x}, sliced, attrs={"axes": [0, 1], "starts": [100, 50], "ends": [500, 950]}),
        Case("gather", {"X": x, "Index": rows}, lambda x, index, out: np.take(x, index, 0, out, "clip")),
        Case("lookup_table", {"W": x, "Ids": rows[:, None]}, lambda w, ids, out: np.take(w, ids[:, 0], 0, out, "clip")),
        Case("gather_grad", {"X": x, "Index": rows, "Out@GRAD": np.take(y, rows, 0)}, scattered, ("X@GRAD",)),
        Case("cast", {"X": x}, as_integers, attrs={"in_dtype": "float32", "out_dtype": "int32"}),
    ]  # fmt: skip


def _losses(normal: Callable[..., Array], random: np.random.Generator) -> list[Case]:
    logits, labels = normal(2048, 100), random.integers(0, 100, (2048, 1))
    lines = np.arange(2048)

    def loss(x: Array, label: Array, out: Array) -> Array:
        shifted = x - x.max(-1, keepdims=True)
        powers = np.exp(shifted)
        total = powers.sum(-1, keepdims=True)
        powers /= total
        np.subtract(np.log(total)[:, 0], shifted[lines, label[:, 0]], out[:, 0])
        return out

    return [Case("softmax_with_cross_entropy", {"Logits": logits, "Label": labels}, loss, ("Loss", "Softmax"))]


def _updates(normal: Callable[..., Array], positive: Callable[..., Array]) -> list[Case]:
    rate, mu, b1, b2, epsilon = (np.float32(v) for v in (1e-4, 0.9, 0.9, 0.999, 1e-8))
    one = np.float32(1)

    def sgd(param: Array, grad: Array, lr: Array, out: Array) -> Any:
        return np.subtract(param, lr * grad, param)

    def momentum(param: Array, grad: Array, speed: Array, lr: Array, out: Array) -> Any:
        np.multiply(speed, mu, speed)
        np.add(speed, grad, speed)
        return np.subtract(param, lr * speed, param)

    def adam(
        param: Array, grad: Array, lr: Array, first: Array, second: Array, p1: Array, p2: Array, out: Array
    ) -> Any:
        first *= b1
        first += (one - b1) * grad
        second *= b2
        second += (one - b2) * grad * grad
        step = lr * np.sqrt(one - p2) / (one - p1)
        return np.subtract(param, step * first / (np.sqrt(second) + epsilon), param)

    def state(**more: Array) -> dict[str, Array]:
        return {"Param": normal(ROWS, COLUMNS), "Grad": normal(ROWS, COLUMNS), **more}

    lr = np.asarray([rate])
    return [
        Case("sgd", state(LearningRate=lr), sgd, ("ParamOut",), updates={"ParamOut": "Param"}),
        Case("momentum", state(Velocity=normal(ROWS, COLUMNS), LearningRate=lr), momentum, ("ParamOut", "VelocityOut"),
             {"mu": 0.9}, {"ParamOut": "Param", "VelocityOut": "Velocity"}),
        Case("adam", state(LearningRate=lr, Moment1=normal(ROWS, COLUMNS), Moment2=positive(ROWS, COLUMNS),
                           Beta1Pow=np.asarray([b1]), Beta2Pow=np.asarray([b2])), adam,
             ("ParamOut", "Moment1Out", "Moment2Out"), {},
             {"ParamOut": "Param", "Moment1Out": "Moment1", "Moment2Out": "Moment2"}),
    ]  # fmt: skip
