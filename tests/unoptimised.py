"""Checks of numbers whose kernels are built without optimisation, and which of them are built with it.

A kernel of a check runs once, on a few hundred elements: the optimiser takes most of the check's time. What it may take
for granted (``restrict``, loops whose turns are independent) is held by the cpu's samples, which are all optimised, and
by those that are left to it here. ``FLUIDLITE_OPT_LEVEL=3`` of whoever runs the tests leaves all of them to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from operator_checks import parsed

from fluidlite.base.opt_level import VARIABLE
from fluidlite.platform.context_pool import open_contexts
from fluidlite.testing import Check

EVERY = 8
"""Of checks that are no first of their subject, one in so many is optimised."""


@contextmanager
def unoptimised() -> Iterator[None]:
    """Compilers optimise nothing, unless the environment says how much they do; later kernels are their own."""
    if VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = "0"
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        for context in open_contexts():
            context.prepared.clear()


def most_unoptimised(found: Iterable[Check]) -> list[Check]:
    """Checks, of which the first of each operator and of each gradient is optimised, and of the others one in eight."""
    made, seen, others = [], set[str](), 0
    for check in found:
        subject = parsed(check)[0]
        others += subject in seen
        if subject in seen and others % EVERY:
            check = Check(check.id, partial(_run, check.run))
        seen.add(subject)
        made.append(check)
    return made


def _run(run: Callable[[Any], None], place: Any) -> None:
    with unoptimised():
        run(place)
