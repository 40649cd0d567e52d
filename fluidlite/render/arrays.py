"""A traced expression as array calls: Python source, one line a tensor.

The source is ``def compute(xp, F, H, context, io, N, K, a0, a1, ..., out0, out1, ...)``: ``H`` is
:mod:`array_functions`, ``N`` the numbers of the call (sizes, and what is computed of sizes and attributes), ``K`` a
list that caches the arrays computed of ``N`` alone for the next calls, ``a0`` ... the operands, ``out0`` ... the
outputs. Operands of a concatenation, a padding or a reshape are computed in place in the output, without a copy. On
NumPy elementwise calls write to the output, or reuse the memory of tensors that are no longer read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from fluidlite.expr.number import number as as_number
from fluidlite.expr.tensor import Tensor, topological_order
from fluidlite.expr.traced import Traced
from fluidlite.render.array_calls import ARRAY_CALLS, ArrayCalls
from fluidlite.render.array_code import ArrayCode, array_names
from fluidlite.render.buffers import Buffers
from fluidlite.render.readers import FUSIBLE_PRIMITIVES, can_compute_in_output, is_computed_by_reader, is_fused_into_sum
from fluidlite.render.results import (
    WRITING,
    constant_value,
    maps_in_output,
    overwritten_results,
    reshape_chain,
    stored_directly,
    stored_with,
    without_overwritten,
)

_NAME = re.compile(r"\b[vij]\d+\b")
_COMPUTED_BY_READERS = frozenset({"window", "put", "unwindow"})
"""Primitives that their readers may compute."""


class ArrayWriter(ArrayCalls):
    """Writes the lines of the function, one per tensor."""

    def write(self, x: Tensor) -> None:
        text = ARRAY_CALLS[x.op](self, x)
        if text.isidentifier():  # also "None": the reader computes it
            self.names[x] = text
        else:
            name = self.names[x] = f"v{len(self.names)}"
            self.lines.append(f"{name} = {text}")
            if self.buffers is not None and x.dims and self.has_full_dims.get(x):  # NumPy has scalars, not 0-d arrays
                self.buffers.assign(x, name)

    def constants(self, order: Sequence[Tensor], constant: Mapping[Tensor, None]) -> None:
        """Write the constants, which depend on numbers alone, into arrays of their own."""
        self.constant, begin = constant, len(self.lines)
        self.buffers, buffers = None, self.buffers
        for x in constant:
            self.write(x)
        self.buffers = buffers
        for k, x in enumerate(order if constant else ()):
            if x not in constant and x.op in ("take", "pick") and x.args[1] in constant and x.params[1] != "check":
                self.lines.append(f"i{k}, j{k} = {self._indices(x).removeprefix('*')}")
                self.safe_indices[x] = f"i{k}, j{k}"
        self.constant_lines = begin, len(self.lines)

    def body(self) -> list[str]:
        """Return all lines; constants that other lines read are cached for the next calls."""
        begin, end = self.constant_lines
        constant_lines, before, rest = self.lines[begin:end], self.lines[:begin], self.lines[end:]
        names = [name for line in constant_lines for name in _NAME.findall(line.partition(" = ")[0])]
        read = set(_NAME.findall("\n".join(rest)))
        cached = "".join(f"{name}, " for name in names if name in read)
        if not cached:
            return [*before, *rest]
        computing = [*constant_lines, f"H.keep(xp, K, ({cached}))"]
        return [*before, "if K:", f"    {cached}= K", "else:", *(f"    {line}" for line in computing), *rest]

    def store(self, x: Tensor, target: str, direct: set[Tensor]) -> None:
        """Store a tensor in its output; tensors of ``direct`` are computed in place there."""
        if x not in direct:
            self.lines.append(f"H.store(xp, {target}, {self.value(x)})")
        elif (constant := constant_value(x)) is not None:
            self.lines.append(f"{target}[...] = {self.number(constant.params[0], constant.dtype)}")
        elif x.op == "pad":
            self.lines.append(f"H.pad_into(xp, {target}, {self._padding(x)})")
        elif x.op == "map" or x.op in WRITING:
            self.writing = x, target
            text = ARRAY_CALLS[x.op](self, x)
            self.lines.append(text if text.endswith(f"out={target})") else f"H.store(xp, {target}, {text})")
        elif x.op == "reshape":
            self.store(x.args[0], self._part(f"H.view(xp, {target}, {self.sizes(x.args[0].dims)})"), direct)
        else:
            (axis,), begin = x.params, as_number(0)
            for arg in x.args:
                size = arg.dims[axis]
                part = f"H.part({target}, {axis}, {self.number(begin)}, {self.number(size)})"
                self.store(arg, self._part(part), direct)
                begin = begin + size

    def copy(self, tensors: Sequence[Tensor]) -> None:
        """Copy tensors that are stored after their memory has been overwritten."""
        for x in tensors:
            source, name = self.value(x), f"c{len(self.lines)}"
            self.lines.append(f"{name} = xp.astype({source}, {source}.dtype)")
            self.names[x] = name

    def lend(self, x: Tensor, target: str, direct: Collection[Tensor]) -> None:
        """Lend the memory of an output to other tensors until the result is computed."""
        *views, base = reshape_chain(x)
        borrower = base
        if base.op in ("put", "add_at") and len(base.args) == 3 and base in direct:  # the base of the scatter
            borrower = base.args[2]
            if len(self.users[borrower]) > 1:
                return
        if self.buffers is None or not can_compute_in_output(borrower) or (views and base not in direct):
            return
        for view in (*views[1:], base) if views else ():
            target = self._part(f"H.view(xp, {target}, {self.sizes(view.dims)})")
        array = self.target(target, base)
        if array != target:
            self.lines.append(f"t{target} = {array}")
            array = f"t{target}"
        self.targets[target] = array
        self.buffers.lend(borrower, array, borrower in direct)


def array_code(
    traced: Traced,
    slots: Sequence[str] | None = None,
    host: bool = False,
    shared: Mapping[str, str] | None = None,
    stored: Mapping[str, Sequence[str]] | None = None,
) -> ArrayCode:
    """Generate the array calls that compute the outputs of the slots (None: all).

    ``host``: whether the namespace is NumPy. ``shared``: by output slot, the input slot that it may alias.
    ``stored``: by output slot, the dtypes of its arrays, if they are known.

    Half types are computed in float32, and rounded when they are stored.
    """
    shared = shared or {}
    requested = [
        (slot, i, x)
        for slot, tensors in traced.outputs.items()
        if slots is None or slot in slots
        for i, x in enumerate(tensors)
    ]
    requested.sort(key=lambda output: output[0] in shared)  # outputs that alias operands are written last
    order = topological_order([x for _, _, x in requested])
    users: dict[Tensor, list[Tensor | None]] = {}
    for _, _, x in requested:
        users.setdefault(x, []).append(None)
    for x in order:
        for arg in x.args:
            users.setdefault(arg, []).append(x)
    results = [x for _, _, x in requested]
    direct = stored_directly(results, users)
    if host:
        direct |= maps_in_output(results, users)
    by_reader = {x for x in order if x.op in FUSIBLE_PRIMITIVES and is_computed_by_reader(x, users)}
    within = by_reader | {x for x in order if x.op == "map" and is_fused_into_sum(x, users)}
    direct = without_overwritten(requested, direct, within, shared)
    leaves = [x for x in order if x.op in ("input", "number")]  # before iota, which needs the device of an operand
    constant = _constants(order, direct | by_reader)
    order = [*dict.fromkeys([*leaves, *constant, *order])]
    buffers = Buffers(order, users, results, stored_with(results, direct), within) if host else None
    dtypes = {f"out{k}": stored[slot][i] for k, (slot, i, _) in enumerate(requested)} if stored else {}
    writer = ArrayWriter(users, buffers, dtypes)
    for k, (slot, _, x) in enumerate(requested):
        if slot not in shared:
            writer.lend(x, f"out{k}", direct)
    for x in leaves:
        writer.write(x)
    writer.constants(order, constant)
    for x in order:
        if x not in direct and x not in writer.names:
            writer.write(x)
    writer.copy(overwritten_results(requested, direct, shared))
    for k, x in enumerate(results):
        writer.store(x, f"out{k}", direct)
    arguments = ", ".join(["xp", "F", "H", "context", "io", "N", "K", *array_names(writer.operands, requested)])
    body = "".join([f"    {line}\n" for line in writer.body()])
    outputs = tuple([(slot, i) for slot, i, _ in requested])
    return ArrayCode(f"def compute({arguments}):\n{body}", tuple(writer.operands), tuple(writer.number_table), outputs)


def _constants(order: Sequence[Tensor], elsewhere: Collection[Tensor]) -> dict[Tensor, None]:
    """The tensors that depend on sizes and numbers alone, raise no errors and are not computed ``elsewhere``."""
    constants: dict[Tensor, None] = {}
    for x in order:
        if x in elsewhere or x.op in ("input", "number", "checked", "set_at", *_COMPUTED_BY_READERS):
            continue
        if x.op in ("take", "pick") and x.params[1] == "check":
            continue
        arrays = [arg for arg in x.args if arg.op != "number"]
        if (arrays or x.op in ("iota", "broadcast", "offsets")) and constants.keys() >= {*arrays}:
            constants[x] = None
    return constants
