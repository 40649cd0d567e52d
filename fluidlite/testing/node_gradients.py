"""Adapter of nodes for the gradient check: runs a node repeatedly with changed values of its leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.base.arguments import check_list
from fluidlite.base.errors import GradientError
from fluidlite.conformance.cases import Array
from fluidlite.nodes import FixedData, Graph, Node, OperatorNode, Sum


class NodeJob:
    """A node and its gradients with respect to leaves, which can be computed for any values of the leaves.

    ``wrt``: leaves; default: all that have a gradient.
    """

    def __init__(self, node: Node, wrt: Sequence[Any] | None) -> None:
        self._node = node
        graph = Graph(node)
        differentiable = {id(leaf._at): leaf for leaf in graph.nodes if leaf.leaf and leaf.has_grad()}
        leaves = list(differentiable.values())
        if wrt is not None:
            leaves = check_list("wrt of check_gradient", wrt, "leaves of the node", GradientError)
            for leaf in leaves:
                if not isinstance(leaf, Node) or id(leaf._at) not in differentiable:
                    raise GradientError(
                        f"wrt of check_gradient holds {leaf!r:.80}; expected leaves of {node} that have a gradient"
                    )
        self._leaves = {f"{leaf} #{at}": leaf for at, leaf in enumerate(leaves)}
        self._arrays = {name: np.array(leaf.value().numpy()) for name, leaf in self._leaves.items()}
        self._drawn = [
            (other, other._drawn) for other in graph.nodes if isinstance(other, OperatorNode) and other.kind.random
        ]
        self.target = str(node)
        self.names = list(self._leaves)
        self.gradients: list[str | None] = list(self._leaves)

    def value(self, name: str) -> Array:
        """The array of a leaf; the next run uses its current values."""
        return self._arrays[name]

    def run(self, fetches: Sequence[str], start: Array | None = None) -> list[Array]:
        """Compute the node's value; with ``start``, the gradients of its sum weighted by ``start``."""
        for name, leaf in self._leaves.items():
            leaf.value().assign(self._arrays[name])
        for node, drawn in self._drawn:
            node._drawn = drawn
        if start is None:
            return [np.array(self._computed(self._node).sink.value().numpy())]
        mask = FixedData(self._node.dev(), start)
        graph = self._computed(Sum((self._node + self._node) * mask))
        graph.reset_grad()
        graph.backward(0.5)  # 0.5, since the node is read twice
        return [np.array(self._leaves[name].grad().numpy()) for name in fetches]

    @staticmethod
    def _computed(node: Node) -> Graph:
        graph = Graph(node)
        graph.reset_forwarded()
        graph.forward()
        return graph
