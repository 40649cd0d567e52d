from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, Attrs, Inputs, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def _added(to: str, count: int, inputs: Inputs) -> Outputs:
    out = np.zeros((count, inputs["Values"].shape[1]))
    np.add.at(out, inputs[to], inputs["Values"])
    return {"Out": out}


def _set(array: Any, rows: Any, values: Any) -> dict[str, Any]:
    out = array.copy()
    out[rows] = values
    return {"Out": out}


def _at(positions: Any, values: Any) -> dict[str, Any]:
    present = positions >= 0
    return _set(np.zeros((len(positions), values.shape[1])), present, values[positions[present]])


@register_samples(
    "lookup_table_rows_grad",
    samples=lambda: [
        Sample({"Ids": np.array([[2], [0], [2]]), "OutGrad": rand(3, 4)}, {"height": 3}, name="rows", dtypes=EVERY),
        Sample(
            {"Ids": np.array([[2], [9], [2]]), "OutGrad": rand(3, 4)},
            {"padding_idx": 9, "height": 3},
            name="padding_outside",
        ),
    ],
)
def _rows_grad(inputs: Inputs, attrs: Attrs) -> Outputs:
    ids, grads = inputs["Ids"].reshape(-1), inputs["OutGrad"].reshape(-1, inputs["OutGrad"].shape[-1])
    rows, values = ids.copy(), grads.copy()
    for i, one in enumerate(ids):
        if one == attrs["padding_idx"] != -1:
            rows[i], values[i] = min(one, attrs["height"] - 1), 0
    return {"Rows": rows, "Values": values}


register_samples(
    "sum_rows",
    reference=lambda inputs, attrs: _added("Index", len(inputs["Rows"]), inputs),
    samples=lambda: [
        Sample({"Values": rand(4, 3), "Index": np.array([0, 1, 0, 1]), "Rows": np.array([7, 2])}, {}, name="repeated"),
        Sample({"Values": rand(0, 3), "Index": ints(0), "Rows": ints(0)}, {}, name="none"),
    ],
)
register_samples(
    "dense_rows",
    reference=lambda inputs, attrs: _added("Rows", attrs["height"], inputs),
    samples=lambda: [
        Sample({"Rows": np.array([4, 0, 4]), "Values": rand(3, 2)}, {"height": 5}, name="repeated"),
        Sample({"Rows": ints(0), "Values": rand(0, 2)}, {"height": 5}, name="none"),
    ],
)
register_samples(
    "row_positions",
    reference=lambda inputs, attrs: _set(np.full(attrs["height"], -1), inputs["Rows"], range(len(inputs["Rows"]))),
    samples=lambda: [
        Sample({"Rows": np.array([4, 0, 2])}, {"height": 6}, name="different"),
        Sample({"Rows": ints(0)}, {"height": 3}, name="none"),
    ],
)
register_samples(
    "rows_at",
    reference=lambda inputs, attrs: _at(inputs["Positions"], inputs["Values"]),
    samples=lambda: [
        Sample({"Positions": np.array([1, -1, 0, -1]), "Values": rand(2, 3)}, {}, name="rows", dtypes=EVERY),
        Sample({"Positions": np.array([-1, -1]), "Values": rand(0, 3)}, {}, name="none"),
    ],
)


register_samples(
    "set_rows",
    reference=lambda inputs, attrs: _set(inputs["X"], inputs["Rows"], inputs["Values"]),
    samples=lambda: [
        Sample({"X": rand(6, 3), "Rows": np.array([4, 0]), "Values": rand(2, 3)}, {}, name="rows", dtypes=EVERY),
        Sample({"X": rand(6, 3), "Rows": ints(0), "Values": rand(0, 3)}, {}, name="none"),
    ],
)
