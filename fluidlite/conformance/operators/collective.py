"""Samples and references of fluidlite.operators.collective: a ring that nobody has joined has one member, this process.

Tests in tests/distributed check rings of several members.
"""

from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples

_DTYPES = ("float32", "float64", "float16", "bfloat16")


def _single_member(inputs: Inputs, attrs: Attrs) -> Outputs:
    """Reference of a collective over one member: X itself."""
    return {"Out": inputs["X"]}


_WHOLE = np.arange(6, dtype="int64").reshape(2, 3)

for _type in ("c_allreduce_sum", "c_allreduce_max", "c_allreduce_min", "c_allreduce_prod"):
    _grads = ("X",) if _type == "c_allreduce_sum" else ()
    register_samples(
        _type,
        reference=_single_member,
        samples=[
            Sample({"X": [rand(3, 4)]}, {"use_calc_stream": True}, grads=_grads, name="one", dtypes=_DTYPES),
            Sample({"X": [rand(3, 4)]}, {}, name="begun"),
            Sample({"X": [rand(3, 4), rand(5), rand(1)]}, {"use_calc_stream": True}, grads=_grads, name="bucket"),
            Sample({"X": [_WHOLE]}, {"ring_id": 3}, name="integers"),
            Sample({"X": [rand(0, 4)]}, {}, name="empty"),
        ],
    )

register_samples(
    "c_allgather",
    reference=_single_member,
    samples=[
        Sample({"X": rand(3, 4)}, {"nranks": 1}, grads=("X",), name="rows", dtypes=_DTYPES),
        Sample({"X": _WHOLE}, {"ring_id": 3}, name="integers"),
    ],
)
register_samples(
    "c_reducescatter",
    reference=_single_member,
    samples=[
        Sample({"X": rand(3, 4)}, {"nranks": 1}, grads=("X",), name="rows", dtypes=_DTYPES),
        Sample({"X": _WHOLE}, {"use_calc_stream": True}, name="integers"),
    ],
)
register_samples(
    "c_broadcast",
    reference=_single_member,
    samples=[
        Sample({"X": rand(3, 4)}, {"root": 0}, name="floats", dtypes=_DTYPES),
        Sample({"X": np.array([True, False, True])}, {"root": 0, "use_calc_stream": True}, name="bools"),
    ],
)
register_samples("c_sync_calc_stream", reference=_single_member, samples=[Sample({"X": rand(3, 4)}, {}, name="plain")])
register_samples(
    "c_sync_comm_stream",
    reference=_single_member,
    samples=[
        Sample({"X": [rand(3, 4)]}, {"ring_id": 0}, name="nothing under way"),
        Sample({"X": [rand(3, 4), rand(2)]}, {"ring_id": 5}, name="several"),
    ],
)
