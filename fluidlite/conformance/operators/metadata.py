from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import bools, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def _register(type: str, slot: str, dtype: str, reference: Callable[[Any], Any]) -> None:
    register_samples(
        type,
        reference=lambda inputs, attrs: {"Out": np.asarray(reference(inputs[slot]), dtype)},
        samples=lambda: [
            Sample({slot: rand(3, 4, 5)}, {}, name="rank3"),
            Sample({slot: rand(7, 2)}, {}, name="matrix", dtypes=("float16", "bfloat16", "float64")),
            Sample({slot: ints(6)}, {}, name="int64", dtypes=("int64",)),
            Sample({slot: bools(2, 2)}, {}, name="bool", dtypes=("bool",)),
            Sample({slot: rand(0, 4)}, {}, name="empty"),
            Sample({slot: rand()}, {}, name="rank0"),
        ],
    )


_register("shape", "Input", "int32", np.shape)
_register("size", "Input", "int64", lambda x: [x.size])
_register("is_empty", "X", "bool", lambda x: [x.size == 0])
