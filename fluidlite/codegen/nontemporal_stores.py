"""Outputs far larger than the caches, written past them: a line that is overwritten whole need not be read first.

An item computes a block of elements into an array of its own, and the language's ``stream`` copies that to the output,
64 bytes at a time; ordinary stores do where the output lies on an input, whose lines are in the cache anyway, or where
it begins within a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fluidlite.base.dtypes import HALVES, ITEMSIZE

if TYPE_CHECKING:
    from fluidlite.codegen.language_writer import Writer

LARGE = 32 << 20
"""Bytes of an output that no cache holds till its next reader comes."""
BLOCK = 128
"""Elements of an item: whole lines of every dtype."""
LINE = 64
Output = tuple[str, str, int]
"""Slot, dtype, and the number of the value."""


def head(writer: Writer, inputs: Sequence[str], outputs: Sequence[Output]) -> list[str]:
    """Statements before the items: whether outputs begin with a line, and apart from the inputs."""
    word = writer.types["uint64"]
    tests = []
    for slot, _, _ in outputs:
        address = f"({word}){writer.pointer(slot)}"
        tests += [f"({address} & {LINE - 1}) == 0", *(f"{address} != ({word}){writer.pointer(s)}" for s in inputs)]
    return [f"const int apart = {' && '.join(tests)};"]


def body(writer: Writer, statements: Sequence[str], stores: Sequence[str], outputs: Sequence[Output]) -> list[str]:
    """An item's statements, from those of one element, whose index is ``i``."""
    long, stream = writer.types["int64"], writer.keywords["stream"]
    kept, streamed, stored = [], [], []
    for number, (slot, dtype, value) in enumerate(outputs):
        target, size = writer.pointer(slot), 2 if dtype in HALVES else ITEMSIZE[dtype]
        kept.append(f"t{number}[q] = {writer.rounded(writer.name(value), dtype)};")
        stored.append(f"{target}[begin + q] = t{number}[q];")
        streamed += [f"{stream}({target} + begin + {at}, t{number} + {at});" for at in range(0, BLOCK, LINE // size)]
    each = f"for (int q = 0; q < {BLOCK}; ++q)"
    return [
        f"const {long} begin = gid * {BLOCK};",
        f"const {long} end = begin + {BLOCK} < elements ? begin + {BLOCK} : elements;",
        f"if (end - begin == {BLOCK}) {{",
        *(f"{writer.stored(dtype)} t{number}[{BLOCK}];" for number, (_, dtype, _) in enumerate(outputs)),
        f"{each} {{ const {long} i = begin + q;",
        *statements,
        *kept,
        "}",
        "if (apart) {",
        *streamed,
        f"}} else {{ {each} {{",
        *stored,
        "} }",
        f"}} else {{ for ({long} i = begin; i < end; ++i) {{",
        *statements,
        *stores,
        "} }",
    ]
