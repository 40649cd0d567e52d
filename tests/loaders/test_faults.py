"""Exceptions of sources, transforms, processes and places come at the right batch, and leave nothing."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import DeviceLost, LoaderError, OutOfMemoryError, WorkerError
from fluidlite.loaders import BatchedLoader

X = np.arange(40, dtype=np.float32).reshape(20, 2)
HOWS = [{}, {"workers": 3}, {"processes": True}, {"processes": True, "workers": 2}]


class Rows:
    """A dataset that raises at one sample."""

    def __init__(self, at: int, error: BaseException, samples: int = 20) -> None:
        self.at, self.error, self.samples = at, error, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.at:
            raise self.error
        return {"x": np.full(2, index, np.float32)}


def stream(at: int, error: BaseException) -> Any:
    def reader() -> Iterator[Any]:
        for index in range(20):
            if index == at:
                raise error
            yield {"x": np.full(2, index, np.float32)}

    return reader


class Unpicklable(Exception):
    """Cannot be made again from what it holds."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} {second}")


# Exceptions of workers


@pytest.mark.parametrize(
    ("make", "how"),
    [(make, how) for make in (Rows, stream) for how in (HOWS if make is Rows else HOWS[:3])],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_an_exception_comes_at_its_batch_with_its_traceback(place: str, make: Any, how: dict[str, Any]) -> None:
    error = KeyError("no such file")
    got = []
    with pytest.raises(KeyError, match="no such file") as raised:
        for batch in BatchedLoader(make(11, error), 3, place, **how):
            got.append(batch["x"].numpy()[:, 0].tolist())
    assert got == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    text = "".join(traceback.format_exception(raised.value))
    assert "raise self.error" in text or "raise error" in text
    assert "in batch 3 of a loader" in raised.value.__notes__
    if "processes" not in how:
        assert raised.value is error


@pytest.mark.parametrize(
    "error", [Unpicklable(1, 2), SystemExit(3), StopIteration("end"), KeyboardInterrupt()], ids=repr
)
@pytest.mark.parametrize("how", [HOWS[0], HOWS[2]], ids=str)
def test_exceptions_that_are_hard_to_hand_over(error: BaseException, how: dict[str, Any]) -> None:
    expected: Any = type(error)
    if isinstance(error, StopIteration):
        expected = LoaderError
    elif isinstance(error, Unpicklable) and how:
        expected = WorkerError
    got = 0
    with pytest.raises(expected) as raised:
        for _ in BatchedLoader(Rows(11, error), 3, **how):
            got += 1
    assert got == 3
    assert "raise self.error" in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("name", ["transform", "batch_transform"])
@pytest.mark.parametrize("how", HOWS, ids=str)
def test_exceptions_of_transforms(name: str, how: dict[str, Any]) -> None:
    def transform(value: Any) -> Any:
        if (np.asarray(value["x"]) == X[11]).all(axis=-1).any():
            raise ZeroDivisionError("a bad transform")
        return value

    got = 0
    with pytest.raises(ZeroDivisionError, match="a bad transform"):
        for _ in BatchedLoader({"x": X}, 3, **{name: transform}, **how):
            got += 1
    assert got == 3


def test_a_loader_goes_on_after_an_exception(place: str) -> None:
    rows = Rows(11, OSError("the disk is away"))
    loader = BatchedLoader(rows, 3, place)
    for _ in range(3):
        with pytest.raises(OSError, match="the disk"):
            list(loader)
    rows.at = -1
    assert len(list(loader)) == 7


@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_that_is_killed(workers: int) -> None:
    class Deadly(Rows):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 11:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    got = 0
    with pytest.raises(WorkerError, match=r"ended, with exit code -9") as raised:
        for _ in BatchedLoader(Deadly(-1, OSError()), 3, workers=workers, processes=True):
            got += 1
    assert got == 3
    assert "in batch 3 of a loader" in raised.value.__notes__


def test_no_memory_on_the_place(place: str) -> None:
    now = fluid.memory.stats(place)
    fluid.memory.set_limit(place, now.used + now.padding + (1 << 16))
    try:
        with pytest.raises(OutOfMemoryError, match="asked for"):
            list(BatchedLoader({"x": np.zeros((4, 1 << 16), np.float32)}, 2, place))
    finally:
        fluid.memory.set_limit(place, None)
    gc.collect()
    assert fluid.memory.used(place) == now.used
    assert len(list(BatchedLoader({"x": np.zeros((4, 1 << 16), np.float32)}, 2, place))) == 2


def test_a_device_that_is_lost(require: Any) -> None:
    require("fpga")
    script = """
import os, signal
import numpy as np, fluidlite as fluid
from fluidlite.platform.device_registry import devices
x = np.arange(400, dtype=np.float32).reshape(100, 4)
loader = fluid.loaders.BatchedLoader({"x": x}, 2, "fpga:0")
got = 0
try:
    for batch in loader:
        got += 1
        if got == 3:
            os.kill(devices.unit("fpga:0").device.link(0).pid, signal.SIGKILL)
except fluid.errors.DeviceLost as error:
    print("lost", 3 <= got < 50)
print(len(list(loader.on("cpu"))))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=280, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.split("\n")[:2] == ["lost True", "50"], done
    assert DeviceLost
