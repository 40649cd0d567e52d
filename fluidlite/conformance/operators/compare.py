from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.dtypes import INTS
from fluidlite.conformance.sample_helpers import EVERY, bools, ints, pairwise, point
from fluidlite.conformance.samples import Sample, register_samples


def _numbers() -> list[Sample]:
    def pair(x: tuple[int, ...], y: tuple[int, ...]) -> dict[str, Any]:
        a, b = ints(*x, high=3, seed=1), ints(*y, high=3, seed=2)
        return {"X": np.asarray(a, "float32"), "Y": np.asarray(b, "float32")}

    special = np.asarray([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0], "float32")
    return [
        Sample(pair((5, 7), (5, 7)), {}, name="same", dtypes=(*EVERY, *INTS)),
        Sample(pair((1,), (1,)), {}, name="one"),
        Sample(pair((4, 3), (3,)), {}, name="broadcast"),
        Sample(pair((3, 3), (3,)), {"axis": 0}, name="axis0"),
        Sample(pair((0, 3), (0, 3)), {}, name="empty"),
        Sample({"X": np.repeat(special, 6), "Y": np.tile(special, 6)}, {}, name="special"),
    ]


def _truths() -> list[Sample]:
    return [
        Sample({"X": bools(5, 7), "Y": bools(5, 7, seed=1)}, {}, name="same", dtypes=("bool",)),
        Sample({"X": bools(1), "Y": bools(1, seed=1)}, {}, name="one", dtypes=("bool",)),
        Sample({"X": bools(0, 3), "Y": bools(0, 3)}, {}, name="empty", dtypes=("bool",)),
        Sample({"X": bools(3, 3), "Y": bools(3, seed=1)}, {"axis": 0}, name="axis0", dtypes=("bool",)),
    ]


_exact: Any
for _type, _exact in (
    ("equal", np.equal),
    ("not_equal", np.not_equal),
    ("less_than", np.less),
    ("less_equal", np.less_equal),
    ("greater_than", np.greater),
    ("greater_equal", np.greater_equal),
):
    register_samples(_type, reference=pairwise(_exact), samples=_numbers)

for _type, _exact in (("logical_and", np.logical_and), ("logical_or", np.logical_or), ("logical_xor", np.logical_xor)):
    register_samples(_type, reference=pairwise(_exact), samples=_truths)


register_samples(
    "logical_not",
    reference=point(np.logical_not),
    samples=lambda: [
        Sample({"X": bools(5, 7)}, {}, name="matrix", dtypes=("bool",)),
        Sample({"X": bools(1)}, {}, name="one", dtypes=("bool",)),
        Sample({"X": bools(0, 3)}, {}, name="empty", dtypes=("bool",)),
    ],
)
