"""Loops, threads, processes and interpreters that end early: no thread, process or buffer is left."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.collection import gc_paused
from fluidlite.loaders import BatchedLoader, epoch
from fluidlite.loaders.ring import copy_queue

X = np.arange(40, dtype=np.float32).reshape(20, 2)
HOWS = [{}, {"workers": 3}, {"processes": True}, {"processes": True, "workers": 2}]


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_early_ends_leave_nothing(place: str, how: dict[str, Any]) -> None:
    used = fluid.memory.used(place)
    loader = BatchedLoader({"x": X}, 3, place, **how)
    for batch in loader:
        if batch.number == 1:
            break
    assert not threads()
    assert not multiprocessing.active_children()
    with pytest.raises(RuntimeError, match="the loop's own"):
        for batch in loader:  # noqa: B007
            raise RuntimeError("the loop's own")
    gc.collect()
    assert not threads()
    assert not multiprocessing.active_children()
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert not threads()
    assert list(iterator) == []
    del batch, iterator
    gc.collect()
    assert fluid.memory.used(place) == used


def test_an_iterator_that_nobody_asks(place: str) -> None:
    used = fluid.memory.used(place)
    iterator = iter(BatchedLoader({"x": X}, 3, place))
    del iterator
    gc.collect()
    assert not threads()
    assert fluid.memory.used(place) == used


def test_a_generator_is_closed_with_its_epoch() -> None:
    ends: list[str] = []

    def reader() -> Iterator[Any]:
        try:
            while True:
                yield {"x": X[0]}
        finally:
            ends.append("closed")

    for _ in BatchedLoader(reader, 3):
        break
    gc.collect()
    assert ends == ["closed"]


def test_a_source_that_is_waited_for_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch, "PATIENCE_SECONDS", 0.05)
    go_on = threading.Event()

    def reader() -> Iterator[Any]:
        yield {"x": X[0]}
        go_on.wait(200)
        yield {"x": X[1]}

    loader = BatchedLoader(reader, 1)
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    assert threads()  # close did not wait for the reader, which waits for go_on
    go_on.set()
    deadline = time.monotonic() + 60
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not threads()


def test_a_process_that_hangs_is_ended() -> None:
    def reader() -> Iterator[Any]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        yield {"x": X[0]}
        time.sleep(600)  # longer than the timeout of tests

    iterator = iter(BatchedLoader(reader, 1, processes=True))
    next(iterator)
    iterator.close()
    assert not multiprocessing.active_children()


def test_python_collects_an_iterator_while_locks_are_held(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever thread collects it may be in the middle of what its workers wait for."""
    monkeypatch.setattr(epoch, "PATIENCE_SECONDS", 1000.0)
    used = fluid.memory.used(place)
    for processes in (False, True):
        loader = BatchedLoader({"x": X}, 3, place, processes=processes)
        iterator: Any = iter(loader)
        next(iterator)
        iterator.itself = iterator
        del iterator
        began = time.monotonic()
        with copy_queue(fluid.Place.parse(place)).lock:
            gc.collect()
            assert time.monotonic() - began < 60  # it waited for none of them
        deadline = time.monotonic() + 60
        while (threads() or multiprocessing.active_children()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not threads()
        assert not multiprocessing.active_children()
        assert fluid.memory.used(place) == used


def test_threads_that_share_an_iterator_end_with_it() -> None:
    batches, taken = iter(BatchedLoader({"x": np.arange(100, dtype=np.float32)[:, None]}, 1)), []

    def work() -> None:
        for batch in batches:
            taken.append(batch["x"].numpy().item())

    workers = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers)
    assert sorted(taken) == list(range(100))


def test_a_loader_is_closed_while_another_thread_waits() -> None:
    go_on = threading.Event()

    def reader() -> Iterator[Any]:
        yield {"x": X[0]}
        go_on.wait(200)

    loader = BatchedLoader(reader, 1)
    iterator = iter(loader)
    next(iterator)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(list(iterator)))
    waiting.start()
    time.sleep(0.05)
    threading.Timer(0.2, go_on.set).start()
    loader.close()
    waiting.join(60)
    assert found == [[]]


def test_thousands_of_batches_with_faults() -> None:
    """The long run of benchmarks/loader_soak.py, made short."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "benchmarks/loader_soak.py", "--batches", "500", "--seed", "7"],
        capture_output=True, text=True, timeout=280, cwd=root,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is left" in done.stdout


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fluidlite-loader")]


def run(script: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=Path(__file__).parents[2],
        **more,
    )


LOOP = """
import sys, time, numpy as np, fluidlite as fluid
x = np.zeros((100000, 4), np.float32)
loader = fluid.loaders.BatchedLoader({"x": x}, 2, sys.argv[1] if len(sys.argv) > 1 else "cpu", %s)
"""


@pytest.mark.parametrize("options", ["", "processes=True, workers=2"])
def test_the_interpreter_exits(options: str) -> None:
    script = (
        LOOP % options
        + """
next(iter(loader))
iterator = iter(loader)
next(iterator)
other = iter(loader.on("cpu"))
batch = next(other)
other.itself = other
lost = iter(loader)
lost.itself = lost
del lost
sys.exit(7)
"""
    )
    done = run(script)
    assert (done.returncode, done.stderr) == (7, "")


def test_an_interrupt_ends_the_loop_and_its_processes(place: str) -> None:
    options = "processes=True, workers=2" if place.startswith("cpu") else ""
    script = (
        LOOP.replace('sys.argv[1] if len(sys.argv) > 1 else "cpu"', repr(place)) % options
        + f"""
import gc, multiprocessing, threading
used = fluid.memory.used({place!r})
try:
    for number, batch in enumerate(loader):
        if number == 4:
            print("going", flush=True)
except KeyboardInterrupt:
    print("interrupted", number > 3)
batch = None
gc.collect()
print([t.name for t in threading.enumerate() if "loader" in t.name], multiprocessing.active_children())
print(fluid.memory.used({place!r}) - used)
"""
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2], start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the processes of the loader get it too
    out, err = process.communicate(timeout=30)
    found = out.splitlines()
    assert found[:2] == ["interrupted True", "[] []"], (out, err)
    if not place.startswith("fpga"):  # a command that was cut in half ends the board
        assert (found[2:], err) == (["0"], "")


def test_no_python_runs_when_memory_ends(place: str) -> None:
    """Python swallows an interrupt that arrives in a finaliser of its own, and the rest of that is left out."""
    used = fluid.memory.used(place)
    iterator = iter(BatchedLoader({"x": X}, 3, place))
    arena = fluid.memory.arena(place, 1024)
    held = {
        "lease": next(iterator),
        "allocation": fluid.memory.alloc(place, 100),
        "used elsewhere": fluid.memory.alloc(place, 100),
        "arena's": arena.alloc(100),
    }
    held["used elsewhere"].used_by(copy_queue(fluid.Place.parse(place)))
    calls: list[str] = []
    with gc_paused():  # others, as Hypothesis, have code of Python called at each collection
        for name in list(held):
            sys.setprofile(lambda frame, event, _, name=name: calls.append(name) if event == "call" else None)
            del held[name]
            sys.setprofile(None)
    assert calls == []
    del arena
    iterator.close()
    del iterator
    assert fluid.memory.used(place) == used


def test_an_interrupt_ends_the_wait_for_a_batch() -> None:
    script = """
import signal, sys, threading, time, fluidlite as fluid
taken, interrupts = [], []
def interrupt(*_):
    interrupts.append(True)
    raise KeyboardInterrupt
def waits():
    frame = sys._current_frames()[threading.main_thread().ident]
    return taken and frame.f_globals["__name__"] == "fluidlite.loaders.epoch"
def reader():
    yield {"x": [1.0]}
    while not waits():
        time.sleep(0.01)
    print("waiting", flush=True)
    while not interrupts:
        time.sleep(0.01)
    yield {"x": [2.0]}
signal.signal(signal.SIGINT, interrupt)
try:
    for batch in fluid.loaders.BatchedLoader(reader, 1):
        taken.append(batch.number)
except KeyboardInterrupt:
    print("interrupted")
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True,
                               cwd=Path(__file__).parents[2])  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=200)
    assert out == "interrupted\n"


def test_a_parent_that_is_killed_takes_its_processes_along() -> None:
    script = (
        LOOP % "processes=True, workers=2"
        + """
import multiprocessing
iterator = iter(loader); next(iterator)
print(*[child.pid for child in multiprocessing.active_children()], flush=True)
time.sleep(600)
"""
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True,
                               cwd=Path(__file__).parents[2])  # fmt: skip
    assert process.stdout is not None
    children = [int(pid) for pid in process.stdout.readline().split()]
    assert len(children) == 2
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() and alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists() and alive(pid)]


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie that its new parent did not collect yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_fork_leaves_the_loader_to_its_parent() -> None:
    script = (
        LOOP % ""
        + """
import os
iterator = iter(loader); next(iterator)
child = os.fork()
if not child:
    del iterator
    sys.exit(0)
_, status = os.waitpid(child, 0)
print(status, next(iterator)["x"].numpy().tolist())
"""
    )
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]\n", "")
