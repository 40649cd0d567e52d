"""sgd of large parameters: one pass, by axpy on all threads.

The kernel that is rendered of the expression starts sooner, and is faster up to some 100,000 elements: there BLAS's
other threads, which turn while they wait for work, cost milliseconds on a busy machine. For momentum, which takes axpy
and axpby, the rendered kernel is faster at every size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from fluidlite.plugin import IO, Call, Context, Prepared, register_kernel

from .cblas import Vectors, vectors
from .linear_algebra import FLOATS

MIN_ELEMENTS = 1 << 17


def _supports(call: Call) -> str | None:
    dtype = call.dtype("Param")
    if dtype in FLOATS and vectors(dtype) is None:
        return "NumPy was built without an axpy that can be found"
    if any(call.dtype(slot) != dtype for slot in ("Grad", "LearningRate")):
        return "its numbers are of one dtype"
    if not all(call.has(slot) for slot in call.op.must_alias):
        return "it writes all outputs"
    if call.spec("Param").size < MIN_ELEMENTS:
        return f"it is for {MIN_ELEMENTS:,} elements and more"
    return None


def _parts(call: Call) -> tuple[Vectors, int]:
    found = vectors(call.dtype("Param"))
    assert found is not None  # _supports has seen to it
    return found, call.spec("Param").size


def _taken_over(io: IO, out: str, given: str) -> int:
    """Address of an output that starts as its input: they are one variable, unless the program says otherwise."""
    address = io.address(out)
    source = io.address(given)
    if address != source:
        ctypes.memmove(address, source, io.span(given).nbytes)
    return address


def _in_place(io: IO, call: Call) -> bool:
    """Whether every output lies where its input does."""
    return all(io.address(out) == io.address(given) for out, given in call.op.must_alias.items())


@register_kernel("sgd", "cpu", library="blas", dtypes=FLOATS, supports=_supports, inplace=True)
def sgd(call: Call, context: Context) -> Any:
    """ParamOut = Param - LearningRate * Grad."""
    routines, size = _parts(call)

    def run(context: Context, io: IO) -> None:
        rate = float(io.array("LearningRate").reshape(-1)[0])
        routines.axpy(size, -rate, io.address("Grad"), _taken_over(io, "ParamOut", "Param"))

    def bind(context: Context, io: IO) -> Callable[[], Any]:
        if not _in_place(io, call):
            return lambda: run(context, io)
        rates, step = io.array("LearningRate").reshape(-1), routines.axpy_at(io.address("Grad"), io.address("ParamOut"))
        return lambda: step(size, -float(rates[0]))

    return Prepared(run, bind=bind)
