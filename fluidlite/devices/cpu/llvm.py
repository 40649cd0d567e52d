"""Machine code from LLVM IR, by llvmlite, for the processor that is there."""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from fluidlite.kernel_support import MOST_OPTIMISED, DiskCache, hold_at_fork, new_rlock, opt_level

from . import object_code
from .compile_queue import queue

_KINDS = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "pointer": ctypes.c_void_p}

_LIBRARY = 48 << 10
"""What LLVM keeps for loaded code beside the code: most of it is pages of memory that are not full."""
_SHORTER = 8
"""Machine code is about so much shorter than its IR."""
_LINKED = 256
"""Libraries of a linker, which keeps some 9 KiB for each that is gone."""

_numbers = itertools.count()
_compiling = new_rlock()
"""Held while LLVM is at work, and by who forks: what LLVM itself locks is free in the child then."""

hold_at_fork(lambda: (_compiling,))

_gone: deque[Any] = deque()
"""Libraries of code that nobody holds. They are freed when LLVM is next at work: a finaliser may run anywhere, also
where a fork does not wait for it, and the child would find LLVM's locks held."""


def _object_code(text: str, level: int, cpu: str, features: str) -> bytes:
    with _compiling:
        return object_code.object_code(text, level, cpu, features)


_queue = queue(_object_code)


class Code:
    """Machine code; it goes when nobody holds it.

    ``library``: the loaded code; None: it is still to be compiled or loaded.
    ``wait``, ``load``: code that is not there yet, and the library of it: asked for with the first address.
    ``weight``: bytes of memory that it takes, about.
    """

    def __init__(
        self,
        library: Any,
        nbytes: int,
        wait: Callable[[], bytes] | None = None,
        load: Callable[[bytes], Any] | None = None,
    ) -> None:
        self._library, self._wait, self._load = library, wait, load
        self.weight = _LIBRARY + 4 * nbytes

    def __del__(self, gone: deque[Any] = _gone) -> None:  # a name of the module may be gone when Python ends
        gone.append(self._library)

    def _loaded(self) -> Any:
        wait, load = self._wait, self._load
        if wait is not None and load is not None:
            code = wait()  # without the lock: others compile meanwhile
            with _compiling:
                if self._library is None:
                    self._library = load(code)
                self._wait = self._load = None
        return self._library

    def address(self, name: str) -> int:
        """Return where a function, or a global variable, is that was named when it was loaded; wait for the code."""
        library = self._library if self._library is not None else self._loaded()
        found: int = library[name]
        return found

    def function(
        self, name: str, result: str | None, parameters: Sequence[str], keep_lock: bool = False
    ) -> Callable[..., Any]:
        """Return a function that lets go of the interpreter's lock while it runs, or keeps it."""
        kinds = [_KINDS[parameter] for parameter in parameters]
        make = ctypes.PYFUNCTYPE if keep_lock else ctypes.CFUNCTYPE
        found = make(_KINDS[result] if result else None, *kinds)(self.address(name))
        found.code = self  # type: ignore[attr-defined]
        return found

    def keep(self) -> None:
        """Never let it go."""
        self._loaded().detach()


class Compiler:
    """Compiles for this machine: all that its processor has, no fast-math option, nothing contracted.

    ``cache``: where machine code is kept.
    ``features``: of the processor, such as "f16c".
    ``compiled``: how many modules were compiled, not found.
    ``seconds``: spent on that.
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
        """Find the machine code of a module, or let it be compiled.

        ``make``: LLVM IR, or what makes it if nothing is kept under ``key``.
        ``names``: the functions and global variables whose addresses will be asked for.
        ``*key``: what the IR was made from.
        Raises RuntimeError with LLVM's reason, if it refuses the text.
        """
        level = opt_level()
        cache = self.cache if key else None
        key = (*self._version, str(level), *key)
        kept = cache.get(*key) if cache is not None else None
        with _compiling:
            _gone.clear()
            if kept is not None:
                try:
                    return Code(self._library(kept, names), len(kept))
                except RuntimeError:  # made by a machine that this one is not
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

        return Code(None, len(text) // _SHORTER, partial(_queue.result, job), load)

    def _library(self, code: bytes, names: Sequence[str]) -> Any:
        """Load a module as a library of its own: modules name their functions alike, and go one by one.

        One linker makes many: a processor's description and an engine for each would take ten times as long. What
        it notes of a library stays when that goes, so that it is replaced now and then, and goes with its last one.
        """
        number = next(_numbers)
        if self._linker is None or number % _LINKED == 0:
            machine = object_code.machine(MOST_OPTIMISED, self._cpu, self._text)
            self._linker = llvm.create_lljit_compiler(machine)
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for name in names:
            builder.export_symbol(name)
        return builder.link(self._linker, f"fluidlite_{number}")
