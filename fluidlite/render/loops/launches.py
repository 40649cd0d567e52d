"""Compiles the texts of nests, and launches them one after the other."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.base.errors import RegistryError
from fluidlite.codegen.kernel_source import Buffer, Launch, kernel_text as written_kernel, prepared_launches
from fluidlite.codegen.typed import converted_number as typed_number
from fluidlite.expr.calls import leaves
from fluidlite.expr.number import Number
from fluidlite.expr.number_table import NumberTable
from fluidlite.platform.device_memory import Span, aligned
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared
from fluidlite.render.loops.element_text import STATUS
from fluidlite.render.loops.elements import BufferKey
from fluidlite.render.loops.sizes import size_of
from fluidlite.render.loops.text import NestText

_MIN_GRAINED_ITEMS, _GRAIN_ITEMS = 256, 16
"""With so many short work-items, a thread takes _GRAIN_ITEMS of them at a time: the grain size."""


@dataclass(frozen=True)
class NestCode:
    """The text of one nest, and the facts that its launch needs.

    ``items``: the lengths of its work-item axes.
    ``targets``: the stored buffers, each with dims and dtype.
    ``heavy``: whether the grain size is 1.
    """

    text: NestText
    items: tuple[Number, ...]
    targets: tuple[tuple[BufferKey, tuple[Number, ...], str], ...]
    heavy: bool


_FIELDS = tuple(each.name for each in fields(NestText))


def encode_texts(pieces: Sequence[NestCode] | None, table: NumberTable) -> list[Any] | None:
    """Convert texts to JSON values; numbers become indices into a table."""
    if pieces is None:
        return None
    return [
        [
            {name: getattr(piece.text, name) for name in _FIELDS}
            | {"buffers": [*piece.text.buffers.items()], "items": table.place(piece.text.items)}
            | {"numbers": [[name, dtype, table.place(n)] for name, dtype, n in piece.text.numbers]},
            [table.place(n) for n in piece.items],
            [[source, [table.place(d) for d in dims], dtype] for source, dims, dtype in piece.targets],
            piece.heavy,
        ]
        for piece in pieces
    ]


def decode_texts(value: Any, table: NumberTable) -> tuple[NestCode, ...] | None:
    """The inverse of :func:`encode_texts`."""
    if value is None:
        return None
    pieces = []
    for text, items, targets, heavy in value:
        fields = {
            **text,
            "buffers": {tuple(source): tuple(each) for source, each in text["buffers"]},
            "numbers": tuple((name, dtype, table.number(k)) for name, dtype, k in text["numbers"]),
            "items": table.number(text["items"]),
        }
        written = tuple((tuple(source), tuple(map(table.number, dims)), dtype) for source, dims, dtype in targets)
        pieces.append(NestCode(NestText(**fields), tuple(map(table.number, items)), written, heavy))
    return tuple(pieces)


@dataclass(frozen=True)
class _Launch:
    """The compiled kernel of a nest with the arguments that are the same for every run."""

    kernel: Any
    text: str
    items: int
    sources: tuple[BufferKey, ...]
    numbers: tuple[Any, ...]
    group: int | None
    draws: bool
    checks: bool


def group_size(language: Any) -> tuple[int, int] | None:
    """The minimum and maximum work-group size of a kernel language, or None.

    Raises RegistryError if the language names a group size, and lacks the keywords for groups.
    """
    sizes: tuple[int, int] | None = getattr(language, "group", None)
    missing = [word for word in ("local", "barrier", "member") if word not in language.keywords]
    if sizes is not None and missing:
        raise RegistryError(
            f"a kernel language has groups of {sizes[0]} to {sizes[1]} work-items, and no keyword {', '.join(missing)}"
            "\n  Do: name it in keywords, or leave group out"
        )
    return sizes


def prepare_launches(call: Call, context: Any, codes: Iterable[NestCode], aliased: bool) -> Prepared:
    """Compile the nests of a call, and return what launches them in order.

    ``aliased``: whether outputs may alias operands.
    """
    values = leaves(call)
    ranges: dict[BufferKey, tuple[int, int]] = {}
    tables: dict[BufferKey, memoryview] = {}
    pieces = enumerate(codes)
    launches = [_launch(call, context, f"{k}", piece, values, ranges, tables, aliased) for k, piece in pieces]
    need = sum(aligned(nbytes) for _, nbytes in ranges.values())

    active = [launch for launch in launches if launch is not None]

    def arguments(context: Any, io: Any) -> list[Launch]:
        spans: dict[BufferKey, Span] = {}
        if need:
            base = io.workspace.span()
            spans = {source: Span(base.handle, base.offset + begin, size) for source, (begin, size) in ranges.items()}
        for source, table in tables.items():
            context.copy_in(spans[source], table)
        launches_now = []
        for launch in active:
            parameters: list[Any] = []
            for source in launch.sources:
                if source in spans:
                    parameters += spans[source][:2]
                else:
                    parameters += io.span(*source[1:])[:2] if source != STATUS else context.status_args()
            parameters += launch.numbers
            parameters += (io.op_id,) if launch.checks else ()
            parameters += io.random if launch.draws else ()
            parameters.append(launch.items)
            launches_now.append((launch.kernel, launch.items, parameters, launch.group))
        return launches_now

    is_constant = not tables and not any(launch.draws or STATUS in launch.sources for launch in active)
    return prepared_launches(arguments, is_constant, need, "\n".join(launch.text for launch in active))


def _launch(
    call: Call,
    context: Any,
    name: str,
    piece: NestCode,
    values: Mapping[str, Any],
    workspace: dict[BufferKey, tuple[int, int]],
    tables: dict[BufferKey, memoryview],
    aliased: bool,
) -> _Launch | None:
    """Compile a nest; None if it has no work-items."""
    for target, dims, dtype in piece.targets:
        if target[0] == "made":
            _reserve(workspace, target, prod(size_of(d, values) for d in dims) * ITEMSIZE[dtype])
    if 0 in [size_of(each, values) for each in piece.items]:
        return None
    text = piece.text
    for source in text.buffers:
        if source[0] == "offsets" and source not in workspace:
            table = values[source[1]]
            tables[source] = memoryview(struct.pack(f"={len(table)}q", *table))
            _reserve(workspace, source, tables[source].nbytes)
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
    number_values = tuple(typed_number(n.evaluate(values), dtype) for _, dtype, n in text.numbers)
    items = size_of(text.items, values)
    grain: int | None = 1 if items < _MIN_GRAINED_ITEMS or piece.heavy else _GRAIN_ITEMS
    if group_size(context.language) is not None:  # None: the device chooses the work-group size
        grain = text.members if text.members > 1 else None
    return _Launch(kernel, source_text, items, tuple(text.buffers), number_values, grain, text.draws, checks)


def _reserve(workspace: dict[BufferKey, tuple[int, int]], source: BufferKey, nbytes: int) -> None:
    """Reserve a range of the workspace for a buffer."""
    if source not in workspace:
        begin = sum(aligned(size) for _, size in workspace.values())
        workspace[source] = begin, max(nbytes, 1)  # an empty buffer needs an address, too
