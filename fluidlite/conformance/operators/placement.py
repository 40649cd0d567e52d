from __future__ import annotations

from fluidlite.conformance.sample_helpers import EVERY, ints, rand
from fluidlite.conformance.samples import Sample, register_samples

for _type in ("device_view", "device_transfer"):
    register_samples(
        _type,
        reference=lambda inputs, attrs: {"Out": inputs["X"].copy()},
        samples=lambda: [
            Sample({"X": rand(5, 7)}, {}, ("X",), name="matrix", dtypes=EVERY),
            Sample({"X": rand()}, {}, name="rank0"),
            Sample({"X": ints(4)}, {}, name="int64", dtypes=("int64",)),
            Sample({"X": rand(5, 7)}, {}, lod={"X": ((0, 2, 5),)}, name="sequences"),
            Sample({"X": rand(0, 7)}, {}, name="empty"),
        ],
    )
