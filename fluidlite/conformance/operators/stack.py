from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import COPIED, WIDE, rand
from fluidlite.conformance.samples import Sample, register_samples

register_samples(
    "stack",
    reference=lambda inputs, attrs: {"Y": np.stack(inputs["X"], attrs["axis"])},
    samples=lambda: [
        Sample({"X": [rand(2, 3), rand(2, 3, seed=1)]}, {}, ("X",), name="first", dtypes=COPIED),
        Sample({"X": [rand(2, 3), rand(2, 3, seed=1), rand(2, 3)]}, {"axis": 1}, ("X",), name="middle", dtypes=WIDE),
        Sample({"X": [rand(2, 3), rand(2, 3, seed=1)]}, {"axis": -1}, ("X",), name="last"),
        Sample({"X": [rand(2, 3), rand(2, 3, seed=1)]}, {"axis": -3}, ("X",), name="most_negative"),
        Sample({"X": [rand(3)]}, {}, ("X",), name="single"),
        Sample({"X": [rand(), rand(seed=1)]}, {}, ("X",), name="rank0"),
        Sample({"X": [rand(0, 3), rand(0, 3)]}, {"axis": 1}, name="empty"),
    ],
)


register_samples(
    "unstack",
    reference=lambda inputs, attrs: {"Y": list(np.moveaxis(inputs["X"], attrs["axis"], 0))},
    samples=lambda: [
        Sample({"X": rand(3, 4)}, {"num": 3}, ("X",), name="rows", dtypes=COPIED),
        Sample({"X": rand(2, 3, 4)}, {"axis": 1, "num": 3}, ("X",), name="middle", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4)}, {"axis": -1, "num": 4}, ("X",), name="last"),
        Sample({"X": rand(3)}, {"num": 3}, ("X",), name="rank0"),
        Sample({"X": rand(1, 4)}, {"num": 1}, ("X",), name="single"),
        Sample({"X": rand(0, 3)}, {"axis": 1, "num": 3}, name="empty"),
    ],
)


register_samples(
    "unbind",
    reference=lambda inputs, attrs: {"Out": list(np.moveaxis(inputs["X"], attrs["axis"], 0))},
    samples=lambda: [
        Sample({"X": rand(3, 4)}, {}, ("X",), name="rows", dtypes=COPIED),
        Sample({"X": rand(2, 3, 4)}, {"axis": 1}, ("X",), name="middle", dtypes=WIDE),
        Sample({"X": rand(2, 3)}, {"axis": -1}, ("X",), name="last"),
        Sample({"X": rand(0, 3)}, {"axis": 1}, name="empty"),
    ],
)
