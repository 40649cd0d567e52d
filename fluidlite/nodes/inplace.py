"""In-place proofs: whether a node may write its value and gradient over those of an input.

The gradient operators tell which values a gradient reads. A node that writes over an input overwrites every value in
that input's buffer. So nothing may read one of them later: not the gradient of the node, nor that of the input, nor
another consumer. Both gradients share a buffer too, so the input may have no other consumer, which would add to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fluidlite.base.errors import NodeError
from fluidlite.nodes.node import Node
from fluidlite.nodes.operator_node import OperatorNode

MODES = ("asked", "auto", "copy")  # values of Graph's argument inplace, besides False


class InPlaceError(NodeError):
    """A node requests to write over an input that the gradient, or another reader, reads later."""


@dataclass(frozen=True)
class Refusal:
    """Why a node does not write over an input.

    ``node``, ``other``: the node that would write, and the node that prevents it.
    ``slot``: the value that would be read after it is overwritten, such as ``"the value of Sigmoid"``.
    """

    node: Node
    other: Node
    slot: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.node} cannot write over {self.other}: {self.reason} (slot {self.slot})"
            f"\n  Do: use {self.node.name().removeprefix('InPlace')}, or Graph(sink, inplace='copy')"
        )


@dataclass
class InPlaceReport:
    """Which nodes of a graph write in place.

    Attributes
    ----------
    chosen : list of (Node, Node)
        Each node that writes in place, and the input over which it writes.
    refused : list of Refusal
        Nodes that requested it, or that "auto" tried, and why they do not.
    value_bytes, gradient_bytes : int
        Bytes of all nodes except leaves, without in-place writing.
    saved_value_bytes, saved_gradient_bytes : int
    """

    chosen: list[tuple[Node, Node]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    value_bytes: int = 0
    gradient_bytes: int = 0
    saved_value_bytes: int = 0
    saved_gradient_bytes: int = 0

    @property
    def saved_bytes(self) -> int:
        """Bytes of values and gradients that need no separate memory."""
        return self.saved_value_bytes + self.saved_gradient_bytes

    @property
    def saved_share(self) -> float:
        """The saved fraction of the bytes of all values, 0 to 1."""
        return self.saved_value_bytes / self.value_bytes if self.value_bytes else 0.0

    def __str__(self) -> str:
        lines = [
            f"{len(self.chosen)} nodes write in place: values take {self.value_bytes - self.saved_value_bytes:,} bytes "
            f"instead of {self.value_bytes:,}, gradients {self.gradient_bytes - self.saved_gradient_bytes:,} instead "
            f"of {self.gradient_bytes:,}"
        ]
        lines += [f"  {node} over {over}" for node, over in self.chosen]
        lines += [f"  not {each.node} over {each.other}: {each.reason}" for each in self.refused]
        return "\n".join(lines)


def choose_in_place(nodes: Sequence[Node], mode: str | bool) -> InPlaceReport:
    """Set which nodes of a graph write in place. Those that go on writing over the same nodes keep their values.

    Raises InPlaceError: in mode "asked", if a node requests it where it is not safe; none writes in place then.
    """
    before = {id(node): _State(node) for node in nodes if isinstance(node, OperatorNode) and node._inplace >= 0}
    for state in before.values():
        state.node.set_inplace(-1)
    proof = _Proof(nodes)
    try:
        choices = _choices(proof, nodes, mode)
    except InPlaceError:
        for state in before.values():
            state.drop()
        raise
    unchanged = {
        id(node) for node, at, over in choices if id(node) in before and before[id(node)].is_unchanged(at, over)
    }
    for key, state in reversed(before.items()):  # what one drops may have written over another itself
        if key not in unchanged:
            unchanged -= state.drop()
    for node, at, overwritten_nodes in choices:
        node.set_inplace(at, overwritten_nodes)
        if id(node) in unchanged:
            before[id(node)].restore()
    return proof.report


def _choices(
    proof: _Proof, nodes: Sequence[Node], mode: str | bool
) -> list[tuple[OperatorNode, int, tuple[Node, ...]]]:
    """The nodes that write in place, each with the number of the input, and the nodes whose values it overwrites."""
    report = proof.report
    choices: list[tuple[OperatorNode, int, tuple[Node, ...]]] = []
    for node in nodes:
        if not isinstance(node, OperatorNode) or not node.kind.inplace or mode is False:
            continue
        candidates = node.kind.inplace[:1] if node._requests_inplace else node.kind.inplace if mode == "auto" else ()
        refusals = []
        for at in candidates:
            refusal = proof.refusal(node, at)
            if refusal is None:
                choices.append((node, at, proof.join(node, at)))
                break
            refusals.append(refusal)
        else:
            report.refused += refusals
            if node._requests_inplace and mode == "asked":
                raise InPlaceError(str(refusals[0]))
    return choices


class _State:
    """What a node that writes in place has computed and overwritten."""

    def __init__(self, node: OperatorNode) -> None:
        self.node = node
        self._input, self._overwritten = node._inplace, node._overwritten_nodes
        self._values = node._at, node._forwarded, node._gradient_moved

    def is_unchanged(self, at: int, overwritten: Sequence[Node]) -> bool:
        """Whether it stays computed: it was, and writes over the same nodes again."""
        return self._values[1] and at == self._input and list(map(id, overwritten)) == list(map(id, self._overwritten))

    def restore(self) -> None:
        node = self.node
        node._at, node._forwarded, node._gradient_moved = self._values

    def drop(self) -> set[int]:
        """Let what it has overwritten be computed again; return the ids of these nodes."""
        dropped = [each for each in self._overwritten if each._overwriter is self.node._wrote]
        for each in dropped:  # a node of another graph has written over the others since
            each.reset_forwarded()
        return set(map(id, dropped))


def leave_overwritten(nodes: Sequence[Node]) -> None:
    """Give storage of their own to nodes of a graph that nodes of other graphs have overwritten: those keep theirs."""
    overwritten = [node for node in nodes if node._overwriter is not None]
    if not overwritten:
        return
    operators = [node for node in nodes if isinstance(node, OperatorNode)]
    own = {id(node._wrote) for node in operators}
    lost = {id(node._at) for node in overwritten if id(node._overwriter) not in own}
    for node in operators:
        if id(node._at) in lost:
            node.leave_storage()


class _Proof:
    """The buffers of a graph, updated as nodes are chosen in order."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.position = {id(node): at for at, node in enumerate(nodes)}
        self.readers: dict[int, list[tuple[Node, int]]] = {id(node): [] for node in nodes}
        for node in nodes:
            for at, item in enumerate(node._inputs):
                self.readers[id(item)].append((node, at))
        self.buffer: dict[int, list[Node]] = {}
        self.overwritten: set[int] = set()
        """Nodes whose values are overwritten."""
        self.report = InPlaceReport()
        for node in nodes:
            shared = shared_input(node)
            if shared is None:
                self.buffer[id(node)] = [node]
                spec = node._spec()
                if not node.leaf and spec is not None:
                    self.report.value_bytes += spec.nbytes
                    self.report.gradient_bytes += spec.nbytes if node._has_grad else 0
            else:
                members = self.buffer[id(shared)]
                members.append(node)
                self.buffer[id(node)] = members
        # tied leaves share one buffer
        ties: dict[int, list[Node]] = {}
        for node in nodes:
            if node.leaf:
                self.buffer[id(node)] = ties.setdefault(id(node._at), self.buffer[id(node)])

    def join(self, node: OperatorNode, at: int) -> tuple[Node, ...]:
        """Let a node write over an input. Returns the nodes whose values in its buffer are overwritten."""
        over = node._inputs[at]
        members = self.buffer[id(over)]
        overwritten_nodes = tuple(member for member in members if id(member) not in self.overwritten)
        self.overwritten |= {id(member) for member in members}
        own_members = self.buffer[id(node)]
        members += own_members
        for member in own_members:
            self.buffer[id(member)] = members
        self.report.chosen.append((node, over))
        spec = node._spec()
        if spec is not None:
            self.report.saved_value_bytes += spec.nbytes
            self.report.saved_gradient_bytes += spec.nbytes if node._has_grad else 0
        return overwritten_nodes

    def refusal(self, node: OperatorNode, at: int) -> Refusal | None:
        """Why a node may not write over an input, or None."""
        over = node._inputs[at]

        def refuse(slot: str, reason: str, other: Node = over) -> Refusal:
            return Refusal(node, other, slot, reason)

        node_spec, input_spec = node._spec(), over._spec()
        members = self.buffer[id(over)]
        leaf = next((member for member in members if member.leaf), None)
        if leaf is not None:
            return refuse(f"value of {leaf.name()}", f"{leaf} is a leaf, whose value outlives the graph", leaf)
        if node_spec is None or input_spec is None:
            return refuse("value", "its metadata are not known before it is computed")
        if (
            over._forwarded
            and not node._requests_inplace
            and (over._overwriter is None or over._overwriter is not node._wrote)
        ):
            return refuse(f"value of {over.name()}", "it was computed before this graph was made, and may be read")
        if node_spec.nbytes != input_spec.nbytes or node_spec.dtype != input_spec.dtype or node._dev is not over._dev:
            return refuse(
                "value", f"its buffer of {input_spec!r} on {over._dev} does not fit {node_spec!r} on {node._dev}"
            )
        for position, item in enumerate(node._inputs):
            if position != at and self.buffer[id(item)] is members:
                return refuse(f"input {position}", f"input {position} of {node} lies in the same buffer")
        gradients = node._has_grad
        if gradients and node._reads()[0][at]:
            return refuse(f"input {at} of {node.name()}", f"the gradient of {node} itself reads this input's value")
        for member in members:
            if id(member) in self.overwritten:
                continue
            if member._has_grad and not member.shares_value and member._reads()[1]:
                return refuse(f"value of {member.name()}", f"the gradient of {member} reads its own value", member)
            for reader, position in self.readers[id(member)]:
                if reader is node or (shared_input(reader) is member and reader in members):
                    continue
                slot = f"input {position} of {reader.name()}"
                if member is over or member._at is over._at or reader.shares_value:
                    return refuse(slot, f"{reader} reads it too")
                if self.position[id(reader)] > self.position[id(node)]:
                    return refuse(slot, f"{reader} reads the buffer later", member)
                if reader._has_grad and reader._reads()[0][position]:
                    return refuse(slot, f"the gradient of {reader} reads the buffer", member)
        return None


def shared_input(node: Node) -> Node | None:
    """The input whose memory a node's value aliases without writing in place, or None."""
    if node.shares_value and node._inputs:
        return node._inputs[0]
    if isinstance(node, OperatorNode) and node._program is not None:
        shared = node._program.forward.shares[0]
        return node._inputs[shared] if shared >= 0 else None
    return None
