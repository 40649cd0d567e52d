"""What every test can ask for: things that may be missing here, and then skip the test or, if required, fail it.

``FLUIDLITE_REQUIRE="opencl fpga cc llvmlite mpirun"`` names what must be there: where it is missing, tests fail instead
of skipping.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helper modules that lie here are importable by name

import drawn
import forks as forking
import grouped
from distribution import OperatorScheduling, rank, select
from unoptimised import is_unoptimised, unoptimised

import fluidlite as fluid

os.environ.setdefault("FLUIDLITE_COMPILE_PROCESSES", "0")  # the processes that run the tests take all processors
REQUIRED = frozenset(os.environ.get("FLUIDLITE_REQUIRE", "").split())
PROGRAMS = ("cc", "mpirun")
"""Names that mean a program, beside this Python or on the path."""
LIBRARIES = ("llvmlite",)
"""Names that mean a Python package; every other name is a kind of place."""
LINKER = str(Path(__file__).parent / "linker")
"""Where compilers look for a linker first."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}")
MARKERS = ("opencl", "cuda")
"""Markers that mean a kind of place."""

# The same examples at each run, however long the machine takes for one: what fails is of the change at hand.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, suppress_health_check=SLOW)
hypothesis.settings.load_profile("repeatable")


def program(name: str) -> str | None:
    """Where a program is: beside this Python, as a wheel brings it, or on the path."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


@functools.cache
def missing(name: str) -> str:
    """Why ``name`` (a program, or a kind of place) cannot be used here; "" if it can."""
    if name in PROGRAMS:
        return "" if program(name) else f"no program is called {name!r}"
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


@pytest.fixture(scope="session")
def forks() -> Iterator[forking.Forks]:
    """``forks(script, arguments...)``: run a script in a process of its own that has the framework imported."""
    made = forking.Forks()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _marked(request: pytest.FixtureRequest) -> None:
    for name in MARKERS:
        if request.node.get_closest_marker(name) is not None:
            require_or_skip(name)


@pytest.fixture(autouse=True)
def _unoptimised(request: pytest.FixtureRequest) -> Iterator[None]:
    with unoptimised() if is_unoptimised(request.node) else contextlib.nullcontext():
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal cases to processes by file, and long files by operator."""
    return OperatorScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only what ``--op`` and ``--place`` name; long cases go first, short ones fill the end of a run."""
    try:
        for item in items:
            if _ADDRESS.search(item.nodeid):
                raise pytest.UsageError(f"{item.nodeid}: an address in its name, which is another in each process")
        select(config, items)
    except pytest.UsageError as exc:
        told = getattr(config, "workeroutput", None)
        if told is None:
            raise
        told["usage"] = str(exc)  # a process of several: the first one says it, and ends them
        items.clear()
    items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """End the run with what a process found wrong in its options."""
    usage = getattr(node, "workeroutput", {}).get("usage")
    if usage is not None:
        raise pytest.UsageError(usage)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name bytes by their length: they may hold a time of packing, and all processes must collect the same names."""
    return f"{argname}-{len(val)}-bytes" if isinstance(val, bytes) and len(val) > 8 else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--op NAME``, ``--place P`` and ``--check TEXT``."""
    group = parser.getgroup("fluidlite")
    group.addoption("--op", action="append", metavar="NAME", help="only cases of this operator, and of its gradient")
    group.addoption("--place", action="append", metavar="P", help="only cases of this place, as cpu or opencl:0")
    text = "of cases that run several checks, only those whose names contain this"
    group.addoption("--check", action="append", metavar="TEXT", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Keep bytecode: the tests start hundreds of processes, each of which would compile all modules anew.

    And link kernels with nothing that they do not need, and tell cases of several checks which of them ``--check``
    names.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    folders = os.environ.get("COMPILER_PATH", "").split(os.pathsep)
    os.environ["COMPILER_PATH"] = os.pathsep.join(dict.fromkeys(filter(None, (LINKER, *folders))))
    grouped.chosen[:] = config.getoption("check") or ()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while cases are collected: nothing of what is made then goes."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Let garbage collections pass over the collected tests: a million objects, that live as long as the process.

    Let them come less often: they are a twentieth of the time, and tests that look for what goes collect themselves.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Fail at once if something required is missing, however few tests would notice."""
    lacking = [f"{name}: {missing(name)}" for name in sorted(REQUIRED) if missing(name)]
    if lacking:
        pytest.exit("FLUIDLITE_REQUIRE names what is missing here:\n  " + "\n  ".join(lacking), returncode=3)


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """Let garbage collections pass over what earlier files left: caches, mostly, of millions of objects.

    A test that collects, as each does that looks for a leak, would walk all of them.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> Iterator[None]:
    """Programs, scope, names and preferences of its own for every test: none depends on those before it.

    And random numbers of its own: the same in each run, whichever tests the process ran before.
    """
    drawn.the_same(request.node.nodeid)
    with grouped.fresh():
        yield
    if grouped.left_out:
        request.node.user_properties += [("check skipped", reason) for reason in grouped.left_out]
        grouped.left_out.clear()


_skipped: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count checks that were skipped in cases of which others ran."""
    if report.when == "teardown" and report.user_properties:
        _skipped.update(str(reason) for name, reason in report.user_properties if name == "check skipped")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many checks were skipped in cases that passed or failed, and why."""
    for reason, count in sorted(_skipped.items()):
        terminalreporter.write_line(f"SKIPPED CHECKS [{count}] of cases of which others ran: {reason}")


@pytest.fixture(autouse=True, scope="session")
def _memory_plans_are_proven() -> Iterator[None]:
    """Verify each memory plan that any test of this process makes."""
    from fluidlite.compiler.memory.memory_plan import MemoryPlan

    make = MemoryPlan.__init__

    def make_and_verify(self: MemoryPlan, *args: Any, **named: Any) -> None:
        make(self, *args, **named)
        self.verify()

    MemoryPlan.__init__ = make_and_verify  # type: ignore[method-assign]
    yield
    MemoryPlan.__init__ = make  # type: ignore[method-assign]
