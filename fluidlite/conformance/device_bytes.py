"""Bytes on a device, for checks: patterns, copies of parts of an allocation, and their comparison."""

from __future__ import annotations

import numpy as np

from fluidlite.conformance.cases import Array
from fluidlite.conformance.tolerances import ConformanceError
from fluidlite.memory import Allocation
from fluidlite.platform.context import Context
from fluidlite.platform.device_memory import Span
from fluidlite.platform.place import Place


def pattern(nbytes: int, seed: int = 0) -> Array:
    """Return random bytes."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def subspan(allocation: Allocation, offset: int, nbytes: int) -> Span:
    """Return a part of an allocation."""
    whole = allocation.span()
    return Span(whole.handle, whole.offset + offset, nbytes)


def write(context: Context, span: Span, data: Array) -> None:
    """Enqueue a copy to the device."""
    context.copy_in(span, data.data.cast("B"))


def read(context: Context, span: Span) -> Array:
    """Return the bytes of the device's memory, after all work of the queue."""
    out = np.empty(span.nbytes, np.uint8)
    context.copy_out(out.data, span)
    context.wait()
    return out


def equal(subject: str, place: Place, actual: Array, expected: Array) -> None:
    """Raise ConformanceError, which names the first wrong element, unless two arrays are equal."""
    if actual.shape != expected.shape or not np.array_equal(actual, expected):
        errors = np.flatnonzero(actual.ravel() != expected.ravel())
        raise ConformanceError(
            f"{place}: {subject}: {errors.size} of {expected.size} elements are wrong, the first at {int(errors[0])}: "
            f"{actual.ravel()[errors[0]]}, expected {expected.ravel()[errors[0]]}"
        )
