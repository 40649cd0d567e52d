from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Lods, Outputs, distinct, rand
from fluidlite.conformance.samples import Sample, register_samples

_ONE_LEVEL, _TWO_LEVELS = {"X": ((0, 2, 2, 7),)}, {"X": ((0, 2, 3), (0, 3, 3, 7))}
_THREE_LEVELS = {"X": ((0, 1, 2), (0, 0, 3), (0, 1, 1, 7))}


def _pool(kind: str, lod: Lods, dtypes: tuple[str, ...] = ("float32",), **attrs: Any) -> Sample:
    name = f"{kind.lower()}_{len(lod['X'])}"
    return Sample({"X": distinct(7, 3)}, {"pooltype": kind, **attrs}, ("X",), dict(lod), name=name, dtypes=dtypes)


@register_samples(
    "sequence_pool",
    samples=lambda: [
        _pool("AVERAGE", _ONE_LEVEL, WIDE),
        _pool("SUM", _TWO_LEVELS),
        _pool("SQRT", _THREE_LEVELS, pad_value=2.5),
        _pool("LAST", _ONE_LEVEL, pad_value=-1.0),
        _pool("FIRST", _TWO_LEVELS),
        _pool("MAX", _ONE_LEVEL, EVERY, pad_value=0.5),
        Sample({"X": distinct(1, 2, 2)}, {"pooltype": "MAX"}, ("X",), {"X": ((0, 1),)}, name="one_row"),
        Sample({"X": rand(0, 3)}, {"pooltype": "LAST"}, lod={"X": ((0, 0),)}, name="no_rows"),
    ],
)
def _reference_pool(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    x, kind, outs, places = inputs["X"], attrs["pooltype"], [], []
    for a, b in pairwise(lod["X"][-1]):
        part, place = x[a:b], np.full(x.shape[1:], -1)
        if a == b:
            out = np.full(x.shape[1:], attrs["pad_value"])
        elif kind == "MAX":
            out, place = part.max(0), a + part.argmax(0)
        elif kind in ("FIRST", "LAST"):
            out = part[0 if kind == "FIRST" else -1]
        else:
            out = part.sum(0) / {"SUM": 1, "AVERAGE": b - a, "SQRT": (b - a) ** 0.5}[kind]
        outs.append(out)
        places.append(place)
    dims = (len(outs), *x.shape[1:])
    return {"Out": np.reshape(outs, dims), "MaxIndex": np.reshape(places, dims).astype("int32")}


@register_samples(
    "sequence_softmax",
    samples=lambda: [
        Sample({"X": rand(7, 1)}, {}, ("X",), _ONE_LEVEL, name="sequences", dtypes=EVERY),
        Sample({"X": rand(7)}, {}, ("X",), _THREE_LEVELS, name="three_levels"),
    ],
)
def _reference_softmax(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    out = np.exp(inputs["X"])
    for a, b in pairwise(lod["X"][-1]):
        out[a:b] /= out[a:b].sum()
    return {"Out": out}
