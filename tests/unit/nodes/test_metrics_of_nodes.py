"""Metrics of nodes against sklearn and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fluidlite.base.errors import FluidError, NodeError
from fluidlite.nodes import Data, Tensor, metrics


def test_average(place: str) -> None:
    metric = metrics.Average()
    with pytest.raises(NodeError, match="Average has nothing"):
        metric.eval()
    metric.add(Data(place, np.float32([1, 2])))
    metric.add(Tensor(place, values=[6.0]))
    metric.add(3)
    assert metric.eval() == 3.0
    metric.reset()
    metric.add([5.0])
    assert metric.eval() == 5.0


def test_accuracy(place: str) -> None:
    metric = metrics.Accuracy()
    scores = np.random.default_rng(0).standard_normal((4, 50)).astype("float32")
    labels = np.random.default_rng(1).integers(0, 4, 50)
    metric.add(Data(place, scores[:, :20]), labels[:20])
    metric.add(Data(place, scores[:, 20:]), Data(place, labels[20:]))
    assert metric.eval() == pytest.approx((scores.argmax(0) == labels).mean())
    rows = metrics.Accuracy(axis=1)
    rows.add(scores.T, labels)
    assert rows.eval() == pytest.approx(metric.eval())
    one = metrics.Accuracy()
    one.add(Data(place, scores[:, 0]), scores[:, 0].argmax())
    assert one.eval() == 1.0
    with pytest.raises(NodeError, match="Accuracy: 3 labels for 50 columns"):
        metric.add(scores, [1, 2, 3])
    with pytest.raises(NodeError, match="the scores have dims"):
        metric.add(np.float32(1), [1])
    with pytest.raises(FluidError):
        metrics.Accuracy().eval()


def test_f1(place: str) -> None:
    from sklearn.metrics import f1_score, precision_score, recall_score  # a second, that collection does not pay

    scores = np.random.default_rng(0).random(60).astype("float32")
    labels = np.random.default_rng(1).integers(0, 2, 60)
    metric = metrics.F1(0.4)
    metric.add(Data(place, scores[:30]), labels[:30])
    metric.add(Data(place, scores[30:]), labels[30:])
    said = scores > 0.4
    assert metric.precision() == pytest.approx(precision_score(labels, said))
    assert metric.recall() == pytest.approx(recall_score(labels, said))
    assert metric.eval() == pytest.approx(f1_score(labels, said))
    metric.reset()
    metric.add([0.0], [1])
    assert metric.eval() == 0.0
    with pytest.raises(NodeError, match="F1: 2 labels for 1 scores"):
        metric.add([0.5], [0, 1])
