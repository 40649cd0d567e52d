from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import NUMBERS, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


def _range_of(dtype: str, start: float, end: float, step: float) -> dict[str, Any]:
    return {slot: np.array([n], dtype) for slot, n in (("Start", start), ("End", end), ("Step", step))}


@register_samples(
    "range",
    samples=lambda: [
        Sample(_range_of("float32", 0, 10, 2.5), {}, name="floats", dtypes=("float32", "float64")),
        Sample(_range_of("float32", 1, -1, -0.25), {}, name="falling"),
        Sample(_range_of("float32", 0.5, 3, 1), {}, name="between"),
        Sample(_range_of("int32", 3, 20, 5), {}, name="int32", dtypes=("int32",)),
        Sample(_range_of("int64", 2**53 + 1, 2**53 - 8, -3), {}, name="int64", dtypes=("int64",)),
        Sample(_range_of("int64", 4, 4, 1), {}, name="empty", dtypes=("int64",)),
    ],
)
def _reference_range(inputs: Inputs, attrs: Attrs) -> Outputs:
    start, end, step = (inputs[slot][0] for slot in ("Start", "End", "Step"))
    return {"Out": np.arange(start, end, step, dtype=inputs["Start"].dtype)}


def _linspace_of(dtype: str, start: float, stop: float, count: int) -> dict[str, Any]:
    return {"Start": np.array([start], dtype), "Stop": np.array([stop], dtype), "Num": np.array([count], "int32")}


register_samples(
    "linspace",
    reference=lambda inputs, attrs: {
        "Out": np.linspace(inputs["Start"][0], inputs["Stop"][0], inputs["Num"][0], dtype="float64")
    },
    samples=lambda: [
        Sample(_linspace_of("float32", 0, 10, 5), {}, name="five"),
        Sample(_linspace_of("float64", 3, -1, 9), {"dtype": "float64"}, name="falling", dtypes=("float64",)),
        Sample(_linspace_of("float32", 4, 9, 1), {}, name="one"),
        Sample(_linspace_of("float32", 2, 2, 3), {}, name="equal"),
    ],
)


register_samples(
    "eye",
    reference=lambda inputs, attrs: {
        "Out": np.eye(
            attrs["num_rows"],
            None if attrs["num_columns"] < 0 else attrs["num_columns"],
            dtype="float64" if "float" in attrs["dtype"] else attrs["dtype"],
        )
    },
    samples=lambda: [
        Sample({}, {"num_rows": 4}, name="square"),
        Sample({}, {"num_rows": 3, "num_columns": 5, "dtype": "float64"}, name="wide"),
        Sample({}, {"num_rows": 5, "num_columns": 2, "dtype": "int32"}, name="tall"),
        Sample({}, {"num_rows": 2, "dtype": "float16"}, name="float16"),
        Sample({}, {"num_rows": 2, "dtype": "bool"}, name="bool"),
        Sample({}, {"num_rows": 0, "num_columns": 3}, name="empty"),
    ],
)


register_samples(
    "diag",
    reference=lambda inputs, attrs: {"Out": np.diag(inputs["Diagonal"])},
    samples=lambda: [
        Sample({"Diagonal": rand(5)}, {}, name="five", dtypes=NUMBERS),
        Sample({"Diagonal": rand(1)}, {}, name="one"),
        Sample({"Diagonal": rand(0)}, {}, name="empty"),
    ],
)
