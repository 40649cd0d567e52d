"""The operators that a computation needs, and their order.

Operators run in program order, so that reads and writes of state happen as written. ``sequential`` changes that order:
an operator that a part needs, and that no earlier part needs, runs after the reads and writes of the same state by
earlier parts.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Union

from fluidlite.base.errors import ProgramError
from fluidlite.base.reached import reached
from fluidlite.compiler.ir.node import SEQUENTIAL, WRITE
from fluidlite.program.block import Block
from fluidlite.program.edit import sub_blocks
from fluidlite.program.operator import EMPTY, Operator
from fluidlite.program.variable import Variable

Root = Union[Variable, Operator]


def read_names(op: Operator) -> list[str]:
    """Names that an operator and its sub-blocks read."""
    return _names(op, op.input_arg_names, read_names)


def written_names(op: Operator) -> list[str]:
    """Names that an operator and its sub-blocks write; of a write of state, the state variable."""
    return [op.attrs["state"]] if op.definition is WRITE else _names(op, op.output_arg_names, written_names)


def _names(op: Operator, own: Iterable[str], of: Callable[[Operator], list[str]]) -> list[str]:
    names = [name for name in own if name != EMPTY]
    for index in sub_blocks(op):
        inner = op.block.program.blocks[index]
        names += [name for each in inner.ops for name in of(each) if name not in inner.vars]
    return names


def dependency_names(value: Variable) -> set[str]:
    """Names from which a value is computed, its own included."""
    block = value.block
    order = OperatorOrder(block, [value], frozenset())
    return {value.name}.union(name for index in order.needs for name in read_names(block.ops[index]))


def topological_order(after: Mapping[int, Iterable[int]], numbers: Iterable[int]) -> list[int]:
    """Numbers in topological order, the smallest first of those that are ready; numbers on cycles are left out."""
    missing = dict.fromkeys(numbers, 0)
    for later in after.values():
        for each in later:
            missing[each] += 1
    ready = [each for each, count in missing.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for each in after.get(order[-1], ()):
            missing[each] -= 1
            if not missing[each]:
                heapq.heappush(ready, each)
    return order


class OperatorOrder:
    """The operators that roots need, by their indices in the block.

    ``arguments``: names of arguments; operators that compute them do not run.
    """

    def __init__(self, block: Block, roots: Iterable[Root], arguments: Set[str]) -> None:
        self.block = block
        self.arguments = arguments
        self.makers: dict[str, list[int]] = defaultdict(list)
        self.at = {id(op): index for index, op in enumerate(block.ops)}
        for index, op in enumerate(block.ops):
            for name in op.output_arg_names:
                self.makers[name].append(index)
        self.needs: dict[int, list[int]] = {}
        waiting = [index for root in roots for index in self._of_root(root)]
        while waiting:
            index = waiting.pop()
            if index in self.needs:
                continue
            names = read_names(block.ops[index])
            self.needs[index] = needed = sorted({i for name in names for i in self._makers(name, index)})
            waiting += needed

    def _of_root(self, root: Root) -> list[int]:
        if isinstance(root, Operator):
            if id(root) not in self.at:
                raise ProgramError(f"{root} is not in the global block; a computation runs what is there")
            return [self.at[id(root)]]
        return self._makers(root.name, len(self.block.ops))

    def _is_state(self, name: str) -> bool:
        variable = self.block.find_var(name)
        return variable is not None and variable.persistable

    def _makers(self, name: str, before: int) -> list[int]:
        """Indices of the operators before ``before`` that write a name; none for arguments and for state."""
        if name in self.arguments or self._is_state(name):
            return []
        return [index for index in self.makers.get(name, ()) if index < before]

    def ordered(self) -> list[Operator]:
        """The operators in the order in which they run.

        Raises ProgramError if ``sequential`` asks for two orders that contradict each other.
        """
        after: dict[int, set[int]] = defaultdict(set)
        for index, needed in self.needs.items():
            for earlier in needed:
                after[earlier].add(index)
        self._order_rewrites(after)
        for index in self.needs:
            if self.block.ops[index].definition is SEQUENTIAL:
                self._sequence(index, after)
        order = topological_order(after, self.needs)
        if len(order) != len(self.needs):
            cyclic = [self.block.ops[i] for i in self.needs if i not in order]
            first = next((op for op in cyclic if op.definition is SEQUENTIAL), cyclic[0])
            raise ProgramError(
                f"{first}: the orders that sequential asks for contradict each other; one part runs once"
                "\n  Do: make the part again where it is to run again"
            )
        return [self.block.ops[index] for index in order]

    def _order_rewrites(self, after: dict[int, set[int]]) -> None:
        """Keep program order between the readers and writers of values that several operators write."""
        accesses: dict[str, list[tuple[int, bool]]] = defaultdict(list)
        rewritten = {name for name, indices in self.makers.items() if len(indices) > 1 and not self._is_state(name)}
        for index in sorted(self.needs):
            op = self.block.ops[index]
            for name in rewritten.intersection((*read_names(op), *op.output_arg_names)):
                accesses[name].append((index, name in op.output_arg_names))
        for uses in accesses.values():
            for n, (index, writing) in enumerate(uses):
                for earlier, written in uses[:n]:
                    if (written or writing) and earlier != index:
                        after[earlier].add(index)

    def _sequence(self, index: int, after: dict[int, set[int]]) -> None:
        """Order the operators of each part after accesses to the same state by earlier parts."""
        ordered: set[int] = set()
        readers: dict[str, set[int]] = defaultdict(set)
        writers: dict[str, set[int]] = defaultdict(set)
        for name in self.block.ops[index].inputs["X"]:
            part_ops = reached(self._makers(name, index), self.needs.__getitem__) - ordered
            for number in part_ops:
                op = self.block.ops[number]
                for read in read_names(op):
                    for earlier in writers.get(read, ()):
                        after[earlier].add(number)
                for written in written_names(op):
                    for earlier in (*readers.get(written, ()), *writers.get(written, ())):
                        after[earlier].add(number)
            for number in part_ops:
                op = self.block.ops[number]
                for read in read_names(op):
                    readers[read].add(number)
                for written in written_names(op):
                    writers[written].add(number)
            ordered |= part_ops
