"""Where data comes in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.framework.program import default_main_program
from fluidlite.framework.variable import Variable
from fluidlite.framework.vartype import VarType, dtype_of
from fluidlite.layer_helper import check_int, refuse
from fluidlite.layers.public import public

__all__ = ["data"]


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    type: str | None = None,
    stop_gradient: bool = True,
) -> Variable:
    """Declare a variable that is fed.

    Parameters
    ----------
    name : str
        The key under which it is fed.
    shape : sequence of int
        Dims; -1 or None where they are known only when it runs.
    append_batch_size : bool
        Put a batch dim of -1 first, unless ``shape`` has an unknown dim itself.
    dtype : str
    lod_level : int
        Number of LoD levels: 1 for sequences.
    type : str, optional
        Kind of variable; only ``VarType.LOD_TENSOR`` can be fed.
    stop_gradient : bool
        False: gradients for the data can be asked for.

    Returns
    -------
    Variable
    """
    if not isinstance(name, str) or not name:
        refuse("name", name, "a text")
    if isinstance(shape, (str, Variable)) or not hasattr(shape, "__iter__"):
        refuse("shape", shape, "a list of ints")
    if type not in (None, VarType.LOD_TENSOR):
        refuse("type", type, f"{VarType.LOD_TENSOR!r}")
    dims = [-1 if d is None else check_int("shape", d, minimum=-1) for d in shape]
    if append_batch_size and -1 not in dims:
        dims = [-1, *dims]
    block = default_main_program().global_block()
    found = block.vars.get(name)
    if found is not None and not found.is_data:
        refuse("name", name, "a name that is not taken", "it is the result of an earlier layer, or a parameter")
    return block.create_var(
        name, shape=dims, dtype=dtype_of(dtype), lod_level=check_int("lod_level", lod_level, minimum=0),
        stop_gradient=stop_gradient, is_data=True,
    )  # fmt: skip


@public
def _exact_data(name: str, shape: Sequence[int | None], dtype: Any = "float32", lod_level: int = 0) -> Variable:
    """Declare a variable that is fed, ``fluid.data``: its dims are those of ``shape``, no batch dim is added.

    Parameters
    ----------
    name : str
        The key under which it is fed.
    shape : sequence of int
        Dims; -1 or None where they are known only when it runs.
    dtype : str
    lod_level : int
        Number of LoD levels: 1 for sequences.
    """
    return data(name, shape, append_batch_size=False, dtype=dtype, lod_level=lod_level)


_exact_data.__name__ = _exact_data.__qualname__ = "data"  # as users know it
