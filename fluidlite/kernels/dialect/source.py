"""What the kernels here share beside the public ``kernel_source``: workspaces, hints, and reductions of rows."""

from __future__ import annotations

from collections.abc import Callable

from fluidlite.plugin import HALVES, Span, compute_dtype, kernel_source

_ALIGN = 256
HEAVY = 1
"""Group hint of items that are long enough to be dealt out one by one."""

MOVED = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""The type under which elements of a size are moved when their value does not matter."""


Buffer = kernel_source.Buffer
Kernel = kernel_source.Kernel
build = kernel_source.build
ctype = kernel_source.ctype
decode = kernel_source.decode
function = kernel_source.function
load = kernel_source.load
store = kernel_source.store
wrapping = kernel_source.wrapping


def part(span: Span, start: int) -> Span:
    """The span from byte ``start`` on."""
    return Span(span.handle, span.offset + start, span.nbytes - start)


class Workspace:
    """Hands out aligned parts of a workspace, whose total is ``need``."""

    def __init__(self) -> None:
        self.need = 0

    def take(self, nbytes: int) -> int:
        """Return where a part of so many bytes starts."""
        start = self.need
        self.need += -(-nbytes // _ALIGN) * _ALIGN
        return start


def dealt(items: int) -> int:
    """Group hint of items that are short loops: few are dealt out singly, many by sixteen."""
    return 1 if items < 256 else 16


LANES = 16
"""How many partial results of a row stand side by side, for a compiler to put into vectors."""


def tree(step: Callable[[str, str], str]) -> str:
    """Text that joins ``acc[0]`` to ``acc[15]`` in ``acc[0]``, pair by pair."""
    return "\n  ".join(
        f"for (int v = 0; v < {half}; ++v) {{ {step('acc[v]', f'acc[v + {half}]')} }}" for half in (8, 4, 2, 1)
    )


def row_reduction(
    kind: str, name: str, start: str, step: Callable[[str, str], str], value: Callable[[str], str]
) -> str:
    """Text that reduces ``value(j)``, 0 <= j < n, to a new variable ``name``; ``step(acc, value)`` is a statement."""
    return f"""{kind} {name};
  {{
    {kind} acc[{LANES}];
    for (int v = 0; v < {LANES}; ++v) acc[v] = {start};
    index_t j = 0;
    for (; j + {LANES} <= n; j += {LANES})
      for (int v = 0; v < {LANES}; ++v) {{ {step("acc[v]", value("j + v"))} }}
    for (; j < n; ++j) {{ {step("acc[0]", value("j"))} }}
    {tree(step)}
    {name} = acc[0];
  }}"""


__all__ = [
    "HALVES", "HEAVY", "LANES", "MOVED", "Buffer", "Kernel", "build", "compute_dtype", "ctype", "dealt", "decode",
    "function", "load", "part", "row_reduction", "store", "tree",
]  # fmt: skip
