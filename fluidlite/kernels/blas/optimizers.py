"""sgd and momentum: one or two passes over a parameter, by axpy and axpby on all threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .cblas import Vectors, vectors
from .linear_algebra import FLOATS


def _supports(call: Call) -> str | None:
    dtype = call.dtype("Param")
    if dtype in FLOATS and vectors(dtype) is None:
        return "NumPy was built without an axpby that can be found"
    if any(call.dtype(slot) != dtype for slot in ("Grad", "LearningRate")):
        return "its numbers are of one dtype"
    if not all(call.has(slot) for slot in call.op.must_alias):
        return "it writes all outputs"
    if call.op.type == "momentum" and (call.attr("use_nesterov") or call.attr("regularization_method")):
        return "it has no Nesterov momentum and no weight decay"
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

    run.bind = bind  # type: ignore[attr-defined]
    return run


@register_kernel("momentum", "cpu", library="blas", dtypes=FLOATS, supports=_supports, inplace=True)
def momentum(call: Call, context: Context) -> Any:
    """VelocityOut = mu * Velocity + Grad, ParamOut = Param - LearningRate * VelocityOut."""
    routines, size = _parts(call)
    mu = call.attr("mu")

    def run(context: Context, io: IO) -> None:
        rate = float(io.array("LearningRate").reshape(-1)[0])
        velocity = _taken_over(io, "VelocityOut", "Velocity")
        routines.axpby(size, 1.0, io.address("Grad"), mu, velocity)
        routines.axpy(size, -rate, velocity, _taken_over(io, "ParamOut", "Param"))

    def bind(context: Context, io: IO) -> Callable[[], Any]:
        if not _in_place(io, call):
            return lambda: run(context, io)
        rates, velocity = io.array("LearningRate").reshape(-1), io.address("VelocityOut")
        add = routines.axpby_at(size, 1.0, io.address("Grad"), mu, velocity)
        step = routines.axpy_at(velocity, io.address("ParamOut"))

        def bound() -> None:
            add()
            step(size, -float(rates[0]))

        return bound

    run.bind = bind  # type: ignore[attr-defined]
    return run
