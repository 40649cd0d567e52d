"""What every test can ask for: things that may be missing here, and then skip the test or, if required, fail it.

``FLUIDLITE_REQUIRE="opencl fpga cc llvmlite"`` names what must be there: where it is missing, tests fail instead of
skipping.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fluidlite as fluid
from fluidlite.framework.policy import policy_guard

REQUIRED = frozenset(os.environ.get("FLUIDLITE_REQUIRE", "").split())
PROGRAMS = ("cc",)
"""Names that mean a program on the path."""
LIBRARIES = ("llvmlite",)
"""Names that mean a Python package; every other name is a kind of place."""
MARKERS = ("opencl", "cuda")
"""Markers that mean a kind of place."""


@functools.cache
def missing(name: str) -> str:
    """Why ``name`` (a program, or a kind of place) cannot be used here; "" if it can."""
    if name in PROGRAMS:
        return "" if shutil.which(name) else f"no program is called {name!r}"
    if name in LIBRARIES:
        return "" if importlib.util.find_spec(name) else f"{name} is not installed"
    try:
        fluid.memory.used(fluid.Place(name))
    except fluid.FluidError as exc:
        return str(exc)
    return ""


def require_or_skip(name: str, reason: str = "") -> None:
    """Go on if ``name`` is there; else skip the test, or fail it if the environment requires ``name``.

    Parameters
    ----------
    name : str
        ``"cc"``, or a kind of place: ``"opencl"``, ``"cuda"``, ``"fpga"``, ...
    reason : str
        What it is needed for.
    """
    why = missing(name)
    if not why:
        return
    text = f"{name} is needed{f' {reason}' if reason else ''}: {why}"
    if name in REQUIRED:
        pytest.fail(f"{text}\nFLUIDLITE_REQUIRE says that it must be there", pytrace=False)
    pytest.skip(text)


@pytest.fixture
def require() -> Callable[..., None]:
    """``require(name, reason="")``: skip the test, or fail it if ``name`` is required, where ``name`` is missing."""
    return require_or_skip


@pytest.fixture(autouse=True)
def _marked(request: pytest.FixtureRequest) -> None:
    for name in MARKERS:
        if request.node.get_closest_marker(name) is not None:
            require_or_skip(name)


def pytest_collection_finish() -> None:
    """Let garbage collections pass over the collected tests: a million objects, that live as long as the process."""
    gc.collect()
    gc.freeze()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Fail at once if something required is missing, however few tests would notice."""
    lacking = [f"{name}: {missing(name)}" for name in sorted(REQUIRED) if missing(name)]
    if lacking:
        pytest.exit("FLUIDLITE_REQUIRE names what is missing here:\n  " + "\n  ".join(lacking), returncode=3)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Programs, scope, names and preferences of its own for every test: none depends on those before it."""
    with (
        policy_guard(),
        fluid.unique_name.guard(),
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield


@pytest.fixture(autouse=True, scope="session")
def _memory_plans_are_proven() -> Iterator[None]:
    """Verify each memory plan that any test of this process makes."""
    from fluidlite.transformers.memory_plan import MemoryPlan

    make = MemoryPlan.__init__

    def make_and_verify(self: MemoryPlan, *args: Any, **named: Any) -> None:
        make(self, *args, **named)
        self.verify()

    MemoryPlan.__init__ = make_and_verify  # type: ignore[method-assign]
    yield
    MemoryPlan.__init__ = make  # type: ignore[method-assign]
