"""Print, and Fluid's path of control-flow layers."""

from __future__ import annotations

from fluidlite.layers.common import layers_getattr
from fluidlite.layers.declare import also, layer
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable

_PHASE = Attr("print_phase", "str", doc="forward, backward or both: whether to print the value, its gradient, or both")


@layer("print", {"input": "In", "print_phase": _PHASE}, returns="Out")
def Print(
    input: Variable,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
) -> Variable:
    """Print a variable, and its gradient, whenever the program runs.

    input: Of any dims and dtype
    print_tensor_lod: Which facts to print
    Returns: The input, unchanged
    Raises: If ``print_phase`` is none of these

    >>> Print(data("input", [2, 4], "bool")).shape
    (2, 4)
    """
    return also(print_phase=print_phase.upper())


__getattr__ = layers_getattr(__name__)  # Fluid's path of layers that other modules declare
