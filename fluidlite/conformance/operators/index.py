from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, NUMBERS, WIDE, Attrs, Inputs, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples

register_samples(
    "gather",
    reference=lambda inputs, attrs: {"Out": inputs["X"][inputs["Index"].reshape(-1)]},
    samples=lambda: [
        Sample({"X": rand(6, 3), "Index": np.array([4, 0, 4, 5])}, {}, ("X",), name="rows", dtypes=NUMBERS),
        Sample({"X": rand(6), "Index": np.array([[2], [1]])}, {"overwrite": False}, ("X",), name="column"),
        Sample({"X": rand(4, 2, 3), "Index": np.array([3, 3, 1], "int32")}, {}, ("X",), name="rank3_int32"),
        Sample({"X": rand(5, 2), "Index": ints(0)}, {}, name="none"),
        Sample({"X": rand(5, 0), "Index": np.array([1, 4])}, {}, name="empty_rows"),
    ],
)


def _reference_lookup(inputs: Inputs, attrs: Attrs) -> Outputs:
    w, ids = inputs["W"], inputs["Ids"][..., 0]
    is_padding = (ids == attrs["padding_idx"]) & (ids != -1)
    return {"Out": np.where(is_padding[..., None], 0.0, w[np.where(is_padding, 0, ids)])}


def _lookup_samples() -> list[Sample]:
    w = rand(9, 4)
    return [
        Sample({"W": w, "Ids": ints(5, 1, high=9)}, {}, ("W",), name="rows", dtypes=EVERY),
        Sample({"W": w, "Ids": np.array([[2], [5], [2], [2]])}, {}, ("W",), name="repeated", dtypes=WIDE),
        Sample({"W": w, "Ids": np.array([[2], [5], [2]])}, {"padding_idx": 2}, ("W",), name="padding"),
        Sample({"W": w, "Ids": np.array([[0], [8]])}, {"padding_idx": 0}, ("W",), name="padding_zero"),
        Sample({"W": rand(1, 4), "Ids": np.array([[0], [7], [0]])}, {"padding_idx": 7}, ("W",), name="padding_outside"),
        Sample({"W": rand(3, 4500), "Ids": np.array([[2], [0]])}, {}, name="long_rows"),
        Sample({"W": rand(9, 2), "Ids": ints(2, 3, 1, high=9, dtype="int32")}, {}, ("W",), name="rank3_int32"),
        Sample({"W": w, "Ids": ints(5, 1, high=9)}, {"is_sparse": False}, lod={"Ids": ((0, 2, 5),)}, name="sequences"),
        Sample({"W": w, "Ids": ints(0, 1)}, {}, name="none"),
    ]


def _without_column(samples: list[Sample], slot: str) -> list[Sample]:
    """Return the samples of an operator that takes [..., 1] for its second version, which takes [...]."""
    return [replace(s, inputs={**s.inputs, slot: s.inputs[slot][..., 0]}) for s in samples]


def _with_column(reference: Callable[..., dict[str, Any]], slot: str) -> Callable[..., dict[str, Any]]:
    def second(inputs: Inputs, attrs: Attrs) -> Outputs:
        return reference({**inputs, slot: inputs[slot][..., None]}, attrs)

    return second


register_samples("lookup_table", reference=_reference_lookup, samples=_lookup_samples)
register_samples(
    "lookup_table_v2",
    reference=_with_column(_reference_lookup, "Ids"),
    samples=lambda: _without_column(_lookup_samples(), "Ids"),
)


def _reference_one_hot(inputs: Inputs, attrs: Attrs) -> Outputs:
    kind = attrs["dtype"]
    depth = int(inputs["depth_tensor"][0]) if "depth_tensor" in inputs else attrs["depth"]
    if not attrs["allow_out_of_range"] and ((inputs["X"] < 0) | (inputs["X"] >= depth)).any():
        raise ValueError("a class is out of range")
    return {"Out": np.asarray(inputs["X"] == np.arange(depth), kind if "float" not in kind else "float64")}


def _one_hot_samples() -> list[Sample]:
    return [
        Sample({"X": ints(5, 1, high=4)}, {"depth": 4}, name="rows"),
        Sample({"X": ints(5, 1, high=3, dtype="int32")}, {"depth": 7, "dtype": "int64"}, name="int64"),
        Sample({"X": ints(2, 3, 1, high=2)}, {"depth": 2, "dtype": "float64"}, name="rank3"),
        Sample({"X": ints(0, 1)}, {"depth": 4}, name="none"),
        Sample({"X": np.array([[-1], [3], [9]])}, {"depth": 4, "allow_out_of_range": True}, name="outside"),
        Sample({"X": ints(5, 1, high=3), "depth_tensor": np.array([3], "int32")}, {}, name="depth_tensor"),
    ]


register_samples("one_hot", reference=_reference_one_hot, samples=_one_hot_samples)
register_samples(
    "one_hot_v2",
    reference=_with_column(_reference_one_hot, "X"),
    samples=lambda: _without_column(_one_hot_samples(), "X"),
)
