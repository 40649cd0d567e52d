"""Graph: the nodes that a sink depends on, in one order; forward and backward through them."""

from __future__ import annotations

from collections.abc import Iterator

from fluidlite.base.errors import NodeError
from fluidlite.nodes.buffers import text_of
from fluidlite.nodes.compiled import COMPUTED, NOT_ASKED, NOT_RUN, NotCompiled, Structure, compiled_run, structure_of
from fluidlite.nodes.compiled_run import CompiledRun
from fluidlite.nodes.inplace import MODES, InPlaceReport, choose_in_place
from fluidlite.nodes.leaves import Weight
from fluidlite.nodes.linked import Linked
from fluidlite.nodes.node import Node
from fluidlite.nodes.node_program import check_stamp
from fluidlite.nodes.operator_call import filled
from fluidlite.nodes.operator_node import OperatorNode
from fluidlite.nodes.running import held, raise_late
from fluidlite.nodes.tensor import Tensor
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context

_graphs = [0]
"""How many graphs were made, or took nodes back: while it stays, every graph has the nodes that it had."""
COMPILE_AFTER = 1
"""How often a structure is seen before a graph of it runs compiled."""


class Graph:
    """The nodes that a node depends on.

    Parameters
    ----------
    sink : Node
    inplace : {"asked", "auto", "copy", False}
        Which nodes write over an input. ``"asked"``: those that ask for it (``InPlaceAdd``); one that is not safe
        raises. ``"copy"``: of these, the ones that are safe. ``"auto"``: every node that may. False: none.

    compiled : bool
        Whether it runs compiled where a graph of its structure and metadata was seen before; the numbers are equal, to
        rounding.

    Attributes
    ----------
    nodes : list of Node
        In one depth-first order: each behind its inputs, each once.
    inplace_report : InPlaceReport
        Which nodes write in place, the bytes that saves, and why others do not.

    Raises
    ------
    InPlaceError
        If a node asks to write in place where it is not safe; it names both nodes, the slot and the reason.
    """

    def __init__(self, sink: Node, inplace: str | bool = "asked", compiled: bool = True) -> None:
        if not isinstance(sink, Node):
            raise NodeError(f"Graph takes a node, got {sink!r:.80}")
        if inplace is not False and inplace not in MODES:
            raise NodeError(f"inplace is {inplace!r}; expected one of {', '.join(map(repr, MODES))}, or False")
        self.sink = sink
        self._mark = object()
        _graphs[0] += 1
        self._claimed = _graphs[0]
        self.nodes, asked = _order(sink, self._mark)
        if check_stamp():
            for node in self.nodes:
                if isinstance(node, OperatorNode):
                    node._resolve()
        self._report: InPlaceReport | None = None
        self._mode = inplace
        if asked or inplace == "auto":
            self._report = choose_in_place(self.nodes, inplace)
        self._compiled = compiled
        self._run: CompiledRun | None = None
        self._structure: Structure | None = None
        self._linked: Linked | None = None
        self._operators = 0
        self._why = NOT_RUN

    @property
    def inplace_report(self) -> InPlaceReport:
        """Which nodes write in place, the bytes that saves, and why others do not."""
        if self._report is None:
            self._report = choose_in_place(self.nodes, self._mode)
        return self._report

    def buffers(self) -> str:
        """Which value lies in which buffer, step by step: a line a buffer, a column a node that is computed."""
        return text_of(self.nodes)

    def weights(self) -> list[Weight]:
        """The weights, each once; of tied ones, the first."""
        found: dict[int, Weight] = {}
        for node in self.nodes:
            if isinstance(node, Weight):
                found.setdefault(node.identity, node)
        return list(found.values())

    def forward(self) -> Tensor:
        """Compute every node that has not been, in order.

        Returns
        -------
        Tensor
            The sink's value.

        Raises
        ------
        FluidError
            With the node and the user's line; nodes before it keep their values.
        """
        self._claim()
        nodes = [node for node in self.nodes if not node._forwarded]
        if nodes and not self._run_compiled(len(nodes)) and not self._run_linked():
            contexts = self._held_contexts()
            with held(contexts, self._leaf_values):
                first = contexts[0]
                several = len(contexts) > 1
                for number, node in enumerate(nodes):
                    context = get_context(node._dev.known_place()) if several else first
                    node._run_forward(context, number)
                    node._forwarded = True
                raise_late(contexts, nodes)
        return self.sink.value()

    def _run_linked(self) -> bool:
        """Run linked, if each node can be, and none has been computed."""
        self._linked = None
        place = self.sink._dev.place
        if place is None:
            return False
        context = get_context(place)
        with context.lock:
            self._linked = Linked.forward(self.nodes, context)
            if self._linked is not None:
                raise_late((context,), self.nodes)
        return self._linked is not None

    def _run_compiled(self, count: int) -> bool:
        """Run compiled, if the structure was seen before and no node has been computed."""
        run, structure = self._run, self._structure
        if run is not None:
            if structure is not None and structure.holds() and count == self._operators and run.again(self):
                run.run_forward(self)
                return True
            run.let_go(self)
            self._run = None
        found = self._find_run(structure, count)
        if isinstance(found, NotCompiled):
            self._why = found
            return False
        found.run_forward(self)
        self._run = found
        return True

    def _find_run(self, structure: Structure | None, count: int) -> CompiledRun | NotCompiled:
        if not self._compiled:
            return NOT_ASKED
        if structure is None or not structure.holds():
            self._structure = None
            found = structure_of(self.nodes)
            if isinstance(found, NotCompiled):
                return found
            structure = self._structure = found
            self._operators = len(self.nodes) - len(structure.leaves)
        if count != self._operators:
            return COMPUTED
        return compiled_run(self, structure, COMPILE_AFTER)

    def _claim(self) -> None:
        """Prove anew what writes in place, if another graph was made of some of the nodes since."""
        if _graphs[0] == self._claimed:  # no graph was made since
            return
        self._claimed = _graphs[0]
        mine = self._mark
        for node in self.nodes:
            if node._seen is not mine:
                break
        else:
            return
        _graphs[0] += 1  # others look again
        self._claimed = _graphs[0]
        inplace = False
        for position, node in enumerate(self.nodes):
            node._seen = mine
            node._position = position
            inplace = inplace or (isinstance(node, OperatorNode) and (node._inplace >= 0 or node._asked))
        if inplace or self._mode == "auto":
            self._report = choose_in_place(self.nodes, self._mode)
            self._structure = None

    def backward(self, coefficient: float = 1.0) -> None:
        """Add the gradients of the sink, times a coefficient, to those of the leaves.

        Gradients of other nodes begin anew.

        Raises
        ------
        NodeError
            Before forward, or if the sink depends on nothing that has a gradient.
        GradientError
            If a node on the way has no derivative.
        """
        self._claim()
        sink, nodes = self.sink, self.nodes
        self._check_forwarded("backward")
        if not sink._has_grad:
            raise NodeError(f"{sink} depends on nothing that has a gradient\n  Do: use Data or Weight for what has one")
        if self._run is not None and self._run.holds(self):
            self._run.run_backward(self, float(coefficient))
            return
        linked = self._linked
        if linked is not None:
            context = get_context(sink._dev.known_place())
            with context.lock:
                if linked.holds(nodes, context) and linked.backward(nodes, context, float(coefficient)):
                    raise_late((context,), nodes)
                    return
        for node in nodes:
            if not node._at.leaf:
                node.reset_grad()
        value = sink.value()
        start = filled(sink._dev, value._known(), float(coefficient))
        contexts = self._held_contexts()
        with held(contexts, self._read_values):
            sink._add_grad(start)
            first, several, last = contexts[0], len(contexts) > 1, len(nodes) - 1
            try:
                for number in range(last, -1, -1):
                    node = nodes[number]
                    if node._has_grad and node._at._grad is not None:
                        if node._at._parts:
                            node._at.add_up()
                        if not node.leaf:
                            context = get_context(node._dev.known_place()) if several else first
                            node._run_backward(context, number)
                raise_late(contexts, nodes)
            except BaseException:
                for node in nodes:
                    node._at._parts = ()
                raise

    def reset_grad(self) -> None:
        """Let every gradient be 0, those of leaves too.

        Raises
        ------
        NodeError
            Before forward: gradients have no dims then.
        """
        self._check_forwarded("reset_grad")
        for node in self.nodes:
            if type(node) is OperatorNode:
                held = node._at
                held._gradient = held._graded = None
                node._passed = False
            else:
                node.reset_grad()

    def reset_forwarded(self) -> None:
        """Let the next forward compute every node again, from the values that leaves have then."""
        for node in self.nodes:
            if type(node) is OperatorNode:  # most are; a call for each would be a tenth of what a run costs
                node._forwarded = False
                node._over = None
            else:
                node.reset_forwarded()

    @property
    def runs_compiled(self) -> bool:
        """Whether the values are those of compiled programs."""
        return self._run is not None

    @property
    def why_not_compiled(self) -> str:
        """Why the last forward ran node by node, with the node that is the reason; empty where it ran compiled."""
        return "" if self._run is not None else str(self._why)

    def _check_forwarded(self, what: str) -> None:
        if not self.sink._forwarded:
            raise NodeError(f"{what} of the graph of {self.sink} before forward\n  Do: graph.forward() first")

    # Queues

    def _held_contexts(self) -> list[Context]:
        devices = dict.fromkeys(node._dev for node in self.nodes)
        places = dict.fromkeys(dev.known_place() for dev in devices)
        return [get_context(place) for place in places]

    def _leaf_values(self) -> Iterator[Tensor]:
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


def _order(sink: Node, done: object) -> tuple[list[Node], bool]:
    """The nodes in depth-first order, without recursion; and whether one asks to write in place, or did before."""
    order: list[Node] = []
    take = order.append
    position, asked = 0, False
    node, left = sink, iter(sink._inputs)  # the node that is looked at, and its inputs that were not
    above: list[tuple[Node, Iterator[Node]]] = []
    while True:
        for item in left:
            if item._seen is not done:
                inputs = item._inputs
                if inputs:
                    above.append((node, left))
                    node, left = item, iter(inputs)
                    break
                item._seen = done
                item._position = position
                position += 1
                take(item)
        else:
            node._seen = done
            node._position = position
            position += 1
            take(node)
            if type(node) is OperatorNode and (node._asked or node._inplace >= 0):
                asked = True
            if not above:
                return order, asked
            node, left = above.pop()
