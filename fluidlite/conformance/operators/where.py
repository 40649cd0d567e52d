from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, NUMBERS, Attrs, Inputs, Outputs, bools, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def _where_inputs(*dims: int) -> dict[str, Any]:
    return {"Condition": bools(*dims), "X": rand(*dims), "Y": rand(*dims, seed=1)}


register_samples(
    "where",
    reference=lambda inputs, attrs: {"Out": np.choose(inputs["Condition"], [inputs["Y"], inputs["X"]])},
    samples=lambda: [
        Sample(_where_inputs(5, 7), {}, ("X", "Y"), name="matrix", dtypes=NUMBERS),
        Sample(_where_inputs(2, 3, 4, 1), {}, ("X", "Y"), name="rank4"),
        Sample(_where_inputs(0, 3), {}, name="empty"),
    ],
)


register_samples(
    "where_index",
    reference=lambda inputs, attrs: {"Out": np.argwhere(inputs["Condition"])},
    samples=lambda: [
        Sample({"Condition": bools(5, 7)}, {}, name="matrix", dtypes=("bool",)),
        Sample({"Condition": bools(2, 3, 40, 12)}, {}, name="rank4", dtypes=("bool",)),
        Sample({"Condition": bools(3000)}, {}, name="vector", dtypes=("bool",)),
        Sample({"Condition": np.zeros((3, 4), "bool")}, {}, name="none", dtypes=("bool",)),
        Sample({"Condition": np.ones(9, "bool")}, {}, name="all", dtypes=("bool",)),
        Sample({"Condition": ints(4, 5, high=2)}, {}, name="int64", dtypes=("int64",)),
        Sample({"Condition": np.array([0.0, -0.0, 0.5, -2, 0], "float32")}, {}, name="floats", dtypes=EVERY),
        Sample({"Condition": bools(0, 3)}, {}, name="empty", dtypes=("bool",)),
    ],
)


def _reference_unique(inputs: Inputs, attrs: Attrs) -> Outputs:
    """NumPy's unique numbers, which are sorted, in the order of their first places; NaN equals nothing."""
    _, first, index, count = np.unique(inputs["X"], True, True, True, equal_nan=False)
    order = np.argsort(first)
    return {
        "Out": inputs["X"][first[order]],
        "Index": np.argsort(order)[index].astype(attrs["dtype"]),
        "Count": count[order].astype(attrs["dtype"]),
    }


def _unique_samples() -> list[Sample]:
    both = ("float32", "float64")
    return [
        Sample({"X": np.array([2, 3, 3, 1, 5, 3])}, {"dtype": "int32"}, name="int64", dtypes=("int64",)),
        Sample({"X": ints(3000, low=-40, high=40, dtype="int32")}, {"dtype": "int64"}, name="int32", dtypes=("int32",)),
        Sample({"X": ints(90, high=30).astype("float32") / 4}, {"dtype": "int32"}, name="floats", dtypes=both),
        Sample({"X": rand(2000)}, {"dtype": "int64"}, name="all_different", dtypes=both),
        Sample({"X": np.array([0.0, -0.0, np.inf, 1, np.inf], "float32")}, {"dtype": "int64"}, name="special"),
        Sample({"X": np.array([7])}, {"dtype": "int64"}, name="one", dtypes=("int64",)),
        Sample({"X": rand(0)}, {"dtype": "int64"}, name="empty"),
    ]


@register_samples("unique", samples=_unique_samples)
def _reference_values(inputs: Inputs, attrs: Attrs) -> Outputs:
    return {slot: value for slot, value in _reference_unique(inputs, attrs).items() if slot != "Count"}


register_samples("unique_with_counts", reference=_reference_unique, samples=_unique_samples)
