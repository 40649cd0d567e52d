"""The dialect of the CPU: C, translated to LLVM IR and compiled for the processor; items shared by threads."""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from fluidlite.plugin import CompileError, DialectBase, c_to_llvm

from .cache import DiskCache
from .llvm import Compiler
from .memory import address_of
from .team import Team, team

MANY = 1 << 17
"""Short items that are shared by threads before it is known how long they take."""
LONG, SHORT = 60e-6, 15e-6
"""Seconds alone from which threads gain more than they cost, and seconds together below which one is enough."""
TRIALS = 2
"""Calls of a chain that measure."""
MOST_KNOWN = 1024
CHUNKS = 4
"""Parts for each thread, so that one that is late leaves its parts to others."""
WHOLE = 256
"""Short items are dealt out by multiples of it: whole vectors, and no cache line for two threads."""

_PACKED = {"buffer": "Q", "bool": "B7x", "uint8": "B7x", "int8": "b7x", "int16": "h6x", "int32": "i4x", "int64": "q",
           "uint32": "I4x", "uint64": "Q", "float32": "f4x", "float64": "d"}  # fmt: skip

_RECORD = struct.Struct("<QQqqq")
"""A launch in a chain: kernel, arguments, items, grain, width."""


class Kernel:
    """A compiled kernel: where it is, and how its arguments are packed."""

    __slots__ = ("address", "buffers", "call", "code", "pack", "worth")

    def __init__(self, code: Any, entry: str, parameters: Sequence[str]) -> None:
        self.code = code
        name = f"{entry}_packed"
        self.address: int = code.address(name)
        self.call = code.function(name, None, ("int64", "int64", "pointer"))
        self.pack = struct.Struct("<" + "".join(_PACKED[name] for name in parameters)).pack
        self.buffers = tuple(i for i, name in enumerate(parameters) if name == "buffer")

        self.worth: dict[int, bool] = {}
        """Whether it is worth sharing so many items, as far as that was measured."""

    def shares(self, items: int, group: int | None) -> bool:
        """Whether threads should share so many items."""
        known = self.worth.get(items)
        if known is not None:
            return known
        if len(self.worth) > MOST_KNOWN:
            self.worth.clear()
        return group is None and items >= MANY

    def packed(self, args: Sequence[Any]) -> bytes:
        """Return the arguments as they lie in memory."""
        given = list(args)
        for i in self.buffers:
            given[i] = address_of(given[i])
        return self.pack(*given)


Launch = tuple[Kernel, int, Sequence[Any], int | None]
"""Kernel, items, arguments, group: what ``launch`` takes."""


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
    run = 128

    def __init__(self, cache: DiskCache | None = None) -> None:
        super().__init__()
        if find_spec("pycparser") is None:  # said now; it is imported when the first kernel is compiled
            raise ImportError("pycparser is not installed")
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
            return Kernel(self.compiler.load(make, source, entry, _translator()), entry, parameters)
        except RuntimeError as exc:
            raise CompileError(f"LLVM refuses kernel {entry!r}: {exc}", source) from exc

    def launch(self, context: Any, kernel: Kernel, items: int, args: Sequence[Any], group: int | None = None) -> None:
        """Compute ``items`` work items; returns when they are done."""
        if items <= 0:
            return
        packed, threads = kernel.packed(args), context.threads
        if threads == 1 or items < (2 if group is not None else 2 * WHOLE):
            kernel.call(0, items, packed)
            return
        start = perf_counter()
        if kernel.shares(items, group):
            crew = team(self.compiler.load)
            crew.run(kernel.address, packed, items, *_shared(crew, items, group, threads))
            worth = perf_counter() - start > SHORT
        else:
            kernel.call(0, items, packed)
            worth = perf_counter() - start > LONG
        kernel.worth[items] = worth

    def chain(self, context: Any, launches: Sequence[Launch]) -> Callable[[], None]:
        """Return a function that does launches one after the other, on the memory that they name now, in one call."""
        done = [launch for launch in launches if launch[1] > 0]
        arguments = [ctypes.create_string_buffer(kernel.packed(args)) for kernel, _, args, _ in done]
        crew, count = team(self.compiler.load), len(done)

        def records(threads: int | None) -> Any:
            text = bytearray()
            for (kernel, items, _, group), given in zip(done, arguments, strict=True):
                alone = threads == 1 or not kernel.shares(items, group)
                grain, width = (items, 0) if alone else _shared(crew, items, group, threads)
                text += _RECORD.pack(kernel.address, ctypes.addressof(given), items, grain, width)
            return ctypes.create_string_buffer(bytes(text))

        run, made, calls = crew.chain, {}, 0

        def chained() -> None:
            nonlocal calls
            threads = context.threads
            if calls < TRIALS:  # one by one, which tells what is worth sharing
                calls += 1
                for kernel, items, args, group in done:
                    self.launch(context, kernel, items, args, group)
                return
            if threads not in made:
                made[threads] = records(threads)
            run(made[threads], count)

        return chained


def _shared(crew: Team, items: int, group: int | None, threads: int | None) -> tuple[int, int]:
    """Return how many items a thread takes at a time, and how many threads may join the caller."""
    width = crew.workers if threads is None else min(crew.workers, threads - 1)
    grain = -(-items // ((width + 1) * CHUNKS))
    return (-(-grain // WHOLE) * WHOLE if group is None else grain), width


@cache
def _translator() -> str:
    """Return a hash of what makes LLVM IR of C: code that another version made is not found."""
    found = hashlib.sha256()
    for file in (__file__, *sorted(map(str, Path(inspect.getfile(c_to_llvm)).parent.glob("*.py")))):
        found.update(Path(file).read_bytes())
    return found.hexdigest()


def _packed(entry: str, kinds: Sequence[str]) -> str:
    """Return LLVM IR that calls the kernel with arguments that lie eight bytes apart."""
    lines = [f"define void @{entry}_packed(i64 %begin, i64 %end, ptr %packed) nounwind {{"]
    for i, kind in enumerate(kinds):
        lines += [f"  %at{i} = getelementptr i64, ptr %packed, i64 {i}", f"  %a{i} = load {kind}, ptr %at{i}"]
    given = ", ".join(["i64 %begin", "i64 %end", *(f"{kind} %a{i}" for i, kind in enumerate(kinds))])
    return "\n".join([*lines, f"  call void @{entry}({given})", "  ret void", "}", ""])
