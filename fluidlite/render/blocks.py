"""Expressions of which parts along an axis do not depend on each other are computed a block at a time.

Array calls write every tensor between the operands and the results to memory; in blocks it stays in the cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.expr.number import Number, number
from fluidlite.expr.tensor import Tensor, ordered
from fluidlite.expr.traced import Traced
from fluidlite.render.results import under_reshapes

MOST = 1 << 18
"""Elements of the largest tensor in a block."""
NARROW = 4
"""Where nothing that is written before results has more than that share of the bytes of the largest tensor, blocks save
nothing.
"""
RUN = 256
"""Elements of a block that lie side by side, at least: it may be cut out of the middle of arrays."""
Leaf = tuple[str, int]
"""Slot, and number within it."""


class Part(NamedTuple):
    """Where a tensor is cut: along which axis, and how many of its elements belong together."""

    axis: int
    factor: int = 1


class Sum(NamedTuple):
    """A result that is reduced along the axis that is cut: how, and the dtype of what blocks give."""

    kind: str
    dtype: str


class Blocks:
    """How an expression is computed in blocks along an axis, in calls of some sizes.

    ``operands``: by slot and number within it, where operands are cut of which a block of results takes a part; others
    are taken whole.
    ``results``: so too, where a block is a part of a result, or how those of the blocks are put together.
    ``size``, ``step``: the size of the axis, and how much of it makes a block.
    """

    def __init__(
        self,
        operands: Mapping[Leaf, Part],
        results: Mapping[Leaf, Part | Sum],
        values: Mapping[str, Any],
        size: int,
        step: int,
    ) -> None:
        self.operands, self.results, self.size, self.step = operands, results, size, step
        self._values = values

    def sizes(self, size: int) -> dict[str, Any]:
        """What the leaves of numbers are in a block."""
        cut = {f"{slot}.{i}.{part.axis}": size * part.factor for (slot, i), part in self.operands.items()}
        return {**self._values, **cut}


class _DependentError(Exception):
    """Parts depend on each other."""


def makes_large(traced: Traced, slots: Sequence[str], temporaries: Iterable[Tensor], values: Mapping[str, Any]) -> bool:
    """Whether of what array calls write before results something is large beside what they read and write."""
    order = ordered([x for slot in slots for x in traced.outputs[slot]])
    most = max(_bytes(x, values) for x in order)
    return any(_bytes(x, values) * NARROW > most for x in temporaries)


def largest(traced: Traced, values: Mapping[str, Any]) -> int:
    """The elements of the largest tensor of an expression: of at most :data:`MOST` one block has all."""
    kinds = {x.sizes: x.dims for x in traced.every}
    return max([prod([int(d.evaluate(values)) for d in dims]) for dims in kinds.values()], default=0)


def _bytes(x: Tensor, values: Mapping[str, Any]) -> int:
    return prod((ITEMSIZE[x.dtype], *(int(d.evaluate(values)) for d in x.dims)))


def blocks_of(
    traced: Traced, slots: Sequence[str], values: Mapping[str, Any], shared: Mapping[str, str] | None = None
) -> Blocks | None:
    """Return how the outputs of the slots are computed in blocks in a call of known sizes, or None.

    Of several axes the first serves: its parts lie side by side. ``shared``: for output slots the input slot whose
    memory they may have: a block must not write what another one reads.
    """
    results = {(slot, i): x for slot in slots for i, x in enumerate(traced.outputs[slot])}
    order = ordered(list(results.values()))
    leaves = {d.key: (x, k) for x in order if x.op == "input" for k, d in enumerate(x.dims)}
    tried: set[str] = set()
    for key, (x, k) in sorted(leaves.items(), key=lambda each: each[1][1]):
        if key not in tried and values[x.dims[k].value] > 1:
            axis = _Axis(results, order, leaves, values, key)
            try:
                axis.find()
                found = axis.blocks()
            except _DependentError:
                tried |= axis.keys.keys()
            else:
                return found if _apart(found, order, shared or {}) else None
    return None


def _apart(blocks: Blocks, order: Sequence[Tensor], shared: Mapping[str, str]) -> bool:
    """Whether of an operand whose memory a result may have a block reads no more than it writes."""
    read = {x.params for x in order if x.op == "input"}
    pairs = [((shared[slot], i), part) for (slot, i), part in blocks.results.items() if slot in shared]
    return all(isinstance(part, Sum) or leaf not in read or blocks.operands.get(leaf) == part for leaf, part in pairs)


class _Axis:
    """An axis that may be cut: the sizes that name it, and where tensors have it."""

    def __init__(
        self,
        results: Mapping[Leaf, Tensor],
        order: Sequence[Tensor],
        leaves: Mapping[str, tuple[Tensor, int]],
        values: Mapping[str, Any],
        key: str,
    ) -> None:
        self.results, self.order, self.leaves, self.values = results, order, leaves, values
        self.keys = {key: 1}  # names of the size, or of a multiple
        self.size: int = values[leaves[key][0].dims[leaves[key][1]].value]
        chains = {leaf: chain for leaf, x in results.items() if (chain := under_reshapes(x))[-1].op == "reduce"}
        self.ends = {leaf: Sum(chain[-1].params[0], chain[-1].dtype) for leaf, chain in chains.items()}
        self.last = {x for chain in chains.values() for x in chain}
        self.cut: dict[Tensor, Part] = {}
        self.summed: set[Tensor] = set()

    def find(self) -> None:
        """Find the axis of each tensor that has it, and the results that are reduced along it."""
        before = 0
        while before != (before := len(self.keys)):
            self.cut, self.summed = {}, set()
            for x in self.order:
                self._see(x)
        if not all(x in self.cut or x in self.summed for x in self.results.values()):
            raise _DependentError

    def _see(self, x: Tensor) -> None:
        parts = [Part(k, factor) for k, d in enumerate(x.dims) if (factor := self._factor(d))]
        if len(parts) > 1 or any(_reads(n, self.keys) for n in _numbers(x.params)):
            raise _DependentError
        if not parts:
            self._see_whole(x)
            return
        self.cut[x] = parts[0]
        aligned = self._aligned(x, parts[0].axis)
        for arg in x.args:
            if arg in self.summed or (arg in self.cut and self.cut[arg].axis != aligned.get(arg)):
                raise _DependentError
        for arg, axis in aligned.items():
            if arg not in self.cut:
                self._add(arg.dims[axis])
            elif x.op != "reshape" and self.cut[arg].factor != parts[0].factor:
                raise _DependentError

    def _factor(self, d: Number) -> int:
        """Which multiple of the size that is cut a number is; 0: it does not depend on that.

        Raises _DependentError if it does in another way.
        """
        if d.key in self.keys:
            return self.keys[d.key]
        if not _reads(d, self.keys):
            return 0
        factors = [self._factor(arg) for arg in d.args] if d.op == "mul" else []
        if 0 not in factors or not any(factors):
            raise _DependentError
        other = d.args[factors.index(0)].evaluate(self.values)
        return int(max(factors) * other) or self._factor(d.args[1 - factors.index(0)])

    def _see_whole(self, x: Tensor) -> None:
        """A tensor without the axis: reduced along it, in the end, or one that has it under another name."""
        having = [arg for arg in x.args if arg in self.cut]
        if having and x in self.last and x.op == "reduce" and self.cut[having[0]].axis in x.params[1]:
            self.summed.add(x)
        elif having:
            for axis, d in enumerate(x.dims):
                if d.op == "size" and self._aligned(x, axis).get(having[0]) == self.cut[having[0]].axis:
                    self._add(d)
                    return
            raise _DependentError
        elif any(arg in self.summed for arg in x.args):
            if x not in self.last or x.op != "reshape":  # what a block has of a sum is a part of it
                raise _DependentError
            self.summed.add(x)

    def _add(self, d: Number) -> None:
        """Another name of the size, or of a multiple."""
        found = self.values[d.value] if d.key in self.leaves else 0
        if not found or found % self.size:
            raise _DependentError
        self.keys = {**self.keys, d.key: found // self.size}

    def blocks(self) -> Blocks:
        """How much makes a block.

        Raises _DependentError if blocks would be of short lines, or if much would be computed anew in each.
        """
        most = max(self._elements(x.dims) // self.size for x in self.cut)
        step = max(1, MOST // max(most, 1))
        inside = [
            self._elements(x.dims[part.axis + 1 :]) * part.factor
            for x, part in self.cut.items()
            if self._elements(x.dims[: part.axis]) > 1
        ]
        again = [
            self._elements(x.dims)
            for x in self.order
            if x not in self.cut
            and x not in self.summed
            and x.op not in ("input", "number", "reshape", "broadcast", "transpose")
        ]
        if step < self.size and inside and max(inside) * step < min(RUN, MOST):
            raise _DependentError
        if step < self.size and 8 * max(again, default=0) > most * step:
            raise _DependentError
        operands = {x.params: part for x, part in self.cut.items() if x.op == "input"}
        results = {leaf: self.cut[x] if x in self.cut else self.ends[leaf] for leaf, x in self.results.items()}
        return Blocks(operands, results, self.values, self.size, step)

    def _elements(self, dims: Iterable[Number]) -> int:
        return prod(d.evaluate(self.values) for d in dims)

    def _aligned(self, x: Tensor, axis: int) -> dict[Tensor, int]:
        """The operands whose parts are those of a tensor, with their axis; the others have none of them."""
        first, *rest = x.params or (None,)
        if x.op == "input":
            return {}
        if x.op in ("map", "cast", "stop", "checked"):
            return {arg: axis for arg in x.args if arg.op != "number"}
        if x.op == "broadcast":
            return {} if axis in first else {x.args[0]: axis}
        if x.op == "reshape":
            return {x.args[0]: self._same_part(x, axis)}
        if x.op == "transpose":
            return {x.args[0]: first[axis]}
        if x.op == "slice" and first[axis].key == "0" and number(rest[0][axis]).key == "1":
            return {x.args[0]: axis}
        if x.op == "pad" and first[axis].key == rest[0][axis].key == "0" and number(rest[1][axis]).key == "0":
            return {x.args[0]: axis}
        if x.op == "iota" and first != axis:
            return {}
        if x.op == "reduce" and axis not in rest[0]:
            return {x.args[0]: axis}
        along = {"concat": 0, "arg": 1, "scan": 1, "recur": 0, "pick": 0, "put": 0}
        if x.op in along and x.params[along[x.op]] != axis:
            return dict.fromkeys(x.args, axis)
        if x.op == "window" and axis not in (first, first + 1):
            return {x.args[0]: axis if axis < first else axis - 1}
        if x.op == "unwindow" and axis != first:
            return {x.args[0]: axis if axis < first else axis + 1}
        if x.op == "take":
            rank = x.args[1].rank
            if first <= axis < first + rank:
                return {x.args[1]: axis - first}
            return {x.args[0]: axis if axis < first else axis - rank + 1}
        if x.op == "add_at" and axis < first:  # behind it, each block would add as many shorter parts
            return {x.args[0]: axis, **dict.fromkeys(x.args[2:], axis)}
        raise _DependentError

    def _same_part(self, x: Tensor, axis: int) -> int:
        """The axis of the operand of a reshape that is the same one: as much lies before it, and as much behind."""
        (arg,), before = x.args, self._elements(x.dims[:axis])
        found = [k for k in range(arg.rank) if self._elements(arg.dims[:k]) == before]
        same = [k for k in found if self._factor(arg.dims[k])] or [
            k for k in found if arg.dims[k].op == "size" and arg.dims[k].evaluate(self.values) != 1
        ]
        if not same:
            raise _DependentError
        return same[0]


def _numbers(params: Any) -> list[Number]:
    if isinstance(params, Number):
        return [params]
    return [n for each in params for n in _numbers(each)] if isinstance(params, tuple) else []


def _reads(n: Number, leaves: Collection[str]) -> bool:
    return n.key in leaves or any(_reads(arg, leaves) for arg in n.args)
