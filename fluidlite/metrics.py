"""Metrics that accumulate on the host, batch by batch."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np

from fluidlite.base.absent import getattr_of
from fluidlite.base.arguments import check_int, exact_ints
from fluidlite.base.errors import ProgramError

Array = np.ndarray[Any, Any]


class MetricBase:
    """A metric: ``update`` adds a batch, ``eval`` returns the value so far, ``reset`` starts again.

    Its state is all public attributes of number or array type.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name if name is not None else type(self).__name__

    def __str__(self) -> str:
        return self._name

    def _states(self) -> dict[str, Any]:
        state_types = (int, float, np.number, np.ndarray)
        return {k: v for k, v in vars(self).items() if not k.startswith("_") and isinstance(v, state_types)}

    def reset(self) -> None:
        """Set the state back to zero."""
        for name, value in self._states().items():
            setattr(self, name, np.zeros_like(value) if isinstance(value, np.ndarray) else type(value)(0))

    def get_config(self) -> dict[str, Any]:
        """The metric's name and a copy of its state."""
        return {"name": self._name, "states": deepcopy(self._states())}

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add one batch."""
        raise NotImplementedError(f"{type(self).__name__} must define update")

    def eval(self) -> Any:
        """The value over all batches so far."""
        raise NotImplementedError(f"{type(self).__name__} must define eval")


class CompositeMetric(MetricBase):
    """Several metrics that are updated with the same batches."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._metrics: list[MetricBase] = []

    def add_metric(self, metric: MetricBase) -> None:
        """Add a metric."""
        if not isinstance(metric, MetricBase):
            raise ProgramError(f"add_metric got {type(metric).__name__}; expected a MetricBase")
        self._metrics.append(metric)

    def reset(self) -> None:
        """Reset all."""
        for metric in self._metrics:
            metric.reset()

    def update(self, preds: Any, labels: Any) -> None:
        """Update all metrics with a batch."""
        for metric in self._metrics:
            metric.update(preds, labels)

    def eval(self) -> list[Any]:
        """The values, in the order in which the metrics were added."""
        return [metric.eval() for metric in self._metrics]


def _binary(preds: Any, labels: Any, who: MetricBase) -> tuple[Array, Array]:
    """Return masks of the predictions that round to 1 and of the labels that are 1; flat, of equal length."""
    predicted, truth = _numbers(f"{who}: predictions", preds), _numbers(f"{who}: labels", labels)
    if predicted.size != truth.size:
        raise ProgramError(f"{who}: {predicted.size} predictions, but {truth.size} labels")
    return np.rint(predicted.ravel()) == 1, truth.ravel() == 1


def _numbers(what: str, value: Any) -> Array:
    """Return numbers as an array of float64, or raise."""
    try:
        return np.asarray(value).astype(np.float64, casting="same_kind")  # texts are of another kind, also "1"
    except (TypeError, ValueError):
        raise ProgramError(f"{what} are {value!r:.80}; expected numbers") from None


def _count(who: MetricBase, what: str, value: Any) -> int:
    """Return a count, a number or an array of one element, or raise."""
    try:
        (count,) = exact_ints(np.asarray(value).ravel().tolist())
    except (TypeError, ValueError, OverflowError):
        count = -1
    if count < 0:
        raise ProgramError(f"{who}: {what} is {value!r:.80}; expected a whole number of 0 or more")
    return count


class Precision(MetricBase):
    """The fraction of positive predictions that are correct. Predictions are probabilities of class 1."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.tp = 0
        self.fp = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Add predictions and labels of a batch."""
        predicted, truth = _binary(preds, labels, self)
        self.tp += int(np.sum(predicted & truth))
        self.fp += int(np.sum(predicted & ~truth))

    def eval(self) -> float:
        """The precision; 0 without positive predictions."""
        positive = self.tp + self.fp
        return self.tp / positive if positive else 0.0


class Recall(MetricBase):
    """The fraction of positive samples that were predicted. Predictions are probabilities of class 1."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.tp = 0
        self.fn = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Add predictions and labels of a batch."""
        predicted, truth = _binary(preds, labels, self)
        self.tp += int(np.sum(predicted & truth))
        self.fn += int(np.sum(~predicted & truth))

    def eval(self) -> float:
        """The recall; 0 without positive samples."""
        relevant = self.tp + self.fn
        return self.tp / relevant if relevant else 0.0


class Accuracy(MetricBase):
    """The weighted mean of batches' accuracies, such as those of ``layers.accuracy``."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.value = 0.0
        self.weight = 0.0

    def update(self, value: Any, weight: Any) -> None:
        """Add the accuracy of a batch, weighted by its number of samples."""
        rate, count = np.asarray(value), np.asarray(weight)
        if (
            rate.dtype.kind not in "biuf"
            or count.dtype.kind not in "biuf"
            or rate.size != 1
            or count.size != 1
            or float(count.ravel()[0]) < 0
        ):
            raise ProgramError(
                f"{self}: value is {value!r} and weight {weight!r}; expected one number each, weight 0 or more"
            )
        self.value += float(rate.ravel()[0]) * float(count.ravel()[0])
        self.weight += float(count.ravel()[0])

    def eval(self) -> float:
        """The accuracy so far."""
        if not self.weight:
            raise ProgramError(f"{self} has no batch yet\n  Do: call update first")
        return self.value / self.weight


class ChunkEvaluator(MetricBase):
    """Precision, recall and F1 of chunks, from the counts of ``layers.chunk_eval``."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.num_infer_chunks = 0
        self.num_label_chunks = 0
        self.num_correct_chunks = 0

    def update(self, num_infer_chunks: Any, num_label_chunks: Any, num_correct_chunks: Any) -> None:
        """Add the counts of a batch."""
        arguments = {
            "num_infer_chunks": num_infer_chunks,
            "num_label_chunks": num_label_chunks,
            "num_correct_chunks": num_correct_chunks,
        }
        counts = {name: _count(self, name, value) for name, value in arguments.items()}
        self.num_infer_chunks += counts["num_infer_chunks"]
        self.num_label_chunks += counts["num_label_chunks"]
        self.num_correct_chunks += counts["num_correct_chunks"]

    def eval(self) -> tuple[float, float, float]:
        """Precision, recall, F1."""
        correct = self.num_correct_chunks
        precision = correct / self.num_infer_chunks if self.num_infer_chunks else 0.0
        recall = correct / self.num_label_chunks if self.num_label_chunks else 0.0
        f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
        return precision, recall, f1


class EditDistance(MetricBase):
    """The mean distance and the error rate of sequences, from the results of ``layers.edit_distance``."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.total_distance = 0.0
        self.seq_num = 0
        self.instance_error = 0

    def update(self, distances: Any, seq_num: Any) -> None:
        """Add the distances of a batch and its number of sequences."""
        array = _numbers(f"{self}: distances", distances)
        self.seq_num += _count(self, "seq_num", seq_num)
        self.total_distance += float(np.sum(array))
        self.instance_error += int(np.sum(array > 0))

    def eval(self) -> tuple[float, float]:
        """The mean distance, and the fraction of sequences whose distance is not 0."""
        if not self.seq_num:
            raise ProgramError(f"{self} has no batch yet\n  Do: call update first")
        return self.total_distance / self.seq_num, self.instance_error / self.seq_num


class Auc(MetricBase):
    """The area under the receiver operating characteristic, by counting scores in buckets.

    Parameters
    ----------
    name : str, optional
    curve : str
        ``"ROC"``; as in Fluid, ``"PR"`` gives the same area.
    num_thresholds : int
        Number of buckets; their width bounds the error.
    """

    def __init__(self, name: str | None = None, curve: str = "ROC", num_thresholds: int = 4095) -> None:
        super().__init__(name)
        if curve not in ("ROC", "PR"):
            raise ProgramError(f"curve is {curve!r}; expected 'ROC' or 'PR'")
        num_thresholds = check_int("num_thresholds", num_thresholds)
        if num_thresholds < 1:
            raise ProgramError(f"num_thresholds is {num_thresholds}; expected 1 or more")
        self._num_thresholds = num_thresholds
        self.positives = np.zeros(num_thresholds + 1, np.int64)
        self.negatives = np.zeros(num_thresholds + 1, np.int64)

    @property
    def _stat_pos(self) -> list[int]:
        """The positives in each bucket, by the name that Fluid's operator tests read."""
        return [int(n) for n in self.positives]

    @property
    def _stat_neg(self) -> list[int]:
        """The negatives in each bucket, by the name that Fluid's operator tests read."""
        return [int(n) for n in self.negatives]

    def update(self, preds: Any, labels: Any) -> None:
        """Add labels and scores of class 1, as [rows] or [rows, 1], or of both classes as [rows, 2]."""
        scores, truth = _numbers(f"{self}: predictions", preds), _numbers(f"{self}: labels", labels).ravel()
        if scores.ndim > 2 or (scores.ndim == 2 and scores.shape[1] not in (1, 2)):
            raise ProgramError(f"{self}: predictions have dims {list(scores.shape)}; expected [rows, 2] or [rows, 1]")
        scores = scores[:, -1] if scores.ndim == 2 else scores.ravel()
        if scores.shape != truth.shape:
            raise ProgramError(f"{self}: {scores.size} predictions, but {truth.size} labels")
        if scores.size and not (np.all(scores >= 0) and np.all(scores <= 1)):
            raise ProgramError(f"{self}: predictions must be probabilities, from 0 to 1")
        if np.any(np.isnan(truth)):
            raise ProgramError(f"{self}: labels have NaN; expected 0 or 1")
        buckets = (scores * self._num_thresholds).astype(np.int64)
        size = self._num_thresholds + 1
        self.positives += np.bincount(buckets[truth != 0], minlength=size)
        self.negatives += np.bincount(buckets[truth == 0], minlength=size)

    def eval(self) -> float:
        """The area; 0 if there is no positive or no negative sample."""
        positives = np.concatenate([[0], np.cumsum(self.positives[::-1])])
        negatives = np.concatenate([[0], np.cumsum(self.negatives[::-1])])
        if not positives[-1] or not negatives[-1]:
            return 0.0
        heights = (positives[1:] + positives[:-1]) / 2
        return float(np.sum(np.diff(negatives) * heights)) / float(positives[-1]) / float(negatives[-1])


__getattr__ = getattr_of(__name__)
