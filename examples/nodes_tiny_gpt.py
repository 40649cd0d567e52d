"""A small character-level GPT of nodes, trained on Python's help text; values are written in place.

python examples/nodes_tiny_gpt.py [place]
"""

from __future__ import annotations

import sys
from pydoc_data.topics import topics

import numpy as np

from fluidlite import nodes
from fluidlite.nodes import layers

LENGTH, WIDTH, HEADS = 32, 32, 4


class Block(layers.Layer):
    """Attention and a perceptron with pre-normalisation and residual connections: [WIDTH, length, batch]."""

    def __init__(self, place: str) -> None:
        self.norms = [layers.LayerNorm(place, WIDTH), layers.LayerNorm(place, WIDTH)]
        self.inputs = [layers.Affine(place, WIDTH, WIDTH) for _ in range(3)]
        self.output = layers.Affine(place, WIDTH, WIDTH)
        self.mlp = layers.Affine(place, WIDTH, 2 * WIDTH, nodes.Relu) | layers.Affine(place, 2 * WIDTH, WIDTH)

    def attend(self, x: nodes.Node, causal: nodes.Node, batch: int) -> nodes.Node:
        split = [HEADS, WIDTH // HEADS, LENGTH, batch]
        q, k, v = (nodes.Permute(nodes.Reshape(part(x), split), [3, 0, 2, 1]) for part in self.inputs)
        scores = nodes.InPlaceProdScalar(nodes.BatchedProd(q, nodes.Transpose(k)), (WIDTH / HEADS) ** -0.5)
        attended = nodes.BatchedProd(nodes.Softmax(nodes.InPlaceMask(scores, causal, -1e9), axis=-1), v)
        return self.output(nodes.Reshape(nodes.Permute(attended, [1, 3, 2, 0]), [WIDTH, LENGTH, batch]))

    def run(self, x: nodes.Node, causal: nodes.Node, batch: int) -> nodes.Node:
        x = nodes.InPlaceAdd(self.attend(self.norms[0](x), causal, batch), x)
        return nodes.InPlaceAdd(self.mlp(self.norms[1](x)), x)


class TinyGpt(layers.Layer):
    """Scores of the next character: [characters, LENGTH, batch]."""

    def __init__(self, place: str, characters: int, blocks: int = 2) -> None:
        self.place, self.embedding = place, layers.Embedding(place, characters, WIDTH)
        self.position = nodes.Weight(place, [WIDTH, LENGTH, 1], init=nodes.init.Uniform())
        self.blocks = [Block(place) for _ in range(blocks)]
        self.head = layers.LayerNorm(place, WIDTH) | layers.Affine(place, WIDTH, characters)

    def run(self, text: np.ndarray) -> nodes.Node:
        """The node for indices of characters, [LENGTH, batch]."""
        x = nodes.Add(self.embedding(nodes.FixedData(self.place, text)), self.position)
        causal = nodes.FixedData(self.place, np.tril(np.ones((1, 1, LENGTH, LENGTH), bool)))
        for block in self.blocks:
            x = block(x, causal, text.shape[1])
        return self.head(x)


def main(place: str = "cpu", steps: int = 120, batch: int = 16) -> tuple[list[float], float]:
    """Train; return losses, and the share of the values' bytes that writing in place saves."""
    nodes.seed(1)
    text = "".join(topics[name] for name in sorted(topics))[:100_000]
    characters, ids = np.unique(list(text), return_inverse=True)
    model, updater, losses = TinyGpt(place, len(characters)), nodes.Adam(0.01, clip=1.0), []
    for step in range(steps):
        starts = np.random.default_rng(step).integers(0, len(ids) - LENGTH - 1, batch)
        window = ids[starts + np.arange(LENGTH + 1)[:, None]]
        graph = nodes.Graph(nodes.Mean(nodes.PickNegLogSoftmax(model(window[:-1]), window[1:])), inplace="auto")
        losses.append(float(graph.forward()))
        graph.reset_grad()
        graph.backward()
        updater.update(graph)
        if step % 20 == 19:
            print(f"{place}, step {step + 1}: loss {np.mean(losses[-20:]):.3f}")
    print(f"{place}: in place, values take {graph.inplace_report.saved_share:.0%} less")
    return losses, graph.inplace_report.saved_share


if __name__ == "__main__":
    main(*sys.argv[1:2])
