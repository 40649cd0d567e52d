"""Machine code of LLVM IR. Run as a program, it makes that of others: it imports nothing of this package.

It reads the arguments of :func:`object_code`, and writes the machine code and LLVM's reason, one of which is empty.
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

MOST_TO_SEARCH = 24 << 10
"""Bytes of text that LLVM searches for neighbours that become vectors although no loop says so, and for conditions that
it could take out of loops. The former takes quadratic time, up to two seconds a kernel; and what has so much text has
loops over lanes, which are vectors already."""
READY = "READY"
"""The first answer."""
_PATIENCE_SECONDS = 60
"""A process that is asked nothing for so long ends: who started it may have gone without a word."""


@cache
def machine(level: int, cpu: str, features: str) -> Any:
    """LLVM's description of a processor."""
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=level, jit=True)


def check(text: str) -> None:
    """Raise RuntimeError with LLVM's reason, if it refuses a module."""
    llvm.parse_assembly(text).verify()


def object_code(text: str, level: int, cpu: str, features: str) -> bytes:
    """Compile a module: all that the processor has, no fast-math option, nothing contracted.

    ``level``: how much is optimised, 0 to 3.
    ``cpu``, ``features``: what LLVM calls the processor, and what it has.
    Raises RuntimeError with LLVM's reason, if it refuses the text.
    """
    target = machine(level, cpu, features)
    module = llvm.parse_assembly(text)
    module.verify()
    search = len(text) <= MOST_TO_SEARCH
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
    os.dup2(2, 1)  # what LLVM prints is no answer
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
