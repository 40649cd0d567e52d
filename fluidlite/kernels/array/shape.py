"""transpose and transpose2, with gradients. Reshapes are the memory capability's."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel


def _transpose(call: Call, context: Context) -> Any:
    """Out's axis i is X's axis ``axis[i]``."""
    return _permute(context, "X", "Out", call.attr("axis"))


def _transpose_grad(call: Call, context: Context) -> Any:
    """The inverse permutation."""
    axis = call.attr("axis")
    return _permute(context, "Out@GRAD", "X@GRAD", tuple(axis.index(i) for i in range(len(axis))))


def _permute(context: Context, source: str, target: str, axes: tuple[int, ...]) -> Any:
    permute = context.xp.permute_dims

    def run(context: Context, io: IO) -> None:
        io.array(target)[...] = permute(io.array(source), axes)

    return run


transpose = register_kernel("transpose", "array")(_transpose)
transpose2 = register_kernel("transpose2", "array")(_transpose)
transpose_grad = register_kernel("transpose_grad", "array")(_transpose_grad)
transpose2_grad = register_kernel("transpose2_grad", "array")(_transpose_grad)
