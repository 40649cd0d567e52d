"""A traced expression as array calls: Python source, one line a tensor.

The source is ``def compute(xp, F, H, context, io, N, K, a0, a1, ..., out0, out1, ...)``: ``H`` is
:mod:`array_functions`, ``N`` the numbers of the call (sizes, and what is computed of sizes and attributes), ``K`` a
list in which one call leaves to the next ones the arrays that are computed of ``N`` alone, ``a0`` ... what it reads,
``out0`` ... what it writes. What ends in a concatenation, a padding or other dims is written there part by part, not
made and then copied. On NumPy elementwise calls write where the result is to be, or where a tensor lay that is no
longer read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from fluidlite.expr.number import number as as_number
from fluidlite.expr.tensor import Tensor, ordered
from fluidlite.expr.traced import Traced
from fluidlite.render.array_calls import ARRAY_CALLS, ArrayCalls
from fluidlite.render.array_code import ArrayCode, array_names
from fluidlite.render.buffers import Buffers
from fluidlite.render.readers import (
    MADE_BY_READERS,
    computed_by_reader,
    in_sum,
    stored_at_once,
)
from fluidlite.render.results import (
    WRITING,
    maps_stored_at_once,
    not_overwritten,
    number_in,
    read_when_overwritten,
    stored_directly,
    stored_with,
    under_reshapes,
)

_NAME = re.compile(r"\b[vij]\d+\b")
_READER_MAKES = frozenset({"window", "put", "unwindow"})
"""What may be made where it is read."""


class ArrayWriter(ArrayCalls):
    """The lines of a function, one a tensor."""

    def write(self, x: Tensor) -> None:
        text = ARRAY_CALLS[x.op](self, x)
        if text.isidentifier():  # None, too: what is written where it is used
            self.names[x] = text
        else:
            name = self.names[x] = f"v{len(self.names)}"
            self.lines.append(f"{name} = {text}")
            if self.buffers is not None and x.dims and self.whole.get(x):  # of no dims NumPy gives no array
                self.buffers.assign(x, name)

    def constants(self, order: Sequence[Tensor], constant: Mapping[Tensor, None]) -> None:
        """Write what is computed of numbers alone, in memory of its own."""
        self.constant, begin = constant, len(self.lines)
        self.buffers, buffers = None, self.buffers
        for x in constant:
            self.write(x)
        self.buffers = buffers
        for k, x in enumerate(order if constant else ()):
            if x not in constant and x.op in ("take", "pick") and x.args[1] in constant and x.params[1] != "check":
                self.lines.append(f"i{k}, j{k} = {self._indices(x).removeprefix('*')}")
                self.ready[x] = f"i{k}, j{k}"
        self.constant_lines = begin, len(self.lines)

    def body(self) -> list[str]:
        """Return all lines; what others read of constants is kept for the next calls."""
        begin, end = self.constant_lines
        made, before, others = self.lines[begin:end], self.lines[:begin], self.lines[end:]
        names = [name for line in made for name in _NAME.findall(line.partition(" = ")[0])]
        read = set(_NAME.findall("\n".join(others)))
        kept = "".join(f"{name}, " for name in names if name in read)
        if not kept:
            return [*before, *others]
        once = [*made, f"H.keep(xp, K, ({kept}))"]
        return [*before, "if K:", f"    {kept}= K", "else:", *(f"    {line}" for line in once), *others]

    def store(self, x: Tensor, target: str, direct: set[Tensor]) -> None:
        """Write a tensor where it is to be; those of ``direct`` have no value of their own."""
        if x not in direct:
            self.lines.append(f"H.store(xp, {target}, {self.value(x)})")
        elif (every := number_in(x)) is not None:
            self.lines.append(f"{target}[...] = {self.number(every.params[0], every.dtype)}")
        elif x.op == "pad":
            self.lines.append(f"H.pad_into(xp, {target}, {self._padding(x)})")
        elif x.op == "map" or x.op in WRITING:
            self.writing = x, target
            text = ARRAY_CALLS[x.op](self, x)
            self.lines.append(text if text.endswith(f"out={target})") else f"H.store(xp, {target}, {text})")
        elif x.op == "reshape":
            self.store(x.args[0], self._part(f"H.view(xp, {target}, {self.sizes(x.args[0].dims)})"), direct)
        else:
            (axis,), at = x.params, as_number(0)
            for arg in x.args:
                size = arg.dims[axis]
                where = f"H.part({target}, {axis}, {self.number(at)}, {self.number(size)})"
                self.store(arg, self._part(where), direct)
                at = at + size

    def copy(self, tensors: Sequence[Tensor]) -> None:
        """Copy what is to be stored after its memory has been written."""
        for x in tensors:
            source, name = self.value(x), f"c{len(self.lines)}"
            self.lines.append(f"{name} = xp.astype({source}, {source}.dtype)")
            self.names[x] = name

    def lend(self, x: Tensor, target: str, direct: Collection[Tensor]) -> None:
        """Compute tensors in the memory of a result before that is there."""
        *views, made = under_reshapes(x)
        begun = made
        if made.op in ("put", "add_at") and len(made.args) == 3 and made in direct:  # what is added to
            begun = made.args[2]
            if len(self.users[begun]) > 1:
                return
        if self.buffers is None or not stored_at_once(begun) or (views and made not in direct):
            return
        for each in (*views[1:], made) if views else ():
            target = self._part(f"H.view(xp, {target}, {self.sizes(each.dims)})")
        place = self.target(target, made)
        if place != target:
            self.lines.append(f"t{target} = {place}")
            place = f"t{target}"
        self.targets[target] = place
        self.buffers.lend(begun, place, begun in direct)


def array_code(
    traced: Traced,
    slots: Sequence[str] | None = None,
    host: bool = False,
    shared: Mapping[str, str] | None = None,
    stored: Mapping[str, Sequence[str]] | None = None,
) -> ArrayCode:
    """The array calls that compute the outputs of the slots (None: all).

    ``host``: on NumPy. ``shared``: for output slots the input slot whose memory they may have. ``stored``: the dtypes
    of the arrays of output slots, if they are known.

    Half types are stored only: what is computed of them is float32, and rounded by whoever stores it.
    """
    shared = shared or {}
    wanted = [
        (slot, i, x)
        for slot, found in traced.outputs.items()
        if slots is None or slot in slots
        for i, x in enumerate(found)
    ]
    wanted.sort(key=lambda each: each[0] in shared)  # what is in an operand's memory is written last
    order = ordered([x for _, _, x in wanted])
    users: dict[Tensor, list[Tensor | None]] = {}
    for _, _, x in wanted:
        users.setdefault(x, []).append(None)
    for x in order:
        for arg in x.args:
            users.setdefault(arg, []).append(x)
    results = [x for _, _, x in wanted]
    direct = stored_directly(results, users, WRITING)
    if host:
        direct |= maps_stored_at_once(results, users)
    by_reader = {x for x in order if x.op in MADE_BY_READERS and computed_by_reader(x, users)}
    within = by_reader | {x for x in order if x.op == "map" and in_sum(x, users)}
    direct = not_overwritten(wanted, direct, within, shared)
    first = [x for x in order if x.op in ("input", "number")]  # before counts, which are made where operands are
    constant = _constants(order, direct | by_reader)
    order = [*dict.fromkeys([*first, *constant, *order])]
    buffers = Buffers(order, users, results, stored_with(results, direct), within) if host else None
    dtypes = {f"out{k}": stored[slot][i] for k, (slot, i, _) in enumerate(wanted)} if stored else {}
    writer = ArrayWriter(users, buffers, dtypes)
    for k, (slot, _, x) in enumerate(wanted):
        if slot not in shared:
            writer.lend(x, f"out{k}", direct)
    for x in first:
        writer.write(x)
    writer.constants(order, constant)
    for x in order:
        if x not in direct and x not in writer.names:
            writer.write(x)
    writer.copy(read_when_overwritten(wanted, direct, shared))
    for k, x in enumerate(results):
        writer.store(x, f"out{k}", direct)
    arguments = ", ".join(["xp", "F", "H", "context", "io", "N", "K", *array_names(writer.operands, wanted)])
    body = "".join([f"    {line}\n" for line in writer.body()])
    outputs = tuple([(slot, i) for slot, i, _ in wanted])
    return ArrayCode(f"def compute({arguments}):\n{body}", tuple(writer.operands), tuple(writer.kept), outputs)


def _constants(order: Sequence[Tensor], elsewhere: Collection[Tensor]) -> dict[Tensor, None]:
    """What is computed of sizes and numbers alone, where it is not computed elsewhere, and raises no error."""
    found: dict[Tensor, None] = {}
    for x in order:
        if x in elsewhere or x.op in ("input", "number", "checked", "set_at", *_READER_MAKES):
            continue
        if x.op in ("take", "pick") and x.params[1] == "check":
            continue
        arrays = [arg for arg in x.args if arg.op != "number"]
        if (arrays or x.op in ("iota", "broadcast", "offsets")) and found.keys() >= {*arrays}:
            found[x] = None
    return found
