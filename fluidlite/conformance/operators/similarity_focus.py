from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Outputs, distinct
from fluidlite.conformance.samples import Sample, register_samples


def _case(name: str, dims: tuple[int, ...], axis: int, *indexes: int, **options: Any) -> Sample:
    return Sample({"X": distinct(*dims)}, {"axis": axis, "indexes": list(indexes)}, name=name, **options)


def _samples() -> list[Sample]:
    equal = {"X": np.ones((2, 2, 3, 4), "float32")}
    special = np.asarray([[[[-np.inf, np.nan, 1], [np.inf, 2, -np.inf]]]], "float32")
    return [
        _case("first", (2, 3, 4, 5), 1, 0, dtypes=WIDE),
        _case("first_two", (2, 3, 4, 5), 1, 0, 2),
        _case("second", (2, 3, 4, 5), 2, 3, 1, dtypes=WIDE),
        _case("third", (2, 3, 4, 5), 3, 4, 4),
        _case("one", (1, 1, 1, 1), 1, 0),
        _case("large", (2, 3, 20, 16), 1, 1),
        _case("line", (2, 3, 1, 6), 1, 2),
        _case("no_samples", (0, 2, 3, 4), 1, 0),
        _case("no_plane", (2, 2, 0, 4), 1, 0),
        Sample(equal, {"axis": 1, "indexes": [1]}, name="equal"),
        Sample({"X": special}, {"axis": 1, "indexes": [0]}, name="special"),
    ]


@register_samples("similarity_focus", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, axis = inputs["X"], attrs["axis"]
    out = np.zeros(x.shape)
    for n in range(len(x)):
        mask = np.moveaxis(out[n], axis - 1, 0)
        for index in attrs["indexes"]:
            plane = np.moveaxis(x[n], axis - 1, 0)[index]
            rows, columns = set[int](), set[int]()
            for cell in np.argsort(-plane, axis=None, kind="stable"):
                row, column = divmod(int(cell), plane.shape[1])
                if row not in rows and column not in columns:
                    rows.add(row)
                    columns.add(column)
                    mask[:, row, column] = 1
    return {"Out": out}
