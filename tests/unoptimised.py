"""Tests whose kernels are built without optimisation, and which of them are built with it.

A kernel of a test runs once, on a few hundred elements: the optimiser takes most of the test's time. What it may take
for granted (``restrict``, loops whose turns are independent) is held by what runs on the cpu, which is optimised, and
by what is left to it here. ``FLUIDLITE_OPT_LEVEL=3`` of whoever runs the tests leaves all of them to it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from fluidlite.base.opt_level import VARIABLE
from fluidlite.platform.context_pool import open_contexts
from fluidlite.testing import Check

EVERY = 8
"""Of checks that are no first of their subject, and of other cases, one in so many is optimised."""
DRIVERS = ("opencl",)
"""Kinds of places whose driver builds kernels from their source."""
COMPILED = (
    "tests/docs/test_pages.py",
    *(f"tests/end_to_end/test_{name}.py" for name in ("books", "old_loops", "old_programs", "old_scripts")),
    "tests/mutation/",
    "tests/operators/test_second_derivatives.py",
    "tests/places/test_kernel_checks.py",
    "tests/places/test_loops.py",
    *(
        f"tests/transformers/test_{name}.py"
        for name in ("epilogues", "fed_state", "fused_domains", "fusion", "ragged_batches", "random_programs")
    ),
    "tests/unit/nodes/",
    "tests/unit/test_bench",
    "tests/unit/test_language_kernels.py",
)
"""Where cases begin that build many kernels, to run them a few times."""


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


def is_unoptimised(item: pytest.Item) -> bool:
    """Whether the kernels of a case are not optimised: of most in :data:`COMPILED`, and of most of a driver's."""
    named = any(kind in item.name or item.get_closest_marker(kind) is not None for kind in DRIVERS)
    return (named or item.nodeid.startswith(COMPILED)) and zlib.crc32(item.nodeid.encode()) % EVERY != 0


def most_unoptimised(found: Iterable[Check]) -> list[Check]:
    """Checks, of which the first of each operator and of each gradient is optimised, and of the others one in eight."""
    from operator_checks import parsed

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
