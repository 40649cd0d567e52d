"""Constant tables of a decomposed call: subexpressions that are evaluated once, during decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from fluidlite.base.dtypes import FLOATS, HALVES
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.expr.lowering import dims_of
from fluidlite.expr.tensor import Tensor, topological_order
from fluidlite.expr.traced import Traced
from fluidlite.expr.tracing import current
from fluidlite.program import codegen_registry as generators

MAX_TABLE_SIZE = 1 << 16
"""A subexpression of sizes and attributes with costly functions becomes a table up to this many elements."""
_ALLOWED = frozenset({"number", "iota", "map", "cast", "stop", "broadcast", "reshape", "transpose", "concat", "slice"})


def tables(results: Sequence[Tensor]) -> set[Tensor]:
    """The subexpressions that become tables: floats computed from iota and numbers only, with functions such as sin.

    Without such functions, computing the elements costs a kernel less than reading a table.
    """
    constants: set[Tensor] = set()
    varying: set[Tensor] = set()
    costly: set[Tensor] = set()
    for x in topological_order(results):
        if x.op not in _ALLOWED or x.dtype in HALVES or not all(arg in constants for arg in x.args):
            continue
        constants.add(x)
        if x.op == "iota" or not varying.isdisjoint(x.args):
            varying.add(x)
        has_function = x.op == "map" and PRIMITIVES[x.params[0]].kind == "float"
        if x in varying and (has_function or not costly.isdisjoint(x.args)):
            costly.add(x)
    return {x for x in costly if x.op != "broadcast" and x.dtype in FLOATS and 0 < prod(dims_of(x)) <= MAX_TABLE_SIZE}


def table_of(x: Tensor) -> dict[str, Any]:
    """The attributes of the assign_value that holds a table."""
    values = generators.evaluated(Traced({"Out": (x,)}, {}, (), ()), current().values)
    return {"shape": list(dims_of(x)), "dtype": x.dtype, "fp32_values": np.ravel(values["Out"]).astype(np.float64)}
