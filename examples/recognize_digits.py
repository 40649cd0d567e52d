"""Handwritten digits: train on one place, save the model, load it and read digits on another.

python examples/recognize_digits.py [place [place to read on]]
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np
from sklearn.datasets import load_digits

import fluidlite as fluid


def samples() -> tuple[np.ndarray, np.ndarray]:
    """1797 images of 8 x 8 pixels from 0 to 1, and their labels."""
    images, labels = load_digits(return_X_y=True)
    return np.asarray(images / 16, np.float32), labels.reshape(-1, 1)


def train(place: str, folder: str, epochs: int) -> list[float]:
    """Train on the first 1500 images and save the model; return the mean loss of each epoch."""
    x, y = samples()
    program, startup = fluid.Program(), fluid.Program()
    program.random_seed = startup.random_seed = 1
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        image = fluid.layers.data("image", shape=[64])
        label = fluid.layers.data("label", shape=[1], dtype="int64")
        hidden = fluid.layers.fc(image, size=64, act="relu")
        hidden = fluid.layers.dropout(hidden, dropout_prob=0.2, dropout_implementation="upscale_in_train")
        scores = fluid.layers.fc(hidden, size=10)
        loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, label))
        prediction = fluid.layers.softmax(scores)
        rate = fluid.layers.piecewise_decay([200], [0.01, 0.002])
        fluid.optimizer.Adam(learning_rate=rate).minimize(loss)

    executor, losses = fluid.Executor(place, fallback="allow"), []
    with fluid.scope_guard(fluid.Scope()):
        executor.run(startup)
        for epoch in range(epochs):
            batch_losses = []
            for rows in np.split(np.random.default_rng(epoch).permutation(1500), 30):
                batch_losses += executor.run(program, feed={"image": x[rows], "label": y[rows]}, fetch_list=[loss])
            losses.append(float(np.mean(batch_losses)))
            print(f"{place}, epoch {epoch + 1}: loss {losses[-1]:.4f}")
        fluid.io.save_inference_model(folder, ["image"], [prediction], executor, program)
    return losses


def read(place: str, folder: str) -> float:
    """Load the model and classify the last 297 images; return the accuracy."""
    x, y = samples()
    executor = fluid.Executor(place, fallback="allow")
    with fluid.scope_guard(fluid.Scope()):
        program, names, targets = fluid.io.load_inference_model(folder, executor)
        (prediction,) = executor.run(program, feed={names[0]: x[1500:]}, fetch_list=targets)
    accuracy = float(np.mean(prediction.argmax(axis=1) == y[1500:, 0]))
    print(f"{place}: {accuracy:.1%} of the test images are read")
    return accuracy


def main(place: str = "cpu", other: str = "", epochs: int = 10) -> tuple[list[float], float]:
    """Train and classify; return losses and the accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        return train(place, folder, epochs), read(other or place, folder)


if __name__ == "__main__":
    main(*sys.argv[1:3])
