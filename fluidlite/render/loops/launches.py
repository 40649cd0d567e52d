"""Nests that are written, compiled and launched one after the other."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.base.errors import RegistryError
from fluidlite.codegen.kernel_source import Buffer, Launch, launching, written as written_kernel
from fluidlite.codegen.typed import number as typed_number
from fluidlite.expr.calls import leaves
from fluidlite.expr.number import Number
from fluidlite.expr.number_table import NumberTable
from fluidlite.platform.device_memory import Span, aligned
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared
from fluidlite.render.loops.element_text import STATUS
from fluidlite.render.loops.elements import Source
from fluidlite.render.loops.sizes import size_of
from fluidlite.render.loops.text import NestText

_MANY, _SOME = 256, 16
"""Of so many items, which are short, a thread takes some at a time."""


@dataclass(frozen=True)
class Piece:
    """The text of one nest, and what it writes.

    ``items``: sizes of its axes of items.
    ``targets``: what is stored, each with its dims and dtype.
    ``heavy``: whether an item is worth a turn of its own.
    """

    text: NestText
    items: tuple[Number, ...]
    targets: tuple[tuple[Source, tuple[Number, ...], str], ...]
    heavy: bool


_PLAIN = tuple(each.name for each in fields(NestText))


def encoded(pieces: Sequence[Piece] | None, table: NumberTable) -> list[Any] | None:
    """Texts as plain values, with numbers as their places in a table."""
    if pieces is None:
        return None
    return [
        [
            {name: getattr(piece.text, name) for name in _PLAIN}
            | {"buffers": [*piece.text.buffers.items()], "items": table.place(piece.text.items)}
            | {"numbers": [[name, dtype, table.place(n)] for name, dtype, n in piece.text.numbers]},
            [table.place(n) for n in piece.items],
            [[source, [table.place(d) for d in dims], dtype] for source, dims, dtype in piece.targets],
            piece.heavy,
        ]
        for piece in pieces
    ]


def decoded(value: Any, table: NumberTable) -> tuple[Piece, ...] | None:
    """The texts that such values say."""
    if value is None:
        return None
    found = []
    for text, items, targets, heavy in value:
        facts = {
            **text,
            "buffers": {tuple(source): tuple(each) for source, each in text["buffers"]},
            "numbers": tuple((name, dtype, table.number(k)) for name, dtype, k in text["numbers"]),
            "items": table.number(text["items"]),
        }
        stored = tuple((tuple(source), tuple(map(table.number, dims)), dtype) for source, dims, dtype in targets)
        found.append(Piece(NestText(**facts), tuple(map(table.number, items)), stored, heavy))
    return tuple(found)


@dataclass(frozen=True)
class _Launch:
    """One nest, ready to be launched."""

    kernel: Any
    text: str
    items: int
    sources: tuple[Source, ...]
    numbers: tuple[Any, ...]
    group: int | None
    draws: bool
    checks: bool


def group_of(language: Any) -> tuple[int, int] | None:
    """How many work-items share memory, where a device names it.

    Raises RegistryError if the language names a group, and has no words for one.
    """
    found: tuple[int, int] | None = getattr(language, "group", None)
    missing = [word for word in ("local", "barrier", "member") if word not in language.keywords]
    if found is not None and missing:
        raise RegistryError(
            f"a kernel language has groups of {found[0]} to {found[1]} work-items, and no keyword {', '.join(missing)}"
            "\n  Do: name it in keywords, or leave group out"
        )
    return found


def launched(call: Call, context: Any, written: Iterable[Piece], aliased: bool) -> Prepared:
    """Return what launches the nests of a call one after the other; ``aliased``: some write over operands, or may."""
    values = leaves(call)
    room: dict[Source, tuple[int, int]] = {}
    tables: dict[Source, memoryview] = {}
    pieces = enumerate(written)
    launches = [_launch(call, context, f"{k}", piece, values, room, tables, aliased) for k, piece in pieces]
    need = sum(aligned(nbytes) for _, nbytes in room.values())

    ready = [one for one in launches if one is not None]

    def arguments(context: Any, io: Any) -> list[Launch]:
        spans: dict[Source, Span] = {}
        if need:
            base = io.workspace.span()
            spans = {source: Span(base.handle, base.offset + at, size) for source, (at, size) in room.items()}
        for source, table in tables.items():
            context.copy_in(spans[source], table)
        found = []
        for one in ready:
            given: list[Any] = []
            for source in one.sources:
                if source in spans:
                    given += spans[source][:2]
                else:
                    given += io.span(*source[1:])[:2] if source != STATUS else context.status_args()
            given += one.numbers
            given += (io.op_id,) if one.checks else ()
            given += io.random if one.draws else ()
            given.append(one.items)
            found.append((one.kernel, one.items, given, one.group))
        return found

    same = not tables and not any(one.draws or STATUS in one.sources for one in ready)
    return launching(arguments, same, need, "\n".join(one.text for one in ready))


def _launch(
    call: Call,
    context: Any,
    name: str,
    piece: Piece,
    values: Mapping[str, Any],
    room: dict[Source, tuple[int, int]],
    tables: dict[Source, memoryview],
    aliased: bool,
) -> _Launch | None:
    """Compile a nest; None if there is nothing to do."""
    for target, dims, dtype in piece.targets:
        if target[0] == "made":
            _reserve(room, target, prod(size_of(d, values) for d in dims) * ITEMSIZE[dtype])
    if 0 in [size_of(each, values) for each in piece.items]:
        return None
    text = piece.text
    for source in text.buffers:
        if source[0] == "offsets" and source not in room:
            table = values[source[1]]
            tables[source] = memoryview(struct.pack(f"={len(table)}q", *table))
            _reserve(room, source, tables[source].nbytes)
    buffers = [Buffer(*facts) for facts in text.buffers.values()]
    numbers: list[str | tuple[str, str]] = [(each, dtype) for each, dtype, _ in text.numbers]
    checks = "op_id" in text.body
    numbers += ["op_id"] if checks else []
    numbers += [(f"r{k}", "uint32") for k in range(4) if text.draws]
    entry = f"loops_{call.op.type.replace('.', '_')}_{name}"
    source_text, parameters = written_kernel(
        context, entry, buffers, numbers, text.body, aliased=aliased, local=text.local
    )
    form = text.form, tuple([each[1:] for each in buffers]), aliased
    kernel = context.compile(source_text, entry, parameters, form)
    found = tuple(typed_number(n.evaluate(values), dtype) for _, dtype, n in text.numbers)
    items = size_of(text.items, values)
    group: int | None = 1 if items < _MANY or piece.heavy else _SOME
    if group_of(context.language) is not None:  # None: as many as the device likes
        group = text.members if text.members > 1 else None
    return _Launch(kernel, source_text, items, tuple(text.buffers), found, group, text.draws, checks)


def _reserve(room: dict[Source, tuple[int, int]], source: Source, nbytes: int) -> None:
    """Give a part of the workspace."""
    if source not in room:
        at = sum(aligned(size) for _, size in room.values())
        room[source] = at, max(nbytes, 1)  # of nothing there is a place, too
