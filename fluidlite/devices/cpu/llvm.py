"""Machine code from LLVM IR, by llvmlite, for the processor that is there."""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding.ffi import ObjectRef
from llvmlite.binding.newpassmanagers import NewPassManager

from fluidlite.kernel_support import MOST_OPTIMISED, DiskCache, hold_at_fork, new_rlock, opt_level

_KINDS = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "pointer": ctypes.c_void_p}

_LIBRARY = 48 << 10
"""What LLVM keeps for loaded code beside the code: most of it is pages of memory that are not full."""
_LINKED = 256
"""Libraries of a linker, which keeps some 9 KiB for each that is gone."""

MOST_FOR_NEIGHBOURS = 24 << 10
"""Bytes of text in which LLVM looks for neighbours that become vectors although no loop says so. It takes quadratic
time, up to two seconds a kernel, and what has so much text has loops over lanes, which are vectors already."""

_numbers = itertools.count()
_compiling = new_rlock()
"""Held while LLVM is at work, and by who forks: what LLVM itself locks is free in the child then."""

hold_at_fork(lambda: (_compiling,))

_gone: deque[Any] = deque()
"""Libraries of code that nobody holds. They are freed when LLVM is next at work: a finaliser may run anywhere, also
where a fork does not wait for it, and the child would find LLVM's locks held."""


class Code:
    """Loaded machine code; it goes when nobody holds it.

    Attributes
    ----------
    weight : int
        Bytes of memory that it takes, about.
    """

    def __init__(self, library: Any, nbytes: int) -> None:
        self._library = library
        self.weight = _LIBRARY + 4 * nbytes

    def __del__(self, gone: deque[Any] = _gone) -> None:  # a name of the module may be gone when Python ends
        gone.append(self._library)

    def address(self, name: str) -> int:
        """Return where a function, or a global variable, is that was named when it was loaded."""
        found: int = self._library[name]
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
        self._library.detach()


class Compiler:
    """Compiles for this machine: all that its processor has, no fast-math option, nothing contracted.

    Parameters
    ----------
    cache : DiskCache or None
        Where machine code is kept.

    Attributes
    ----------
    features : dict of str to bool
        Of the processor, such as "f16c".
    compiled : int
        How many modules were compiled, not found.
    seconds : float
        Spent on that.
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

    def _machine(self, level: int) -> Any:
        target = llvm.Target.from_default_triple()
        return target.create_target_machine(cpu=self._cpu, features=self._text, opt=level, jit=True)

    def load(self, make: str | Callable[[], str], names: Sequence[str], *key: str) -> Code:
        """Compile a module, or find it.

        Parameters
        ----------
        make : str or callable
            LLVM IR, or what makes it if nothing is kept under ``key``.
        names : sequence of str
            The functions and global variables whose addresses will be asked for.
        *key : str
            What the IR was made from.

        Raises
        ------
        RuntimeError
            With LLVM's reason, if it refuses the text.
        """
        level = opt_level()
        cache = self.cache if key else None
        key = (*self._version, str(level), *key)
        kept = cache.get(*key) if cache is not None else None
        with _compiling:
            _gone.clear()
            if kept is not None:
                try:
                    return self._loaded(kept, names)
                except RuntimeError:  # made by a machine that this one is not
                    pass
            began = perf_counter()
            code = self._object(make if isinstance(make, str) else make(), level)
            self.compiled += 1
            self.seconds += perf_counter() - began
            loaded = self._loaded(code, names)
        if cache is not None:
            cache.put(code, *key)
        return loaded

    def _object(self, text: str, level: int) -> bytes:
        machine = self._machine(level)
        module = llvm.parse_assembly(text)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=level)
        options.loop_vectorization = level > 1
        options.slp_vectorization = level > 1 and len(text) <= MOST_FOR_NEIGHBOURS
        builder = llvm.create_pass_builder(machine, options)
        passes = builder.getModulePassManager()
        try:
            passes.run(module, builder)
        finally:
            _dispose(passes)
        code: bytes = machine.emit_object(module)
        return code

    def _loaded(self, code: bytes, names: Sequence[str]) -> Code:
        """Load a module as a library of its own: modules name their functions alike, and go one by one.

        One linker makes many: a processor's description and an engine for each would take ten times as long. What
        it notes of a library stays when that goes, so that it is replaced now and then, and goes with its last one.
        """
        number = next(_numbers)
        if self._linker is None or number % _LINKED == 0:
            self._linker = llvm.create_lljit_compiler(self._machine(MOST_OPTIMISED))
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for name in names:
            builder.export_symbol(name)
        return Code(builder.link(self._linker, f"fluidlite_{number}"), len(code))


def _dispose(passes: Any) -> None:
    """Free a pass manager. llvmlite's own ``close`` frees nothing: its class inherits an empty ``_dispose`` first."""
    if type(passes)._dispose is ObjectRef._dispose:
        NewPassManager._dispose(passes)
        passes.detach()
    else:
        passes.close()
