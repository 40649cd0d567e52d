"""Operators whose output has the input's bytes: assign, views, transfers, reshapes and their gradients."""

from __future__ import annotations

import ctypes
from typing import Any

from fluidlite.kernel_support import Kernel
from fluidlite.plugin import IO, Call, Context, Prepared, register_kernel

_MAX_NATIVE_BYTES = 1 << 16
"""Maximum bytes of a copy that is recorded as a native call, which keeps the interpreter's lock."""
_MEMMOVE = ctypes.cast(ctypes.memmove, ctypes.c_void_p).value


def _copy(source: str, target: str) -> Any:
    def run(context: Context, io: IO) -> None:
        src, dst = io.span(source), io.span(target)
        if src.nbytes and (src.handle is not dst.handle or src.offset != dst.offset):  # in place: nothing to do
            context.copy_within(dst, src)

    def record(recorder: Any, io: IO) -> bool:
        nbytes, src, dst = io.span(source).nbytes, io.address(source), io.address(target)
        if nbytes > _MAX_NATIVE_BYTES:  # other threads may run meanwhile
            return False
        if nbytes and src != dst:
            recorder.call(_MEMMOVE, ("pointer", "pointer", "int64"), dst, src, nbytes)
        return True

    return Prepared(run, record=record)


def _same_bytes(call: Call, context: Context) -> Any:
    """Out has X's bytes, usually with other dims."""
    return _copy("X", "Out")


def _same_bytes_grad(call: Call, context: Context) -> Any:
    """X@GRAD has Out@GRAD's bytes with X's dims."""
    return _copy("Out@GRAD", "X@GRAD")


def _registered(op: str) -> Kernel:
    prepare = _same_bytes_grad if op.endswith("_grad") else _same_bytes
    return register_kernel(op, "memory", inplace=True)(prepare)


assign, device_view, device_transfer = _registered("assign"), _registered("device_view"), _registered("device_transfer")
reshape, reshape_grad = _registered("reshape"), _registered("reshape_grad")
reshape2, reshape2_grad = _registered("reshape2"), _registered("reshape2_grad")
squeeze, squeeze_grad = _registered("squeeze"), _registered("squeeze_grad")
squeeze2, squeeze2_grad = _registered("squeeze2"), _registered("squeeze2_grad")
unsqueeze, unsqueeze_grad = _registered("unsqueeze"), _registered("unsqueeze_grad")
unsqueeze2, unsqueeze2_grad = _registered("unsqueeze2"), _registered("unsqueeze2_grad")
flatten, flatten_grad = _registered("flatten"), _registered("flatten_grad")
flatten2, flatten2_grad = _registered("flatten2"), _registered("flatten2_grad")
