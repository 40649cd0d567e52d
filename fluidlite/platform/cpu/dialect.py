"""The dialect of the CPU: C, translated to LLVM IR and compiled for the processor; items shared by threads."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from fluidlite.plugin import CompileError, DialectBase, c_to_llvm

from .cache import DiskCache
from .llvm import Compiler
from .memory import address_of
from .team import team

MANY = 16384
"""Short items from which threads gain more than they cost."""
CHUNKS = 4
"""Parts for each thread, so that one that is late leaves its parts to others."""
WHOLE = 256
"""Short items are dealt out by multiples of it: whole vectors, and no cache line for two threads."""

_PACKED = {"buffer": "Q", "bool": "B7x", "uint8": "B7x", "int8": "b7x", "int16": "h6x", "int32": "i4x", "int64": "q",
           "uint32": "I4x", "uint64": "Q", "float32": "f4x", "float64": "d"}  # fmt: skip


class Kernel:
    """A compiled kernel: where it is, and how its arguments are packed."""

    __slots__ = ("address", "buffers", "call", "code", "pack")

    def __init__(self, code: Any, entry: str, parameters: Sequence[str]) -> None:
        self.code = code
        name = f"{entry}_packed"
        self.address: int = code.address(name)
        self.call = code.function(name, None, ("int64", "int64", "pointer"))
        self.pack = struct.Struct("<" + "".join(_PACKED[name] for name in parameters)).pack
        self.buffers = tuple(i for i, name in enumerate(parameters) if name == "buffer")


class LLVMDialect(DialectBase):
    """C of the subset that :func:`fluidlite.plugin.c_to_llvm` reads, with LLVM's functions for what processors have.

    Raises
    ------
    ImportError
        If llvmlite or pycparser is not installed.
    """

    name = "llvm"
    words: Mapping[str, str] = {**DialectBase.words, "each": "for (long gid = fl_begin; gid < fl_end; ++gid)"}
    preferred = True
    least = 1024

    def __init__(self, cache: DiskCache | None = None) -> None:
        super().__init__()
        import pycparser  # noqa: F401  # now, not when the first kernel is compiled

        self.compiler = Compiler(DiskCache() if cache is None else cache)
        names = {"sqrt", "floor", "ceil", "trunc", "rint", "fma", "copysign", "fabs"}
        features = self.compiler.features
        if not features.get("sse4.1", True):  # LLVM would call a library for each element
            names -= {"floor", "ceil", "trunc", "rint"}
        if not features.get("fma", True):
            names -= {"fma"}
        math: dict[str, str | None] = {name: f"llvm_{name}" for name in names}
        if features.get("f16c", False):
            math |= {"load.float16": "llvm_load_float16", "store.float16": "llvm_store_float16"}
        self.math: Mapping[str, str | None] = math

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> Kernel:
        """Translate and compile ``source``, or find it in the cache.

        Raises
        ------
        CompileError
            If the text is not in the subset, has no ``entry``, or another number of parameters.
        """

        def make() -> str:
            text, kinds = c_to_llvm(source, entry)
            if len(kinds) != len(parameters):
                raise CompileError(f"kernel {entry!r} has {len(kinds)} parameters, not {len(parameters)}", source)
            return text + _packed(entry, kinds)

        try:
            return Kernel(self.compiler.load(make, source, entry), entry, parameters)
        except RuntimeError as exc:
            raise CompileError(f"LLVM refuses kernel {entry!r}: {exc}", source) from exc

    def launch(self, context: Any, kernel: Kernel, items: int, args: Sequence[Any], group: int | None = None) -> None:
        """Compute ``items`` work items; returns when they are done."""
        if items <= 0:
            return
        given = list(args)
        for i in kernel.buffers:
            given[i] = address_of(given[i])
        packed = kernel.pack(*given)
        threads = getattr(context, "threads", None)
        if items < (MANY if group is None else 2) or threads == 1:
            kernel.call(0, items, packed)
            return
        crew = team(self.compiler.load)
        width = crew.workers if threads is None else min(crew.workers, threads - 1)
        grain = -(-items // ((width + 1) * CHUNKS))
        if group is None:
            grain = -(-grain // WHOLE) * WHOLE
        crew.run(kernel.address, packed, items, grain, width)


def _packed(entry: str, kinds: Sequence[str]) -> str:
    """Return LLVM IR that calls the kernel with arguments that lie eight bytes apart."""
    lines = [f"define void @{entry}_packed(i64 %begin, i64 %end, ptr %packed) nounwind {{"]
    for i, kind in enumerate(kinds):
        lines += [f"  %at{i} = getelementptr i64, ptr %packed, i64 {i}", f"  %a{i} = load {kind}, ptr %at{i}"]
    given = ", ".join(["i64 %begin", "i64 %end", *(f"{kind} %a{i}" for i, kind in enumerate(kinds))])
    return "\n".join([*lines, f"  call void @{entry}({given})", "  ret void", "}", ""])
