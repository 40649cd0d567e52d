"""CompiledRun: the memory in which the programs of a graph run, lent to its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import ref

from fluidlite.nodes.lent import Lent
from fluidlite.nodes.node import Held, Node
from fluidlite.nodes.operator_node import OperatorNode
from fluidlite.nodes.tensor import Tensor
from fluidlite.program.scope import Scope
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.nodes.compiled import CompiledGraph
    from fluidlite.nodes.graph import Graph


class _Draws(Scope):
    """A scope in which each operator draws with the seed and the number of its node, as node by node."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: dict[int, tuple[int, int, int]] = {}

    def draw(self, key: int, stream: int, seed: int) -> tuple[int, int, int]:
        return self.drawn[stream]


class CompiledRun:
    """A scope in which the programs of a structure run: the memory of one graph's values and gradients."""

    def __init__(self, compiled: CompiledGraph, weights: Sequence[Held]) -> None:
        self.compiled = compiled
        self.scope = _Draws()
        self.scope.private = frozenset(compiled.state)
        self.owner: Any = None
        self.lent: dict[str, Tensor] = {}
        self._lists: _Lists | None = None
        for name in compiled.state:
            self._renew(name)
        self._weight_tensors: list[Tensor | None] = [held._tensor for held in weights]
        for at, tensor in zip(compiled.weights, self._weight_tensors, strict=True):
            assert tensor is not None
            self.scope.var(f"leaf{at}").tensor = tensor
        me = ref(self)

        def forget(_: Any) -> None:
            run = me()
            if run is not None:
                run.compiled.forget(run)

        self._weights = [ref(held, forget) for held in weights]
        self._handed = [name for name in compiled.state if not name.startswith(("grad", "like"))]

    def _renew(self, name: str) -> None:
        """Give a value new memory; whoever holds the old one keeps it."""
        dev, spec = self.compiled.dev, self.compiled.state[name]
        own, lent = Tensor.on(dev, spec), Tensor.on(dev, spec)
        own.allocate(dev.context())
        assert own.allocation is not None
        lent.allocation = Lent(own.allocation)
        self.lent[name] = lent
        self._lists = None
        self.scope.replace(name, own)

    def same_weights(self, weights: Sequence[Held]) -> bool:
        """Whether it is of these weights, and of the tensors that they have now."""
        for mine, tensor, other in zip(self._weights, self._weight_tensors, weights, strict=True):
            if mine() is not other or tensor is not other._tensor:
                return False
        return True

    def free(self) -> bool:
        """Whether no graph, node, tensor or array uses the memory of its values; gradients are renewed."""
        if self.owner is not None and self.owner() is not None:
            return False
        return self._unused(0)

    def again(self, graph: Graph) -> bool:
        """Whether the graph that ran last may run again in the same memory: nobody beside its nodes uses it."""
        if not self.same_weights([graph.nodes[at]._at for at in self.compiled.weights]):
            return False
        return self.owner is not None and self.owner() is graph and self._unused(1)

    def _unused(self, handed: int) -> bool:
        """Whether each value has no more references than a run has itself, and so many of nodes."""
        most, memory, changed = _HELD + handed, _HELD_MEMORY, False
        for tensor, spec in self._prepared().values:
            allocation = tensor.allocation
            if getrefcount(tensor) > most or getrefcount(allocation) > memory:
                return False
            if tensor.spec is not spec or type(allocation) is not Lent:
                changed = True
        if changed:  # who had a value has given it other dims or memory
            del tensor, allocation
            self._lend()
        return True

    def _lend(self) -> None:
        """Make tensors of the values anew, of the same memory."""
        for name in self._handed:
            own: Any = self.scope.var(name).tensor
            lent = self.lent[name] = Tensor.on(self.compiled.dev, self.compiled.state[name])
            lent.allocation = Lent(own.allocation)
        self._lists = None

    def _prepared(self) -> _Lists:
        """What is looked at in each run, as lists."""
        found = self._lists
        if found is None:
            lent, compiled = self.lent, self.compiled
            found = self._lists = _Lists(
                [(lent[name], compiled.state[name]) for name in self._handed],
                [
                    (at, lent[name] if name is not None else None, [lent[each] for each in saved])
                    for at, name, saved in compiled.operators
                ],
                [(at, leaf, lent[name], name) for at, leaf, name in compiled.gradients],
            )
        return found

    def run_forward(self, graph: Graph) -> None:
        """Compute all values, and hand them to the nodes."""
        compiled, nodes = self.compiled, graph.nodes
        self.owner = ref(graph)
        if compiled.inplace:
            for node in nodes:
                node._over = None
        if compiled.draws:
            self._draw(nodes)
        feed = self._feed(nodes, compiled.feeds)
        compiled.executor.run(compiled.forward, feed=feed, fetch_list=_NONE, scope=self.scope)
        for at, tensor, saved in self._prepared().operators:
            node = nodes[at]
            node._forwarded = True
            if tensor is not None:
                held = node._at
                held._tensor, held._source = tensor, None
            if saved:
                node._saved = tuple(saved)  # type: ignore[attr-defined]
        if compiled.inplace:
            for node in nodes:
                if type(node) is OperatorNode and node._inplace >= 0:
                    node.end_overwritten()

    def _draw(self, nodes: Sequence[Node]) -> None:
        """Say what each operator draws with: numbers differ by node and by run."""
        for at, stream, own in self.compiled.draws:
            node = nodes[at]
            assert isinstance(node, OperatorNode)
            self.scope.drawn[stream] = node._seed, node._drawn, own
        for at in self.compiled.random:
            nodes[at]._drawn += 1  # type: ignore[attr-defined]

    def run_backward(self, graph: Graph, coefficient: float) -> None:
        """Compute all gradients, and add those of leaves to what they have."""
        compiled, nodes = self.compiled, graph.nodes
        if not self._untouched():
            self._renew_gradients(nodes)
        feed = self._feed(nodes, compiled.feeds_backward)
        feed["start"] = compiled.start(coefficient)
        compiled.executor.run(compiled.backward, feed=feed, fetch_list=_NONE, scope=self.scope)
        for at, leaf, tensor, _ in self._prepared().gradients:
            held = nodes[at]._at
            if leaf and (held._gradient is not None or held._graded is not None):
                nodes[at]._add_grad(tensor)
            else:
                held._gradient, held._graded = tensor, None
        if compiled.inplace:
            for node in nodes:
                if type(node) is OperatorNode and node._inplace >= 0:
                    node._passed = True

    def _untouched(self) -> bool:
        """Whether nobody has a gradient of the last run, or has changed one."""
        most, memory, specs = _HELD_GRADIENT, _HELD_MEMORY, self.compiled.state
        for _, _, tensor, name in self._prepared().gradients:
            allocation = tensor.allocation
            if getrefcount(tensor) > most or getrefcount(allocation) > memory:
                return False
            if tensor.spec is not specs[name] or type(allocation) is not Lent:
                return False
        return True

    def _renew_gradients(self, nodes: Sequence[Node]) -> None:
        """Give gradients that somebody has new memory, once the nodes of the last run have none."""
        for at, leaf, tensor, name in self._prepared().gradients:
            held = nodes[at]._at
            if held._gradient is tensor:  # what is there of a leaf is added to; of others, it begins anew
                held._gradient = tensor.copy_to(tensor.dev) if leaf else None
            allocation = tensor.allocation
            if (
                getrefcount(tensor) > _HELD_GRADIENT
                or getrefcount(allocation) > _HELD_MEMORY
                or tensor.spec is not self.compiled.state[name]
                or type(allocation) is not Lent
            ):
                self._renew(name)

    def holds(self, graph: Graph) -> bool:
        """Whether the nodes' values are those that it has computed."""
        if self.owner is None or self.owner() is not graph:
            return False
        nodes = graph.nodes
        for at, tensor, _ in self._prepared().operators:
            node = nodes[at]
            if not node._forwarded or (tensor is not None and node._at._tensor is not tensor):
                return False
        return True

    def let_go(self, graph: Graph) -> None:
        """Take the memory back from the nodes of a graph that is computed anew."""
        self.owner = None
        for node, name in zip(graph.nodes, self.compiled.values, strict=True):
            if node.leaf:
                continue
            if name is not None and node._at._value is self.lent[name]:
                node._at._value = None
            if not node._at.leaf:
                node._at._grad = None
            if isinstance(node, OperatorNode):
                node._saved = _NONE

    def _feed(self, nodes: Sequence[Node], feeds: Sequence[tuple[int, str]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for at, name in feeds:
            value = nodes[at]._at._tensor
            assert value is not None
            found[name] = value.native() if self.compiled.host else value
        return found


@dataclass
class _Lists:
    """What a run looks at each time.

    ``values``: what nodes get: values, and what is kept for gradients.
    ``operators``: of each node that is computed: its number, its value, unless that is overwritten, and what is kept
    for it.
    ``gradients``: of each node that gets one: its number, whether it is a leaf, its gradient, and what that is called.
    """

    values: list[tuple[Tensor, Spec]]
    operators: list[tuple[int, Tensor | None, list[Tensor]]]
    gradients: list[tuple[int, bool, Tensor, str]]


_NONE: tuple[Any, ...] = ()


def _held_counts() -> tuple[int, int, int]:
    """References to a value, to a gradient and to memory of a run that nobody else uses, as its methods see them."""

    class Memory:
        pass

    class Holder:
        __slots__ = ("allocation",)

    one: Any = Holder()
    one.allocation = Memory()
    lent = {"": one}
    lists = [(one, None)], [(0, one)]
    del one
    for tensor, _ in lists[0]:
        allocation = tensor.allocation
        value, memory = getrefcount(tensor), getrefcount(allocation)
    del tensor, lists
    gradients = [(0, False, lent[""], "")]
    for _, _, tensor, _ in gradients:
        gradient = getrefcount(tensor)
    return value, gradient, memory


_HELD, _HELD_GRADIENT, _HELD_MEMORY = _held_counts()
