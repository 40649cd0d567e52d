"""The library of generated array code: functions that take the array namespace as their first argument.

A namespace must have the functions of :data:`REQUIRED`. Those of :data:`OPTIONAL` have fallbacks that use these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.base.dtypes import HALVES
from fluidlite.codegen.functions import (
    as_number as as_number,
    cast as cast,
    dtype_object as dtype_object,
    where as where,
)
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.codegen.sums import pairwise_sum as pairwise_sum
from fluidlite.render.array_indexing import (
    add_at as add_at,
    add_contract as add_contract,
    checked as checked,
    pick as pick,
    put as put,
    set_at as set_at,
    take as take,
    take_contract as take_contract,
)
from fluidlite.render.array_moves import (
    broadcast as broadcast,
    concat as concat,
    full as full,
    iota as iota,
    pad as pad,
    pad_into as pad_into,
    part as part,
    permute as permute,
    slices as slices,
    store as store,
    target as target,
    view as view,
)
from fluidlite.render.array_reductions import (
    arg as arg,
    product_sum as product_sum,
    recur as recur,
    reduce as reduce,
    scan as scan,
    segment as segment,
    segment_of as segment_of,
    step_table as step_table,
)
from fluidlite.render.array_windows import (
    unwindow as unwindow,
    unwindow_one as unwindow_one,
    window as window,
    window_arg as window_arg,
    window_reduce as window_reduce,
    window_view as window_view,
)
from fluidlite.render.contractions import contract as contract

_HELPER_FUNCTIONS = (
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "asarray",
    "astype",
    "broadcast_arrays",
    "broadcast_to",
    "clip",
    "concat",
    "flip",
    "full",
    "full_like",
    "iinfo",
    "isdtype",
    "matmul",
    "max",
    "min",
    "ones_like",
    "permute_dims",
    "pow",
    "prod",
    "reshape",
    "sum",
    "take",
    "trunc",
    "zeros_like",
)
"""Functions of the array API standard that the functions of this library call."""
REQUIRED = tuple(sorted({*_HELPER_FUNCTIONS, *(each.xp for each in PRIMITIVES.values() if each.xp[0] != "@")}))
"""Functions of the array API standard that every namespace must have: of scalar primitives, and of this library."""
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
"""Functions that are used if a namespace has them, with their fallbacks."""
MAX_CACHED_ELEMENTS = 1 << 12
"""Elements of the arrays computed of sizes alone that calls of equal sizes share."""


def missing_names(xp: Any, dtypes: Sequence[str]) -> list[str]:
    """The required functions and dtypes that a namespace lacks, including the dtypes of its device."""
    required = dict.fromkeys([*REQUIRED, *REQUIRED_DTYPES, *(dtype for dtype in dtypes if dtype not in HALVES)])
    return [name for name in required if getattr(xp, name, None) is None]


def keep(xp: Any, cache: list[Any], arrays: Sequence[Any]) -> None:
    """Cache constant arrays for the next calls, if they are small and on the host."""
    of_numpy = [x for x in arrays if isinstance(x, np.ndarray)]
    if xp is np and sum(x.size for x in of_numpy) <= MAX_CACHED_ELEMENTS:
        for x in of_numpy:
            x.flags.writeable = False
        cache[:] = arrays
