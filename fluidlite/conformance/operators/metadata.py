from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import COPIED, rand
from fluidlite.conformance.samples import Sample, register_samples


def _register(type: str, slot: str, dtype: str, reference: Callable[[Any], Any]) -> None:
    register_samples(
        type,
        reference=lambda inputs, attrs: {"Out": np.asarray(reference(inputs[slot]), dtype)},
        samples=lambda: [
            Sample({slot: rand(3, 4, 5)}, {}, name="rank3", dtypes=COPIED),
            Sample({slot: rand(0, 4)}, {}, name="empty"),
            Sample({slot: rand()}, {}, name="rank0"),
        ],
    )


_register("shape", "Input", "int32", np.shape)
_register("size", "Input", "int64", lambda x: [x.size])
_register("is_empty", "X", "bool", lambda x: [x.size == 0])
