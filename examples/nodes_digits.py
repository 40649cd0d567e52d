"""Handwritten digits by a multilayer perceptron of nodes: a graph for each batch.

python examples/nodes_digits.py [place]
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.datasets import load_digits

from fluidlite import nodes
from fluidlite.nodes import layers


def samples() -> tuple[np.ndarray, np.ndarray]:
    """1797 images of 8 x 8 pixels from 0 to 1, as columns, and their labels."""
    images, labels = load_digits(return_X_y=True)
    return np.asarray(images.T / 16, np.float32), labels


def main(place: str = "cpu", epochs: int = 8) -> tuple[list[float], float]:
    """Train on the first 1500 images; return the mean loss of each epoch, and the accuracy on the others."""
    nodes.seed(1)
    x, y = samples()
    model = layers.Affine(place, 64, 64, nodes.Relu) | layers.Dropout(0.2) | layers.Affine(place, 64, 10)
    updater, losses = nodes.Adam(0.01), []
    for epoch in range(epochs):
        loss = nodes.metrics.Average()
        for batch in np.split(np.random.default_rng(epoch).permutation(1500), 30):
            scores = model(nodes.FixedData(place, x[:, batch]))
            graph = nodes.Graph(nodes.Mean(nodes.PickNegLogSoftmax(scores, y[batch])))
            loss.add(graph.forward())
            graph.reset_grad()
            graph.backward()
            updater.update(graph)
        losses.append(loss.eval())
        print(f"{place}, epoch {epoch + 1}: loss {losses[-1]:.4f}")
    model.eval()
    accuracy = nodes.metrics.Accuracy()
    scores = model(nodes.FixedData(place, x[:, 1500:]))
    nodes.Graph(scores).forward()
    accuracy.add(scores, y[1500:])
    print(f"{place}: {accuracy.eval():.1%} of the test images are read")
    return losses, accuracy.eval()


if __name__ == "__main__":
    main(*sys.argv[1:2])
