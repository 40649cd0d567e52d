from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, away_from, pair, rand
from fluidlite.conformance.samples import Reference, Sample, register_samples


def _samples_norm() -> list[Sample]:
    def case(name: str, *dims: int, dtypes: Any = WIDE, check: bool = True) -> Sample:
        return Sample({"X": away_from(rand(*dims), 0)}, {}, ("X",) if check else (), name=name, dtypes=dtypes)

    return [
        case("matrix", 5, 7, dtypes=EVERY),
        case("one", 1),
        case("rank0"),
        case("rank4", 2, 3, 2, 2),
        case("long", 3, 20000, check=False, dtypes=EVERY),
        case("empty", 0, 3, check=False),
    ]


def _one(exact: Callable[[Any], Any]) -> Reference:
    return lambda inputs, attrs: {"Out": np.asarray(exact(inputs["X"])).reshape(1)}


register_samples("l1_norm", reference=_one(lambda x: np.abs(x).sum()), samples=_samples_norm)
register_samples("squared_l2_norm", reference=_one(lambda x: (x * x).sum()), samples=_samples_norm)


@register_samples(
    "clip_by_norm",
    samples=lambda: [
        Sample({"X": rand(5, 7)}, {"max_norm": 1.0}, name="clipped", dtypes=EVERY),
        Sample({"X": rand(5, 7)}, {"max_norm": 100.0}, name="kept", dtypes=EVERY),
        Sample({"X": rand(2, 3, 2)}, {"max_norm": 0.25}, name="rank3"),
        Sample({"X": rand(1)}, {"max_norm": 0.1}, name="one"),
        Sample({"X": rand()}, {"max_norm": 0.1}, name="rank0"),
        Sample({"X": rand(3, 50000)}, {"max_norm": 2.0}, name="long", dtypes=EVERY),
        Sample({"X": rand(3) * 0}, {"max_norm": 2.0}, name="zeros"),
        Sample({"X": rand(0, 3)}, {"max_norm": 2.0}, name="empty"),
    ],
)
def _reference_clip(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, most = inputs["X"], attrs["max_norm"]
    norm = np.sqrt(np.sum(x * x))
    return {"Out": x if norm <= most else x * most / norm}


@register_samples(
    "squared_l2_distance",
    samples=lambda: [
        Sample(pair((5, 7), (5, 7)), {}, ("X", "Y"), name="rows", dtypes=EVERY),
        Sample(pair((5, 7), (1, 7)), {}, ("X", "Y"), name="one_row", dtypes=EVERY),
        Sample(pair((2, 3, 4), (2, 3, 4)), {}, ("X", "Y"), name="rank3"),
        Sample(pair((2, 3, 4), (1, 3, 4)), {}, ("X", "Y"), name="rank3_one_row"),
        Sample(pair((1, 3), (1, 3)), {}, ("X", "Y"), name="one"),
        Sample(pair((4, 1), (4, 1)), {}, ("X", "Y"), name="narrow"),
        Sample(pair((60, 900), (1, 900)), {}, name="large", dtypes=WIDE),
        Sample({"X": rand(0, 3), "Y": rand(0, 3)}, {}, name="empty"),
    ],
)
def _reference_distance(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, y = inputs["X"], inputs["Y"]
    width = int(np.prod(x.shape[1:]))
    apart = x.reshape(-1, width) - y.reshape(-1, width)
    return {"sub_result": apart, "Out": np.asarray([[row @ row] for row in apart]).reshape(-1, 1)}
