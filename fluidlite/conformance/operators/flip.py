from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import COPIED, EVERY, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


def _register_reverse(type: str, attr: str) -> None:
    def reference(inputs: Inputs, attrs: Attrs) -> Outputs:
        out = inputs["X"]
        for axis in {axis % out.ndim for axis in attrs[attr]}:
            out = np.take(out, np.arange(out.shape[axis] - 1, -1, -1), axis)
        return {"Out": out}

    register_samples(
        type,
        reference=reference,
        samples=lambda: [
            Sample({"X": rand(3, 5)}, {attr: [0]}, ("X",), name="rows", dtypes=COPIED),
            Sample({"X": rand(3, 5)}, {attr: [-1]}, ("X",), name="columns", dtypes=EVERY),
            Sample({"X": rand(2, 3, 4)}, {attr: [0, 2]}, ("X",), name="outer", dtypes=WIDE),
            Sample({"X": rand(2, 3, 4)}, {attr: [1, -2]}, ("X",), name="twice"),
            Sample({"X": rand(40, 70)}, {attr: [0, 1]}, name="all"),
            Sample({"X": rand(4)}, {attr: [0]}, ("X",), name="vector"),
            Sample({"X": rand(0, 3)}, {attr: [1]}, name="empty"),
        ],
    )


_register_reverse("reverse", "axis")
_register_reverse("flip", "dims")


@register_samples(
    "roll",
    samples=lambda: [
        Sample({"X": rand(4, 5)}, {"shifts": [1], "dims": [0]}, ("X",), name="rows", dtypes=COPIED),
        Sample({"X": rand(4, 5)}, {"shifts": [-2], "dims": [-1]}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": rand(3, 4, 5)}, {"shifts": [1, 7], "dims": [0, 2]}, ("X",), name="two", dtypes=WIDE),
        Sample({"X": rand(3, 4)}, {"shifts": [1, 1, -5], "dims": [1, 1, 0]}, ("X",), name="twice"),
        Sample({"X": rand(3, 4)}, {"shifts": [5]}, ("X",), name="as_a_row"),
        Sample({"X": rand(3, 4)}, {}, ("X",), name="nothing"),
        Sample({"X": rand(6)}, {"shifts": [6], "dims": [0]}, ("X",), name="whole"),
        Sample({"X": rand(0, 3)}, {"shifts": [1, 1], "dims": [0, 1]}, name="empty"),
    ],
)
def _reference_roll(inputs: Inputs, attrs: Attrs) -> Outputs:
    out, dims = inputs["X"], attrs["dims"]
    if not dims:
        return {"Out": np.roll(out, sum(attrs["shifts"]))}
    for axis, shift in zip(dims, attrs["shifts"], strict=True):
        out = np.roll(out, shift, axis)
    return {"Out": out}


@register_samples(
    "tril_triu",
    samples=lambda: [
        Sample({"X": rand(4, 5)}, {"lower": True}, ("X",), name="lower", dtypes=COPIED),
        Sample({"X": rand(4, 5)}, {"lower": False}, ("X",), name="upper", dtypes=EVERY),
        Sample({"X": rand(2, 4, 3)}, {"lower": True, "diagonal": 1}, ("X",), name="lower_batch", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4, 3)}, {"lower": False, "diagonal": -2}, ("X",), name="upper_batch"),
        Sample({"X": rand(3, 4)}, {"lower": True, "diagonal": -9}, ("X",), name="nothing"),
        Sample({"X": rand(3, 4)}, {"lower": True, "diagonal": 9}, ("X",), name="everything"),
        Sample({"X": np.asarray([[1, np.inf], [np.nan, 2]], "float32")}, {"lower": False}, name="not_finite"),
        Sample({"X": rand(0, 3)}, {"lower": True}, name="empty"),
    ],
)
def _reference_triangle(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, diagonal = inputs["X"], attrs["diagonal"]
    out = np.zeros_like(x)
    for i, j in np.ndindex(x.shape[-2:]):
        if (j - i <= diagonal) if attrs["lower"] else (j - i >= diagonal):
            out[..., i, j] = x[..., i, j]
    return {"Out": out}
