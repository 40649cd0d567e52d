"""Lstm and BiLstm: Hochreiter and Schmidhuber (1997), with a forget gate (Gers and others, 2000)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fluidlite import graph as ng
from fluidlite.base.errors import NodeError
from fluidlite.graph.value import Value, emit
from fluidlite.nodes.devices import Device
from fluidlite.nodes.initialisers import Xavier
from fluidlite.nodes.layers.base import Layer, check_rows, check_sizes
from fluidlite.nodes.leaves import FixedZero, Weight
from fluidlite.nodes.linear import Affine
from fluidlite.nodes.node import Node
from fluidlite.nodes.operator_node import node_function
from fluidlite.nodes.shaping import Cat
from fluidlite.platform.place import PlaceLike


class State(NamedTuple):
    """The state of an LSTM between steps: [hidden] or [hidden, batch...] each."""

    hidden: Node
    cell: Node


def _gate(gates: Value, number: int) -> Value:
    rows = gates.shape[0] // 4
    return emit("slice", {"Input": gates}, {"axes": [0], "starts": [number * rows], "ends": [(number + 1) * rows]})


def _cell(gates: Value, cell: Value) -> Value:
    """The new cell, of gates [4 hidden, ...]: input, forget, output, candidate."""
    retained = ng.multiply(ng.sigmoid(_gate(gates, 1)), cell)
    return ng.add(retained, ng.multiply(ng.sigmoid(_gate(gates, 0)), ng.tanh(_gate(gates, 3))))


def _hidden(gates: Value, cell: Value) -> Value:
    """The new hidden state, of the gates and the new cell."""
    return ng.multiply(ng.sigmoid(_gate(gates, 2)), ng.tanh(cell))


LstmCell = node_function("LstmCell", _cell)
LstmHidden = node_function("LstmHidden", _hidden)


class Lstm(Layer):
    """A sequence's hidden states.

    Parameters
    ----------
    dev : Device or Place or str
        Of the weights: W [4 hidden, inputs], U [4 hidden, hidden] and b [4 hidden]: rows of the input, forget and
        output gate and of the candidate.
    inputs, hidden : int
    init : callable, optional
        Of the matrices; default: :class:`~fluidlite.nodes.initialisers.Xavier`. The bias is initially 1 for the forget
        gate (Jozefowicz and others, 2015), else 0.
    dtype : str
    """

    def __init__(
        self, dev: Device | PlaceLike, inputs: int, hidden: int, *, init: Any = None, dtype: str = "float32"
    ) -> None:
        check_sizes("Lstm", inputs=inputs, hidden=hidden)
        self.inputs, self.hidden = inputs, hidden
        init = Xavier() if init is None else init
        self.w = Weight(dev, [4 * hidden, inputs], init=init, dtype=dtype)
        self.u = Weight(dev, [4 * hidden, hidden], init=init, dtype=dtype)
        self.b = Weight(dev, [4 * hidden], dtype=dtype)
        self.b.value()[hidden : 2 * hidden] = 1.0

    def start(self, x: Node) -> State:
        """Zeros, on the device of an input and for its batch."""
        dims = [self.hidden, *check_rows(self, x, self.inputs)[1:]]
        dtype = self.w.value().dtype
        return State(FixedZero(x.dev(), dims, dtype), FixedZero(x.dev(), dims, dtype))

    def step(self, x: Node, state: State | None = None) -> State:
        """The state after one input, [inputs] or [inputs, batch...]; ``state`` is the previous one."""
        hidden, cell = self.start(x) if state is None else state
        check_rows(self, x, self.inputs)
        gates = Affine(self.w, x, self.u, hidden, self.b)
        cell = LstmCell(gates, cell)
        return State(LstmHidden(gates, cell), cell)

    def run(self, sequence: Sequence[Node], state: State | None = None) -> list[Node]:
        """The hidden state after each input of a sequence."""
        hidden_states: list[Node] = []
        for x in _sequence(self, sequence):
            state = self.step(x, state)
            hidden_states.append(state.hidden)
        return hidden_states


class BiLstm(Layer):
    """A forward and a backward LSTM: at each input, both hidden states, [2 hidden, ...].

    Parameters
    ----------
    dev, inputs, hidden, init, dtype
        As of :class:`Lstm`, of each.
    """

    def __init__(
        self, dev: Device | PlaceLike, inputs: int, hidden: int, *, init: Any = None, dtype: str = "float32"
    ) -> None:
        self.forward = Lstm(dev, inputs, hidden, init=init, dtype=dtype)
        self.backward = Lstm(dev, inputs, hidden, init=init, dtype=dtype)

    def run(self, sequence: Sequence[Node]) -> list[Node]:
        """Both hidden states at each input of a sequence, that of the forward LSTM first."""
        items = _sequence(self, sequence)
        backward_states = self.backward.run(items[::-1])[::-1]
        return [Cat(*each) for each in zip(self.forward.run(items), backward_states, strict=True)]


def _sequence(layer: Layer, sequence: Any) -> list[Node]:
    items: list[Any] = list(sequence) if isinstance(sequence, (list, tuple)) else []
    if not items or not all(isinstance(item, Node) for item in items):
        raise NodeError(f"{type(layer).__name__} takes a sequence of nodes, got {sequence!r:.80}")
    return items
