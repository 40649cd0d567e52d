"""The demonstration: one program that classifies handwritten digits, trained equally on every place."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite import memory
from fluidlite.base.errors import MissingExtraError
from fluidlite.compiler.explain import Report
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike

COMPARED_STEPS = 20
"""Number of first steps whose losses are compared between places."""
MAX_LOSS_DIFFERENCE = 1e-4
"""The largest allowed relative difference of those losses."""
MAX_ACCURACY_DIFFERENCE = 0.01
"""The largest allowed difference of accuracies: one percentage point."""

_SEED = 1234
_TEST_DIVISOR = 5
Progress = Callable[[Place, int, int], None]


@dataclass
class PlaceResult:
    """The result of training on one place.

    ``losses``: one a step.
    ``accuracy``: on the test part, after training.
    ``seconds``: the median time of an epoch; the first one includes compilation.
    ``peak``: maximum number of bytes in use on the place.
    ``report``: the plan of a training step.
    """

    place: Place
    losses: list[float]
    accuracy: float
    seconds: float
    peak: int
    report: Report


@dataclass
class DemoResult:
    """Results by place, and their differences.

    ``difference``: the largest relative difference of the first losses between any two places.
    ``apart``: the largest difference of accuracies.
    ``problems``: differences that are too large; empty if there are none.
    """

    results: list[PlaceResult]
    difference: float = 0.0
    apart: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass
class Digits:
    """Images [rows, 64] in 0 to 1 and labels [rows, 1], for training and for testing."""

    train_x: np.ndarray[Any, Any]
    train_y: np.ndarray[Any, Any]
    test_x: np.ndarray[Any, Any]
    test_y: np.ndarray[Any, Any]


def digits() -> Digits:
    """Load scikit-learn's handwritten digits, in a fixed order."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtraError("the demo's data come from scikit-learn\n  Do: pip install 'fluidlite[demo]'") from None
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(_SEED).permutation(len(labels))
    x = np.asarray(images[order] / 16, np.float32)
    y = np.asarray(labels[order], np.int64).reshape(-1, 1)
    test = len(y) // _TEST_DIVISOR
    return Digits(x[test:], y[test:], x[:test], y[:test])


@dataclass
class Model:
    """The programs, built once for all places, and the variables to fetch."""

    startup: fluid.Program
    train: fluid.Program
    test: fluid.Program
    loss: fluid.Variable
    accuracy: fluid.Variable


def build(hidden: int) -> Model:
    """Build the program: two hidden layers of relu, softmax, cross entropy, momentum. No device is named in it."""
    train, startup = fluid.Program(), fluid.Program()
    train.random_seed = startup.random_seed = _SEED
    with fluid.program_guard(train, startup), fluid.unique_name.guard():
        image = fluid.layers.data("image", shape=[64], dtype="float32")
        label = fluid.layers.data("label", shape=[1], dtype="int64")
        layer = fluid.layers.fc(image, size=hidden, act="relu")
        layer = fluid.layers.fc(layer, size=hidden, act="relu")
        prediction = fluid.layers.fc(layer, size=10, act="softmax")
        loss = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
        accuracy = fluid.layers.accuracy(input=prediction, label=label)
        test = train.clone(for_test=True)
        fluid.optimizer.Momentum(learning_rate=0.05, momentum=0.9).minimize(loss)
    return Model(startup, train, test, loss, accuracy)


def train_on(
    place: Place, model: Model, data: Digits, epochs: int, batch: int, progress: Progress | None = None
) -> PlaceResult:
    """Train from the start on one place, in a scope of its own, and test."""
    memory.reset_peak(place)
    executor = fluid.Executor(place, fallback="allow")  # not silent: table and plan show fallbacks
    scope = fluid.Scope()
    executor.run(model.startup, scope=scope)
    starts = range(0, len(data.train_y) - batch + 1, batch) or range(1)
    losses: list[float] = []
    report: Report | None = None
    seconds: list[float] = []
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(data.train_y))
        begin = time.perf_counter()
        for start in starts:
            rows = order[start : start + batch]
            feed = {"image": data.train_x[rows], "label": data.train_y[rows]}
            (loss,) = executor.run(model.train, feed=feed, fetch_list=[model.loss], scope=scope)
            losses.append(float(loss.reshape(())))
            if report is None:
                report = executor.explain_last()
            if progress is not None:
                progress(place, len(losses), epochs * len(starts))
        seconds.append(time.perf_counter() - begin)
    feed = {"image": data.test_x, "label": data.test_y}
    (accuracy,) = executor.run(model.test, feed=feed, fetch_list=[model.accuracy], scope=scope)
    assert report is not None
    rate, middle = float(accuracy.reshape(())), statistics.median(seconds)
    return PlaceResult(place, losses, rate, middle, memory.peak(place), report)


def compare(results: list[PlaceResult]) -> DemoResult:
    """Compare the results of the places."""
    comparison = DemoResult(results)
    if not results:
        comparison.problems.append("there is no place to train on")
        return comparison
    first = np.asarray([result.losses[:COMPARED_STEPS] for result in results])
    top, bottom = first.max(axis=0), first.min(axis=0)
    comparison.difference = float(np.max((top - bottom) / np.maximum(np.abs(top), np.finfo(np.float64).tiny)))
    rates = [result.accuracy for result in results]
    comparison.apart = max(rates) - min(rates)
    if not comparison.difference <= MAX_LOSS_DIFFERENCE:  # NaN too
        comparison.problems.append(
            f"the first losses differ by {comparison.difference:.2e}, more than {MAX_LOSS_DIFFERENCE:g}"
        )
    if comparison.apart > MAX_ACCURACY_DIFFERENCE:
        comparison.problems.append(
            f"the accuracies differ by {comparison.apart:.2%}, more than {MAX_ACCURACY_DIFFERENCE:.0%}"
        )
    return comparison


def run(
    places: Sequence[PlaceLike] | None = None,
    epochs: int = 5,
    hidden: int = 64,
    batch: int = 64,
    progress: Progress | None = None,
) -> DemoResult:
    """Train on places and compare.

    ``places``: every usable place if left out.
    ``progress``: ``progress(place, steps done, steps in all)`` after each step.
    Raises MissingExtraError: scikit-learn is not installed.
    Raises PlaceError, DeviceUnavailable: a named place cannot be used.
    """
    selected = [devices.unit(place).place for place in places] if places is not None else fluid.places()
    data = digits()
    model = build(hidden)
    return compare([train_on(place, model, data, epochs, batch, progress) for place in selected])
