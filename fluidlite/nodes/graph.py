"""Graph: the nodes that a sink depends on, in one order; forward and backward through them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fluidlite.base.errors import NodeError
from fluidlite.nodes.buffers import text_of
from fluidlite.nodes.compiled import (
    NOT_REQUESTED,
    NOT_RUN,
    PARTLY_COMPUTED,
    GraphStructure,
    NotCompiled,
    compiled_run,
    structure_of,
)
from fluidlite.nodes.compiled_run import CompiledRun
from fluidlite.nodes.inplace import MODES, InPlaceReport, choose_in_place, leave_overwritten
from fluidlite.nodes.leaves import Weight
from fluidlite.nodes.linked import LinkedGraph
from fluidlite.nodes.node import Node
from fluidlite.nodes.node_program import check_stamp
from fluidlite.nodes.operator_call import filled_tensor
from fluidlite.nodes.operator_node import OperatorNode
from fluidlite.nodes.running import locked_queues, raise_deferred
from fluidlite.nodes.tensor import Tensor
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context

_graph_count = [0]
"""Counts graphs that were made or that claimed nodes: while it is unchanged, no graph has lost nodes to another."""
COMPILE_AFTER = 1
"""Number of graphs of one structure that run node by node before the next one is compiled."""


class Graph:
    """The nodes that a node depends on.

    Parameters
    ----------
    sink : Node
    inplace : {"asked", "auto", "copy", False}
        Which nodes write over an input. ``"asked"``: those that request it (``InPlaceAdd``); one that is not safe
        raises. ``"copy"``: of these, the safe ones. ``"auto"``: every safe node. False: none.
    compiled : bool
        Whether it runs compiled if a graph of equal structure and metadata was seen before; results are equal to
        rounding.

    Attributes
    ----------
    nodes : list of Node
        In depth-first order: each node once, after its inputs.
    inplace_report : InPlaceReport
        Which nodes write in place, the bytes saved, and why others do not.

    Raises
    ------
    InPlaceError
        If a node requests to write in place where it is not safe; it names both nodes, the slot and the reason.
    """

    def __init__(self, sink: Node, inplace: str | bool = "asked", compiled: bool = True) -> None:
        if not isinstance(sink, Node):
            raise NodeError(f"Graph takes a node, got {sink!r:.80}")
        if inplace is not False and inplace not in MODES:
            raise NodeError(f"inplace is {inplace!r}; expected one of {', '.join(map(repr, MODES))}, or False")
        self.sink = sink
        self._node_mark = object()
        _graph_count[0] += 1
        self._claimed_count = _graph_count[0]
        self.nodes, has_inplace = _depth_first(sink, self._node_mark)
        if check_stamp():
            for node in self.nodes:
                if isinstance(node, OperatorNode):
                    node._resolve()
        self._report: InPlaceReport | None = None
        self._inplace_mode = inplace
        leave_overwritten(self.nodes)
        if has_inplace or inplace == "auto":
            self._report = choose_in_place(self.nodes, inplace)
        self._compiled = compiled
        self._run: CompiledRun | None = None
        self._structure: GraphStructure | None = None
        self._linked: LinkedGraph | None = None
        self._computed = 0
        self._not_compiled = NOT_RUN

    @property
    def inplace_report(self) -> InPlaceReport:
        """Which nodes write in place, the bytes saved, and why others do not."""
        if self._report is None:
            self._report = choose_in_place(self.nodes, self._inplace_mode)
        return self._report

    def buffers(self) -> str:
        """The buffers of values over forward steps: one line for each buffer, one column for each computed node."""
        return text_of(self.nodes)

    def weights(self) -> list[Weight]:
        """The distinct weights; of tied ones, the first."""
        distinct: dict[int, Weight] = {}
        for node in self.nodes:
            if isinstance(node, Weight):
                distinct.setdefault(node.identity, node)
        return list(distinct.values())

    def forward(self) -> Tensor:
        """Compute every node that is not computed yet, in order.

        Returns
        -------
        Tensor
            The sink's value.

        Raises
        ------
        FluidError
            With the node and the user's line; nodes before it keep their values.
        """
        self._claim_nodes()
        nodes = [node for node in self.nodes if not node._forwarded]
        if nodes and not self._run_compiled(len(nodes)) and not self._run_linked():
            contexts = self._contexts()
            with locked_queues(contexts, self._forwarded_values):
                first = contexts[0]
                multiple_places = len(contexts) > 1
                for number, node in enumerate(nodes):
                    context = get_context(node._dev.known_place()) if multiple_places else first
                    node._run_forward(context, number)
                    node._forwarded = True
                self._raise_deferred(contexts, nodes)
        return self.sink.value()

    def _run_linked(self) -> bool:
        """Run linked, if each node can be linked and none has been computed."""
        self._linked = None
        place = self.sink._dev.place
        if place is None:
            return False
        context = get_context(place)
        with context.lock:
            self._linked = LinkedGraph.forward(self.nodes, context)
            if self._linked is not None:
                self._raise_deferred((context,), self.nodes)
        return self._linked is not None

    def _raise_deferred(self, contexts: Sequence[Context], nodes: Sequence[Node]) -> None:
        """Raise an error that kernels have noted; then the nodes are not computed."""
        try:
            raise_deferred(contexts, nodes)
        except BaseException:
            for node in nodes:
                node._forwarded = node.leaf
            raise

    def _run_compiled(self, count: int) -> bool:
        """Run compiled, if the structure was seen before and no node has been computed."""
        run, structure = self._run, self._structure
        if run is not None:
            if structure is not None and structure.is_current() and count == self._computed and run.can_rerun(self):
                run.run_forward(self)
                return True
            run.release(self)
            self._run = None
        new_run = self._find_run(structure, count)
        if isinstance(new_run, NotCompiled):
            self._not_compiled = new_run
            return False
        new_run.run_forward(self)
        self._run = new_run
        return True

    def _find_run(self, structure: GraphStructure | None, count: int) -> CompiledRun | NotCompiled:
        if not self._compiled:
            return NOT_REQUESTED
        if structure is None or not structure.is_current():
            self._structure = None
            new_structure = structure_of(self.nodes)
            if isinstance(new_structure, NotCompiled):
                return new_structure
            structure = self._structure = new_structure
            self._computed = len(self.nodes) - len(structure.leaves)
        if count != self._computed:
            return PARTLY_COMPUTED
        return compiled_run(self, structure, COMPILE_AFTER)

    def _claim_nodes(self) -> None:
        """Claim the nodes again and repeat the in-place proofs, if another graph has claimed some of them."""
        if _graph_count[0] == self._claimed_count:  # no graph has claimed nodes since
            return
        self._claimed_count = _graph_count[0]
        mark = self._node_mark
        for node in self.nodes:
            if node._graph_mark is not mark:
                break
        else:
            return
        _graph_count[0] += 1  # makes the others check their claims
        self._claimed_count = _graph_count[0]
        inplace = False
        for position, node in enumerate(self.nodes):
            node._graph_mark = mark
            node._position = position
            inplace = inplace or (isinstance(node, OperatorNode) and (node._inplace >= 0 or node._requests_inplace))
        leave_overwritten(self.nodes)
        if inplace or self._inplace_mode == "auto":
            self._report = choose_in_place(self.nodes, self._inplace_mode)
            self._structure = None

    def backward(self, coefficient: float = 1.0) -> None:
        """Add the gradients of the sink, times a coefficient, to those of the leaves.

        Gradients of other nodes are overwritten.

        Raises
        ------
        NodeError
            Before forward, or if the sink depends on nothing that has a gradient.
        GradientError
            If a node on the path to the leaves has no derivative.
        """
        self._claim_nodes()
        sink, nodes = self.sink, self.nodes
        self._check_forwarded("backward")
        if not sink._has_grad:
            raise NodeError(f"{sink} depends on nothing that has a gradient\n  Do: use Data or Weight for what has one")
        if self._run is not None and self._run.owns_values(self):
            self._run.run_backward(self, float(coefficient))
            return
        linked = self._linked
        if linked is not None:
            context = get_context(sink._dev.known_place())
            with context.lock:
                if linked.owns_values(nodes, context) and linked.backward(nodes, context, float(coefficient)):
                    raise_deferred((context,), nodes)
                    return
        for node in nodes:
            if not node._forwarded:
                raise NodeError(f"backward of the graph of {sink}: {node} was reset since\n  Do: graph.forward() first")
            if not node._at.leaf:
                node.reset_grad()
        value = sink.value()
        start = filled_tensor(sink._dev, value._required_spec(), float(coefficient))
        contexts = self._contexts()
        with locked_queues(contexts, self._read_values):
            sink._add_grad(start)
            first, multiple_places, last = contexts[0], len(contexts) > 1, len(nodes) - 1
            try:
                for number in range(last, -1, -1):
                    node = nodes[number]
                    if node._has_grad and node._at._grad is not None:
                        if node._at._parts:
                            node._at.add_up()
                        if not node.leaf:
                            context = get_context(node._dev.known_place()) if multiple_places else first
                            node._run_backward(context, number)
                raise_deferred(contexts, nodes)
            except BaseException:
                for node in nodes:
                    node._at._parts = ()
                raise

    def reset_grad(self) -> None:
        """Set every gradient to 0, also those of leaves.

        Raises
        ------
        NodeError
            Before forward: gradients have no dims then.
        """
        self._check_forwarded("reset_grad")
        for node in self.nodes:
            if type(node) is OperatorNode:
                storage = node._at
                storage._gradient = storage._grad_source = None
                node._gradient_moved = False
            else:
                node.reset_grad()

    def reset_forwarded(self) -> None:
        """Make the next forward compute every node again, from the current values of leaves."""
        self._claim_nodes()
        for node in self.nodes:
            if type(node) is OperatorNode:  # inlined: a call for each node would take a tenth of a run
                node._forwarded = False
            else:
                node.reset_forwarded()

    @property
    def runs_compiled(self) -> bool:
        """Whether the values were computed by compiled programs."""
        return self._run is not None

    @property
    def why_not_compiled(self) -> str:
        """Why the last forward ran node by node, with the node that is the reason; empty if it ran compiled."""
        return "" if self._run is not None else str(self._not_compiled)

    def _check_forwarded(self, method: str) -> None:
        if not self.sink._forwarded:
            raise NodeError(f"{method} of the graph of {self.sink} before forward\n  Do: graph.forward() first")

    # Queues

    def _contexts(self) -> list[Context]:
        devices = dict.fromkeys(node._dev for node in self.nodes)
        places = dict.fromkeys(dev.known_place() for dev in devices)
        return [get_context(place) for place in places]

    def _forwarded_values(self) -> Iterator[Tensor]:
        for node in self.nodes:
            if node._forwarded and node._at._tensor is not None:
                yield node._at._tensor

    def _read_values(self) -> Iterator[Tensor]:
        for node in self.nodes:
            at = node._at
            if at._value is not None:
                yield at._value
            if at._grad is not None:
                yield at._grad

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"<Graph of {len(self.nodes)} nodes, sink {self.sink}>"


def _depth_first(sink: Node, mark: object) -> tuple[list[Node], bool]:
    """The nodes in depth-first order, without recursion; and whether one requests or does in-place writing."""
    order: list[Node] = []
    append_node = order.append
    position, has_inplace = 0, False
    node, pending_inputs = sink, iter(sink._inputs)  # the visited node, and its inputs not visited yet
    stack: list[tuple[Node, Iterator[Node]]] = []
    while True:
        for node_input in pending_inputs:
            if node_input._graph_mark is not mark:
                inputs = node_input._inputs
                if inputs:
                    stack.append((node, pending_inputs))
                    node, pending_inputs = node_input, iter(inputs)
                    break
                node_input._graph_mark = mark
                node_input._position = position
                position += 1
                append_node(node_input)
        else:
            node._graph_mark = mark
            node._position = position
            position += 1
            append_node(node)
            if type(node) is OperatorNode and (node._requests_inplace or node._inplace >= 0):
                has_inplace = True
            if not stack:
                return order, has_inplace
            node, pending_inputs = stack.pop()
