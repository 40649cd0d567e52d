"""Handwritten digits by a sequential network with an optimizer and a loss, on any place or by several processes.

python examples/network_digits.py [place]
mpirun -n 4 python examples/network_digits.py [place]
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.datasets import load_digits

import fluidlite as fluid
from fluidlite import loaders, nn


def samples() -> tuple[np.ndarray, np.ndarray]:
    """1797 images of 1 x 8 x 8 pixels from 0 to 1, and their labels."""
    images, labels = load_digits(return_X_y=True)
    return np.float32(images / 16).reshape(-1, 1, 8, 8), labels.reshape(-1, 1)


def network(place: str) -> nn.Network:
    """Two convolutions and two dense layers."""
    model = nn.Network(
        (1, 8, 8), place, metrics="accuracy", seed=1, fallback="allow", distributed=True,
        optimizer=fluid.optimizer.Adam(0.005),
        loss="softmax_cross_entropy",
    )  # fmt: skip
    model.add_layer(nn.Conv2D(8, 3, padding=1, activation="relu"))
    model.add_layer(nn.Pool2D(2))
    model.add_layer(nn.Flatten())
    model.add_layer(nn.Dense(64, "relu"))
    model.add_layer(nn.Dropout(0.2))
    model.add_layer(nn.Dense(10))
    return model


def main(place: str = "cpu", epochs: int = 5) -> tuple[list[float], float]:
    """Train on the first 1500 images; return the losses of the epochs, and the accuracy on the others."""
    x, y = samples()
    batches = loaders.BatchedLoader((x[:1500], y[:1500]), batch_size=50, shuffle=True)
    with network(place) as model:
        is_first = model.group.rank == 0
        if is_first:
            print(model.summary())
        history = model.batched_train(batches, epochs, callbacks=[nn.Progress()])
        accuracy = model.evaluate((x[1500:], y[1500:]))["accuracy"]
        if is_first:
            print(f"{place}: {accuracy:.1%} of the test images are read")
        return [entry["loss"] for entry in history], accuracy


if __name__ == "__main__":
    main(*sys.argv[1:2])
