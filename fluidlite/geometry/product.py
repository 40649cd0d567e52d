"""Matrix products of operators as plain GEMMs: ``matmul``, ``mul`` and their gradients on metadata alone.

Every library that multiplies matrices needs the same facts: which rows and columns, what is transposed,
which batches broadcast and which are summed. Here they are worked out once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product as every
from math import prod
from operator import mul
from typing import TYPE_CHECKING

from fluidlite.program.epilogue import product_call
from fluidlite.program.op_call import Call, once
from fluidlite.program.opdef import GRAD

if TYPE_CHECKING:
    from fluidlite.tensor.tensor_spec import Dims


@dataclass(frozen=True)
class Gemm:
    """``out = alpha * op(a) @ op(b)``, batch by batch, summed over the batch axes in ``summed``.

    Attributes
    ----------
    a, b, out : str
        Slots.
    a_dims, b_dims : tuple of int
        Dims under which to view them: any batch axes, then a matrix.
    a_transposed, b_transposed : bool
        Whether the matrices enter transposed.
    m, n, k : int
        Rows and columns of the product, and the length of the contraction.
    batch : tuple of int
        Batch dims of the product before the sum (those of a and b, broadcast).
    summed : tuple of int
        Axes of ``batch`` over which the result is summed (they broadcast in the forward product).
    alpha : float
    """

    a: str
    a_dims: Dims
    a_transposed: bool
    b: str
    b_dims: Dims
    b_transposed: bool
    out: str
    m: int
    n: int
    k: int
    batch: Dims
    summed: tuple[int, ...]
    alpha: float

    @property
    def out_dims(self) -> Dims:
        """Dims under which to view the output: 1 where the batch is summed."""
        kept = tuple(1 if axis in self.summed else size for axis, size in enumerate(self.batch))
        return (*kept, self.m, self.n)

    def steps(self) -> list[list[int]]:
        """How many matrices of a, of b and of out one step along each batch axis skips."""
        return [_steps(dims[:-2], self.batch) for dims in (self.a_dims, self.b_dims, self.out_dims)]

    def strided(self) -> tuple[int, int, int] | None:
        """How many matrices of a, of b and of out lie between two products, if that is the same for all; else None.

        It is worked out axis by axis: a batch whose size is still open stands for very many.
        """
        if any(self.batch[axis] > 1 for axis in self.summed):
            return None
        found = []
        for steps in self.steps():
            axes = [(size, step) for size, step in zip(self.batch, steps, strict=True) if size > 1]
            if any(outer != size * inner for (_, outer), (size, inner) in pairwise(axes)):
                return None
            found.append(axes[-1][1] if axes else 0)
        a, b, out = found
        return a, b, out

    def matrices(self) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (which matrix of a, of b, of out, whether it adds to an earlier one) for each batch."""
        steps = self.steps()
        for index in every(*map(range, self.batch)):
            a, b, out = [sum(map(mul, index, s)) for s in steps]
            yield a, b, out, any(index[axis] for axis in self.summed)


def _steps(dims: Dims, batch: Dims) -> list[int]:
    """How many matrices one step along each batch axis skips (0 where dims broadcast)."""
    padded = (1,) * (len(batch) - len(dims)) + dims
    steps, step = [0] * len(batch), 1
    for axis in reversed(range(len(batch))):
        steps[axis] = 0 if padded[axis] == 1 else step
        step *= padded[axis]
    return steps


@once
def gemms_of(call: Call) -> tuple[Gemm, ...]:
    """Return the GEMMs of a call of ``matmul``, ``mul``, ``matmul_grad`` or ``mul_grad``: one for each wanted output.

    A vector X counts as one row, a vector Y as one column. Where Y has no batch and X is not transposed,
    X's batch joins its rows: one large product instead of many. A call with an epilogue gives those of its product.
    """
    if call.op.epilogue is not None:
        call = product_call(call)
    x, y = call.dims("X"), call.dims("Y")
    if call.op.type.startswith("mul"):
        columns_x, columns_y = call.attr("x_num_col_dims"), call.attr("y_num_col_dims")
        x, y = (prod(x[:columns_x]), prod(x[columns_x:])), (prod(y[:columns_y]), prod(y[columns_y:]))
        transposed_x, transposed_y, alpha = False, False, 1.0
    else:
        transposed_x, transposed_y, alpha = call.attr("transpose_X"), call.attr("transpose_Y"), call.attr("alpha")
        x = x if len(x) > 1 else (1, *x)
        y = y if len(y) > 1 else (*y, 1)
        if len(y) == 2 and not transposed_x:
            x = (prod(x[:-1]), x[-1])
    if not call.op.type.endswith("_grad"):
        return (_gemm("X", x, transposed_x, "Y", y, transposed_y, "Out", None, alpha),)
    dout = "Out" + GRAD
    rows, columns = x[-1] if transposed_x else x[-2], y[-2] if transposed_y else y[-1]
    out = (*_broadcast(x[:-2], y[:-2]), rows, columns)
    found = []
    if call.has("X" + GRAD):
        if transposed_x:  # (op(Y) @ dOut^T) has the shape that X is stored in
            found.append(_gemm("Y", y, transposed_y, dout, out, True, "X" + GRAD, x, alpha))
        else:
            found.append(_gemm(dout, out, False, "Y", y, not transposed_y, "X" + GRAD, x, alpha))
    if call.has("Y" + GRAD):
        if transposed_y:
            found.append(_gemm(dout, out, True, "X", x, transposed_x, "Y" + GRAD, y, alpha))
        else:
            found.append(_gemm("X", x, not transposed_x, dout, out, False, "Y" + GRAD, y, alpha))
    return tuple(found)


def _gemm(
    a: str, a_dims: Dims, a_t: bool, b: str, b_dims: Dims, b_t: bool, out: str, out_dims: Dims | None, alpha: float
) -> Gemm:
    batch = _broadcast(a_dims[:-2], b_dims[:-2])
    kept = batch if out_dims is None else (1,) * (len(batch) + 2 - len(out_dims)) + out_dims[:-2]
    summed = tuple([axis for axis, (size, keep) in enumerate(zip(batch, kept, strict=True)) if size != keep])
    k, m = a_dims[-2:] if a_t else (a_dims[-1], a_dims[-2])
    n = b_dims[-2] if b_t else b_dims[-1]
    return Gemm(a, a_dims, a_t, b, b_dims, b_t, out, m, n, k, batch, summed, alpha)


def _broadcast(a: Dims, b: Dims) -> Dims:
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple([q if p == 1 else p for p, q in zip(a, b, strict=True)])
