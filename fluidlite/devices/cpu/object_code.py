"""Machine code of LLVM IR. Run as a program, it makes that of others: it imports nothing of this package.

A message is its length in eight bytes, and as many bytes: a request is JSON, an answer begins with ``+`` (machine code)
or ``-`` (LLVM's reason).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import sys
from typing import IO, Any

import llvmlite.binding as llvm
from llvmlite.binding.ffi import ObjectRef
from llvmlite.binding.newpassmanagers import NewPassManager

MOST_FOR_NEIGHBOURS = 24 << 10
"""Bytes of text in which LLVM looks for neighbours that become vectors although no loop says so. It takes quadratic
time, up to two seconds a kernel, and what has so much text has loops over lanes, which are vectors already."""
READY = b"READY"
"""The first answer."""
_PATIENCE_SECONDS = 60
"""A process that is asked nothing for so long ends: who started it may have gone without a word."""
_LENGTH = struct.Struct("<Q")
_LONGEST = 1 << 30
"""Bytes of a message: a longer one is none."""


def machine(level: int, cpu: str, features: str) -> Any:
    """LLVM's description of a processor."""
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=level, jit=True)


def check(text: str) -> None:
    """Raise RuntimeError with LLVM's reason, if it refuses a module."""
    llvm.parse_assembly(text).verify()


def object_code(text: str, level: int, cpu: str, features: str) -> bytes:
    """Compile a module: all that the processor has, no fast-math option, nothing contracted.

    Parameters
    ----------
    text : str
        LLVM IR.
    level : int
        How much is optimised, 0 to 3.
    cpu, features : str
        What LLVM calls the processor, and what it has.

    Raises
    ------
    RuntimeError
        With LLVM's reason, if it refuses the text.
    """
    target = machine(level, cpu, features)
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = level > 1
    options.slp_vectorization = level > 1 and len(text) <= MOST_FOR_NEIGHBOURS
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


def send(stream: IO[bytes], message: bytes) -> None:
    """Write a message."""
    stream.write(_LENGTH.pack(len(message)) + message)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes:
    """Read a message.

    Raises
    ------
    EOFError
        If the other side has gone, or says something else.
    """
    head = stream.read(_LENGTH.size)
    length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else _LONGEST + 1
    message = stream.read(length) if length <= _LONGEST else b""
    if len(message) != length:
        raise EOFError
    return message


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what LLVM prints is no answer
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    send(answers, READY)
    while True:
        if hasattr(signal, "alarm"):
            signal.alarm(_PATIENCE_SECONDS)
        request = json.loads(receive(sys.stdin.buffer))
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        try:
            answer = b"+" + object_code(*request)
        except RuntimeError as exc:
            answer = b"-" + str(exc).encode()
        send(answers, answer)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):
        _serve()
