from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples

MAX_SUMMED_UPDATES = 16384
"""Updates after which out_sum_1 is added to out_sum_2: a larger sum rounds off what is added to it."""


_SUMS = ("in_sum_1", "in_sum_2", "in_sum_3")
_NUMBERS = ("in_num_accumulates", "in_old_num_accumulates", "in_num_updates")
_ALIAS = {slot.replace("in_", "out_", 1): slot for slot in (*_SUMS, *_NUMBERS)}


def _average_samples() -> list[Sample]:
    def sample(name: str, counts: tuple[int, int, int], *dims: int, **attrs: Any) -> Sample:
        inputs: dict[str, Any] = {slot: rand(*dims, seed=i) for i, slot in enumerate(("param", *_SUMS))}
        inputs |= {slot: np.asarray([n], "int64") for slot, n in zip(_NUMBERS, counts, strict=True)}
        return Sample(inputs, {"max_average_window": 20000, **attrs}, name=name, dtypes=WIDE)

    return [
        sample("grows", (3, 5, 9), 5, 7),
        sample("full", (9, 5, 9), 5, 7, min_average_window=10, average_window=0.5),
        sample("below_rate", (9, 5, 29), 5, 7, min_average_window=5, average_window=0.5),
        sample("at_rate", (14, 5, 29), 5, 7, min_average_window=5, average_window=0.5),
        sample("at_most", (9, 5, 29), 5, 7, min_average_window=5, max_average_window=10, average_window=0.9),
        sample("moves_on", (3, 5, MAX_SUMMED_UPDATES - 1), 5, 7),
        sample("moves_on_full", (9, 5, MAX_SUMMED_UPDATES - 1), 5, 7, min_average_window=5, max_average_window=10),
        sample("one", (0, 0, 0), 1),
        sample("empty", (0, 0, 0), 0, 3),
        sample("large", (9, 5, 29), 300, 250, min_average_window=5, max_average_window=10),
    ]


@register_samples("average_accumulates", samples=_average_samples)
def _reference_average(inputs: Inputs, attrs: Attrs) -> Outputs:
    one, two, three = (inputs[slot] for slot in _SUMS)
    count, old, updates = (int(inputs[slot].reshape(())) for slot in _NUMBERS)
    count, updates = count + 1, updates + 1
    sums = [one + inputs["param"], two, three]
    if updates % MAX_SUMMED_UPDATES == 0:
        sums = [np.zeros_like(one), sums[0] + two, three]
    if count >= attrs["min_average_window"] and count >= min(
        attrs["max_average_window"], int(updates * attrs["average_window"])
    ):
        sums, count, old = [np.zeros_like(one), np.zeros_like(one), sums[0] + sums[1]], 0, count
    return {**dict(zip(_ALIAS, (*sums, *(np.asarray([n], "int64") for n in (count, old, updates))), strict=True))}


@register_samples(
    "lookahead_update",
    samples=lambda: [
        Sample(
            {"Fast": rand(5, 7, seed=1), "Slow": rand(5, 7, seed=2), "Step": np.asarray([step], dtype)},
            attrs,
            name=name,
            dtypes=WIDE,
        )
        for name, step, dtype, attrs in (
            ("due", 10, "int32", {}),
            ("not_due", 9, "int32", {}),
            ("alpha", 5, "int64", {"alpha": 0.2}),
            ("k", 9, "int64", {"k": 3}),
        )
    ],
)
def _reference_lookahead(inputs: Inputs, attrs: Attrs) -> Outputs:
    fast, slow = inputs["Fast"], inputs["Slow"]
    if int(inputs["Step"].reshape(())) % attrs["k"] == 0:
        fast = slow = slow + attrs["alpha"] * (fast - slow)
    return {"FastOut": fast, "SlowOut": slow}
