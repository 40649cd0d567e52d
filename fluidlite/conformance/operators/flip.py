from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import COPIED, EVERY, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


def _register_reverse(type: str, attr: str) -> None:
    register_samples(
        type,
        reference=lambda inputs, attrs: {
            "Out": np.flip(inputs["X"], tuple({axis % inputs["X"].ndim for axis in attrs[attr]}))
        },
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


register_samples(
    "roll",
    reference=lambda inputs, attrs: {"Out": np.roll(inputs["X"], attrs["shifts"], attrs["dims"] or None)},
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
    triangle = np.tril if attrs["lower"] else np.triu
    return {"Out": triangle(inputs["X"], attrs["diagonal"])}
