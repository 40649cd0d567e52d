"""Members of a group: threads of this process, and processes that mpirun starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fluidlite as fluid
from fluidlite.distributed.groups import set_thread_ring
from fluidlite.distributed.threads import Rendezvous

ON_DEVICE = ("opencl", "cuda")
PLACES = [
    pytest.param(str(place), marks=[getattr(pytest.mark, place.kind)] if place.kind in ON_DEVICE else [])
    for place in fluid.places()
]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """Each place that is there."""
    return str(request.param)


@pytest.fixture
def together() -> Callable[..., list[Any]]:
    """``together(size, work)``: what ``work(rank, group)`` returns for each of so many members, as threads."""

    def run(size: int, work: Callable[..., Any], ring: int = 0) -> list[Any]:
        meeting = Rendezvous(size)

        def one(rank: int) -> Any:
            group = meeting.members[rank]
            set_thread_ring(ring, group)
            try:
                return work(rank, group)
            except BaseException as exc:
                meeting.fail(rank, exc)
                raise
            finally:
                set_thread_ring(ring, None)

        with ThreadPoolExecutor(size) as pool:
            futures = [pool.submit(one, rank) for rank in range(size)]
        return [future.result() for future in futures]

    return run


@pytest.fixture
def mpirun(require: Callable[..., None]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``mpirun(4, "script.py", arguments...)``: a script of this folder, by so many processes."""
    require("mpirun", "to start several processes")
    pytest.importorskip("mpi4py", reason="several processes speak to each other by mpi4py")
    found = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")

    def run(size: int, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        path = Path(__file__).with_name(script)
        command = [str(found), "-n", str(size), sys.executable, "-W", "ignore", str(path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    return run
