"""The kernel language of the CPU: C, translated to LLVM IR and compiled; threads share the work-items."""

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
from .thread_pool import MIN_SHARED_ITEMS, schedule, thread_pool

MIN_UNTIMED_SHARED_ITEMS = 1 << 17
"""Short items from which a launch that was never timed uses several threads."""
MIN_SERIAL_SECONDS, MIN_SHARED_SECONDS = 60e-6, 15e-6
"""Time on one thread from which several threads pay off, and time on several threads below which one suffices."""
MAX_TIMED_SIZES = 1024
"""Numbers of items for which a kernel keeps its measured decision."""

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
    """The name of the function that takes a kernel's arguments packed in memory."""
    return f"{entry}_packed"


class CompiledKernel:
    """A kernel: its address, for which its first run waits for the compiler, and the packing of its arguments."""

    __slots__ = ("__weakref__", "address", "buffers", "call", "code", "entry", "is_shared", "pack", "weight")
    address: int
    call: Any

    def __init__(self, code: Any, entry: str, parameters: Sequence[str]) -> None:
        self.code, self.entry = code, entry
        self.weight: int = code.weight
        self.pack = struct.Struct("<" + "".join([_PACKED[name] for name in parameters])).pack
        self.buffers = tuple([i for i, name in enumerate(parameters) if name == "buffer"])

        self.is_shared: dict[int, bool] = {}
        """Whether several threads run a launch faster, by number of items, as measured."""

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

    def should_share(self, items: int, group: int | None) -> bool:
        """Whether several threads should share this number of items."""
        measured = self.is_shared.get(items)
        if measured is not None:
            return measured
        if len(self.is_shared) > MAX_TIMED_SIZES:
            self.is_shared.clear()
        return group is None and items >= MIN_UNTIMED_SHARED_ITEMS

    def packed(self, args: Sequence[Any]) -> bytes:
        """Return the packed arguments."""
        values = list(args)
        for i in self.buffers:
            values[i] = address_of(values[i])
        return self.pack(*values)


Launch = tuple[CompiledKernel, int, Sequence[Any], int | None]
"""Kernel, items, arguments, group: the arguments of ``launch``."""


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
        if find_spec("pycparser") is None:  # checked now; it is imported when the first kernel is compiled
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
        self._kernels: WeakValueDictionary[tuple[Any, ...], CompiledKernel] = (
            WeakValueDictionary()
        )  # contexts share them

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> CompiledKernel:
        """Translate and compile ``source``, or return it from the cache.

        Raises CompileError if the text is not in the subset, has no ``entry``, or another number of parameters.
        """

        def make() -> str:
            text, kinds = c_to_llvm(source, entry)
            if len(kinds) != len(parameters):
                raise CompileError(f"kernel {entry!r} has {len(kinds)} parameters, not {len(parameters)}", source)
            # internal: LLVM compiles it only once, inlined into its one caller
            return text.replace(f"define void @{entry}(", f"define internal void @{entry}(", 1) + _packed(entry, kinds)

        key = (source, entry, parameters, opt_level())
        kernel = self._kernels.get(key)
        if kernel is not None:
            return kernel
        try:
            code = self.compiler.load(make, [packed_name(entry)], source, entry, _translator())
        except DeviceError:  # its message needs no prefix
            raise
        except RuntimeError as exc:
            raise CompileError(f"LLVM refuses kernel {entry!r}: {exc}", source) from exc
        kernel = self._kernels[key] = CompiledKernel(code, entry, parameters)
        return kernel

    def image(self, recordings: Any, memory: Any, registers: int) -> Image | None:
        return image(recordings, memory, registers)

    def run_images(self, words: Any, bases: Any) -> None:
        if self._run_images is None:
            self._run_images = runner(self.compiler.load)
        self._run_images(words, bases)

    def native(self, kinds: tuple[str, ...]) -> CompiledKernel:
        """Return a kernel that calls a C function: its arguments are the function's address and arguments."""
        kernel = self._kernels.get(kinds)
        if kernel is None:
            code = self.compiler.load(_calling(kinds), [packed_name("fl_native")], "native", *kinds)
            kernel = self._kernels[kinds] = CompiledKernel(code, "fl_native", ("pointer", *kinds))
        return kernel

    def listings(self, source: str, entry: str, parameters: tuple[str, ...]) -> Mapping[str, str]:
        """Return the LLVM IR of a source."""
        text, _ = c_to_llvm(source, entry)
        return {".ll": text}

    def cache_info(self) -> Mapping[str, CacheInfo]:
        """Return the statistics of the disk cache of machine code; its misses are the modules that were compiled."""
        compiler, cache = self.compiler, self.compiler.cache
        if cache is None:
            return {}
        return {"kernels on disk": replace(cache.info(), misses=compiler.compiled, seconds=compiler.seconds)}

    def launch(
        self, context: Any, kernel: CompiledKernel, items: int, args: Sequence[Any], group: int | None = None
    ) -> None:
        """Compute ``items`` work items before returning."""
        if items > 0:
            self.launch_packed(context, kernel, items, kernel.packed(args), group)

    def launch_packed(self, context: Any, kernel: CompiledKernel, items: int, packed: bytes, group: int | None) -> None:
        """Compute one or more work items, with packed arguments."""
        threads = context.threads
        if threads == 1 or items < MIN_SHARED_ITEMS[group is not None]:
            kernel.call(0, items, packed)
            return
        call = kernel.call  # before the timing: the first access waits for the compiler
        start = perf_counter()
        if kernel.should_share(items, group):
            pool = thread_pool(self.compiler.load)
            pool.run(kernel.address, packed, items, *schedule(pool, items, group, threads))
            is_shared = perf_counter() - start > MIN_SHARED_SECONDS
        else:
            call(0, items, packed)
            is_shared = perf_counter() - start > MIN_SERIAL_SECONDS
        kernel.is_shared[items] = is_shared

    def chain(self, context: Any, launches: Sequence[Launch]) -> CommandBuffer:
        """Return a command buffer: it runs launches in order, on the memory that they name, in one call."""
        return CommandBuffer(thread_pool(self.compiler.load), context, launches, self.launch_packed)


@cache
def _translator() -> str:
    """Return a hash of the translator's and compiler's sources: it invalidates code of other versions."""
    digest = hashlib.sha256()
    this_file = Path(__file__)
    for file in (
        this_file,
        this_file.with_name("object_code.py"),
        *sorted(Path(inspect.getfile(c_to_llvm)).parent.glob("*.py")),
    ):
        digest.update(file.read_bytes())
    return digest.hexdigest()


_TYPES = {"pointer": "ptr", "int32": "i32", "int64": "i64", "float32": "float", "float64": "double"}


def _calling(kinds: Sequence[str]) -> str:
    """Return LLVM IR that calls a function at a packed address, with packed arguments eight bytes apart."""
    types = ["ptr", *[_TYPES[kind] for kind in kinds]]
    return _unpacking("fl_native", types, "%a0", [f"{kind} %a{i}" for i, kind in enumerate(types) if i])


def _packed(entry: str, kinds: Sequence[str]) -> str:
    parameters = ["i64 %begin", "i64 %end", *(f"{kind} %a{i}" for i, kind in enumerate(kinds))]
    return _unpacking(entry, kinds, f"@{entry}", parameters)


def _unpacking(name: str, kinds: Sequence[str], function: str, parameters: Sequence[str]) -> str:
    lines = [f"define void @{packed_name(name)}(i64 %begin, i64 %end, ptr %packed) nounwind {{"]
    for i, kind in enumerate(kinds):
        lines += [f"  %at{i} = getelementptr i64, ptr %packed, i64 {i}", f"  %a{i} = load {kind}, ptr %at{i}"]
    return "\n".join([*lines, f"  call void {function}({', '.join(parameters)})", "  ret void", "}", ""])
