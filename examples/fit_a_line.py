"""Linear regression: the progression of diabetes in a year, from ten measurements of a patient.

python examples/fit_a_line.py [place]
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.datasets import load_diabetes

import fluidlite as fluid


def samples() -> tuple[np.ndarray, np.ndarray]:
    """442 patients: measurements and progression, each with mean 0 and standard deviation 1."""
    x, y = load_diabetes(return_X_y=True, scaled=False)
    return tuple(np.asarray((a - a.mean(axis=0)) / a.std(axis=0), np.float32) for a in (x, y.reshape(-1, 1)))


def main(place: str = "cpu", epochs: int = 60) -> tuple[list[float], float]:
    """Train; return the loss after each epoch, and that of the least-squares solution."""
    x, y = samples()
    program, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 1
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        features = fluid.layers.data("features", shape=[10])
        target = fluid.layers.data("target", shape=[1])
        prediction = fluid.layers.fc(features, size=1)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(prediction, target))
        test = program.clone(for_test=True)
        fluid.optimizer.SGD(learning_rate=0.03).minimize(loss)

    def batches():
        for rows in np.split(np.random.default_rng(0).permutation(len(x))[:416], 13):
            yield [(x[row], y[row]) for row in rows]

    feeder = fluid.DataFeeder([features, target], place, program)
    executor = fluid.Executor(place, fallback="allow")
    losses = []
    with fluid.scope_guard(fluid.Scope()):
        executor.run(startup)
        for epoch in range(epochs):
            for batch in batches():
                executor.run(program, feed=feeder.feed(batch))
            (value,) = executor.run(test, feed={"features": x, "target": y}, fetch_list=[loss])
            losses.append(value.item())
            if epoch % 10 == 9:
                print(f"{place}, epoch {epoch + 1}: mean square error {losses[-1]:.4f}")
    least_squares = float(np.linalg.lstsq(x, y, rcond=None)[1][0]) / len(x)
    print(f"{place}: {losses[-1]:.4f} after training; by least squares {least_squares:.4f}")
    return losses, least_squares


if __name__ == "__main__":
    main(*sys.argv[1:2])
