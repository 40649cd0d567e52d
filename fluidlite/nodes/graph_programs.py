"""Build the forward and the backward program of a graph of nodes from the programs of its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluidlite.compiler.planning.placement import random_stream
from fluidlite.nodes.leaves import Weight
from fluidlite.nodes.node import Node
from fluidlite.nodes.operator_node import OperatorNode
from fluidlite.program.operator import EMPTY, Operator
from fluidlite.program.program import Program, program_guard
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec


class GraphPrograms:
    """Builds both programs: copies the operators of the nodes in order, with variables renamed for the graph."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.forward, self.backward = Program(), Program()
        self.forward.repeated = self.backward.repeated = True
        self.state: dict[str, Spec] = {}
        self.values: list[str | None] = [None] * len(nodes)
        self.gradients: list[str | None] = [None] * len(nodes)
        self.saved: list[list[str]] = [[] for _ in nodes]
        self.feeds: list[int] = []
        self.weights: list[int] = []
        self.draws: list[tuple[int, int, int]] = []
        """For each random operator its node, its stream in this program, and its stream in the node's program."""
        self._names: list[str] = []
        self._renamed: list[dict[str, str]] = []
        self._leaves: dict[int, int] = {}
        self._declared: dict[str, tuple[Spec, bool, bool]] = {}
        self._outputs: set[str] = set()
        for at, node in enumerate(nodes):
            if node.leaf:
                self._leaf(at, node)
            else:
                assert isinstance(node, OperatorNode)
                self._names.append(f"value{at}")
                self._renamed.append({})
        last = {id(node._at): at for at, node in enumerate(nodes) if not node.leaf}
        for at in last.values():
            self._declare_state(self._names[at], nodes[at]._spec())
            self.values[at] = self._names[at]
        self._overwritten = {self._names[at] for at, node in enumerate(nodes) if last.get(id(node._at), at) != at}
        """Values that are overwritten in place and not read afterwards."""
        with program_guard(self.forward, Program()):
            for at, node in enumerate(nodes):
                if not node.leaf:
                    self._forward(at, node)
        self._outputs = set()
        with program_guard(self.backward, Program()):
            self._backward()

    def _leaf(self, at: int, node: Node) -> None:
        first = self._leaves.setdefault(id(node._at), at)
        name = f"leaf{first}"
        self._names.append(name)
        self._renamed.append({})
        if first != at:
            return
        spec = node._spec()
        assert spec is not None
        state = isinstance(node, Weight)
        self._declared[name] = spec, state, not state
        (self.weights if state else self.feeds).append(at)

    def _declare_state(self, name: str, spec: Spec | None) -> None:
        assert spec is not None
        self.state[name] = spec
        self._declared[name] = spec, True, False

    def _variable(self, program: Program, name: str, spec: Spec | None) -> None:
        block = program.global_block()
        if name in block.vars:
            return
        declared_spec, state, fed_leaves = self._declared.get(name, (spec, False, False))
        block.vars[name] = Variable(block, name, declared_spec, state, True, fed_leaves)

    def _copy(
        self, program: Program, at: int, operators: Sequence[Operator], names: Mapping[str, str], prefix: str
    ) -> dict[str, str]:
        """Append copies of operators with renamed variables; variables not in ``names`` get a name with the prefix."""
        new_names, prefix = dict(names), f"{prefix}{at}"
        block, line = program.global_block(), self.nodes[at].line

        def new_name_of(name: str) -> str:
            return name if name == EMPTY else new_names.setdefault(name, f"{prefix}.{name}")

        def read(op: Operator, slot: str, name: str) -> str:
            new_name = new_name_of(name)
            if name == EMPTY or new_name in self._declared or new_name in self._outputs:
                return new_name
            declared = op.definition.input(slot)
            assert new_name in self._overwritten or (declared is not None and declared.metadata_only), (op, slot, name)
            spec = op.block.var(name).spec
            assert spec is not None
            return self._metadata_variable(spec)  # its bytes are not read

        for op in operators:
            inputs = {slot: [read(op, slot, name) for name in each] for slot, each in op.inputs.items()}
            outputs = {slot: [new_name_of(name) for name in each] for slot, each in op.outputs.items()}
            for slots, old_slots in ((inputs, op.inputs), (outputs, op.outputs)):
                for slot, each in slots.items():
                    for name, old in zip(each, old_slots[slot], strict=True):
                        if name != EMPTY:
                            self._variable(program, name, op.block.var(old).spec)
            self._outputs.update(name for each in outputs.values() for name in each)
            copy = block.append_op(op.type, inputs, outputs, {**op.attrs, **op.hints})
            copy.line = line
            if op.definition.random:
                self.draws.append((at, random_stream(copy), random_stream(op)))
        return new_names

    def _metadata_variable(self, spec: Spec) -> str:
        """A variable of which only the metadata are read: an existing one of this spec if possible."""
        same_spec_names = (
            name
            for name, (other_spec, _, _) in self._declared.items()
            if other_spec is spec and not name.startswith("grad")
        )
        name = next(same_spec_names, None)
        if name is None:
            name = f"like{len(self._declared)}"
            self._declare_state(name, spec)
        return name

    def _forward(self, at: int, node: Node) -> None:
        assert isinstance(node, OperatorNode) and node._program is not None
        program = node._program
        names = {f"in{i}": self._names[item._position] for i, item in enumerate(node._inputs)}
        names[program.out] = self._names[at]
        for number, saved_name in enumerate(program.saved_names):
            name = names[saved_name] = f"kept{at}.{number}"
            self._declare_state(name, program.forward.specs[1 + number])
            self.saved[at].append(name)
        self._renamed[at] = self._copy(self.forward, at, program.forward_ops, names, "node")

    def _gradient_owner(self, node: Node) -> int:
        """The node that accumulates the gradient of an input: of tied leaves, the first."""
        return self._leaves[id(node._at)] if node.leaf else node._position

    def _parts(self) -> list[list[str]]:
        """The names of the partial gradients of each node, in the order in which they are computed."""
        nodes = self.nodes
        parts: list[list[str]] = [[] for _ in nodes]
        parts[-1].append("start")
        for at in range(len(nodes) - 1, -1, -1):
            node = nodes[at]
            if parts[at] and isinstance(node, OperatorNode) and node._program is not None:
                for target in node._program.targets:
                    parts[self._gradient_owner(node._inputs[target])].append(f"grad{at}.{target}")
        return parts

    def _backward(self) -> None:
        nodes = self.nodes
        spec = nodes[-1]._spec()
        assert spec is not None
        self._declared["start"] = spec, False, True
        first: dict[int, int] = {}
        for at, node in enumerate(nodes):
            first.setdefault(id(node._at), at)
        parts = self._parts()
        block = self.backward.global_block()
        gradient_names = [f"grad{at}" for at in range(len(nodes))]
        for at, node in enumerate(nodes):
            if parts[at] and first[id(node._at)] == at:
                self._declare_state(gradient_names[at], node._spec())
                self.gradients[at] = gradient_names[at]
        for at in range(len(nodes) - 1, -1, -1):
            node, node_parts = nodes[at], parts[at]
            if not node_parts:
                continue
            if len(node_parts) > 1 or node_parts[0] == "start":
                self._outputs.add(gradient_names[at])
                for name in (*node_parts, gradient_names[at]):
                    self._variable(self.backward, name, node._spec())
                block.append_op("sum", {"X": node_parts}, {"Out": [gradient_names[at]]}).line = node.line
            if not isinstance(node, OperatorNode):
                continue
            program = node._program
            assert program is not None
            names = {**self._renamed[at], "dout": gradient_names[at]}
            for target, name in zip(program.targets, program.gradient_names, strict=True):
                target_node = self._gradient_owner(node._inputs[target])
                names[name] = f"grad{at}.{target}" if len(parts[target_node]) > 1 else gradient_names[target_node]
            self._copy(self.backward, at, program.backward_ops, names, "back")


def fed_leaves(programs: GraphPrograms, program: Program) -> list[tuple[int, str]]:
    """The leaves that a program reads as feeds, with their names in it."""
    read = {name for op in program.global_block().ops for name in op.input_arg_names}
    return [(at, f"leaf{at}") for at in programs.feeds if f"leaf{at}" in read]
