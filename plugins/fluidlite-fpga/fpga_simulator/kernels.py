"""The board's kernels, by name. A kernel reads its operands, integers, scalars and a program."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpga_simulator import random_numbers, vector
from fpga_simulator.memory import Memory
from fpga_simulator.timing import LANES, MULTIPLIERS, START_CYCLES
from fpga_simulator.wire import Launch

DTYPES = ("float32", "float64")
STORED = (*DTYPES, "int32", "int64")
"""The dtypes that the vector unit can write."""
_INFINITE_COST = 1e20
"""Replaces infinity in a cross entropy."""
_CLIP = -64.0
"""Lower bound of ``x - max`` in softmax: no probability is 0."""


class Operands:
    """The operands of one launch as arrays; accumulates the bytes accessed and the cycles."""

    def __init__(self, memory: Memory, launch: Launch) -> None:
        if launch.dtype not in (STORED if launch.kernel == "vector" else DTYPES):
            raise ValueError(f"the board computes in {' and '.join(DTYPES)}, not in {launch.dtype}")
        self._memory = memory
        self._addresses = launch.addresses
        self.numbers = launch.numbers
        self.scalars = launch.scalars
        self.program = launch.program
        self.dtype = np.dtype(launch.dtype)
        self.dims: list[tuple[int, ...]] = []
        self.nbytes = 0
        self.cycles = START_CYCLES

    def __call__(self, i: int, *dims: int, dtype: str = "") -> NDArray[Any]:
        """View operand ``i`` as an array of ``dims``."""
        kind = np.dtype(dtype) if dtype else self.dtype
        view = self._memory.view(self._addresses[i], prod(dims) * kind.itemsize)
        self.dims.append(dims)
        self.nbytes += view.nbytes
        return view.view(kind).reshape(dims)

    def spend(self, operations: int, per_cycle: int = LANES) -> None:
        """Add the cycles of ``operations``."""
        self.cycles += -(-operations // per_cycle)


DeviceKernel = Callable[[Operands], None]


def matmul(operand: Operands) -> None:
    """``out = alpha * x @ y`` for batches of matrices; a batch of 1 broadcasts."""
    x_batch, y_batch, m, k, n, x_transposed, y_transposed = operand.numbers
    (alpha,) = operand.scalars
    x = operand(0, x_batch, k, m).swapaxes(1, 2) if x_transposed else operand(0, x_batch, m, k)
    y = operand(1, y_batch, n, k).swapaxes(1, 2) if y_transposed else operand(1, y_batch, k, n)
    out = operand(2, y_batch if x_batch == 1 else x_batch, m, n)
    np.matmul(x, y, out=out)
    if alpha != 1.0:
        np.multiply(out, out.dtype.type(alpha), out=out)
    operand.spend(max(x_batch, y_batch) * m * k * n, MULTIPLIERS)


def run_vector(operand: Operands) -> None:
    """Run a program (see ``vector``) on the first operands and write its values to the others.

    An optional last operand is the status words: if they record an error, nothing is written.
    """
    inputs, outputs, guarded, rank, *flat = operand.numbers
    if guarded and operand(inputs + outputs, 4, dtype="int64")[0]:
        return
    dims = [tuple(flat[i * rank : (i + 1) * rank]) for i in range(inputs + outputs)]
    arrays = [operand(i, *dims[i]) for i in range(inputs)]
    values = vector.execute(operand.program, arrays, operand.scalars, operand.dtype)
    if len(values) != outputs:
        raise ValueError(f"{operand.program!r} leaves {len(values)} values for {outputs} outputs")
    if outputs > 1:  # an output may overwrite an input that a later value still reads
        values = [value.copy() if any(value is array for array in arrays) else value for value in values]
    for i, value in enumerate(values):
        vector.store(operand(inputs + i, *dims[inputs + i]), value)
    operand.spend(max(map(prod, dims)) * len(operand.program.split()))


def reduce(operand: Operands) -> None:
    """Reduce the axes of ``x`` by the operation in the program; sums, products and means in float64."""
    rank, *rest = operand.numbers
    dims, axes = tuple(rest[:rank]), tuple(rest[rank:])
    x = operand(0, *dims)
    out = operand(1, *(1 if i in axes else n for i, n in enumerate(dims)))
    if operand.program in ("sum", "prod", "mean"):
        value = getattr(np, operand.program)(x, axis=axes, keepdims=True, dtype=np.float64)
    elif operand.program in ("max", "min"):
        value = getattr(np, operand.program)(x, axis=axes, keepdims=True)
    else:
        raise ValueError(f"the board cannot reduce by {operand.program!r}")
    out[...] = value
    operand.spend(x.size)


def softmax(operand: Operands) -> None:
    """``exp(x - max) / sum`` over the middle of three dims."""
    dims = operand.numbers
    x = operand(0, *dims)
    if x.size:
        powers = np.exp(np.maximum(x - np.max(x, axis=1, keepdims=True), x.dtype.type(_CLIP)))
        operand(1, *dims)[...] = powers / np.sum(powers, axis=1, keepdims=True)
    operand.spend(4 * x.size)


def softmax_grad(operand: Operands) -> None:
    """``out * (dout - sum(out * dout))`` over the middle of three dims."""
    dims = operand.numbers
    out, dout = operand(0, *dims), operand(1, *dims)
    operand(2, *dims)[...] = out * (dout - np.sum(out * dout, axis=1, keepdims=True))
    operand.spend(4 * out.size)


def cross_entropy(operand: Operands) -> None:
    """``-log(x[row, label])`` of each row; 0 where the label is ignored."""
    rows, classes, *_ = operand.numbers
    x = operand(0, rows, classes)
    labels, ignored = _labels(operand, 1, 3)
    cost = np.minimum(-np.log(x[np.arange(rows), labels]), operand.dtype.type(_INFINITE_COST))
    operand(2, rows)[...] = np.where(ignored, 0, cost)
    operand.spend(4 * rows)


def cross_entropy_grad(operand: Operands) -> None:
    """``-dy / x`` at the label of each row, else 0."""
    rows, classes, *_ = operand.numbers
    x, dy = operand(0, rows, classes), operand(2, rows)
    labels, ignored = _labels(operand, 1, 4)
    rows_index = np.arange(rows)
    value = np.where(ignored, 0, -dy / x[rows_index, labels])
    out = operand(3, rows, classes)
    out[...] = 0
    out[rows_index, labels] = value
    operand.spend(rows * classes)


def softmax_cross_entropy(operand: Operands) -> None:
    """The softmax of each row, and ``log(sum(exp(x))) - x[row, label]``."""
    rows, classes, *_ = operand.numbers
    x = operand(0, rows, classes)
    labels, ignored = _labels(operand, 1, 4)
    shifted = x - np.max(x, axis=1, keepdims=True)
    powers = np.exp(shifted)
    total = np.sum(powers, axis=1)
    cost = np.log(total) - shifted[np.arange(rows), labels]
    operand(2, rows, classes)[...] = powers / total[:, None]
    operand(3, rows)[...] = np.where(ignored, 0, cost)
    operand.spend(8 * x.size)


def softmax_cross_entropy_grad(operand: Operands) -> None:
    """``dloss * (softmax - one_hot(label))``; 0 in ignored rows."""
    rows, classes, *_ = operand.numbers
    labels, ignored = _labels(operand, 1, 4)
    dloss = np.where(ignored, 0, operand(2, rows))
    value = operand(0, rows, classes) * dloss[:, None]
    value[np.arange(rows), labels] -= dloss
    operand(3, rows, classes)[...] = value
    operand.spend(2 * rows * classes)


def _labels(operand: Operands, i: int, status: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Labels as classes, and a mask of ignored ones. Invalid ones are recorded in the status words, and become 0."""
    rows, classes, ignore, itemsize, operator = operand.numbers
    labels = operand(i, rows, dtype=f"int{8 * itemsize}").astype(np.int64)
    ignored = labels == ignore
    invalid = ~ignored & ((labels < 0) | (labels >= classes))
    if invalid.any():
        status_words = operand(status, 4, dtype="int64")
        if not status_words[0]:  # only the first error is recorded
            status_words[:3] = operator, labels[invalid][0], classes
    return np.where(ignored | invalid, 0, labels), ignored


def random(operand: Operands) -> None:
    """``base + factor * number``, with numbers of the distribution in the program."""
    count, *key = operand.numbers
    base, factor = map(operand.dtype.type, operand.scalars)
    sample = {"uniform": random_numbers.uniform, "gaussian": random_numbers.gaussian,
            "truncated": random_numbers.truncated}[operand.program]  # fmt: skip
    operand(0, count)[...] = base + factor * sample(count, key).astype(operand.dtype)
    operand.spend(20 * count)


KERNELS: dict[str, DeviceKernel] = {
    "matmul": matmul,
    "vector": run_vector,
    "reduce": reduce,
    "softmax": softmax,
    "softmax_grad": softmax_grad,
    "cross_entropy": cross_entropy,
    "cross_entropy_grad": cross_entropy_grad,
    "softmax_cross_entropy": softmax_cross_entropy,
    "softmax_cross_entropy_grad": softmax_cross_entropy_grad,
    "random": random,
}
