"""Metrics on the host."""

from __future__ import annotations

import numpy as np
import pytest

from fluidlite import metrics
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import ProgramError


def test_accuracy_is_weighted() -> None:
    metric = metrics.Accuracy()
    with pytest.raises(ProgramError, match="no batch yet"):
        metric.eval()
    metric.update(np.asarray([0.5], "float32"), 10)
    metric.update(1.0, np.asarray([30]))
    assert metric.eval() == pytest.approx(0.875)
    metric.reset()
    metric.update(0.25, 4)
    assert metric.eval() == pytest.approx(0.25)
    with pytest.raises(ProgramError, match="one number each"):
        metric.update([0.5, 0.5], 1)


def test_precision_and_recall_count() -> None:
    scores, labels = [[0.9], [0.8], [0.2], [0.6]], [[1], [0], [1], [1]]
    both = metrics.CompositeMetric()
    both.add_metric(metrics.Precision())
    both.add_metric(metrics.Recall())
    assert both.eval() == [0.0, 0.0]
    both.update(np.asarray(scores), np.asarray(labels))
    both.update(np.asarray([0.1]), np.asarray([1]))
    assert both.eval() == [pytest.approx(2 / 3), pytest.approx(2 / 4)]
    both.update(np.asarray([0.9, np.nan]), np.asarray([1.5, 1]))  # a label that is not 1, a score that is no number
    assert both.eval() == [pytest.approx(2 / 4), pytest.approx(2 / 5)]
    both.reset()
    assert both.eval() == [0.0, 0.0]
    with pytest.raises(ProgramError, match="2 predictions, but 1 labels"):
        both.update([0.1, 0.2], [1])
    with pytest.raises(ProgramError, match="expected a MetricBase"):
        both.add_metric("accuracy")  # type: ignore[arg-type]


def exact_auc(scores: np.ndarray, labels: np.ndarray) -> float:  # type: ignore[type-arg]
    positive, negative = scores[labels == 1], scores[labels == 0]
    wins = (positive[:, None] > negative).sum() + 0.5 * (positive[:, None] == negative).sum()
    return float(wins / (len(positive) * len(negative)))


def test_auc_is_the_part_of_pairs_in_order() -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 500)
    scores = np.clip(labels * 0.3 + rng.uniform(0, 0.7, 500), 0, 1)
    metric = metrics.Auc()
    assert metric.eval() == 0.0
    metric.update(np.stack([1 - scores[:200], scores[:200]], axis=1), labels[:200, None])
    metric.update(scores[200:], labels[200:])
    assert metric.eval() == pytest.approx(exact_auc(scores, labels), abs=1e-3)
    metric.reset()
    metric.update([0.2, 0.9], [0, 1])
    assert metric.eval() == 1.0
    with pytest.raises(ProgramError, match="probabilities"):
        metric.update([1.5], [1])
    with pytest.raises(ProgramError, match="'ROC'"):
        metrics.Auc(curve="precision")


def test_ties_count_half() -> None:
    metric = metrics.Auc(num_thresholds=10)
    metric.update([0.5, 0.5, 0.5], [0, 1, 1])
    assert metric.eval() == 0.5


def test_chunks() -> None:
    metric = metrics.ChunkEvaluator()
    assert metric.eval() == (0.0, 0.0, 0.0)
    metric.update(np.asarray([10]), np.asarray([8]), np.asarray([4]))
    metric.update(10, 12, 6)
    assert metric.eval() == (0.5, 0.5, 0.5)


def test_edit_distance() -> None:
    metric = metrics.EditDistance()
    with pytest.raises(ProgramError, match="no batch yet"):
        metric.eval()
    metric.update(np.asarray([[0.0], [2.0], [1.0]]), np.asarray([3]))
    metric.update(np.asarray([[0.0]]), 1)
    assert metric.eval() == (0.75, 0.5)


def test_a_metric_shows_its_state() -> None:
    metric = metrics.Recall("mine")
    metric.update([1.0], [1])
    assert str(metric) == "mine"
    assert metric.get_config() == {"name": "mine", "states": {"tp": 1, "fn": 0}}
    with pytest.raises(NotImplementedError, match="must define"):
        metrics.MetricBase().eval()


@pytest.mark.parametrize("make", [metrics.Precision, metrics.Recall, metrics.Auc, metrics.EditDistance])
@pytest.mark.parametrize("wrong", [["0", "1"], ["yes", "no"], [b"0", b"1"], [None, 1], [1j, 1]], ids=repr)
def test_metrics_take_numbers(make: type[metrics.MetricBase], wrong: list[object]) -> None:
    metric = make()
    before = metric.get_config()
    calls = [(np.array(wrong), np.array([0, 1]) if make is not metrics.EditDistance else 2)]
    if make is not metrics.EditDistance:
        calls.append((np.array([0.1, 0.9]), np.array(wrong)))
    for arguments in calls:
        with pytest.raises(ProgramError, match="expected numbers"):
            metric.update(*arguments)
    assert str(metric.get_config()) == str(before)
    for dtype in ("bool", "int8", "uint64", "int64", "float16", NUMPY["bfloat16"]):
        labels = np.array([0, 1]).astype(dtype)
        metric.update(labels, labels if make is not metrics.EditDistance else 2)
    assert metric.eval() == (1.0 if make is not metrics.EditDistance else (0.5, 0.5))


def test_auc_refuses_what_it_cannot_count() -> None:
    metric = metrics.Auc()
    for dims in ((3, 0), (3, 3), (3, 1, 1), (0, 0)):
        with pytest.raises(ProgramError, match=r"expected \[rows, 2\] or \[rows, 1\]"):
            metric.update(np.zeros(dims), np.zeros((dims[0], 1)))
    with pytest.raises(ProgramError, match="labels have NaN"):
        metric.update([0.1, 0.9], [np.nan, 1])
    metric.update(np.zeros((0, 2)), np.zeros((0, 1)))
    assert not metric.positives.any() and not metric.negatives.any()


def test_the_state_that_a_metric_shows_stays() -> None:
    metric = metrics.Auc(num_thresholds=3)
    metric.update([0.2, 0.8], [0, 1])
    states = metric.get_config()["states"]
    before = {name: value.tolist() for name, value in states.items()}
    metric.update([0.2, 0.8], [0, 1])
    assert before and {name: value.tolist() for name, value in states.items()} == before
    states["positives"][:] = 7
    assert metric.positives.sum() == 2
