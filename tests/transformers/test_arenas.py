"""Computations and executors whose memory lies in an arena: the fast path too sees a reset."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite import layers, memory
from fluidlite.base.errors import AllocationError
from fluidlite.platform.context_pool import new_context
from fluidlite.transformers import make_transformer

ROWS = np.random.default_rng(2).standard_normal((30, 40)).astype("float32")


def computation(copy: bool = True) -> Any:
    x = ng.placeholder((30, 40))
    return make_transformer("cpu").computation(ng.sum(ng.exp(x) * 2.0, 1), x, copy=copy)


def test_a_computation_within_and_without_an_arena() -> None:
    made = computation()
    right = made(ROWS)
    arena = memory.arena("cpu", 1 << 20)
    for turn in range(5):
        for _ in range(4):  # the later ones by the fast path
            assert (made(ROWS) == right).all()
        with arena():
            for _ in range(4):
                assert (made(ROWS) == right).all()
            used = arena.used
            assert used > 0
            assert (made(ROWS) == right).all()
            assert arena.used == used  # a bound program takes nothing more
        arena.reset()
        arena.alloc(1 << 19)
        with arena():
            assert (made(ROWS + turn + 1) != right).any()
            assert (made(ROWS) == right).all()
        arena.reset()
    arena.close()


def test_views_of_results_in_an_arena_are_of_the_last_call() -> None:
    made = computation(copy=False)
    right = np.array(made(ROWS))
    arena = memory.arena("cpu", 1 << 20)
    with arena():
        for _ in range(4):
            assert (np.array(made(ROWS)) == right).all()
    arena.reset()
    assert (np.array(made(ROWS)) == right).all()


def test_state_in_an_arena_on_the_fast_path() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        state = layers.create_global_var([64], 1.0, "float32", persistable=True, name="held")
        y = layers.reduce_sum(layers.scale(state, 2.0))
        exe, scope = fluid.Executor("cpu"), fluid.Scope()
        exe.run(fluid.default_startup_program(), scope=scope)
        tensor = scope.find_var("held").get_tensor()  # type: ignore[union-attr]
        arena = memory.arena("cpu", 1 << 16)
        tensor.move_to(arena)
        before = exe._executables.hits  # type: ignore[union-attr]
        assert [exe.run(fetch_list=[y], scope=scope)[0].item() for _ in range(5)] == [128.0] * 5
        assert exe._executables.hits - before < 4  # type: ignore[union-attr]  # it was bound, and went straight through
        arena.reset()
        for _ in range(2):
            with pytest.raises(AllocationError, match="stale arena memory: 256 bytes on cpu:0"):
                exe.run(fetch_list=[y], scope=scope)
        tensor.set(np.full(64, 3.0, np.float32))
        assert exe.run(fetch_list=[y], scope=scope)[0].item() == 384.0


def test_a_reset_waits_for_runs_of_other_threads() -> None:
    """No run sees memory that was taken back: it ends before, or begins anew afterwards."""
    made = computation()
    right = made(ROWS)
    arena = memory.arena("cpu", 1 << 22)
    stop, wrong = threading.Event(), []

    def work() -> None:
        try:
            with arena():
                while not stop.is_set():
                    if not (made(ROWS) == right).all():
                        wrong.append("another result")
        except BaseException as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(60):
        arena.reset()
        noise = arena.alloc(1 << 20)
        noise.live_block().handle[noise.offset : noise.offset + noise.nbytes] = turn
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_reset_waits_for_a_run_that_began_while_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its context had no piece yet when the reset asked who has some."""
    arena = memory.arena("cpu", 1 << 16)
    mine, began = new_context("cpu"), threading.Event()
    seen: list[Any] = []
    arena.alloc(64, mine)

    def run() -> None:
        context = new_context("cpu")
        with context.lock:
            piece = arena.alloc(64, context)
            began.set()
            time.sleep(0.2)
            seen.append(piece.stale)
        seen.append(piece)

    other = threading.Thread(target=run)

    def drop_idle() -> None:
        if not began.is_set():
            other.start()
            began.wait()

    monkeypatch.setattr(mine, "drop_idle", drop_idle)
    arena.reset()
    other.join()
    assert seen[0] is False
    assert seen[1].stale and arena.used == 0
