from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import MIXED, WIDE, Attrs, Inputs, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def _sample(name: str, rows: int, k: int, label_type: str = "int64") -> Sample:
    indices = ints(rows, k, high=6, seed=k)
    label = np.asarray(indices[:, :1].copy(), label_type)
    label[::3] = 7
    return Sample({"Out": rand(rows, k), "Indices": indices, "Label": label}, {}, name=name)


def _hit(name: str, column: int) -> Sample:
    """Rows of three different indices; ``column`` holds the label in each row except the first."""
    indices = np.asarray([[2, 0, 5], [4, 1, 3], [0, 3, 1], [5, 2, 4]])
    label = indices[:, column : column + 1].copy()
    label[0] = 7
    return Sample({"Out": rand(4, 3), "Indices": indices, "Label": label}, {}, name=name)


@register_samples(
    "accuracy",
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
)
def _reference_accuracy(inputs: Inputs, attrs: Attrs) -> Outputs:
    right = sum(int(label[0] in row) for row, label in zip(inputs["Indices"], inputs["Label"], strict=True))
    total = len(inputs["Label"])
    return {
        "Accuracy": np.asarray([right / total if total else 0.0]),
        "Correct": np.asarray([right], "int32"),
        "Total": np.asarray([total], "int32"),
    }


def _samples_iou() -> list[Sample]:
    def inputs(*dims: int, high: int = 4, dtype: str = "int64") -> dict[str, Any]:
        label = ints(*dims, high=high, seed=1, dtype=dtype)
        return {"Predictions": np.where(rand(*dims) < 0, label, ints(*dims, high=high, dtype=dtype)), "Labels": label}

    def counted(seed: int) -> list[Any]:
        return [ints(5, high=9, seed=seed, dtype="int32"), ints(5, high=9, seed=seed + 1, dtype="int32")]

    before = {
        "InWrongs": counted(2),
        "InCorrects": counted(4),
        "InMeanIou": [np.asarray([0.25], "float32"), np.asarray([0.5], "float32")],
    }
    return [
        Sample(inputs(5, 7), {"num_classes": 5}, name="planes"),
        Sample(inputs(60, dtype="int32"), {"num_classes": 5}, name="int32"),
        Sample({**inputs(3, 4, 2), **before}, {"num_classes": 5}, name="go_on", dtypes=MIXED),
        Sample({**inputs(12), "InCorrects": before["InCorrects"][:1]}, {"num_classes": 5}, name="one_list"),
        Sample(inputs(40, 500, high=300), {"num_classes": 300}, name="large"),
        Sample(inputs(0, 2), {"num_classes": 2}, name="empty"),
    ]


@register_samples("mean_iou", samples=_samples_iou)
def _reference_iou(inputs: Inputs, attrs: Attrs) -> Outputs:
    classes, predicted, labels = range(attrs["num_classes"]), inputs["Predictions"], inputs["Labels"]
    hit = predicted == labels
    correct = np.asarray([np.sum(hit & (labels == c)) for c in classes])
    wrong = np.asarray([np.sum(~hit & (labels == c)) + np.sum(~hit & (predicted == c)) for c in classes])
    correct = correct + sum(inputs.get("InCorrects", ()))
    wrong = wrong + sum(inputs.get("InWrongs", ()))
    occurs = (correct + wrong) > 0
    mean = np.mean(correct[occurs] / (correct + wrong)[occurs]) if occurs.any() else 0.0
    return {
        "OutMeanIou": np.asarray([mean + sum(float(a[0]) for a in inputs.get("InMeanIou", ()))]),
        "OutWrong": np.asarray(wrong, "int32"),
        "OutCorrect": np.asarray(correct, "int32"),
    }


def _scores(states: Any) -> Any:
    """Precision, recall and F1 as means over the classes, then of the sums over the classes."""

    def rate(right: float, wrong: float) -> float:
        return right / (right + wrong) if right > 0 or wrong > 0 else 1.0

    def all_three(precision: float, recall: float) -> list[float]:
        return [precision, recall, 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0]

    mean = [float(np.mean([rate(row[0], row[k]) for row in states])) for k in (1, 3)]
    tp, fp, _, fn = states.sum(0)
    return np.asarray([*all_three(*mean), *all_three(rate(tp, fp), rate(tp, fn))])


def _samples_precision() -> list[Sample]:
    def inputs(rows: int, high: int = 4, dtype: str = "int32", **more: Any) -> dict[str, Any]:
        label = ints(rows, 1, high=high, seed=1, dtype=dtype)
        index = np.where(rand(rows, 1) < 0, label, ints(rows, 1, high=high, dtype=dtype))
        return {"MaxProbs": rand(rows, 1, low=0), "Indices": index, "Labels": label, **more}

    weights, states = rand(20, 1, low=0.2, seed=3), rand(5, 4, low=0, high=30, seed=4)
    five = {"class_number": 5}
    return [
        Sample(inputs(20), five, name="counts", dtypes=WIDE),
        Sample(inputs(20, dtype="int64", Weights=weights), five, name="weights_int64", dtypes=WIDE),
        Sample(inputs(20, StatesInfo=states), five, name="states"),
        Sample(inputs(20, Weights=weights, StatesInfo=states), five, name="weights_states", dtypes=WIDE),
        Sample(inputs(9000, 30), {"class_number": 31}, name="large"),
        Sample(inputs(0), five, name="empty"),
    ]


@register_samples("precision_recall", samples=_samples_precision)
def _reference_precision(inputs: Inputs, attrs: Attrs) -> Outputs:
    predicted, labels = inputs["Indices"].reshape(-1), inputs["Labels"].reshape(-1)
    weights = inputs["Weights"].reshape(-1) if "Weights" in inputs else np.ones(len(predicted))
    states = np.zeros((attrs["class_number"], 4))
    for c in range(len(states)):
        for k, chosen in enumerate(
            (
                (predicted == c) & (labels == c),
                (predicted == c) & (labels != c),
                (predicted != c) & (labels != c),
                (predicted != c) & (labels == c),
            )
        ):
            states[c, k] = weights[chosen].sum()
    total = states + inputs.get("StatesInfo", 0.0)
    return {"BatchMetrics": _scores(states), "AccumMetrics": _scores(total), "AccumStatesInfo": total}
