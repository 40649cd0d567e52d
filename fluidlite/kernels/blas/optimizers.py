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

from .cblas import FLOATS, vectors

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


@register_kernel("sgd", "cpu", library="blas", dtypes=FLOATS, supports=_supports, inplace=True)
def sgd(call: Call, context: Context) -> Any:
    """ParamOut = Param - LearningRate * Grad."""
    axpy, size = vectors(call.dtype("Param")), call.spec("Param").size
    assert axpy is not None  # _supports has seen to it

    def bind(context: Context, io: IO) -> Callable[[], Any]:
        rates, before, out = io.array("LearningRate").reshape(-1), io.address("Param"), io.address("ParamOut")
        step = axpy(size, io.address("Grad"), out)
        if before == out:
            return lambda: step(-float(rates[0]))

        def beside() -> None:  # the program gives the result another variable
            ctypes.memmove(out, before, io.span("Param").nbytes)
            step(-float(rates[0]))

        return beside

    def run(context: Context, io: IO) -> None:
        bind(context, io)()

    return Prepared(run, bind=bind)
