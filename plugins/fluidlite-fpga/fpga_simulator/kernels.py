"""What the board can compute, by name. A kernel sees its operands, whole numbers and scalars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpga_simulator.memory import Memory
from fpga_simulator.wire import Launch

DTYPES = ("float32", "float64")


class Operands:
    """Device memory as the arrays of one launch; keeps account of what the kernel touches."""

    def __init__(self, memory: Memory, launch: Launch) -> None:
        if launch.dtype not in DTYPES:
            raise ValueError(f"the board computes in {' and '.join(DTYPES)}, not in {launch.dtype}")
        self._memory = memory
        self._addresses = launch.addresses
        self._dtype = np.dtype(launch.dtype)
        self.dims: list[tuple[int, ...]] = []
        self.nbytes = 0

    def __call__(self, i: int, *dims: int) -> NDArray[Any]:
        """View operand ``i`` as an array of ``dims``."""
        view = self._memory.view(self._addresses[i], prod(dims) * self._dtype.itemsize)
        self.dims.append(dims)
        self.nbytes += view.nbytes
        return view.view(self._dtype).reshape(dims)


DeviceKernel = Callable[[Operands, Sequence[int], Sequence[float]], None]


def matmul(operand: Operands, numbers: Sequence[int], scalars: Sequence[float]) -> None:
    """``out = alpha * x @ y`` for batches of matrices; a batch of 1 serves all of the other's."""
    x_batch, y_batch, m, k, n, x_transposed, y_transposed = numbers
    (alpha,) = scalars
    x = operand(0, x_batch, k, m).swapaxes(1, 2) if x_transposed else operand(0, x_batch, m, k)
    y = operand(1, y_batch, n, k).swapaxes(1, 2) if y_transposed else operand(1, y_batch, k, n)
    out = operand(2, y_batch if x_batch == 1 else x_batch, m, n)
    np.matmul(x, y, out=out)
    if alpha != 1.0:
        np.multiply(out, out.dtype.type(alpha), out=out)


def relu(operand: Operands, numbers: Sequence[int], scalars: Sequence[float]) -> None:
    """``out = max(x, 0)``."""
    (count,) = numbers
    np.maximum(operand(0, count), 0, out=operand(1, count))


def add(operand: Operands, numbers: Sequence[int], scalars: Sequence[float]) -> None:
    """``out[i, j, k] = x[i, j, k] + y[j]``."""
    before, count, after = numbers
    np.add(operand(0, before, count, after), operand(1, count, 1), out=operand(2, before, count, after))


KERNELS: dict[str, DeviceKernel] = {"matmul": matmul, "relu": relu, "add": add}
