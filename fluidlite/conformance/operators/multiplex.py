from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import NUMBERS, WIDE, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def _samples() -> list[Sample]:
    def x(count: int, *dims: int) -> list[Any]:
        return [rand(*dims, seed=i) for i in range(count)]

    return [
        Sample({"Ids": np.asarray([[1], [0], [1]], "int32"), "X": x(2, 3, 4)}, {}, ("X",), name="two", dtypes=NUMBERS),
        Sample({"Ids": ints(5, 1, high=4, dtype="int32"), "X": x(4, 5, 2, 3)}, {}, ("X",), name="four", dtypes=WIDE),
        Sample({"Ids": ints(40, 1, high=3), "X": x(3, 40, 2100)}, {}, name="long_int64"),
        Sample({"Ids": ints(0, 1, dtype="int32"), "X": x(2, 0, 4)}, {}, name="empty"),
        Sample({"Ids": ints(3, 1, high=2, dtype="int32"), "X": x(2, 3, 0)}, {}, name="empty_rows"),
    ]


register_samples(
    "multiplex",
    reference=lambda inputs, attrs: {"Out": np.stack(inputs["X"])[inputs["Ids"][:, 0], range(len(inputs["Ids"]))]},
    samples=_samples,
)
