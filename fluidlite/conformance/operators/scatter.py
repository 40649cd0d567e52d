from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, NUMBERS, WIDE, Attrs, Inputs, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def _scatter_samples() -> list[Sample]:
    every = np.array([4, 0, 4, 5])
    add = {"overwrite": False}

    def operands(ids: Any, *dims: int) -> dict[str, Any]:
        ids = np.asarray(ids)
        return {"X": rand(*dims), "Ids": ids, "Updates": rand(ids.shape[0], *dims[1:], seed=3)}

    both = ("X", "Updates")
    return [
        Sample(operands([4, 0, 5], 6, 3), {}, both, name="rows", dtypes=NUMBERS),
        Sample(operands(every, 6, 3), {}, both, name="last_wins", dtypes=EVERY),
        Sample(operands(every, 6, 3), add, both, name="added", dtypes=EVERY),
        Sample(operands([[2], [1], [2]], 4), add, both, name="column", dtypes=WIDE),
        Sample(operands(np.array([1, 0, 1], "int32"), 3, 2, 20), {}, both, name="rank3_int32"),
        Sample(operands(ints(0), 4, 2), {}, name="none"),
        Sample(operands(ints(0), 4, 2), add, name="none_added"),
        Sample(operands([1, 2], 4, 0), {}, name="empty_rows"),
    ]


@register_samples("scatter", samples=_scatter_samples)
def _reference_scatter(inputs: Inputs, attrs: Attrs) -> Outputs:
    out, ids = inputs["X"].copy(), inputs["Ids"].reshape(-1)
    out[ids] = inputs["Updates"] if attrs["overwrite"] else 0  # the last of several updates stays
    if not attrs["overwrite"]:
        np.add.at(out, ids, inputs["Updates"])
    return {"Out": out}


def _places(index: Any) -> Any:
    """The places that rows of indices name, in an array with a dim of 1 before its own: a row may be empty."""
    return (np.zeros(index.shape[:-1], "int64"), *np.moveaxis(index, -1, 0))


register_samples(
    "gather_nd",
    reference=lambda inputs, attrs: {"Out": inputs["X"][None][_places(inputs["Index"])]},
    samples=lambda: [
        Sample(
            {"X": rand(5, 4), "Index": np.array([[1, 2], [0, 3], [1, 2]])}, {}, ("X",), name="elements", dtypes=NUMBERS
        ),
        Sample({"X": rand(5, 3), "Index": np.array([[4], [0], [4]])}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4), "Index": np.array([[[1, 2]], [[0, 1]]], "int32")}, {}, ("X",), name="rank3_int32"),
        Sample({"X": rand(3, 2), "Index": np.array([2])}, {}, ("X",), name="one_entry"),
        Sample({"X": rand(3, 2), "Index": ints(2, 0)}, {}, ("X",), name="depth0"),
        Sample({"X": rand(3, 2), "Index": ints(0, 2)}, {}, name="none"),
    ],
)


def _scatter_nd_samples() -> list[Sample]:
    elements = {"X": rand(5, 4), "Index": np.array([[1, 2], [0, 3], [1, 2]]), "Updates": rand(3, seed=3)}
    rows = {"X": rand(5, 3), "Index": np.array([[4], [0], [4]]), "Updates": rand(3, 3, seed=3)}
    inner = {"X": rand(2, 3, 4), "Index": np.array([[[1, 2]], [[0, 1]]], "int32"), "Updates": rand(2, 1, 4, seed=3)}
    both = ("X", "Updates")
    return [
        Sample(elements, {}, both, name="elements", dtypes=NUMBERS),
        Sample(rows, {}, both, name="rows", dtypes=EVERY),
        Sample(inner, {}, both, name="rank3_int32"),
        Sample({"X": rand(2, 2), "Index": ints(2, 0), "Updates": rand(2, 2, 2, seed=3)}, {}, both, name="depth0"),
        Sample({"X": rand(3), "Index": ints(0, 1), "Updates": rand(0)}, {}, name="none"),
    ]


@register_samples("scatter_nd_add", samples=_scatter_nd_samples)
def _reference_scatter_nd_add(inputs: Inputs, attrs: Attrs) -> Outputs:
    out = inputs["X"].copy()
    np.add.at(out[None], _places(inputs["Index"]), inputs["Updates"])
    return {"Out": out}
