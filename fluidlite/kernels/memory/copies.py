"""Operators whose output has the input's bytes: assign, views and transfers, other dims, with gradients."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from fluidlite.plugin import IO, Call, Context, Prepared, register_kernel

_SHORT = 1 << 16
"""Bytes of a copy that is noted as a native call."""


@cache
def _memmove() -> int:
    return ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0


def _copy(source: str, target: str) -> Any:
    def run(context: Context, io: IO) -> None:
        src, dst = io.span(source), io.span(target)
        if src.nbytes and (src.handle is not dst.handle or src.offset != dst.offset):  # in place: nothing to do
            context.copy_within(dst, src)

    def record(recorder: Any, io: IO) -> bool:
        nbytes, src, dst = io.span(source).nbytes, io.address(source), io.address(target)
        if nbytes > _SHORT:  # it may let others run meanwhile
            return False
        if nbytes and src != dst:
            recorder.call(_memmove(), ("pointer", "pointer", "int64"), dst, src, nbytes)
        return True

    return Prepared(run, record=record)


@register_kernel("assign", "memory", inplace=True)
def assign(call: Call, context: Context) -> Any:
    """Out = X."""
    return _copy("X", "Out")


def _same_bytes(call: Call, context: Context) -> Any:
    """Out has X's bytes under other dims."""
    return _copy("X", "Out")


def _same_bytes_grad(call: Call, context: Context) -> Any:
    """X@GRAD has Out@GRAD's bytes under X's dims."""
    return _copy("Out@GRAD", "X@GRAD")


device_view = register_kernel("device_view", "memory", inplace=True)(_same_bytes)
device_transfer = register_kernel("device_transfer", "memory", inplace=True)(_same_bytes)
reshape = register_kernel("reshape", "memory", inplace=True)(_same_bytes)
reshape2 = register_kernel("reshape2", "memory", inplace=True)(_same_bytes)
squeeze = register_kernel("squeeze", "memory", inplace=True)(_same_bytes)
squeeze2 = register_kernel("squeeze2", "memory", inplace=True)(_same_bytes)
unsqueeze = register_kernel("unsqueeze", "memory", inplace=True)(_same_bytes)
unsqueeze2 = register_kernel("unsqueeze2", "memory", inplace=True)(_same_bytes)
flatten = register_kernel("flatten", "memory", inplace=True)(_same_bytes)
flatten2 = register_kernel("flatten2", "memory", inplace=True)(_same_bytes)
reshape_grad = register_kernel("reshape_grad", "memory", inplace=True)(_same_bytes_grad)
reshape2_grad = register_kernel("reshape2_grad", "memory", inplace=True)(_same_bytes_grad)
squeeze_grad = register_kernel("squeeze_grad", "memory", inplace=True)(_same_bytes_grad)
squeeze2_grad = register_kernel("squeeze2_grad", "memory", inplace=True)(_same_bytes_grad)
unsqueeze_grad = register_kernel("unsqueeze_grad", "memory", inplace=True)(_same_bytes_grad)
unsqueeze2_grad = register_kernel("unsqueeze2_grad", "memory", inplace=True)(_same_bytes_grad)
flatten_grad = register_kernel("flatten_grad", "memory", inplace=True)(_same_bytes_grad)
flatten2_grad = register_kernel("flatten2_grad", "memory", inplace=True)(_same_bytes_grad)
