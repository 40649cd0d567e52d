from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.dtypes import INTS
from fluidlite.conformance.sample_helpers import EVERY, WIDE, Array, Attrs, Inputs, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def _infinite(rows: int, columns: int) -> Array:
    x = rand(rows, columns)
    x[0, columns // 2] = np.inf
    return x


def _samples() -> list[Sample]:
    def case(name: str, *dims: int, dtypes: Any = WIDE, check: bool = True, **attrs: Any) -> Sample:
        return Sample({"X": rand(*dims)}, attrs, ("X",) if check else (), name=name, dtypes=dtypes)

    return [
        case("last", 5, 7, dtypes=EVERY),
        case("first", 5, 7, dtypes=EVERY, axis=0),
        case("middle", 2, 3, 4, axis=1),
        case("negative", 2, 3, 4, axis=-2),
        case("exclusive", 3, 5, exclusive=True, dtypes=EVERY),
        case("reverse", 3, 5, reverse=True, dtypes=EVERY),
        case("both", 3, 5, reverse=True, exclusive=True),
        case("both_middle", 2, 4, 3, axis=1, reverse=True, exclusive=True),
        case("exclusive_first", 3, 5, axis=0, exclusive=True),
        case("reverse_first", 3, 5, axis=0, reverse=True),
        case("flatten", 2, 3, 2, flatten=True),
        case("flatten_both", 2, 3, flatten=True, exclusive=True, reverse=True),
        case("vector", 6),
        case("one", 1, exclusive=True),
        case("rank0"),
        case("long", 4, 3000, check=False),
        case("long_both", 3, 1001, check=False, reverse=True, exclusive=True),
        Sample({"X": _infinite(2, 300)}, {}, name="infinite", dtypes=WIDE),
        case("long_rows", 40, 700, axis=0, check=False, dtypes=EVERY),
        case("long_rows_reverse", 40, 700, axis=0, reverse=True, exclusive=True, check=False),
        case("empty", 0, 3, check=False),
        case("empty_axis", 2, 0, check=False),
        *(Sample({"X": ints(4, 3, low=-9, dtype=t)}, {}, name=t, dtypes=(t,)) for t in INTS),
    ]


@register_samples("cumsum", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["X"].reshape(-1) if attrs["flatten"] else inputs["X"]
    out = np.zeros_like(x)
    along, sums = (np.moveaxis(np.atleast_1d(a), attrs["axis"] if not attrs["flatten"] else 0, 0) for a in (x, out))
    count = along.shape[0]
    for i in range(count):
        first, last = (i, count) if attrs["reverse"] else (0, i + 1)
        if attrs["exclusive"]:
            first, last = (first + 1, last) if attrs["reverse"] else (first, last - 1)
        sums[i] = along[first:last].sum(axis=0)
    return {"Out": out}
