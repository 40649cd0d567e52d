"""Compiled graphs: a graph whose structure and metadata were seen before runs as two compiled programs.

The forward program has the operators of the nodes in the graph's order, the backward program those of their gradients
in reverse order. Values, gradients and values saved for gradients are state variables of the run's scope, so every node
can return them afterwards.
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
from fluidlite.compiler.instrumentation import is_observed
from fluidlite.executor import Executor
from fluidlite.nodes.compiled_run import CompiledRun
from fluidlite.nodes.devices import Device, ValueType
from fluidlite.nodes.graph_programs import GraphPrograms, fed_leaves
from fluidlite.nodes.leaves import Weight
from fluidlite.nodes.node import Node
from fluidlite.nodes.node_program import current_stamp
from fluidlite.nodes.operator_node import OperatorNode
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.nodes.graph import Graph

log = logging.getLogger(__name__)
MAX_COMPILED_GRAPHS = 128  # entries of the cache of compiled graphs
MAX_SEEN_GRAPHS = 4096  # entries of the cache of structures
MAX_COMPILED_NODES = 2000
"""Graphs with more nodes run node by node: the cost of compiling grows faster than the number of nodes."""
MAX_RUNS = 4
"""Compiled runs of one structure that may be alive at once; further graphs run node by node."""
Key = tuple[Any, ...]


class NotCompiled:
    """Why a graph runs node by node.

    ``node``: the first node that is a reason, if one is.
    """

    __slots__ = ("node", "reason")

    def __init__(self, reason: str, node: Node | None = None) -> None:
        self.reason = reason
        self.node = node

    def __str__(self) -> str:  # built on demand: finding a node's source line takes longer than running it
        return self.reason if self.node is None else f"{self.node} {self.reason}"


NOT_RUN = NotCompiled("it has not run")
NOT_REQUESTED = NotCompiled("compiled=False")
PARTLY_COMPUTED = NotCompiled("a part of its nodes was computed before")
OBSERVED = NotCompiled("somebody observes its operators (fluid.debug)")
FIRST_OF_STRUCTURE = NotCompiled("no graph of its structure and metadata was seen before")
RUNS_IN_USE = NotCompiled(f"{MAX_RUNS} graphs of its structure are alive, whose values are kept")
TOO_LARGE = NotCompiled(f"it has more than {MAX_COMPILED_NODES} nodes")
LEAF_NOT_CONTIGUOUS = NotCompiled("the value of a leaf is missing or not contiguous")
SINK_IS_LEAF = NotCompiled("its sink is a leaf, so nothing is computed")


class GraphStructure:
    """The structure and metadata that a graph's programs depend on.

    ``key``: equal for two graphs whose programs are equal: the programs of nodes, the positions of their inputs, and
    the types of leaves, which include their devices.
    ``dev``: the device of the sink.
    """

    __slots__ = ("dev", "key", "leaves")

    def __init__(self, key: Key, dev: Device, leaves: list[tuple[Node, ValueType | None]]) -> None:
        self.key = key
        self.dev = dev
        self.leaves = leaves

    def is_current(self) -> bool:
        """Whether the leaves' values still have the types and the contiguous memory that the programs take."""
        for node, value_type in self.leaves:
            value = node._at._tensor
            if value is None or node._type is not value_type or value._strides is not None:
                return False
        return True


def structure_of(nodes: Sequence[Node]) -> GraphStructure | NotCompiled:
    """The structure of a graph of operators and leaves, or a reason against compiling; see :func:`find_obstacle`."""
    if len(nodes) > MAX_COMPILED_NODES:
        return TOO_LARGE
    sink = nodes[-1]
    if sink.leaf:
        return SINK_IS_LEAF
    if sink._dev.precedence:
        return NotCompiled(
            f"lies on {sink._dev}, whose memory each run takes and reset() ends; compiled graphs keep theirs", sink
        )
    key: list[Any] = [len(nodes)]  # an int first: caches weigh a tuple of this form by its length
    append_key = key.append
    leaves: list[tuple[Node, ValueType | None]] = []
    ties: dict[int, int] = {}
    for node in nodes:
        if type(node) is OperatorNode:
            program, inputs = node._program, node._inputs
            if program is None:
                return NotCompiled("has dims that are not known before it is computed", node)
            append_key(program.number)
            for node_input in inputs:
                append_key(node_input._position)
            if node._inplace >= 0:
                append_key(-1 - node._inplace)
        elif node.leaf:
            value_type, storage = node._type, node._at
            if value_type is None:
                return NotCompiled("has no value", node)
            value = storage._tensor
            if value is None or value._strides is not None:
                return LEAF_NOT_CONTIGUOUS
            leaves.append((node, value_type))
            key += (value_type, type(node) is Weight, ties.setdefault(id(storage), node._position))
        else:
            other = next((each for each in nodes if each._dev is not sink._dev), None)
            return (
                _elsewhere(other, sink)
                if other is not None
                else NotCompiled("is of a class with a forward_ of its own, which no program holds", node)
            )
    return GraphStructure(tuple(key), sink._dev, leaves)


def _elsewhere(node: Node, sink: Node) -> NotCompiled:
    return NotCompiled(f"lies on {node._dev}, and the sink on {sink._dev}: a compiled graph has one device", node)


def find_obstacle(nodes: Sequence[Node]) -> NotCompiled | None:
    """Why graphs of a structure cannot be compiled, or None. Called once for each key of a structure."""
    sink = nodes[-1]
    for node in nodes:
        if node._dev is not sink._dev:
            return _elsewhere(node, sink)
        if isinstance(node, OperatorNode) and node._program is not None:
            program = node._program
            if program.error is not None:
                return NotCompiled("has no derivative", node)
            if [node_input._spec() for node_input in node._inputs] != list(program.ins):
                return NotCompiled("has inputs whose dims have changed since it was made", node)
    return None


class CompiledGraph:
    """The programs of a structure, and the runs of it that are alive."""

    def __init__(self, graph: Graph, structure: GraphStructure) -> None:
        self.dev = structure.dev
        self.place = structure.dev.known_place()
        self.host = structure.dev.context().unit.info.host
        self.weight = 200_000
        nodes = graph.nodes
        self.count = len(nodes)
        with unique_name.guard():
            programs = GraphPrograms(nodes)
        self.forward, self.backward = programs.forward, programs.backward
        self.state: dict[str, Spec] = programs.state
        self.values: list[str | None] = programs.values
        self.gradients = [(at, nodes[at].leaf, name) for at, name in enumerate(programs.gradients) if name is not None]
        self.saved: list[list[str]] = programs.saved
        self.weights: list[int] = programs.weights
        self.draws: list[tuple[int, int, int]] = programs.draws
        self.random = [at for at, node in enumerate(nodes) if isinstance(node, OperatorNode) and node.kind.random]
        self.feeds = fed_leaves(programs, self.forward)
        self.feeds_backward = fed_leaves(programs, self.backward)
        self.inplace = any(type(node) is OperatorNode and node._inplace >= 0 for node in nodes)
        self.operators = [(at, self.values[at], self.saved[at]) for at, node in enumerate(nodes) if not node.leaf]
        self._spec = nodes[-1]._spec()
        self._starts: dict[float, Any] = {}
        self.executor = Executor(self.place)
        self._lock = new_rlock()  # weights may die while it is held
        self.runs: list[CompiledRun] = []

    def start(self, coefficient: float) -> np.ndarray[Any, Any]:
        gradient = self._starts.get(coefficient)
        if gradient is None:
            assert self._spec is not None
            if len(self._starts) >= MAX_RUNS:
                self._starts.clear()
            gradient = self._starts[coefficient] = np.full(self._spec.dims, coefficient, NUMPY[self._spec.dtype])
        return gradient

    def run_for(self, graph: Graph) -> CompiledRun | None:
        """A run whose memory is unused, or None if all runs are in use."""
        nodes = graph.nodes
        weights = [nodes[at]._at for at in self.weights]
        reusable_run = None
        with self._lock:
            for run in self.runs:
                if run.is_free():
                    if run.same_weights(weights):
                        run.owner = ref(graph)
                        return run
                    reusable_run = run
            if len(self.runs) >= MAX_RUNS:
                if reusable_run is None:
                    return None
                self.runs.remove(reusable_run)
            new_run = CompiledRun(self, weights)
            new_run.owner = ref(graph)
            self.runs.append(new_run)
            return new_run

    def forget(self, run: CompiledRun) -> None:
        with self._lock:
            self.runs = [each for each in self.runs if each is not run]


# The caches ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _StructureRecord:
    """Counts the graphs of a structure, and stores why it could not be compiled."""

    count: int = 0
    obstacle: NotCompiled | None = None
    unchecked: bool = True  # whether find_obstacle is still to be called
    stamp: object = None
    key: object = None
    weight: int = 1000


_entries: LRUCache[_StructureRecord] = LRUCache(MAX_SEEN_GRAPHS, "structures of graphs", 16 << 20)
_compiled: LRUCache[CompiledGraph] = LRUCache(MAX_COMPILED_GRAPHS, "compiled graphs", 64 << 20)


def compiled_run(graph: Graph, structure: GraphStructure, after: int) -> CompiledRun | NotCompiled:
    """A run for a graph whose structure was seen ``after`` times before, or why it runs node by node."""
    if is_observed():
        return OBSERVED
    entry = _entries.get(structure.key, _StructureRecord)
    entry.count += 1
    if entry.obstacle is not None:
        return entry.obstacle
    if entry.count <= after:
        return FIRST_OF_STRUCTURE
    if entry.unchecked:
        reason = find_obstacle(graph.nodes)
        if reason is not None:
            return reason
        entry.unchecked = False
    stamp = current_stamp()
    if entry.stamp is not stamp:  # a kernel was registered, or a preference set: recompile
        entry.stamp, entry.key = stamp, object()
    try:
        compiled_graph = _compiled.get(entry.key, lambda: CompiledGraph(graph, structure))
        return compiled_graph.run_for(graph) or RUNS_IN_USE
    except FluidError as exc:  # it runs node by node, with equal results
        entry.obstacle = NotCompiled(f"its program was refused: {exc}")
        log.warning("%r is not compiled: %s", graph, exc)
        return entry.obstacle
