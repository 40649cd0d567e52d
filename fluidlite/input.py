"""``fluid.one_hot`` and ``fluid.embedding``: the layers of these names without the trailing 1 of their input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.framework.variable import Variable
from fluidlite.layers.index import _embedding, _one_hot
from fluidlite.layers.public import public

__all__ = ["embedding", "one_hot"]


@public
def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """Return float32 [..., depth] with 1 at the class that ``input``, integers [...], names.

    Parameters
    ----------
    input : Variable
    depth : int or Variable
        Number of classes.
    allow_out_of_range : bool
        A class out of range makes zeros; otherwise it is an OutOfRangeError.
    """
    return _one_hot("one_hot_v2", input, depth, allow_out_of_range)


@public
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

    See ``fluid.layers.embedding`` for the other arguments.
    """
    return _embedding("lookup_table_v2", input, size, is_sparse, is_distributed, padding_idx, param_attr, dtype)
