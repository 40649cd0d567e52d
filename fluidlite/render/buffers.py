"""Memory that array calls of NumPy write anew: what held a tensor that nobody reads any more.

A new array of a large tensor is memory that lies in no cache, which the system has to bring first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from fluidlite.expr.tensor import Tensor

_FRESH = frozenset({"map", "cast", "reduce", "arg", "contract", "iota"})
"""What makes a new array; of others the array may be that of an operand."""


class Buffers:
    """Which array is free when a tensor is computed.

    ``order``: as they are computed.
    ``users``: by tensor, those that read it; None: it is a result.
    ``results``: as they are stored, in the end.
    ``late``: what is computed where a result is stored: as which of them.
    ``within``: what is computed by who reads it, and has no array.
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
        self._taken: dict[Tensor, _Free] = {}
        self._own: dict[Tensor, str] = {}
        self._last = len(order) + len(results)
        self._at = {x: len(order) + late[x] if x in late else k for k, x in enumerate(order)}
        stored = {x: len(order) + k for k, x in enumerate(results)}
        lasts: dict[Tensor, int] = {}  # how long it reads its operands: to the end of an array that may be theirs
        for x in reversed(order):
            at, end = self._at[x], 0
            for user in users.get(x, ()):
                end = max(end, lasts[user] if user is not None else stored.get(x, 0))
            self._end[x] = end
            lasts[x] = at if x not in within and _fresh(x) else max(at, end)

    def lend(self, result: Tensor, name: str, late: bool) -> None:
        """Use the memory of a result, which an elementwise tensor gives, until that is computed."""
        self._free.setdefault((result.sizes, result.dtype), []).append(_Free(name, 0, self._at[result], name))
        if not late:
            self._own[result] = name

    def take(self, x: Tensor, names: Collection[str]) -> str | None:
        """The name of an array of the dims and the dtype of a tensor that it may take, or None.

        A result's own comes first, then that of an operand.
        """
        free = self._free.get((x.sizes, x.dtype), [])
        if x in self._own:
            mine = next((each for each in free if each.lent == self._own[x]), None)
            if mine is not None and mine.since <= self._at[x]:
                free.remove(mine)
                return mine.name
            del self._own[x]
        found = [each for each in free if each.since <= self._at[x] and self._end[x] <= each.until]
        if not found:
            return None
        chosen = ([each for each in found if each.name in names] or found[-1:])[0]
        free.remove(chosen)
        self._taken[x] = chosen
        return chosen.name

    def assign(self, x: Tensor, name: str) -> None:
        """Note that a tensor has an array of that name, of its own."""
        if x not in self._own:  # else it is a result
            taken = self._taken.pop(x, _Free(name, 0, self._last))
            self._free.setdefault((x.sizes, x.dtype), []).append(taken._replace(name=name, since=self._end[x]))


class _Free(NamedTuple):
    """An array, from when on it is not read, until when it may be written, and which result's memory it is."""

    name: str
    since: int
    until: int
    lent: str = ""


def operands_below(tensors: Collection[Tensor], within: Collection[Tensor] = ()) -> set[str]:
    """The slots whose arrays those of tensors may be; who reads a tensor of ``within`` reads what that is made of."""
    found: set[str] = set()
    for x in tensors:
        if x.op == "input":
            found.add(x.params[0])
        elif not _fresh(x) or x in within:
            found |= operands_below(x.args, within)
    return found


def _fresh(x: Tensor) -> bool:
    """Whether a tensor has a new array; that of windows of one element is the operand's."""
    return x.op in _FRESH and not (x.op == "reduce" and x.args[0].op == "window")
