"""Metrics of nodes, over many graphs: those of :mod:`fluidlite.metrics`, fed with values of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite import metrics
from fluidlite.base.errors import NodeError
from fluidlite.nodes.node import Node
from fluidlite.tensor.tensor import Tensor as PlacedTensor

__all__ = ["F1", "Accuracy", "Average"]

Array = np.ndarray[Any, Any]


def values_of(item: Any) -> Array:
    """The numbers of a node, a tensor or an array."""
    if isinstance(item, Node):
        item = item.value()
    return np.asarray(item.numpy() if isinstance(item, PlacedTensor) else item)


class Average:
    """The mean of all elements added, such as losses."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start a new measurement."""
        self._sum, self._count = 0.0, 0

    def add(self, item: Any) -> None:
        """Count each element of a node, a tensor or an array."""
        numbers = values_of(item)
        self._sum += float(numbers.sum(dtype=np.float64))
        self._count += numbers.size

    def eval(self) -> float:
        """The mean.

        Raises
        ------
        NodeError
            If nothing was added.
        """
        if not self._count:
            raise NodeError(f"{type(self).__name__} has nothing to take the mean of\n  Do: add(node) first")
        return self._sum / self._count


class Accuracy:
    """The fraction of columns with the highest score at the label."""

    def __init__(self, axis: int = 0) -> None:
        self.axis = axis
        self.reset()

    def reset(self) -> None:
        """Start a new measurement."""
        self._metric = metrics.Accuracy()

    def add(self, scores: Any, labels: Any) -> None:
        """Count scores [classes, ...] along the axis, with a label for each of the other elements.

        Raises
        ------
        NodeError
            If there are not as many labels as columns, or there are no scores.
        """
        values, truth = values_of(scores), values_of(labels)
        if not values.ndim or not values.size:
            raise NodeError(f"Accuracy: the scores have dims {list(values.shape)}; expected [classes, ...]")
        best = values.argmax(self.axis)
        if best.size != truth.size:
            raise NodeError(f"Accuracy: {truth.size} labels for {best.size} columns of scores {list(values.shape)}")
        self._metric.update(float((best.reshape(-1) == truth.reshape(-1)).mean()), best.size)

    def eval(self) -> float:
        """The fraction of correct columns, 0 to 1; raises before anything was added."""
        return float(self._metric.eval())


class F1:
    """Precision, recall and their harmonic mean, for two classes: a score above the threshold predicts the class."""

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = threshold
        self.reset()

    def reset(self) -> None:
        """Start a new measurement."""
        self._precision, self._recall = metrics.Precision(), metrics.Recall()

    def add(self, scores: Any, labels: Any) -> None:
        """Count scores, with a label of 0 or 1 each."""
        predictions = (values_of(scores).reshape(-1, 1) > self.threshold).astype("float32")
        truth = values_of(labels).reshape(-1, 1).astype("int64")
        if predictions.size != truth.size:
            raise NodeError(f"F1: {truth.size} labels for {predictions.size} scores")
        self._precision.update(predictions, truth)
        self._recall.update(predictions, truth)

    def precision(self) -> float:
        """The fraction of elements predicted to be in the class that are in it."""
        return float(self._precision.eval())

    def recall(self) -> float:
        """The fraction of elements in the class that were predicted to be in it."""
        return float(self._recall.eval())

    def eval(self) -> float:
        """2 precision recall / (precision + recall); 0 where both are."""
        p, r = self.precision(), self.recall()
        return 2 * p * r / (p + r) if p + r else 0.0
