"""Comparisons and logic: their Out is bool, and they have no gradient."""

from __future__ import annotations

from fluidlite.base.dtypes import ALL
from fluidlite.expr import equal, logical_and, logical_not, logical_or, logical_xor, not_equal
from fluidlite.operators.scalar_op import Elementwise, binary, unary

for _type, _function, _sign in (
    ("equal", equal, "=="),
    ("not_equal", not_equal, "!="),
    ("less_than", lambda x, y: x < y, "<"),
    ("less_equal", lambda x, y: x <= y, "<="),
    ("greater_than", lambda x, y: x > y, ">"),
    ("greater_equal", lambda x, y: x >= y, ">="),
):
    binary(
        _type,
        _function,
        Elementwise(out_dtype="bool"),
        dtypes={"X": ALL, "Y": ALL},
        doc=f"Out = (X {_sign} Y)",
        source="Fluid compare_op.cc",
    )

for _type, _function, _sign in (
    ("logical_and", logical_and, "and"),
    ("logical_or", logical_or, "or"),
    ("logical_xor", logical_xor, "xor"),
):
    binary(
        _type,
        _function,
        Elementwise(out_dtype="bool"),
        dtypes={"X": ("bool",), "Y": ("bool",)},
        doc=f"Out = X {_sign} Y",
        source="Fluid logical_op.cc",
    )

unary(
    "logical_not",
    logical_not,
    Elementwise(out_dtype="bool"),
    dtypes={"X": ("bool",)},
    doc="Out = not X",
    source="Fluid logical_op.cc",
)
