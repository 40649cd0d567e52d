"""Layers that look at a running program, or steer it."""

from __future__ import annotations

from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import check_variable
from fluidlite.layers.common import append

__all__ = ["Print"]


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

    Parameters
    ----------
    input : Variable
        Of any dims and dtype.
    first_n : int
        How often to print; -1: always.
    message : str, optional
        Printed first.
    summarize : int
        How many elements to print; -1: all.
    print_tensor_name, print_tensor_type, print_tensor_shape, print_tensor_lod : bool
        Which facts to print.
    print_phase : {"forward", "backward", "both"}
        Whether to print the value, its gradient, or both.

    Returns
    -------
    Variable
        The input, unchanged.

    Raises
    ------
    AttributeValueError
        If ``print_phase`` is none of these.
    """
    attrs = {
        "first_n": first_n, "message": message or "", "summarize": summarize, "print_tensor_name": print_tensor_name,
        "print_tensor_type": print_tensor_type, "print_tensor_shape": print_tensor_shape,
        "print_tensor_lod": print_tensor_lod, "print_phase": str(print_phase).upper(),
    }  # fmt: skip
    return append("print", "print", {"In": check_variable("input", input)}, attrs)
