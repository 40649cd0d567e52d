"""Compile LLVM IR to machine code. As a program this is a compile server, so it imports nothing of this package.

The server reads the arguments of :func:`object_code`, and writes the machine code and LLVM's reason; one is empty.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import sys
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding.ffi import ObjectRef
from llvmlite.binding.newpassmanagers import NewPassManager

MAX_SEARCHED_BYTES = 24 << 10
"""Limit of the bytes of IR for which LLVM runs SLP vectorization and loop unswitching. The former takes quadratic time,
up to two seconds a kernel; and kernels of so much text have explicit loops over lanes, which are vectorized anyway."""
READY = "READY"
"""The server's first answer: it accepts requests."""
_PATIENCE_SECONDS = 60
"""Seconds without a request after which the server ends: its parent may have been killed."""


@cache
def machine(level: int, cpu: str, features: str) -> Any:
    """LLVM's target machine of a processor."""
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=level, jit=True)


def check(text: str) -> None:
    """Raise RuntimeError with LLVM's reason, if it refuses a module."""
    llvm.parse_assembly(text).verify()


def object_code(text: str, level: int, cpu: str, features: str) -> bytes:
    """Compile a module with all features of the processor, no fast-math option and no contraction.

    ``level``: the optimisation level, 0 to 3.
    ``cpu``, ``features``: LLVM's names of the processor and of its features.
    Raises RuntimeError with LLVM's reason, if it refuses the text.
    """
    target = machine(level, cpu, features)
    module = llvm.parse_assembly(text)
    module.verify()
    search = len(text) <= MAX_SEARCHED_BYTES
    options = llvm.create_pipeline_tuning_options(speed_level=level if search else min(level, 1))
    options.loop_vectorization = level > 1
    options.slp_vectorization = level > 1 and search
    builder = llvm.create_pass_builder(target, options)
    passes = builder.getModulePassManager()
    try:
        passes.run(module, builder)
    finally:
        _dispose(passes)
    code: bytes = target.emit_object(module)
    return code


def _dispose(passes: Any) -> None:
    """Free a pass manager. llvmlite's own ``close`` frees nothing: its class inherits an empty ``_dispose`` first."""
    if type(passes)._dispose is ObjectRef._dispose:
        NewPassManager._dispose(passes)
        passes.detach()
    else:
        passes.close()


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of LLVM must not mix with the answers
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    marshal.dump(READY, answers)
    answers.flush()
    while True:
        if hasattr(signal, "alarm"):
            signal.alarm(_PATIENCE_SECONDS)
        request = marshal.load(sys.stdin.buffer)
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        try:
            answer = object_code(*request), ""
        except RuntimeError as exc:
            answer = b"", str(exc) or "no reason"
        marshal.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):
        _serve()
