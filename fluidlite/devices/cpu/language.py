"""The kernel language of the CPU: C, translated to LLVM IR and compiled for the processor; items shared by threads."""

from __future__ import annotations

import hashlib
import inspect
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any
from weakref import WeakValueDictionary

from fluidlite.kernel_support import CacheInfo, DiskCache, c_to_llvm, opt_level
from fluidlite.plugin import CompileError, DeviceError, KernelLanguageBase

from .command_buffer import CommandBuffer
from .images import Image, image, runner
from .llvm import Compiler
from .memory import address_of
from .thread_pool import FEWEST, shared, team

MANY = 1 << 17
"""Short items that are shared by threads before it is known how long they take."""
LONG, SHORT = 60e-6, 15e-6
"""Seconds alone from which threads gain more than they cost, and seconds together below which one is enough."""
MOST_KNOWN = 1024

_PACKED = {
    "buffer": "Q",
    "pointer": "Q",
    "bool": "B7x",
    "uint8": "B7x",
    "int8": "b7x",
    "int16": "h6x",
    "int32": "i4x",
    "int64": "q",
    "uint32": "I4x",
    "uint64": "Q",
    "float32": "f4x",
    "float64": "d",
}


def packed_name(entry: str) -> str:
    """The function that takes the arguments of a kernel side by side in memory."""
    return f"{entry}_packed"


class Kernel:
    """A kernel: where it is, which its first run waits for, and how its arguments are packed."""

    __slots__ = ("__weakref__", "address", "buffers", "call", "code", "entry", "pack", "weight", "worth")
    address: int
    call: Any

    def __init__(self, code: Any, entry: str, parameters: Sequence[str]) -> None:
        self.code, self.entry = code, entry
        self.weight: int = code.weight
        self.pack = struct.Struct("<" + "".join([_PACKED[name] for name in parameters])).pack
        self.buffers = tuple([i for i, name in enumerate(parameters) if name == "buffer"])

        self.worth: dict[int, bool] = {}
        """Whether it is worth sharing so many items, as far as that was measured."""

    def __getattr__(self, name: str) -> Any:
        if name not in ("address", "call"):
            raise AttributeError(name)
        packed = packed_name(self.entry)
        try:
            self.address = self.code.address(packed)
        except RuntimeError as exc:
            raise CompileError(f"LLVM refuses kernel {self.entry!r}: {exc}") from exc
        self.call = self.code.function(packed, None, ("int64", "int64", "pointer"))
        return getattr(self, name)

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


class LLVMLanguage(KernelLanguageBase):
    """C of the subset that :func:`fluidlite.kernel_support.c_to_llvm` reads, with LLVM's functions.

    Raises ImportError if llvmlite or pycparser is not installed.
    """

    name = "llvm"
    keywords: Mapping[str, str] = {
        **KernelLanguageBase.keywords,
        "each": "for (long gid = fl_begin; gid < fl_end; ++gid)",
        "stream": "llvm_stream",
        "independent": '_Pragma("independent")',
    }
    preferred = True
    least = 1024
    run = 128

    def __init__(self, cache: DiskCache | None = None) -> None:
        super().__init__()
        if find_spec("pycparser") is None:  # said now; it is imported when the first kernel is compiled
            raise ImportError("pycparser is not installed")
        self.compiler = Compiler(DiskCache() if cache is None else cache)
        names = {"sqrt", "floor", "ceil", "trunc", "fma", "fabs"}
        features = self.compiler.features
        if not features.get("sse4.1", True):  # LLVM would call a library for each element
            names -= {"floor", "ceil", "trunc"}
        if not features.get("fma", True):
            names -= {"fma"}
        math: dict[str, str | None] = {name: f"llvm_{name}" for name in names}
        self.registers = (32, 64) if features.get("avx512f", False) else (16, 32 if features.get("avx", False) else 16)
        if features.get("f16c", False):
            math |= {"load.float16": "llvm_load_float16", "store.float16": "llvm_store_float16"}
        self.math: Mapping[str, str | None] = math
        self._run_images: Any = None
        self._kernels: WeakValueDictionary[tuple[Any, ...], Kernel] = WeakValueDictionary()  # contexts share them

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> Kernel:
        """Translate and compile ``source``, or find it in the cache.

        Raises CompileError if the text is not in the subset, has no ``entry``, or another number of parameters.
        """

        def make() -> str:
            text, kinds = c_to_llvm(source, entry)
            if len(kinds) != len(parameters):
                raise CompileError(f"kernel {entry!r} has {len(kinds)} parameters, not {len(parameters)}", source)
            # internal: it is compiled once, in the one function that calls it
            return text.replace(f"define void @{entry}(", f"define internal void @{entry}(", 1) + _packed(entry, kinds)

        key = (source, entry, parameters, opt_level())
        found = self._kernels.get(key)
        if found is not None:
            return found
        try:
            code = self.compiler.load(make, [packed_name(entry)], source, entry, _translator())
        except DeviceError:  # it says itself what is wrong
            raise
        except RuntimeError as exc:
            raise CompileError(f"LLVM refuses kernel {entry!r}: {exc}", source) from exc
        found = self._kernels[key] = Kernel(code, entry, parameters)
        return found

    def image(self, recordings: Any, memory: Any, registers: int) -> Image | None:
        return image(recordings, memory, registers)

    def run_images(self, words: Any, bases: Any) -> None:
        if self._run_images is None:
            self._run_images = runner(self.compiler.load)
        self._run_images(words, bases)

    def native(self, kinds: tuple[str, ...]) -> Kernel:
        """Return a kernel that calls a C function: its first argument is the address, the others are the function's."""
        found = self._kernels.get(kinds)
        if found is None:
            code = self.compiler.load(_calling(kinds), [packed_name("fl_native")], "native", *kinds)
            found = self._kernels[kinds] = Kernel(code, "fl_native", ("pointer", *kinds))
        return found

    def listings(self, source: str, entry: str, parameters: tuple[str, ...]) -> Mapping[str, str]:
        """Return what LLVM is given."""
        text, _ = c_to_llvm(source, entry)
        return {".ll": text}

    def cache_info(self) -> Mapping[str, CacheInfo]:
        """Return what the machine code on disk tells; its misses are what was compiled."""
        compiler, cache = self.compiler, self.compiler.cache
        if cache is None:
            return {}
        return {"kernels on disk": replace(cache.info(), misses=compiler.compiled, seconds=compiler.seconds)}

    def launch(self, context: Any, kernel: Kernel, items: int, args: Sequence[Any], group: int | None = None) -> None:
        """Compute ``items`` work items; returns when they are done."""
        if items > 0:
            self.launch_packed(context, kernel, items, kernel.packed(args), group)

    def launch_packed(self, context: Any, kernel: Kernel, items: int, packed: bytes, group: int | None) -> None:
        """Compute one or more work items, with arguments as they lie in memory."""
        threads = context.threads
        if threads == 1 or items < FEWEST[group is not None]:
            kernel.call(0, items, packed)
            return
        call = kernel.call  # a first run waits for it, which is no time of its own
        start = perf_counter()
        if kernel.shares(items, group):
            crew = team(self.compiler.load)
            crew.run(kernel.address, packed, items, *shared(crew, items, group, threads))
            worth = perf_counter() - start > SHORT
        else:
            call(0, items, packed)
            worth = perf_counter() - start > LONG
        kernel.worth[items] = worth

    def chain(self, context: Any, launches: Sequence[Launch]) -> CommandBuffer:
        """Return what does launches one after the other, on the memory that they name now, in one call."""
        return CommandBuffer(team(self.compiler.load), context, launches, self.launch_packed)


@cache
def _translator() -> str:
    """Return a hash of what makes machine code of C: code that another version made is not found."""
    found = hashlib.sha256()
    mine = Path(__file__)
    for file in (mine, mine.with_name("object_code.py"), *sorted(Path(inspect.getfile(c_to_llvm)).parent.glob("*.py"))):
        found.update(file.read_bytes())
    return found.hexdigest()


_TYPES = {"pointer": "ptr", "int32": "i32", "int64": "i64", "float32": "float", "float64": "double"}


def _calling(kinds: Sequence[str]) -> str:
    """Return LLVM IR that calls the function whose address comes first, with arguments that lie eight bytes apart."""
    types = ["ptr", *[_TYPES[kind] for kind in kinds]]
    return _unpacking("fl_native", types, "%a0", [f"{kind} %a{i}" for i, kind in enumerate(types) if i])


def _packed(entry: str, kinds: Sequence[str]) -> str:
    given = ["i64 %begin", "i64 %end", *(f"{kind} %a{i}" for i, kind in enumerate(kinds))]
    return _unpacking(entry, kinds, f"@{entry}", given)


def _unpacking(name: str, kinds: Sequence[str], function: str, given: Sequence[str]) -> str:
    lines = [f"define void @{packed_name(name)}(i64 %begin, i64 %end, ptr %packed) nounwind {{"]
    for i, kind in enumerate(kinds):
        lines += [f"  %at{i} = getelementptr i64, ptr %packed, i64 {i}", f"  %a{i} = load {kind}, ptr %at{i}"]
    return "\n".join([*lines, f"  call void {function}({', '.join(given)})", "  ret void", "}", ""])
