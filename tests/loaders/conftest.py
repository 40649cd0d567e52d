"""Places, and a watch on what loaders leave behind."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Callable, Iterator

import pytest

import fluidlite as fluid

KINDS = ("cpu", "opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    """Every place that there is."""
    require(request.param)
    return f"{request.param}:0"


def loader_threads() -> list[str]:
    """Names of threads that loaders started and that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fluidlite-loader")]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No test leaves a thread or a process of a loader behind, or finds memory that others let go of meanwhile."""
    gc.collect()
    yield
    gc.collect()
    assert not loader_threads()
    assert not [child.name for child in multiprocessing.active_children() if child.name.startswith("fluidlite-loader")]
