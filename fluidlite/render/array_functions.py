"""What array rendering calls beside the namespace's own functions; each takes the namespace first.

A namespace must have the functions of :data:`REQUIRED`. Of :data:`OPTIONAL` each has a fallback, made of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.base.dtypes import HALVES
from fluidlite.codegen.functions import as_number, cast, dtype_object
from fluidlite.codegen.sums import pairwise_sum
from fluidlite.render.array_choices import limit, sign, where
from fluidlite.render.array_indexing import add_at, add_contract, checked, pick, put, set_at, take, take_contract
from fluidlite.render.array_moves import (
    add_part,
    broadcast,
    broadcast_last_axes,
    concat,
    full,
    iota,
    pad,
    pad_into,
    part,
    permute,
    slices,
    store,
    target,
    view,
)
from fluidlite.render.array_reductions import arg, others, product_sum, recur, reduce, scan, segment, segment_of
from fluidlite.render.array_windows import (
    unwindow,
    unwindow_one,
    window,
    window_arg,
    window_pick,
    window_reduce,
    window_view,
)
from fluidlite.render.contractions import contract

REQUIRED = (
    "abs", "acos", "add", "all", "any", "arange", "argmax", "argmin", "asarray", "asin", "astype", "atan",
    "broadcast_arrays", "broadcast_to", "ceil", "clip", "concat", "cos", "cosh", "divide", "equal", "exp", "expm1",
    "flip", "floor", "full", "full_like", "greater", "greater_equal", "iinfo", "isdtype", "isfinite", "isinf", "isnan",
    "less", "less_equal", "log", "log1p", "logical_and", "logical_not", "logical_or", "logical_xor", "matmul", "max",
    "maximum", "min", "minimum", "multiply", "negative", "not_equal", "ones_like", "permute_dims", "pow", "prod",
    "remainder", "reshape", "sign", "sin", "sinh", "sqrt", "subtract", "sum", "take", "tanh", "trunc", "where",
    "zeros_like",
)  # fmt: skip
"""Functions of the array API standard that every namespace must have."""
REQUIRED_DTYPES = ("bool", "uint8", "int32", "int64", "float32")
"""Dtypes that every namespace must have: indices, counts and conditions are of them."""
OPTIONAL = {
    "cumulative_sum": "sums of parts twice as long each time",
    "cumulative_prod": "products of parts twice as long each time",
    "searchsorted": "a table of comparisons",
    "argsort": "a table of comparisons; it is used where searchsorted is there",
    "take_along_axis": "take of the flat elements",
    "lib.stride_tricks.as_strided": "windows are copied",
    "scatter_add": "a product with a matrix that has a 1 in each column; the place brings it, not the namespace",
}
"""What is used where it is there, and what stands for it where it is not."""
KEPT = 1 << 12
"""Elements that are kept, at most, of what a call computes of its sizes alone."""

__all__ = [
    "OPTIONAL", "REQUIRED", "REQUIRED_DTYPES", "add_at", "add_contract", "add_part", "arg", "as_number", "broadcast",
    "broadcast_last_axes", "cast", "checked", "concat", "contract", "dtype_object", "full", "iota", "keep", "lacking",
    "limit", "others", "pad", "pad_into", "pairwise_sum", "part", "permute", "pick", "product_sum", "put", "recur",
    "reduce", "scan", "segment", "segment_of", "set_at", "sign", "slices", "store", "take", "take_contract", "target",
    "unwindow", "unwindow_one", "view", "where", "window", "window_arg", "window_pick", "window_reduce", "window_view",
]  # fmt: skip


def lacking(xp: Any, dtypes: Sequence[str]) -> list[str]:
    """What a namespace must have and lacks: functions of :data:`REQUIRED`, and dtypes, those of its device included."""
    wanted = dict.fromkeys([*REQUIRED, *REQUIRED_DTYPES, *(dtype for dtype in dtypes if dtype not in HALVES)])
    return [name for name in wanted if getattr(xp, name, None) is None]


def keep(xp: Any, kept: list[Any], arrays: Sequence[Any]) -> None:
    """Keep what the next calls need not compute again, if it is small and on the host."""
    of_numpy = [x for x in arrays if isinstance(x, np.ndarray)]
    if xp is np and sum(x.size for x in of_numpy) <= KEPT:
        for x in of_numpy:
            x.flags.writeable = False
        kept[:] = arrays
