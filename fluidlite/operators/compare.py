"""Comparisons and logic: their Out is bool, and they have no gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL
from fluidlite.codegen.expr import equal, logical_and, logical_not, logical_or, logical_xor, not_equal
from fluidlite.framework.opdef import Sample
from fluidlite.operators.samples import EVERY, bools, ints, pairwise, point
from fluidlite.operators.scalar_op import binary, unary


def _numbers() -> list[Sample]:
    def pair(x: tuple[int, ...], y: tuple[int, ...]) -> dict[str, Any]:
        a, b = ints(*x, high=3, seed=1), ints(*y, high=3, seed=2)
        return {"X": np.asarray(a, "float32"), "Y": np.asarray(b, "float32")}

    special = np.asarray([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0], "float32")
    return [
        Sample(pair((5, 7), (5, 7)), {}, name="same", dtypes=EVERY),
        Sample(pair((1,), (1,)), {}, name="one"),
        Sample(pair((4, 3), (3,)), {}, name="broadcast"),
        Sample(pair((3, 3), (3,)), {"axis": 0}, name="axis0"),
        Sample(pair((0, 3), (0, 3)), {}, name="empty"),
        Sample({"X": np.repeat(special, 6), "Y": np.tile(special, 6)}, {}, name="special"),
        Sample({"X": ints(20, high=3), "Y": ints(20, high=3, seed=1)}, {}, name="int64", dtypes=("int64",)),
        Sample({"X": ints(9, high=3, dtype="int32"), "Y": ints(9, high=3, seed=1, dtype="int32")}, {}, name="int32",
               dtypes=("int32",)),
    ]  # fmt: skip


def _truths() -> list[Sample]:
    return [
        Sample({"X": bools(5, 7), "Y": bools(5, 7, seed=1)}, {}, name="same", dtypes=("bool",)),
        Sample({"X": bools(1), "Y": bools(1, seed=1)}, {}, name="one", dtypes=("bool",)),
        Sample({"X": bools(0, 3), "Y": bools(0, 3)}, {}, name="empty", dtypes=("bool",)),
        Sample({"X": bools(3, 3), "Y": bools(3, seed=1)}, {"axis": 0}, name="axis0", dtypes=("bool",)),
    ]


_exact: Any
for _type, _function, _exact, _sign in (
    ("equal", equal, np.equal, "=="),
    ("not_equal", not_equal, np.not_equal, "!="),
    ("less_than", lambda x, y: x < y, np.less, "<"),
    ("less_equal", lambda x, y: x <= y, np.less_equal, "<="),
    ("greater_than", lambda x, y: x > y, np.greater, ">"),
    ("greater_equal", lambda x, y: x >= y, np.greater_equal, ">="),
):
    binary(_type, _function, out_dtype="bool", dtypes={"X": ALL, "Y": ALL}, reference=pairwise(_exact),
           samples=_numbers, doc=f"Out = (X {_sign} Y)", source="Fluid compare_op.cc")  # fmt: skip

for _type, _function, _exact, _sign in (
    ("logical_and", logical_and, np.logical_and, "and"),
    ("logical_or", logical_or, np.logical_or, "or"),
    ("logical_xor", logical_xor, np.logical_xor, "xor"),
):
    binary(_type, _function, out_dtype="bool", dtypes={"X": ("bool",), "Y": ("bool",)}, reference=pairwise(_exact),
           samples=_truths, doc=f"Out = X {_sign} Y", source="Fluid logical_op.cc")  # fmt: skip

unary("logical_not", logical_not, out_dtype="bool", dtypes={"X": ("bool",)}, reference=point(np.logical_not),
      samples=lambda: [
          Sample({"X": bools(5, 7)}, {}, name="matrix", dtypes=("bool",)),
          Sample({"X": bools(1)}, {}, name="one", dtypes=("bool",)),
          Sample({"X": bools(0, 3)}, {}, name="empty", dtypes=("bool",)),
      ],
      doc="Out = not X", source="Fluid logical_op.cc")  # fmt: skip
