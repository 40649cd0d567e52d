"""Sums of digit sequences by an LSTM: a graph for each batch, whose temporary memory is reset after it.

python examples/nodes_sum_lstm.py [place]
"""

from __future__ import annotations

import sys

import numpy as np

from fluidlite import nodes
from fluidlite.nodes import layers


class Adder(layers.Layer):
    """Predicts the sum of a sequence of digits."""

    def __init__(self, place: str, hidden: int = 16) -> None:
        self.digits = layers.Lookup(place, range(5), 8, init=nodes.init.Uniform(-1, 1))
        self.lstm = layers.Lstm(place, 8, hidden)
        self.out = layers.Affine(place, hidden, 1)

    def run(self, sequence: list[int], tmp: nodes.Device) -> nodes.Node:
        """The sum of one sequence, [1]; embeddings are persistent, computed values temporary."""
        inputs = [self.digits(digit, tmp) for digit in sequence]
        return self.out(self.lstm(inputs)[-1])


def samples(rng: np.random.Generator, count: int) -> list[list[int]]:
    """Sequences of 1 to 4 digits from 0 to 4."""
    return [rng.integers(0, 5, rng.integers(1, 5)).tolist() for _ in range(count)]


def loss_of(model: Adder, batch: list[list[int]], tmp: nodes.Device) -> nodes.Node:
    """The mean squared error of a batch."""
    sums = nodes.Cat([model(sequence, tmp) for sequence in batch])
    targets = nodes.FixedData(tmp, np.float32([sum(sequence) for sequence in batch]))
    return nodes.Mean(nodes.Square(sums - targets))


def main(place: str = "cpu", batches: int = 100, size: int = 16) -> tuple[list[float], float]:
    """Train; return losses, and the share of new sequences whose rounded sum is correct."""
    nodes.seed(1)
    rng = np.random.default_rng(1)
    model, updater = Adder(place), nodes.Adam(0.02, clip=1.0)
    tmp = nodes.Prealloc(place, 1 << 20)
    losses, max_used = [], 0
    for step in range(batches):
        if step == batches * 2 // 3:
            updater.learning_rate /= 4
        graph = nodes.Graph(loss_of(model, samples(rng, size), tmp))
        losses.append(float(graph.forward()))
        graph.reset_grad()
        graph.backward()
        updater.update(graph)
        max_used = max(max_used, tmp.used)
        tmp.reset()  # frees all values and gradients except those of weights
        if step % 50 == 49:
            print(f"{place}, batch {step + 1}: loss {np.mean(losses[-50:]):.3f}; {tmp} of {max_used:,} bytes at most")
    accuracy = nodes.metrics.Average()
    for sequence in samples(np.random.default_rng(2), 100):
        total = nodes.Graph(model(sequence, tmp)).forward()
        accuracy.add(round(float(total)) == sum(sequence))
        tmp.reset()
    print(f"{place}: {accuracy.eval():.0%} of new sequences are added right")
    return losses, accuracy.eval()


if __name__ == "__main__":
    main(*sys.argv[1:2])
