"""Metrics on the host."""

from __future__ import annotations

import numpy as np
import pytest

from fluidlite import metrics
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
