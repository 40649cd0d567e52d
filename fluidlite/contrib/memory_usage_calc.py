"""An estimate of the memory of a program's values."""

from __future__ import annotations

from math import prod

from fluidlite.base.arguments import check_int
from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.base.errors import ProgramError
from fluidlite.program.program import Program

__all__ = ["memory_usage"]


def memory_usage(program: Program, batch_size: int) -> tuple[float, float, str]:
    """Estimate the memory of a program's values, as in Fluid: the size of all outputs minus and plus 5 %.

    A run needs less, since the memory of dead values is reused.

    Parameters
    ----------
    program : Program
    batch_size : int
        The value of unknown dims, 1 or more.

    Returns
    -------
    least, most, unit
        The unit is ``"B"``, ``"KB"`` or ``"MB"``.
    """
    if not isinstance(program, Program):
        raise ProgramError(f"memory_usage: program is {type(program).__name__}; expected a Program")
    rows = check_int("memory_usage: batch_size", batch_size, least=1)
    block = program.global_block()
    total = 0.0
    for name in dict.fromkeys(name for op in block.ops for name in op.output_arg_names):
        variable = block.find_var(name)
        if variable is not None and variable.spec is not None:
            dims = (rows if dim < 0 else dim for dim in variable.spec.dims)
            total += prod(dims) * ITEMSIZE[variable.spec.dtype]
    unit = "B"
    for larger in ("KB", "MB"):
        if total > 1024:
            total, unit = total / 1024, larger
    return total * 0.95, total * 1.05, unit
