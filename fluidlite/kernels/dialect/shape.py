"""transpose and transpose2, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.plugin import Call, Context, register_kernel

from .strided import mover, steps_of


def _transpose(call: Call, context: Context) -> Any:
    """Out's axis i is X's axis ``axis[i]``."""
    axis, steps = call.attr("axis"), steps_of(call.dims("X"))
    return _permute(call, context, "X", "Out", [steps[i] for i in axis])


def _transpose_grad(call: Call, context: Context) -> Any:
    """The inverse permutation."""
    axis, steps = call.attr("axis"), steps_of(call.dims("Out@GRAD"))
    return _permute(call, context, "Out@GRAD", "X@GRAD", [steps[axis.index(i)] for i in range(len(axis))])


def _permute(call: Call, context: Context, source: str, target: str, steps: Sequence[int]) -> Any:
    dims, dtype = call.dims(target), call.dtype(target)
    move = mover(context, dtype, dtype, dims, steps, steps_of(dims))
    return lambda context, io: move(context, io.span(source), io.span(target))


transpose = register_kernel("transpose", "dialect")(_transpose)
transpose2 = register_kernel("transpose2", "dialect")(_transpose)
transpose_grad = register_kernel("transpose_grad", "dialect")(_transpose_grad)
transpose2_grad = register_kernel("transpose2_grad", "dialect")(_transpose_grad)
