"""Fit a line: linear regression, the first chapter.

The progression of diabetes in a year, from ten measurements of a patient. The program is one layer, `fc`, trained by
stochastic gradient descent on the mean of squared errors.

python examples/book/fit_a_line.py [place]
"""

from __future__ import annotations

import itertools
import random

import numpy as np
from sklearn.datasets import load_diabetes

import fluidlite as fluid

DATA = "scikit-learn's diabetes: 442 patients (real)"
METRIC, GOAL, BETTER = "mean squared error of the test part, in variances", 0.6, "lower"
STEPS = 800
BATCH_SIZE = 20


def patients() -> tuple[np.ndarray, np.ndarray]:
    """Measurements [442, 10] and progression [442, 1], each with mean 0 and deviation 1, in a fixed random order."""
    x, y = load_diabetes(return_X_y=True, scaled=False)
    order = np.random.RandomState(0).permutation(len(x))
    return tuple(np.float32((a - a.mean(axis=0)) / a.std(axis=0))[order] for a in (x, y.reshape(-1, 1)))


def reader(part: slice):
    """Return a reader of samples: a row of measurements, and a row of one number."""

    def samples():
        yield from zip(*(rows[part] for rows in patients()), strict=True)

    return samples


TRAIN, TEST = reader(slice(0, 354)), reader(slice(354, None))


def train(place, folder, steps=STEPS, on_step=lambda exe, step, loss: None):
    """Train, save the model, and return its predictions for the test part."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.layers.data(name="x", shape=[10], dtype="float32")
        y = fluid.layers.data(name="y", shape=[1], dtype="float32")
        y_predict = fluid.layers.fc(input=x, size=1, act=None)
        avg_cost = fluid.layers.mean(fluid.layers.square_error_cost(input=y_predict, label=y))
        test_program = main.clone(for_test=True)
        fluid.optimizer.SGD(learning_rate=0.01).minimize(avg_cost)

    random.seed(0)
    batches = fluid.batch(fluid.reader.shuffle(TRAIN, buf_size=500), batch_size=BATCH_SIZE, drop_last=True)
    feeder = fluid.DataFeeder(feed_list=[x, y], place=place)
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        epochs = itertools.chain.from_iterable(batches() for _ in itertools.count())
        for step, batch in enumerate(itertools.islice(epochs, steps)):
            (cost,) = exe.run(main, feed=feeder.feed(batch), fetch_list=[avg_cost])
            on_step(exe, step, float(cost[0]))
        fluid.io.save_inference_model(folder, ["x"], [y_predict], exe, main)
        (predicted,) = exe.run(test_program, feed=feeder.feed(list(TEST())), fetch_list=[y_predict])
    return predicted


def infer(place, folder):
    """Load the model; return its error on the test part, and its predictions."""
    x, y = map(np.stack, zip(*TEST(), strict=True))
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        program, feed_names, fetch_targets = fluid.io.load_inference_model(folder, exe)
        (predicted,) = exe.run(program, feed={feed_names[0]: x}, fetch_list=fetch_targets)
    return float(np.mean((predicted - y) ** 2)), predicted


if __name__ == "__main__":
    from fluidlite.cli.books import main

    main(__file__)
