"""Metrics: accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, agree, all_agree
from fluidlite.operators.samples import ints, rand


def _infer(call: Call) -> Inferred:
    rows, label = call.dims("Indices"), call.dims("Label")
    call.need(len(rows) == 2, "Indices", "[rows, k], as top_k makes them")
    if not all_agree(call.dims("Out"), rows):
        call.fail("Out", f"{list(rows)}, as Indices")
    call.need(len(label) == 2 and agree(label[1], 1), "Label", "[rows, 1]")
    if not agree(label[0], rows[0]):
        call.fail("Label", f"{[rows[0], 1]}, a class for each row of Indices")
    return {
        "Accuracy": Spec.of((1,), "float32"),
        "Correct": Spec.of((1,), "int32"),
        "Total": Spec.of((1,), "int32"),
    }


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    right = sum(int(label[0] in row) for row, label in zip(inputs["Indices"], inputs["Label"], strict=True))
    total = len(inputs["Label"])
    return {
        "Accuracy": np.asarray([right / total if total else 0.0]),
        "Correct": np.asarray([right], "int32"),
        "Total": np.asarray([total], "int32"),
    }


def _sample(name: str, rows: int, k: int, label_type: str = "int64") -> Sample:
    indices = ints(rows, k, high=6, seed=k)
    label = np.asarray(indices[:, :1].copy(), label_type)
    label[::3] = 7
    return Sample({"Out": rand(rows, k), "Indices": indices, "Label": label}, {}, name=name)


def _hit(name: str, column: int) -> Sample:
    """Rows of three different indices, of which one ``column`` holds the label in every row but the first."""
    indices = np.asarray([[2, 0, 5], [4, 1, 3], [0, 3, 1], [5, 2, 4]])
    label = indices[:, column : column + 1].copy()
    label[0] = 7
    return Sample({"Out": rand(4, 3), "Indices": indices, "Label": label}, {}, name=name)


register_op(
    "accuracy",
    inputs=(Slot("Out", metadata_only=True, doc="the scores that top_k found"), "Indices", "Label"),
    outputs=("Accuracy", Slot("Correct", dispensable=True), Slot("Total", dispensable=True)),
    infer=_infer,
    kernel_dtype="Indices",
    dtypes={"Out": ALL_FLOATS, "Indices": INTS, "Label": INTS},
    reference=_reference,
    samples=lambda: [
        _sample("top1", 10, 1),
        _sample("top3", 7, 3),
        _sample("int32_label", 5, 2, "int32"),
        _hit("only_second", 1),
        _hit("only_last", 2),
        _sample("one", 1, 1),
        _sample("many", 130, 1),
        _sample("no_rows", 0, 2),
    ],
    doc="Correct = rows whose Label is among Indices, Total = rows, Accuracy = Correct / Total (0 if no rows)",
    source="Fluid accuracy_op.cc",
)
