"""Matrix products of operators as plain GEMMs: ``matmul``, ``mul`` and their gradients on metadata alone.

All GEMM libraries need the same facts: rows and columns, transposition, batch axes that broadcast or are summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product as index_product
from math import prod
from operator import mul
from typing import TYPE_CHECKING

from fluidlite.program.epilogue import product_call
from fluidlite.program.op_call import Call, cached_in_call
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
        """Dims under which to view the output: summed batch axes are 1."""
        batch = tuple(1 if axis in self.summed else size for axis, size in enumerate(self.batch))
        return (*batch, self.m, self.n)

    def steps(self) -> list[list[int]]:
        """The strides of a, b and out along each batch axis, in matrices."""
        return [_steps(dims[:-2], self.batch) for dims in (self.a_dims, self.b_dims, self.out_dims)]

    def strided(self) -> tuple[int, int, int] | None:
        """The uniform strides of a, b and out between products, in matrices; None if they are not uniform.

        It is computed axis by axis, since an unknown batch size is represented by a huge number.
        """
        if any(self.batch[axis] > 1 for axis in self.summed):
            return None
        strides = []
        for steps in self.steps():
            axes = [(size, step) for size, step in zip(self.batch, steps, strict=True) if size > 1]
            if any(outer != size * inner for (_, outer), (size, inner) in pairwise(axes)):
                return None
            strides.append(axes[-1][1] if axes else 0)
        a, b, out = strides
        return a, b, out

    def matrices(self) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (matrix of a, of b, of out, whether it is added to an earlier product) for each batch index."""
        steps = self.steps()
        for index in index_product(*map(range, self.batch)):
            a, b, out = [sum(map(mul, index, s)) for s in steps]
            yield a, b, out, any(index[axis] for axis in self.summed)


def _steps(dims: Dims, batch: Dims) -> list[int]:
    """The stride along each batch axis, in matrices (0 if the dim broadcasts)."""
    padded = (1,) * (len(batch) - len(dims)) + dims
    steps, step = [0] * len(batch), 1
    for axis in reversed(range(len(batch))):
        steps[axis] = 0 if padded[axis] == 1 else step
        step *= padded[axis]
    return steps


@cached_in_call
def gemms_of(call: Call) -> tuple[Gemm, ...]:
    """Return the GEMMs of a ``matmul``, ``mul``, ``matmul_grad`` or ``mul_grad`` call: one per requested output.

    A vector X counts as one row, a vector Y as one column. If Y has no batch and X is not transposed, the batch of X is
    merged into its rows: one large product instead of many. For a call with an epilogue, those of its product.
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
    gemms = []
    if call.has("X" + GRAD):
        if transposed_x:  # op(Y) @ dOut^T has the layout in which X is stored
            gemms.append(_gemm("Y", y, transposed_y, dout, out, True, "X" + GRAD, x, alpha))
        else:
            gemms.append(_gemm(dout, out, False, "Y", y, not transposed_y, "X" + GRAD, x, alpha))
    if call.has("Y" + GRAD):
        if transposed_y:
            gemms.append(_gemm(dout, out, True, "X", x, transposed_x, "Y" + GRAD, y, alpha))
        else:
            gemms.append(_gemm("X", x, not transposed_x, dout, out, False, "Y" + GRAD, y, alpha))
    return tuple(gemms)


def _gemm(
    a: str, a_dims: Dims, a_t: bool, b: str, b_dims: Dims, b_t: bool, out: str, out_dims: Dims | None, alpha: float
) -> Gemm:
    batch = _broadcast(a_dims[:-2], b_dims[:-2])
    kept_sizes = batch if out_dims is None else (1,) * (len(batch) + 2 - len(out_dims)) + out_dims[:-2]
    summed = tuple(
        [axis for axis, (size, kept_size) in enumerate(zip(batch, kept_sizes, strict=True)) if size != kept_size]
    )
    k, m = a_dims[-2:] if a_t else (a_dims[-1], a_dims[-2])
    n = b_dims[-2] if b_t else b_dims[-1]
    return Gemm(a, a_dims, a_t, b, b_dims, b_t, out, m, n, k, batch, summed, alpha)


def _broadcast(a: Dims, b: Dims) -> Dims:
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple([q if p == 1 else p for p, q in zip(a, b, strict=True)])
