"""Compile LLVM IR to machine code for the host processor, with llvmlite."""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from fluidlite.kernel_support import MAX_OPT_LEVEL, DiskCache, acquire_at_fork, new_rlock, opt_level

from . import object_code
from .compile_queue import queue

_KINDS = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "pointer": ctypes.c_void_p}

_LIBRARY_BYTES = 48 << 10
"""Bytes of LLVM's overhead for a loaded library: mostly partly filled pages of memory."""
_IR_TO_CODE_RATIO = 8
"""Approximate ratio of the bytes of IR to those of its machine code."""
_LIBRARIES_PER_LINKER = 256
"""Libraries after which a linker is replaced: it never frees about 9 KiB of each unloaded library."""

_numbers = itertools.count()
_compiling = new_rlock()
"""Held by callers of LLVM, and by a thread that forks, so that LLVM's own locks are free in the child."""

acquire_at_fork(lambda: (_compiling,))

_released: deque[Any] = deque()
"""Libraries of unreferenced code. They are freed at the next compilation, not in a finalizer: a fork does not wait for
finalizers, and the child would find LLVM's locks held."""


def _object_code(text: str, level: int, cpu: str, features: str) -> bytes:
    with _compiling:
        return object_code.object_code(text, level, cpu, features)


_queue = queue(_object_code)


class Code:
    """Machine code; it is unloaded when it is no longer referenced.

    ``library``: the loaded code; None: it is still to be compiled or loaded.
    ``wait``, ``load``: wait for the compiled code, and load it as a library; called for the first address.
    ``weight``: its approximate memory in bytes.
    """

    def __init__(
        self,
        library: Any,
        nbytes: int,
        wait: Callable[[], bytes] | None = None,
        load: Callable[[bytes], Any] | None = None,
    ) -> None:
        self._library, self._wait, self._load = library, wait, load
        self.weight = _LIBRARY_BYTES + 4 * nbytes

    def __del__(self, gone: deque[Any] = _released) -> None:  # a global may be cleared at exit
        gone.append(self._library)

    def _loaded(self) -> Any:
        wait, load = self._wait, self._load
        if wait is not None and load is not None:
            code = wait()  # without the lock: other threads compile meanwhile
            with _compiling:
                if self._library is None:
                    self._library = load(code)
                self._wait = self._load = None
        return self._library

    def address(self, name: str) -> int:
        """Return the address of a function or global variable that was named in `Compiler.load`; wait for the code."""
        library = self._library if self._library is not None else self._loaded()
        address: int = library[name]
        return address

    def function(
        self, name: str, result: str | None, parameters: Sequence[str], keep_lock: bool = False
    ) -> Callable[..., Any]:
        """Return a ctypes function that releases the interpreter's lock while it runs, or keeps it (``keep_lock``)."""
        kinds = [_KINDS[parameter] for parameter in parameters]
        make = ctypes.PYFUNCTYPE if keep_lock else ctypes.CFUNCTYPE
        function = make(_KINDS[result] if result else None, *kinds)(self.address(name))
        function.code = self  # type: ignore[attr-defined]
        return function

    def keep(self) -> None:
        """Never unload the library."""
        self._loaded().detach()


class Compiler:
    """Compiles for this machine, with all features of its processor, no fast-math option and no contraction.

    ``cache``: the cache of machine code.
    ``features``: the processor's features, such as "f16c".
    ``compiled``: the number of modules that were compiled (cache misses).
    ``seconds``: the time spent on compiling them.
    """

    def __init__(self, cache: DiskCache | None) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.features: dict[str, bool] = dict(llvm.get_host_cpu_features())
        self._cpu, self._text = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        self.cache = cache
        self.compiled = 0
        self.seconds = 0.0
        self._linker: Any = None
        self._version = (llvmlite.__version__, self._cpu, self._text)

    def load(self, make: str | Callable[[], str], names: Sequence[str], *key: str) -> Code:
        """Return the cached machine code of a module, or queue the module for compilation.

        ``make``: LLVM IR, or a function that returns it, called at a cache miss.
        ``names``: the functions and global variables whose addresses are needed.
        ``*key``: the source that the IR is derived from: the key in the cache.
        Raises RuntimeError with LLVM's reason if it refuses the text.
        """
        level = opt_level()
        cache = self.cache if key else None
        key = (*self._version, str(level), *key)
        cached = cache.get(*key) if cache is not None else None
        with _compiling:
            _released.clear()
            if cached is not None:
                try:
                    return Code(self._library(cached, names), len(cached))
                except RuntimeError:  # compiled on another kind of machine
                    pass
            text = make if isinstance(make, str) else make()
            object_code.check(text)
        job = _queue.put(text, level, self._cpu, self._text)

        def load(code: bytes) -> Any:
            self.compiled += 1
            self.seconds += job.seconds
            if cache is not None:
                cache.put(code, *key)
            return self._library(code, names)

        return Code(None, len(text) // _IR_TO_CODE_RATIO, partial(_queue.result, job), load)

    def _library(self, code: bytes, names: Sequence[str]) -> Any:
        """Load a module as a library of its own: functions of modules have equal names, and are unloaded separately.

        One linker serves many libraries: a target machine and an engine for each would take ten times as long. It
        never frees its records of unloaded libraries, so it is replaced regularly, and ends with its last library.
        """
        number = next(_numbers)
        if self._linker is None or number % _LIBRARIES_PER_LINKER == 0:
            machine = object_code.machine(MAX_OPT_LEVEL, self._cpu, self._text)
            self._linker = llvm.create_lljit_compiler(machine)
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for name in names:
            builder.export_symbol(name)
        return builder.link(self._linker, f"fluidlite_{number}")
