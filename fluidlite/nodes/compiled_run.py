"""CompiledRun: the memory in which the programs of a graph run; its nodes share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import ref

from fluidlite.nodes.lent import LentAllocation
from fluidlite.nodes.node import Node, ValueStorage
from fluidlite.nodes.operator_node import OperatorNode, left_count
from fluidlite.nodes.tensor import Tensor
from fluidlite.program.scope import Scope
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.nodes.compiled import CompiledGraph
    from fluidlite.nodes.graph import Graph


class _NodeSeedScope(Scope):
    """A scope in which each random operator uses the seed and run number of its node, as in node-by-node runs."""

    def __init__(self) -> None:
        super().__init__()
        self.random_keys: dict[int, tuple[int, int, int]] = {}

    def draw(self, key: int, stream: int, seed: int) -> tuple[int, int, int]:
        return self.random_keys[stream]


class CompiledRun:
    """A scope in which the programs of a structure run: the memory of one graph's values and gradients."""

    def __init__(self, compiled: CompiledGraph, weights: Sequence[ValueStorage]) -> None:
        self.compiled = compiled
        self.scope = _NodeSeedScope()
        self.scope.private = frozenset(compiled.state)
        self.owner: Any = None
        self._left_count = 0
        self.lent: dict[str, Tensor] = {}
        self._lists: _RunLists | None = None
        for name in compiled.state:
            self._allocate(name)
        self._weight_tensors: list[Tensor | None] = [storage._tensor for storage in weights]
        for at, tensor in zip(compiled.weights, self._weight_tensors, strict=True):
            assert tensor is not None
            self.scope.var(f"leaf{at}").tensor = tensor
        weak_self = ref(self)

        def forget(_: Any) -> None:
            run = weak_self()
            if run is not None:
                run.compiled.forget(run)

        self._weights = [ref(storage, forget) for storage in weights]
        self._value_names = [name for name in compiled.state if not name.startswith(("grad", "like"))]

    def _allocate(self, name: str) -> None:
        """Allocate new memory for a value; the old memory lives as long as it is referenced."""
        dev, spec = self.compiled.dev, self.compiled.state[name]
        own_tensor, lent_tensor = Tensor.on(dev, spec), Tensor.on(dev, spec)
        own_tensor.allocate(dev.context())
        assert own_tensor.allocation is not None
        lent_tensor.allocation = LentAllocation(own_tensor.allocation)
        self.lent[name] = lent_tensor
        self._lists = None
        self.scope.replace(name, own_tensor)

    def same_weights(self, weights: Sequence[ValueStorage]) -> bool:
        """Whether the run is bound to these weights and to their current tensors."""
        for weight, tensor, storage in zip(self._weights, self._weight_tensors, weights, strict=True):
            if weight() is not storage or tensor is not storage._tensor:
                return False
        return True

    def is_free(self) -> bool:
        """Whether no graph, node, tensor or array uses the memory of its values; used gradients are reallocated."""
        if self.owner is not None and self.owner() is not None:
            return False
        return self._is_unused(0)

    def can_rerun(self, graph: Graph) -> bool:
        """Whether the graph that ran last can run in the same memory: only its nodes use it."""
        nodes = graph.nodes
        if not self.same_weights([nodes[at]._at for at in self.compiled.weights]):
            return False
        if self.owner is None or self.owner() is not graph or not self._is_unused(1):
            return False
        if self._left_count == left_count[0]:
            return True
        return all([tensor is None or nodes[at]._at._tensor is tensor for at, tensor, _ in self._run_lists().operators])

    def _is_unused(self, node_references: int) -> bool:
        """Whether each value has at most the references of the run itself and ``node_references``."""
        max_references, max_memory_references, changed = _VALUE_REFERENCES + node_references, _MEMORY_REFERENCES, False
        for tensor, spec in self._run_lists().values:
            allocation = tensor.allocation
            if getrefcount(tensor) > max_references or getrefcount(allocation) > max_memory_references:
                return False
            if tensor.spec is not spec or type(allocation) is not LentAllocation:
                changed = True
        if changed:  # a user has changed the dims or the memory of a value
            del tensor, allocation
            self._renew_tensors()
        return True

    def _renew_tensors(self) -> None:
        """Replace the tensors of the values by new ones in the same memory."""
        for name in self._value_names:
            own_tensor: Any = self.scope.var(name).tensor
            lent_tensor = self.lent[name] = Tensor.on(self.compiled.dev, self.compiled.state[name])
            lent_tensor.allocation = LentAllocation(own_tensor.allocation)
        self._lists = None

    def _run_lists(self) -> _RunLists:
        """The lists that each run iterates over, built on first use."""
        lists = self._lists
        if lists is None:
            lent, compiled = self.lent, self.compiled
            lists = self._lists = _RunLists(
                [(lent[name], compiled.state[name]) for name in self._value_names],
                [
                    (at, lent[name] if name is not None else None, [lent[each] for each in saved])
                    for at, name, saved in compiled.operators
                ],
                [(at, leaf, lent[name], name) for at, leaf, name in compiled.gradients],
            )
        return lists

    def run_forward(self, graph: Graph) -> None:
        """Compute all values, and store them in the nodes."""
        compiled, nodes = self.compiled, graph.nodes
        is_first = self.owner is None or self.owner() is not graph
        self.owner = ref(graph)
        if compiled.inplace or is_first or self._left_count != left_count[0]:
            self._left_count = left_count[0]
            for node in nodes:
                node._overwriter = None
        if compiled.draws:
            self._draw(nodes)
        feed = self._feed(nodes, compiled.feeds)
        compiled.executor.run(compiled.forward, feed=feed, fetch_list=_EMPTY, scope=self.scope)
        written = (
            [node for node in nodes if type(node) is OperatorNode and node._inplace >= 0] if compiled.inplace else []
        )
        for writer in written:
            writer._at = writer._inputs[writer._inplace]._at  # which may have left the storage that they shared
        for at, tensor, saved in self._run_lists().operators:
            node = nodes[at]
            node._forwarded = True
            if tensor is not None:
                storage = node._at
                storage._tensor, storage._source = tensor, None
            if saved:
                node._saved = tuple(saved)  # type: ignore[attr-defined]
        for writer in written:
            writer.mark_overwritten()

    def _draw(self, nodes: Sequence[Node]) -> None:
        """Set the seed and run number of each random operator: numbers differ by node and by run."""
        for at, stream, node_stream in self.compiled.draws:
            node = nodes[at]
            assert isinstance(node, OperatorNode)
            self.scope.random_keys[stream] = node._seed, node._drawn, node_stream
        for at in self.compiled.random:
            nodes[at]._drawn += 1  # type: ignore[attr-defined]

    def run_backward(self, graph: Graph, coefficient: float) -> None:
        """Compute all gradients, and accumulate those of leaves."""
        compiled, nodes = self.compiled, graph.nodes
        if not self._gradients_unused():
            self._reallocate_gradients(nodes)
        feed = self._feed(nodes, compiled.feeds_backward)
        feed["start"] = compiled.start(coefficient)
        compiled.executor.run(compiled.backward, feed=feed, fetch_list=_EMPTY, scope=self.scope)
        for at, leaf, tensor, _ in self._run_lists().gradients:
            storage = nodes[at]._at
            if leaf and (storage._gradient is not None or storage._grad_source is not None):
                nodes[at]._add_grad(tensor)
            else:
                storage._gradient, storage._grad_source = tensor, None
        if compiled.inplace:
            for node in nodes:
                if type(node) is OperatorNode and node._inplace >= 0:
                    node._gradient_moved = True

    def _gradients_unused(self) -> bool:
        """Whether no user references, or has changed, a gradient of the last run."""
        max_references, max_memory_references, specs = _GRADIENT_REFERENCES, _MEMORY_REFERENCES, self.compiled.state
        for _, _, tensor, name in self._run_lists().gradients:
            allocation = tensor.allocation
            if getrefcount(tensor) > max_references or getrefcount(allocation) > max_memory_references:
                return False
            if tensor.spec is not specs[name] or type(allocation) is not LentAllocation:
                return False
        return True

    def _reallocate_gradients(self, nodes: Sequence[Node]) -> None:
        """Allocate new memory for gradients that are in use, after the nodes of the last run dropped theirs."""
        for at, leaf, tensor, name in self._run_lists().gradients:
            storage = nodes[at]._at
            if storage._gradient is tensor:  # a leaf accumulates, so its gradient is copied; others start from zero
                storage._gradient = tensor.copy_to(tensor.dev) if leaf else None
            allocation = tensor.allocation
            if (
                getrefcount(tensor) > _GRADIENT_REFERENCES
                or getrefcount(allocation) > _MEMORY_REFERENCES
                or tensor.spec is not self.compiled.state[name]
                or type(allocation) is not LentAllocation
            ):
                self._allocate(name)

    def owns_values(self, graph: Graph) -> bool:
        """Whether the nodes' values are those that this run has computed."""
        if self.owner is None or self.owner() is not graph:
            return False
        nodes = graph.nodes
        for at, tensor, _ in self._run_lists().operators:
            node = nodes[at]
            if not node._forwarded or (tensor is not None and node._at._tensor is not tensor):
                return False
        return True

    def release(self, graph: Graph) -> None:
        """Take the memory back from the nodes of a graph before it is recomputed."""
        self.owner = None
        for node, name in zip(graph.nodes, self.compiled.values, strict=True):
            if node.leaf or node._forwarded:  # it stays: another graph has computed it, or only other nodes were reset
                continue
            if name is not None and node._at._value is self.lent[name]:
                node._at._value = None
            if not node._at.leaf:
                node._at._grad = None
            if isinstance(node, OperatorNode):
                node._saved = _EMPTY

    def _feed(self, nodes: Sequence[Node], feeds: Sequence[tuple[int, str]]) -> dict[str, Any]:
        feed: dict[str, Any] = {}
        for at, name in feeds:
            value = nodes[at]._at._tensor
            assert value is not None
            feed[name] = value.native() if self.compiled.host else value
        return feed


@dataclass
class _RunLists:
    """The lists that each run iterates over.

    ``values``: tensors and specs of values, and of values saved for gradients.
    ``operators``: for each computed node its number, its value (None if it is overwritten) and its saved tensors.
    ``gradients``: for each node that has one its number, whether it is a leaf, its gradient and the variable's name.
    """

    values: list[tuple[Tensor, Spec]]
    operators: list[tuple[int, Tensor | None, list[Tensor]]]
    gradients: list[tuple[int, bool, Tensor, str]]


_EMPTY: tuple[Any, ...] = ()


def _reference_counts() -> tuple[int, int, int]:
    """Reference counts of an unused run's value, gradient and memory, as getrefcount returns them in its methods."""

    class Memory:
        pass

    class Holder:
        __slots__ = ("allocation",)

    holder: Any = Holder()
    holder.allocation = Memory()
    lent = {"": holder}
    lists = [(holder, None)], [(0, holder)]
    del holder
    for tensor, _ in lists[0]:
        allocation = tensor.allocation
        value, memory = getrefcount(tensor), getrefcount(allocation)
    del tensor, lists
    gradients = [(0, False, lent[""], "")]
    for _, _, tensor, _ in gradients:
        gradient = getrefcount(tensor)
    return value, gradient, memory


_VALUE_REFERENCES, _GRADIENT_REFERENCES, _MEMORY_REFERENCES = _reference_counts()  # compared with getrefcount
