"""Lowers the results of a computation to a program: the operators that they need, in order, with plain assignments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fluidlite.base.errors import ProgramError
from fluidlite.compiler.ir.node import DERIVES, SEQUENTIAL, WRITE, Action, Node
from fluidlite.compiler.ir.order import OperatorOrder, Root, read_names, written_names
from fluidlite.program.block import Block
from fluidlite.program.edit import copy_variable, sub_blocks
from fluidlite.program.operator import Operator
from fluidlite.program.program import Program
from fluidlite.program.registry import ops
from fluidlite.program.variable import Variable


@dataclass
class Lowered:
    """The program of a computation.

    ``names``: the variable of each result; None for an action.
    ``state``: the persistable variables that it reads or writes, as the user's program declares them.
    ``unset``: the state that it reads before it writes it.
    """

    program: Program
    names: list[str | None]
    state: list[Variable]
    unset: list[str]


def lower(block: Block, roots: Sequence[Root], arguments: Sequence[Variable], seed: int | None) -> Lowered:
    """Make the program of a computation; the user's program is not changed.

    Raises ProgramError if a placeholder is used that is no argument, a temporary is read before it is assigned, or the
    orders of ``sequential`` contradict each other.
    """
    names = {variable.name for variable in arguments if not variable.persistable}
    ordered = OperatorOrder(block, roots, names).ordered()
    lowering = _Lowering(block, ordered, names, seed)
    lowering.operators()
    return lowering.finish(roots)


class _Lowering:
    """Builds the program of a computation."""

    def __init__(self, block: Block, ordered: Sequence[Operator], arguments: set[str], seed: int | None) -> None:
        self.block = block
        self.ordered = ordered
        self.arguments = arguments
        self.alias: dict[str, str] = {}
        self.defined = set(arguments)
        self.unset: list[str] = []
        self.program = Program()
        self.program._random_seed = block.program.random_seed if seed is None else seed
        self.out = self.program.global_block()
        self.last_write = {name: i for i, op in enumerate(ordered) for name in written_names(op)}
        self.snapshots = _overwritten_state(block, ordered)

    def operators(self) -> None:
        """Copy the operators; ``write_state`` becomes ``assign``, ``sequential`` an alias or a snapshot."""
        if any(sub_blocks(op) for op in self.ordered):
            self._copy_blocks()
        for index, op in enumerate(self.ordered):
            if op.definition is SEQUENTIAL:
                self._sequential(op, index)
                continue
            for name in dict.fromkeys(read_names(op)):
                self._check_defined(self.alias.get(name, name), str(op))
                if (op.id, name) in self.snapshots:
                    self._take_snapshot(op, name)
            if op.definition is WRITE:
                self._assign(op, op.attrs["state"], op.inputs["X"][0])
            else:
                forward = op.hints.get(DERIVES)
                ins = {
                    slot: [
                        self._snapshot_name(forward, n) if (forward, n) in self.snapshots else self.alias.get(n, n)
                        for n in names
                    ]
                    for slot, names in op.inputs.items()
                }
                self._emit(op, ins)

    def _emit(self, op: Operator, ins: dict[str, list[str]]) -> None:
        copied = op._near(self.out, op.definition, ins, op.outputs, op.attrs, op.hints)
        self._declare((*copied.input_arg_names, *copied.output_arg_names))
        self.out.ops.append(copied)
        self.defined.update(written_names(copied))

    def _assign(self, op: Operator, target: str, source: str) -> None:
        source = self.alias.get(source, source)
        self._declare((source, target))
        self.out.ops.append(op._near(self.out, ops.get("assign"), {"X": [source]}, {"Out": [target]}, {}, {}))
        self.defined.add(target)

    def _sequential(self, op: Operator, index: int) -> None:
        """Alias the result to that of the last part; copy it if a later operator overwrites that value."""
        out, last = op.outputs["Out"][0], op.inputs["X"][-1]
        if isinstance(self.block.var(last), Action):
            return
        last = self.alias.get(last, last)
        self._check_defined(last, str(op))
        if self.last_write.get(last, -1) > index or len(self.program.blocks) > 1:  # sub-blocks read it by its own name
            self._assign(op, out, last)
        else:
            self.alias[out] = last

    def _take_snapshot(self, op: Operator, name: str) -> None:
        """Copy the state that an operator reads, for its gradient operator."""
        snapshot = self._snapshot_name(op.id, name)
        spec = self.block.var(name).spec
        self.out.vars[snapshot] = Variable(self.out, snapshot, spec, stop_gradient=True)
        self._assign(op, snapshot, name)

    @staticmethod
    def _snapshot_name(id: int | None, name: str) -> str:
        return f"{name}@{id}"

    def _check_defined(self, name: str, what: str) -> None:
        """Check that a name has a value here; record state that is read before it is written."""
        variable = self.block.find_var(name)
        if name in self.defined or variable is None:
            return
        if variable.persistable:
            if name not in self.unset:
                self.unset.append(name)
            return
        if variable.is_data:
            raise ProgramError(
                f"{what} needs placeholder {name!r}, which is not among the computation's arguments"
                "\n  Do: transformer.computation(results, ..., placeholder)"
            )
        raise ProgramError(f"{what} reads {name!r} before it is assigned\n  Do: ng.sequential([ng.assign(...), ...])")

    def _declare(self, names: Sequence[str]) -> None:
        for name in names:
            variable = self.block.find_var(name)
            if variable is None or name in self.out.vars:
                continue
            duplicate = copy_variable(variable, self.out)
            if isinstance(duplicate, Node):  # only the transformer can set a constant
                duplicate.fixed = duplicate.persistable and not duplicate.is_input
            if name in self.arguments:
                duplicate.is_data = True
            self.out.vars[name] = duplicate

    def _copy_blocks(self) -> None:
        """Copy sub-blocks, and declare the variables of the outer block that they use."""
        clone = self.block.program.clone()
        for duplicate in clone.blocks[1:]:
            duplicate.program = self.program
            self.program.blocks.append(duplicate)
            self._declare(
                [
                    n
                    for op in duplicate.ops
                    for n in (*op.input_arg_names, *op.output_arg_names)
                    if n not in duplicate.vars
                ]
            )

    def finish(self, roots: Sequence[Root]) -> Lowered:
        """Return the program with the variables of its results."""
        names: list[str | None] = []
        for root in roots:
            if isinstance(root, (Operator, Action)):
                names.append(None)
                continue
            name = self.alias.get(root.name, root.name)
            self._check_defined(name, "the result")
            self._declare((name,))
            names.append(name)
        state = [self.block.var(name) for name, duplicate in self.out.vars.items() if duplicate.persistable]
        return Lowered(self.program, names, state, self.unset)


def _overwritten_state(block: Block, ordered: Sequence[Operator]) -> set[tuple[int, str]]:
    """State, by the id of its reader, that is overwritten before the reader's gradient operator reads it again."""
    positions = {op.id: index for index, op in enumerate(ordered)}
    written: dict[str, list[int]] = {}
    overwritten = set()
    for op in ordered:
        forward = op.hints.get(DERIVES)
        if forward in positions:
            source = set(read_names(ordered[positions[forward]]))
            for name in read_names(op):
                if name in source and any(index >= positions[forward] for index in written.get(name, ())):
                    overwritten.add((forward, name))
        for name in written_names(op):
            variable = block.find_var(name)
            if op.definition is WRITE or (variable is not None and variable.persistable):
                written.setdefault(name, []).append(positions[op.id])
    return overwritten
