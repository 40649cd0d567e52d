"""``fluid.one_hot`` and ``fluid.embedding``: the layers of these names without the trailing 1 of their input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.layer_helper import check_int
from fluidlite.layers.declare import also, layer
from fluidlite.layers.index import TABLE, rows_of_table
from fluidlite.layers.public import public
from fluidlite.program.variable import Variable

__all__ = ["embedding", "one_hot"]


@public
@layer("one_hot_v2", {"depth": "depth|depth_tensor"}, stop_gradient=True)
def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """Return float32 [..., depth] with 1 at the class that ``input``, integers [...], names.

    >>> one_hot(data("input", [2], "int64"), 4).shape
    (2, 4)
    """
    if not isinstance(depth, Variable):
        check_int("depth", depth, minimum=1)
    return also()


@public
@layer("lookup_table_v2", TABLE)
def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """Return the rows of a table that the ids in ``input``, integers [...], name: [..., width].

    >>> embedding(data("input", [2], "int64"), [9, 4]).shape
    (2, 4)
    """
    return also(**rows_of_table(size, padding_idx, dtype))
