from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.base.dtypes import INTS
from fluidlite.conformance.sample_helpers import EVERY, WIDE, ints, rand
from fluidlite.conformance.samples import Reference, Sample, register_samples


def _samples() -> list[Sample]:
    def case(name: str, *special: float, dims: tuple[int, ...] = (5, 7), dtypes: Any = WIDE) -> Sample:
        x = rand(*dims)
        for i, value in enumerate(special):
            x.reshape(-1)[x.size // 2 + i] = value
        return Sample({"X": x}, {}, name=name, dtypes=dtypes)

    inf, nan = np.inf, np.nan
    return [
        case("usual", dtypes=EVERY),
        case("infinite", inf, dtypes=EVERY),
        case("minus_infinite", -inf),
        case("nan", nan, dtypes=EVERY),
        case("both", nan, inf),
        case("one", inf, dims=(1,)),
        case("rank0", nan, dims=()),
        case("long", nan, dims=(3, 50000)),
        case("long_infinite", -inf, dims=(150001,)),
        case("long_usual", dims=(150001,)),
        case("empty", dims=(0, 3)),
        *(Sample({"X": ints(4, 3, dtype=t)}, {}, name=t, dtypes=(t,)) for t in INTS),
    ]


def _one(function: Callable[[Any], Any]) -> Reference:
    return lambda inputs, attrs: {"Out": np.asarray([function(inputs["X"])])}


register_samples("isfinite", reference=_one(lambda x: np.isfinite(x).all()), samples=_samples)
register_samples("isinf", reference=_one(lambda x: np.isinf(x).any()), samples=_samples)
register_samples("isnan", reference=_one(lambda x: np.isnan(x).any()), samples=_samples)
