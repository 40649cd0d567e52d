"""Buffer reuse for array calls of NumPy: an elementwise call writes to the array of a tensor that is no longer read.

A new array of a large tensor is slower: its pages are in no cache, and the operating system must map them first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from fluidlite.expr.tensor import Tensor

_FRESH = frozenset({"map", "cast", "reduce", "arg", "contract", "iota"})
"""Primitives that allocate a new array; the result of others may alias an operand."""


class Buffers:
    """Live ranges of arrays: which one is free when a tensor is computed.

    ``order``: the tensors in the order of computation.
    ``users``: the readers of each tensor; None: it is a result.
    ``results``: the results in the order in which they are stored, at the end.
    ``late``: tensors that are computed when a result is stored, with the number of that result.
    ``within``: tensors that their readers compute, and that have no array.
    """

    def __init__(
        self,
        order: Sequence[Tensor],
        users: Mapping[Tensor, Sequence[Tensor | None]],
        results: Sequence[Tensor],
        late: Mapping[Tensor, int],
        within: Collection[Tensor],
    ) -> None:
        self._end: dict[Tensor, int] = {}
        self._free: dict[tuple[tuple[str, ...], str], list[_Free]] = {}
        self._borrowed: dict[Tensor, _Free] = {}
        self._own_output: dict[Tensor, str] = {}
        self._final = len(order) + len(results)
        self._start = {x: len(order) + late[x] if x in late else k for k, x in enumerate(order)}
        stored = {x: len(order) + k for k, x in enumerate(results)}
        lasts: dict[Tensor, int] = {}  # when a tensor last reads its operands; an alias reads them until its own end
        for x in reversed(order):
            at, end = self._start[x], 0
            for user in users.get(x, ()):
                end = max(end, lasts[user] if user is not None else stored.get(x, 0))
            self._end[x] = end
            lasts[x] = at if x not in within and _fresh(x) else max(at, end)

    def lend(self, result: Tensor, name: str, late: bool) -> None:
        """Offer the memory of an elementwise result to other tensors until the result is computed."""
        self._free.setdefault((result.sizes, result.dtype), []).append(_Free(name, 0, self._start[result], name))
        if not late:
            self._own_output[result] = name

    def take(self, x: Tensor, names: Collection[str]) -> str | None:
        """Take a free array with the dims and the dtype of a tensor; return its name, or None.

        A result prefers its own output, other tensors the array of an operand.
        """
        free = self._free.get((x.sizes, x.dtype), [])
        if x in self._own_output:
            own_array = next((each for each in free if each.lender == self._own_output[x]), None)
            if own_array is not None and own_array.since <= self._start[x]:
                free.remove(own_array)
                return own_array.name
            del self._own_output[x]
        candidates = [each for each in free if each.since <= self._start[x] and self._end[x] <= each.until]
        if not candidates:
            return None
        chosen = ([each for each in candidates if each.name in names] or candidates[-1:])[0]
        free.remove(chosen)
        self._borrowed[x] = chosen
        return chosen.name

    def assign(self, x: Tensor, name: str) -> None:
        """Record that a tensor has an array of its own of that name."""
        if x not in self._own_output:  # else it is a result
            array = self._borrowed.pop(x, _Free(name, 0, self._final))
            self._free.setdefault((x.sizes, x.dtype), []).append(array._replace(name=name, since=self._end[x]))


class _Free(NamedTuple):
    """An array: when its last read is, until when it may be written, and the output whose memory it has."""

    name: str
    since: int
    until: int
    lender: str = ""


def operands_below(tensors: Collection[Tensor], within: Collection[Tensor] = ()) -> set[str]:
    """The input slots whose arrays the tensors may alias; the operands of a tensor of ``within`` count, too."""
    slots: set[str] = set()
    for x in tensors:
        if x.op == "input":
            slots.add(x.params[0])
        elif not _fresh(x) or x in within:
            slots |= operands_below(x.args, within)
    return slots


def _fresh(x: Tensor) -> bool:
    """Whether a tensor has a new array; a reduction of one-element windows may be a view of the operand."""
    return x.op in _FRESH and not (x.op == "reduce" and x.args[0].op == "window")
