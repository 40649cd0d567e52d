"""Metrics: values that a program computes in addition to the loss, averaged over rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fluidlite import layers
from fluidlite.base.errors import NetworkError
from fluidlite.program.variable import Variable

Measure = Callable[[Variable, Variable], Variable]


class Metric:
    """A mean over the rows of a batch, which the program computes.

    Parameters
    ----------
    name : str
        Its key in logs and history.
    measure : callable
        ``measure(prediction, label) -> Variable`` of one element.
    """

    def __init__(self, name: str, measure: Measure) -> None:
        if not isinstance(name, str) or not name or name == "loss" or not callable(measure):
            raise NetworkError(f"a metric is {name!r:.80} and {measure!r:.80}; expected a name and a function")
        self.name, self.measure = name, measure

    def build(self, prediction: Variable, label: Variable) -> Variable:
        """Append it to the program."""
        value = self.measure(prediction, label)
        if not isinstance(value, Variable):
            raise NetworkError(f"metric {self.name!r} returned {value!r:.80}; expected a Variable of one element")
        return value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Accuracy(Metric):
    """The share of rows whose label is among the ``k`` highest scores."""

    def __init__(self, k: int = 1, name: str | None = None) -> None:
        def accuracy(prediction: Variable, label: Variable) -> Variable:
            return layers.accuracy(prediction, label, k=k)

        super().__init__(name or ("accuracy" if k == 1 else f"top_{k}"), accuracy)


class MeanAbsoluteError(Metric):
    """The mean absolute difference of prediction and label."""

    def __init__(self, name: str = "absolute_error") -> None:
        def error(prediction: Variable, label: Variable) -> Variable:
            return layers.mean(layers.abs(layers.elementwise_sub(prediction, label)))

        super().__init__(name, error)


BY_NAME: dict[str, Callable[[], Metric]] = {"accuracy": Accuracy, "absolute_error": MeanAbsoluteError}


def metrics_of(metrics: Iterable[Metric | str]) -> tuple[Metric, ...]:
    """Convert names and Metric objects to metrics."""
    if isinstance(metrics, (str, Metric)):
        metrics = (metrics,)
    result: list[Metric] = []
    for item in metrics:
        metric: Any = BY_NAME[item]() if isinstance(item, str) and item in BY_NAME else item
        if not isinstance(metric, Metric):
            raise NetworkError(
                f"a metric is {item!r:.80}; expected one of {', '.join(BY_NAME)}, or an object of fluid.nn.metrics"
            )
        if any(metric.name == other.name for other in result):
            raise NetworkError(f"two metrics are called {metric.name!r}\n  Do: name one of them")
        result.append(metric)
    return tuple(result)
