"""Processes that stay from epoch to epoch: the same batches, and nothing that is left when the loader ends."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import WorkerError
from fluidlite.loaders import BatchedLoader

X = np.arange(40, dtype=np.float32).reshape(20, 2)


def who(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "pid": np.full(len(columns["x"]), os.getpid())}


def stream() -> Iterator[dict[str, Any]]:
    return iter([{"x": row} for row in X])


def epoch_of(loader: BatchedLoader) -> tuple[list[list[float]], set[int]]:
    """What the batches of an epoch hold, and the processes that made them."""
    rows, processes = [], set()
    for batch in loader:
        rows.append(batch["x"].numpy().ravel().tolist())
        processes |= set(batch["pid"].numpy().ravel().tolist())
    return rows, processes


@pytest.mark.parametrize(
    ("source", "options"),
    [({"x": X}, {"shuffle": True, "workers": 2}), (stream, {"shuffle": 6})],
    ids=["rows", "a stream"],
)
def test_the_same_processes_make_the_batches_of_all_epochs(source: Any, options: dict[str, Any], place: str) -> None:
    with BatchedLoader(source, 3, place, processes=True, persistent=True, batch_transform=who, **options) as loader:
        found = [epoch_of(loader) for _ in range(3)]
        loader.load_state({"epoch": 1, "batches": 2})
        resumed, _ = epoch_of(loader)
        alive = {child.pid for child in multiprocessing.active_children()}
    assert resumed == found[1][0][2:]
    wanted = BatchedLoader(source, 3, place, batch_transform=who, **options)
    assert [rows for rows, _ in found] == [epoch_of(wanted)[0] for _ in range(3)]
    assert found[0][0] != found[1][0]
    assert set.union(*(processes for _, processes in found)) <= alive
    assert len(alive) == options.get("workers", 1)
    assert not multiprocessing.active_children()


def test_a_fault_ends_an_epoch_and_not_the_process() -> None:
    def stumbles(columns: dict[str, Any]) -> dict[str, Any]:
        if 10 in columns["x"] and len(columns["x"]) == 3:
            raise ValueError("10 is bad")
        return who(columns)

    with BatchedLoader({"x": X}, 3, processes=True, persistent=True, batch_transform=stumbles) as loader:
        processes = set()
        for _ in range(2):
            with pytest.raises(ValueError, match="10 is bad"):
                epoch_of(loader)
            (child,) = multiprocessing.active_children()
            processes.add(child.pid)
    assert len(processes) == 1


def test_a_loop_that_is_left_early_is_followed_by_a_whole_one() -> None:
    with BatchedLoader({"x": X}, 3, processes=True, persistent=True, batch_transform=who) as loader:
        wanted, _ = epoch_of(loader)
        for _ in range(3):
            for _ in loader:
                break
            assert epoch_of(loader)[0] == wanted


def test_a_process_that_was_killed_is_replaced() -> None:
    with BatchedLoader({"x": X}, 3, processes=True, persistent=True, batch_transform=who) as loader:
        wanted, (first,) = epoch_of(loader)
        os.kill(first, signal.SIGKILL)
        while any(child.pid == first for child in multiprocessing.active_children()):
            pass
        found, (second,) = epoch_of(loader)
        assert found == wanted
        assert second != first
        iterator = iter(loader)
        next(iterator)
        os.kill(second, signal.SIGKILL)
        with pytest.raises(WorkerError, match="-9"):
            list(iterator)
        assert epoch_of(loader)[0] == wanted


def test_a_loader_that_nobody_holds_ends_its_processes() -> None:
    used = fluid.memory.used("cpu")
    loader = BatchedLoader({"x": X}, 3, processes=True, persistent=True, batch_transform=who)
    epoch_of(loader)
    (child,) = multiprocessing.active_children()
    del loader
    gc.collect()
    child.join(60)
    assert not child.is_alive()
    assert fluid.memory.used("cpu") == used
