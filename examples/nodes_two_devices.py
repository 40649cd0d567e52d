"""One graph over two devices: a layer on each; values and gradients are copied between them.

python examples/nodes_two_devices.py [place [other place]]
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.datasets import load_digits

import fluidlite as fluid
from fluidlite import nodes
from fluidlite.nodes import layers


def main(place: str = "cpu", other: str = "", steps: int = 60) -> tuple[list[float], float]:
    """Train; return losses, and the largest difference of weights from training on one device."""
    images, labels = load_digits(return_X_y=True)
    x, y = np.asarray(images.T / 16, np.float32), labels
    places = [str(candidate) for candidate in fluid.places() if candidate != fluid.Place.parse(place)]
    other = other or (places or [place])[0]
    losses, models = [], []
    for second in (other, place):  # on two devices, then on one
        nodes.seed(1)
        first_layer, second_layer = layers.Affine(place, 64, 32, nodes.Tanh), layers.Affine(second, 32, 10)
        updater = nodes.Sgd(0.5)
        for step in range(steps):
            rows = np.random.default_rng(step).choice(1797, 100)
            hidden = first_layer(nodes.FixedData(place, x[:, rows]))
            scores = second_layer(nodes.DeviceTransfer(hidden, second))
            graph = nodes.Graph(nodes.Mean(nodes.PickNegLogSoftmax(scores, y[rows])))
            loss = float(graph.forward())
            graph.reset_grad()
            graph.backward()
            updater.update(graph)
            if second == other:
                losses.append(loss)
        models.append([weight.value().numpy() for weight in (*first_layer.weights(), *second_layer.weights())])
    error = max(float(np.abs(one - two).max()) for one, two in zip(*models, strict=True))
    print(f"{place} and {other}: loss {losses[0]:.3f} to {losses[-1]:.3f}; weights within {error:.1e} of one device's")
    return losses, error


if __name__ == "__main__":
    main(*sys.argv[1:3])
