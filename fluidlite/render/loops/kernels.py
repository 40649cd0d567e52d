"""Kernels of expressions as nests in the kernel language of a device."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.codegen.kernel_source import Buffer, Kernel, build
from fluidlite.codegen.typed import number as typed_number
from fluidlite.expr.calls import leaves, traced_of
from fluidlite.expr.tensor import Tensor, ordered
from fluidlite.framework.call import Call
from fluidlite.platform.device import Span
from fluidlite.render.loops.elements import ELEMENTS, Source
from fluidlite.render.loops.nests import SCATTERING, Nest, nests_of
from fluidlite.render.loops.text import STATUS, NestText, NestWriter

_ALIGN = 256


@dataclass(frozen=True)
class _Launch:
    """One nest, ready to be launched."""

    kernel: Kernel
    items: int
    sources: tuple[Source, ...]
    numbers: tuple[Any, ...]


def refusal(call: Call) -> str | None:
    """Why nests cannot compute a call, or None."""
    if not call.of_tensors:
        return "it is no expression of tensors"
    if call.op.must_alias:
        return "it writes over an operand, which later nests may read"
    if any(x.op not in ELEMENTS and x.op not in SCATTERING for x in ordered(_results(call))):
        return "no loops are written for a recurrence yet"
    return None


def _results(call: Call) -> list[Tensor]:
    return [x for found in traced_of(call).outputs.values() for x in found]


def prepare(call: Call, context: Any) -> Any:
    """Return ``run(context, io)``, which launches the nests of a call one after the other."""
    traced, values = traced_of(call), leaves(call)
    wanted = {
        (slot, i): spec.dtype
        for slot, specs in call.outs.items() if slot in traced.outputs for i, spec in enumerate(specs)
    }  # fmt: skip
    nests = nests_of(traced, wanted)
    dtypes: dict[Source, str] = {
        **{("in", slot, i): spec.dtype for slot, specs in call.ins.items() for i, spec in enumerate(specs)},
        **{("out", *key): dtype for key, dtype in wanted.items()},
    }
    room: dict[Source, tuple[int, int]] = {}
    tables: dict[Source, memoryview] = {}
    launches = [_launch(call, context, f"{k}", nest, dtypes, values, room, tables) for k, nest in enumerate(nests)]
    need = sum(-(-nbytes // _ALIGN) * _ALIGN for _, nbytes in room.values())

    def run(context: Any, io: Any) -> None:
        def span(source: Source) -> Any:
            if source == STATUS:
                return context.status_span()
            if source in room:
                base, (at, nbytes) = io.workspace.span(), room[source]
                return Span(base.handle, base.offset + at, nbytes)
            return io.span(*source[1:])

        for source, table in tables.items():
            context.copy_in(span(source), table)
        for one in launches:
            if one is not None:
                one.kernel(context, one.items, [span(source) for source in one.sources], (*one.numbers, io.op_id))

    if need:
        run.workspace = need  # type: ignore[attr-defined]
    return run


def _launch(
    call: Call, context: Any, name: str, nest: Nest, dtypes: dict[Source, str], values: Mapping[str, Any],
    room: dict[Source, tuple[int, int]], tables: dict[Source, memoryview],
) -> _Launch | None:  # fmt: skip
    """Compile a nest; None if there is nothing to do."""
    dims = [int(d.evaluate(values)) for d in nest.dims]
    dtypes.setdefault(nest.target, nest.dtype)
    if nest.target[0] == "made":
        _reserve(room, nest.target, prod(dims) * ITEMSIZE[nest.dtype])
    if 0 in [int(axis.size.evaluate(values)) for axis in nest.axes]:
        return None
    text: NestText = NestWriter(nest, context.dialect, dtypes).text()
    for source in text.buffers:
        if source[0] == "offsets" and source not in room:
            table = values[source[1]]
            tables[source] = memoryview(struct.pack(f"={len(table)}q", *table))
            _reserve(room, source, tables[source].nbytes)
    buffers = [Buffer(*facts) for facts in text.buffers.values()]
    numbers: list[str | tuple[str, str]] = [(each, dtype) for each, dtype, _ in text.numbers]
    kernel = build(context, f"{_word(call)}_{name}", buffers, [*numbers, "op_id"], text.body, aliased=True)
    found = tuple(typed_number(n.evaluate(values), dtype) for _, dtype, n in text.numbers)
    return _Launch(kernel, int(text.items.evaluate(values)), tuple(text.buffers), found)


def _word(call: Call) -> str:
    return f"loops_{call.op.type.replace('.', '_')}"


def _reserve(room: dict[Source, tuple[int, int]], source: Source, nbytes: int) -> None:
    """Give a part of the workspace."""
    if source not in room:
        at = sum(-(-size // _ALIGN) * _ALIGN for _, size in room.values())
        room[source] = at, nbytes
