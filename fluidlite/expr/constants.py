"""Parts of a decomposed call that are tables: computed once, where the call is decomposed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from fluidlite.base.dtypes import FLOATS, HALVES
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.expr.lowering import dims_of
from fluidlite.expr.tensor import Tensor, ordered
from fluidlite.expr.traced import Traced
from fluidlite.expr.tracing import current
from fluidlite.program import codegen_registry as generators

MOST_TABLED = 1 << 16
"""Up to here what costs functions and depends on sizes and attributes alone is a table: its numbers are kept."""
_TABLED = frozenset({"number", "iota", "map", "cast", "stop", "broadcast", "reshape", "transpose", "concat", "slice"})


def tables(results: Sequence[Tensor]) -> set[Tensor]:
    """What results are made of that is worth a table: floats of counts alone, with functions such as sin in them.

    What a kernel counts and compares costs less than a table that is read.
    """
    alone: set[Tensor] = set()
    counted: set[Tensor] = set()
    costly: set[Tensor] = set()
    for x in ordered(results):
        if x.op not in _TABLED or x.dtype in HALVES or not all(arg in alone for arg in x.args):
            continue
        alone.add(x)
        if x.op == "iota" or not counted.isdisjoint(x.args):
            counted.add(x)
        function = x.op == "map" and PRIMITIVES[x.params[0]].kind == "float"
        if x in counted and (function or not costly.isdisjoint(x.args)):
            costly.add(x)
    return {x for x in costly if x.op != "broadcast" and x.dtype in FLOATS and 0 < prod(dims_of(x)) <= MOST_TABLED}


def table_of(x: Tensor) -> dict[str, Any]:
    """The attributes of the assign_value that holds a table."""
    made = generators.evaluated(Traced({"Out": (x,)}, {}, (), ()), current().values)
    return {"shape": list(dims_of(x)), "dtype": x.dtype, "fp32_values": np.ravel(made["Out"]).astype(np.float64)}
