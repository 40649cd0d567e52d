"""Compiled graphs: a graph whose structure and metadata were seen before runs as two compiled programs.

The programs hold the operators of the nodes in the graph's order, and those of their gradients in reverse order: what
runs node by node otherwise. Values, gradients and what is kept for gradients are state of a scope of the run's own, so
that every node can be asked for them afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from fluidlite import unique_name
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import FluidError
from fluidlite.base.fork import new_rlock
from fluidlite.base.lru_cache import LRUCache
from fluidlite.compiler.instrumentation import observed
from fluidlite.executor import Executor
from fluidlite.nodes.compiled_run import CompiledRun
from fluidlite.nodes.devices import Device, ValueType
from fluidlite.nodes.graph_programs import GraphPrograms, fed
from fluidlite.nodes.leaves import Weight
from fluidlite.nodes.node import Node
from fluidlite.nodes.node_program import current_stamp
from fluidlite.nodes.operator_node import OperatorNode
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.nodes.graph import Graph

log = logging.getLogger(__name__)
MAX_COMPILED_GRAPHS = 128
MAX_SEEN_GRAPHS = 4096
MAX_COMPILED_NODES = 2000
"""Larger graphs run node by node: what compiling costs grows faster than they do."""
MAX_RUNS = 4
"""Graphs of one structure that may be alive, compiled, at once; others run node by node."""
Key = tuple[Any, ...]


class NotCompiled:
    """Why a graph runs node by node.

    ``node``: the first one that is a reason.
    """

    __slots__ = ("node", "reason")

    def __init__(self, reason: str, node: Node | None = None) -> None:
        self.reason = reason
        self.node = node

    def __str__(self) -> str:  # made when somebody asks: a node's line takes longer to find than the node to run
        return self.reason if self.node is None else f"{self.node} {self.reason}"


NOT_RUN = NotCompiled("it has not run")
NOT_ASKED = NotCompiled("compiled=False")
COMPUTED = NotCompiled("a part of its nodes was computed before")
OBSERVED = NotCompiled("somebody observes its operators (fluid.debug)")
FIRST = NotCompiled("no graph of its structure and metadata was seen before")
ALIVE = NotCompiled(f"{MAX_RUNS} graphs of its structure are alive, whose values are kept")
LARGE = NotCompiled(f"it has more than {MAX_COMPILED_NODES} nodes")
MOVED = NotCompiled("the value of a leaf lies across memory, or elsewhere")
LEAF = NotCompiled("its sink is a leaf, so nothing is computed")


class Structure:
    """What a graph's programs depend on.

    ``key``: equal for two graphs whose programs are equal: the programs of nodes, the positions of their inputs, and
    the types of leaves, which say their devices too.
    ``dev``: of the sink.
    """

    __slots__ = ("dev", "key", "leaves")

    def __init__(self, key: Key, dev: Device, leaves: list[tuple[Node, ValueType | None]]) -> None:
        self.key = key
        self.dev = dev
        self.leaves = leaves

    def holds(self) -> bool:
        """Whether the leaves' values are such that the programs can take them."""
        for node, known in self.leaves:
            value = node._at._tensor
            if value is None or node._type is not known or value._strides is not None:
                return False
        return True


def structure_of(nodes: Sequence[Node]) -> Structure | NotCompiled:
    """The structure of a graph of operators and leaves, or why it is none; :func:`unfit` says the rest."""
    if len(nodes) > MAX_COMPILED_NODES:
        return LARGE
    sink = nodes[-1]
    if sink.leaf:
        return LEAF
    if sink._dev.precedence:
        return NotCompiled(
            f"lies on {sink._dev}, whose memory each run takes and reset() ends; compiled graphs keep theirs", sink
        )
    key: list[Any] = [len(nodes)]  # a number first: caches weigh such a tuple by its length
    add = key.append
    leaves: list[tuple[Node, ValueType | None]] = []
    ties: dict[int, int] = {}
    for node in nodes:
        if type(node) is OperatorNode:
            program, inputs = node._program, node._inputs
            if program is None:
                return NotCompiled("has dims that are not known before it is computed", node)
            add(program.number)
            for item in inputs:
                add(item._position)
            if node._inplace >= 0:
                add(-1 - node._inplace)
        elif node.leaf:
            known, held = node._type, node._at
            if known is None:
                return NotCompiled("has no value", node)
            value = held._tensor
            if value is None or value._strides is not None:
                return MOVED
            leaves.append((node, known))
            key += (known, type(node) is Weight, ties.setdefault(id(held), node._position))
        else:
            other = next((each for each in nodes if each._dev is not sink._dev), None)
            return (
                _elsewhere(other, sink)
                if other is not None
                else NotCompiled("is of a class with a forward_ of its own, which no program holds", node)
            )
    return Structure(tuple(key), sink._dev, leaves)


def _elsewhere(node: Node, sink: Node) -> NotCompiled:
    return NotCompiled(f"lies on {node._dev}, and the sink on {sink._dev}: a compiled graph has one device", node)


def unfit(nodes: Sequence[Node]) -> NotCompiled | None:
    """Why graphs of a structure cannot be compiled, or None: it is asked once, for the key tells it."""
    sink = nodes[-1]
    for node in nodes:
        if node._dev is not sink._dev:
            return _elsewhere(node, sink)
        if isinstance(node, OperatorNode) and node._program is not None:
            program = node._program
            if program.error is not None:
                return NotCompiled("has no derivative", node)
            if [item._spec() for item in node._inputs] != list(program.ins):
                return NotCompiled("has inputs whose dims have changed since it was made", node)
    return None


class CompiledGraph:
    """The programs of a structure, and the runs of it that are alive."""

    def __init__(self, graph: Graph, structure: Structure) -> None:
        self.dev = structure.dev
        self.place = structure.dev.known_place()
        self.host = structure.dev.context().unit.info.host
        self.weight = 200_000
        nodes = graph.nodes
        self.count = len(nodes)
        with unique_name.guard():
            maker = GraphPrograms(nodes)
        self.forward, self.backward = maker.forward, maker.backward
        self.state: dict[str, Spec] = maker.state
        self.values: list[str | None] = maker.values
        self.gradients = [(at, nodes[at].leaf, name) for at, name in enumerate(maker.gradients) if name is not None]
        self.saved: list[list[str]] = maker.saved
        self.weights: list[int] = maker.weights
        self.draws: list[tuple[int, int, int]] = maker.draws
        self.random = [at for at, node in enumerate(nodes) if isinstance(node, OperatorNode) and node.kind.random]
        self.feeds = fed(maker, self.forward)
        self.feeds_backward = fed(maker, self.backward)
        self.inplace = any(type(node) is OperatorNode and node._inplace >= 0 for node in nodes)
        self.operators = [(at, self.values[at], self.saved[at]) for at, node in enumerate(nodes) if not node.leaf]
        self._spec = nodes[-1]._spec()
        self._starts: dict[float, Any] = {}
        self.executor = Executor(self.place)
        self._lock = new_rlock()  # weights may die while it is held
        self.runs: list[CompiledRun] = []

    def start(self, coefficient: float) -> np.ndarray[Any, Any]:
        found = self._starts.get(coefficient)
        if found is None:
            assert self._spec is not None
            if len(self._starts) >= MAX_RUNS:
                self._starts.clear()
            found = self._starts[coefficient] = np.full(self._spec.dims, coefficient, NUMPY[self._spec.dtype])
        return found

    def run_for(self, graph: Graph) -> CompiledRun | None:
        """A run whose memory nobody uses, or None."""
        nodes = graph.nodes
        held = [nodes[at]._at for at in self.weights]
        unfit = None
        with self._lock:
            for run in self.runs:
                if run.free():
                    if run.same_weights(held):
                        run.owner = ref(graph)
                        return run
                    unfit = run
            if len(self.runs) >= MAX_RUNS:
                if unfit is None:
                    return None
                self.runs.remove(unfit)
            made = CompiledRun(self, held)
            made.owner = ref(graph)
            self.runs.append(made)
            return made

    def forget(self, run: CompiledRun) -> None:
        with self._lock:
            self.runs = [each for each in self.runs if each is not run]


# The caches ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Entry:
    """How often a structure was seen, and why it could not be compiled."""

    count: int = 0
    refused: NotCompiled | None = None
    unfit: bool = True  # for all that is known
    stamp: object = None
    key: object = None
    weight: int = 1000


_entries: LRUCache[_Entry] = LRUCache(MAX_SEEN_GRAPHS, "structures of graphs", 16 << 20)
_compiled: LRUCache[CompiledGraph] = LRUCache(MAX_COMPILED_GRAPHS, "compiled graphs", 64 << 20)


def compiled_run(graph: Graph, structure: Structure, after: int) -> CompiledRun | NotCompiled:
    """A run for a graph whose structure was seen ``after`` times before, or why it runs node by node."""
    if observed():
        return OBSERVED
    entry = _entries.get(structure.key, _Entry)
    entry.count += 1
    if entry.refused is not None:
        return entry.refused
    if entry.count <= after:
        return FIRST
    if entry.unfit:
        why = unfit(graph.nodes)
        if why is not None:
            return why
        entry.unfit = False
    stamp = current_stamp()
    if entry.stamp is not stamp:  # a kernel was registered, or a preference set: it is compiled anew
        entry.stamp, entry.key = stamp, object()
    try:
        found = _compiled.get(entry.key, lambda: CompiledGraph(graph, structure))
        return found.run_for(graph) or ALIVE
    except FluidError as exc:  # it runs node by node, with the same numbers
        entry.refused = NotCompiled(f"its program was refused: {exc}")
        log.warning("%r is not compiled: %s", graph, exc)
        return entry.refused
