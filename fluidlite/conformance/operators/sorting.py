from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, distinct, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def _argsort_samples() -> list[Sample]:
    nan, inf = np.nan, np.inf
    return [
        Sample({"X": distinct(4, 7)}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": distinct(5, 7)}, {"descending": True}, ("X",), name="descending", dtypes=EVERY),
        Sample({"X": distinct(5, 4)}, {"axis": 0}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": distinct(2, 5, 3)}, {"axis": -2, "descending": True}, ("X",), name="middle"),
        Sample({"X": ints(3, 90, high=9).astype("float32")}, {}, name="ties", dtypes=WIDE),
        Sample({"X": ints(3, 90, high=9).astype("float32")}, {"descending": True}, name="ties_descending", dtypes=WIDE),
        Sample({"X": np.array([[nan, 1, inf, -inf, nan, -0.0, 0.0, -2]], "float32")}, {}, name="special", dtypes=EVERY),
        Sample(
            {"X": np.array([nan, 1, inf, -inf, nan, 0.0, -0.0, -2], "float32")},
            {"descending": True},
            name="special_descending",
            dtypes=EVERY,
        ),
        Sample({"X": distinct(1500)}, {}, name="long", dtypes=WIDE),
        Sample({"X": distinct(3, 333)}, {"descending": True}, name="long_rows", dtypes=WIDE),
        Sample({"X": distinct(70, 3)}, {"axis": 0}, name="long_columns"),
        Sample(
            {"X": np.array([3, -(2**31), 2**31 - 1, 0, 3], "int32")},
            {"descending": True},
            name="int32",
            dtypes=("int32",),
        ),
        Sample(
            {"X": np.array([3, -(2**63), 2**63 - 1, 0, 3], "int64")},
            {"descending": True},
            name="int64",
            dtypes=("int64",),
        ),
        Sample({"X": ints(3, 80, low=-50, high=50)}, {}, name="small_int64", dtypes=("int64",)),
        Sample({"X": rand(3, 4)}, {}, lod={"X": ((0, 1, 3),)}, name="sequences"),
        Sample({"X": rand(0, 4)}, {}, name="empty"),
        Sample({"X": rand(4, 0)}, {}, name="empty_rows"),
        Sample({"X": rand(4, 1)}, {}, name="one"),
    ]


@register_samples("argsort", samples=_argsort_samples)
def _reference_argsort(inputs: Inputs, attrs: Attrs) -> Outputs:
    lines = np.moveaxis(inputs["X"], attrs["axis"], -1)
    order = np.zeros(lines.shape, "int64")
    for where in np.ndindex(lines.shape[:-1]):
        line = lines[where].tolist()
        sign = -1 if attrs["descending"] else 1
        order[where] = sorted(range(len(line)), key=lambda j: (line[j] != line[j], sign * line[j], j))
    out = np.take_along_axis(lines, order, -1)
    return {"Out": np.moveaxis(out, -1, attrs["axis"]), "Indices": np.moveaxis(order, -1, attrs["axis"])}


@register_samples(
    "top_k",
    samples=lambda: [
        Sample({"X": distinct(5, 7)}, {}, ("X",), name="largest", dtypes=EVERY),
        Sample({"X": distinct(5, 7)}, {"k": 3}, ("X",), name="three", dtypes=EVERY),
        Sample({"X": np.array([[1, 3, 3, 2, 3]], "float32")}, {"k": 4}, name="ties", dtypes=WIDE),
        Sample({"X": distinct(2, 3, 6)}, {"k": 6}, ("X",), name="all"),
        Sample({"X": distinct(4)}, {"k": 2}, ("X",), name="vector"),
        Sample({"X": distinct(5, 7), "K": np.array([2], "int32")}, {}, ("X",), name="k_tensor"),
        Sample({"X": distinct(2, 300)}, {"k": 40}, name="many_of_a_row", dtypes=WIDE),
        Sample({"X": ints(2, 1500, high=400).astype("float32")}, {"k": 100}, name="many_of_a_long_row", dtypes=WIDE),
        Sample({"X": ints(3, 5, dtype="int32")}, {"k": 2}, name="int32", dtypes=("int32",)),
        Sample({"X": rand(0, 5)}, {"k": 2}, name="no_rows"),
    ],
)
def _reference_top_k(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, k = inputs["X"], int(inputs["K"][0]) if "K" in inputs else attrs["k"]
    order = np.zeros((*x.shape[:-1], k), "int64")
    for where in np.ndindex(x.shape[:-1]):
        row = x[where].tolist()
        order[where] = sorted(range(len(row)), key=lambda j: (-row[j], j))[:k]
    return {"Out": np.take_along_axis(x, order, -1), "Indices": order}


def _reference_arg(better: Callable[[Any, Any], bool]) -> Callable[..., dict[str, Any]]:
    def reference(inputs: Inputs, attrs: Attrs) -> Outputs:
        x = inputs["X"].reshape(-1) if attrs["flatten"] else np.moveaxis(inputs["X"], attrs["axis"], -1)
        out = np.zeros(x.shape[:-1], attrs["dtype"] or "int64")
        for where in np.ndindex(out.shape):
            best = 0
            for j, value in enumerate(x[where]):
                largest = x[where][best]
                if largest == largest and (better(value, largest) or value != value):
                    best = j
            out[where] = best
        if attrs["keepdims"] and not attrs["flatten"]:
            out = np.expand_dims(out, attrs["axis"])
        return {"Out": out.reshape(out.shape or (1,))}

    return reference


def _arg_samples() -> list[Sample]:
    nan, inf = np.nan, np.inf
    return [
        Sample({"X": distinct(5, 7)}, {"axis": 1}, name="rows", dtypes=EVERY),
        Sample({"X": distinct(5, 7)}, {"axis": 0}, name="columns", dtypes=EVERY),
        Sample({"X": distinct(3, 4, 5)}, {"axis": -2, "keepdims": True}, name="middle_kept", dtypes=WIDE),
        Sample({"X": distinct(3, 4)}, {"axis": 0, "flatten": True}, name="flat"),
        Sample({"X": distinct(3, 4)}, {"axis": -1, "dtype": "int32"}, name="int32_out"),
        Sample({"X": ints(4, 9, high=3).astype("float32")}, {"axis": 1}, name="ties", dtypes=EVERY),
        Sample({"X": ints(9, 4, high=3).astype("float32")}, {"axis": 0}, name="ties_in_columns", dtypes=EVERY),
        Sample({"X": np.array([[1, nan, 2, nan], [inf, 1, inf, -inf]], "float32")}, {"axis": 1}, name="special"),
        Sample(
            {"X": np.array([[1, nan, 2], [inf, nan, -inf], [3, 1, inf]], "float32")},
            {"axis": 0},
            name="special_in_columns",
        ),
        Sample({"X": distinct(6)}, {"axis": 0}, name="vector"),
        Sample({"X": distinct(2, 3000)}, {"axis": 1}, name="long"),
        Sample({"X": ints(4, 9, low=-9)}, {"axis": 1}, name="int64", dtypes=("int64",)),
        Sample({"X": ints(4, 9, low=-9, dtype="int32")}, {"axis": 0}, name="int32", dtypes=("int32",)),
        Sample({"X": ints(4, 9, high=200, dtype="uint8")}, {"axis": 0}, name="uint8", dtypes=("uint8",)),
        Sample({"X": rand(0, 4)}, {"axis": 1}, name="empty"),
    ]


register_samples("arg_max", reference=_reference_arg(lambda x, best: x > best), samples=_arg_samples)
register_samples("arg_min", reference=_reference_arg(lambda x, best: x < best), samples=_arg_samples)
