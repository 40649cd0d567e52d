"""Forks and new processes: the parent's work goes on, and a child's works, or is refused at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from forks import Forks

import fluidlite as fluid
from fluidlite.base.fork import is_held, new_lock, new_rlock
from fluidlite.platform.device_registry import devices

ROOT = Path(fluid.__file__).parent
KINDS = ("cpu", "opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})
forked = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

HEAD = """
import faulthandler, gc, multiprocessing, os, sys, threading
import numpy as np
import fluidlite as fluid
from fluidlite import layers, memory

place = sys.argv[1]


def program():
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = layers.data("x", [64])
        y = layers.reduce_sum(layers.tanh(layers.fc(x, 1024)))
    return main, startup, y


def feed(rows=200):
    return {"x": np.random.default_rng(rows).standard_normal((rows, 64)).astype("float32")}


def answer(place):
    main, startup, y = program()
    exe, scope = fluid.Executor(place, fallback="allow"), fluid.Scope()
    exe.run(startup, scope=scope)
    return [exe.run(main, feed(), [y], scope=scope)[0].item() for _ in range(4)][-1]
"""

FORKS = """
import fluidlite.base.fork
import fluidlite.platform.context

fluidlite.platform.context._PATIENCE_SECONDS = 1000.0  # no child may wait for a thread that is not there
fluidlite.base.fork._PATIENCE_SECONDS = 100.0  # and each fork waits for what threads do under a lock
main, startup, y = program()
exe, scope = fluid.Executor(place, fallback="allow"), fluid.Scope()
exe.run(startup, scope=scope)
for _ in range(4):
    right = exe.run(main, feed(), [y], scope=scope)[0].item()
tensor = fluid.Tensor().set(np.ones(1000, np.float32), place)
stop, threads = threading.Event(), []


def work(number):
    child, turn = scope.new_scope(), 0
    while not stop.is_set():
        turn += 1
        exe.run(main, feed(10 + (7 * turn + number) % 60), [y], scope=child)


for number in range(int(sys.argv[2])):
    threads.append(threading.Thread(target=work, args=(number,)))
    threads[-1].start()

codes = set()
for turn in range(4):  # each way to let go of memory, with each way to end
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(100, exit=True)
        code = 0
        try:
            for _ in range(3):
                code = max(code, abs(exe.run(main, feed(), [y], scope=scope)[0].item() - right) > 1e-3 * abs(right))
            code = max(code, float(tensor.numpy().sum()) != 1000.0)
            code = max(code, abs(answer(place) - right) > 1e-3 * abs(right))
            memory.trim(place)
        except fluid.FluidError as error:
            code = 7
            assert f"this process is a fork of process {os.getppid()}, which has used it" in str(error), str(error)
            uses = [lambda: answer(place), tensor.numpy, lambda: memory.used(place), lambda: memory.alloc(place, 9)]
            for use in uses:
                try:
                    use()
                    code = 8
                except fluid.FluidError:
                    pass
            assert len(answer("cpu").hex()) > 3  # other places go on
        memory.free(tensor.allocation) if turn < 2 else None
        del tensor  # what was made before the fork is let go here
        exe.close()
        del exe, scope
        gc.collect()
        if turn % 2:
            sys.stdout.flush()
            os._exit(code)
        sys.exit(code)
    codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
for thread in threads:
    thread.join()
assert abs(exe.run(main, feed(), [y], scope=scope)[0].item() - right) <= 1e-3 * abs(right)
assert float(tensor.numpy().sum()) == 1000.0
print("codes", sorted(codes))
"""

UNUSED = """
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(100, exit=True)
    print(answer(place) == answer(place), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

SPAWN = """
def work(queue, place):
    queue.put(answer(place))


if __name__ == "__main__":
    right = answer(place)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=work, args=(queue, place)) for _ in range(2)]
    for worker in workers:
        worker.start()
    found = [queue.get(timeout=100) for _ in workers]
    for worker in workers:
        worker.join()
    print(found == [right, right])
"""


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return f"{request.param}:0"


Run = Callable[..., str]


@pytest.fixture
def run(forks: Forks, tmp_path: Path) -> Run:
    """``run(text, *arguments)``: what a program of HEAD and this text prints; it must end well."""

    def run(text: str, *arguments: str) -> str:
        file = tmp_path / "program.py"
        file.write_text(HEAD + text)
        done = forks(file, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Error" not in done.stderr
        return done.stdout

    return run


@forked
@pytest.mark.parametrize("threads", [0, 4])
def test_a_fork_works_or_is_refused_at_once(place: str, threads: int, run: Run) -> None:
    """Threads of the parent hold whatever locks they hold at that moment; the child never waits for them."""
    expected = "codes [0]" if devices.unit(place).info.fork_safe else "codes [7]"
    assert run(FORKS, place, str(threads)).strip() == expected


@forked
def test_a_child_may_use_what_its_parent_has_not(place: str, run: Run) -> None:
    assert run(UNUSED, place).split() == ["True", "0"]


def test_spawned_processes_compute(place: str, run: Run) -> None:
    assert run(SPAWN, place).strip() == "True"


@forked
def test_a_fork_draws_random_numbers_of_its_own(run: Run) -> None:
    text = """
main, startup = fluid.Program(), fluid.Program()
with fluid.program_guard(main, startup):
    y = layers.uniform_random([4], min=0.0, max=1.0)
exe = fluid.Executor("cpu")
read, write = os.pipe()
for turn in range(2):
    if os.fork() == 0:
        os.write(write, repr(exe.run(main, fetch_list=[y])[0].tolist()).encode() + b"\\n")
        os._exit(0)
    os.wait()
lines = {*os.read(read, 10000).split(b"\\n")[:2], repr(exe.run(main, fetch_list=[y])[0].tolist()).encode()}
print(len(lines))
"""
    assert run(text, "cpu").strip() == "3"


def test_every_lock_is_free_in_a_child() -> None:
    """All that lock make their locks by ``new_lock`` and ``new_rlock``."""
    pattern = re.compile(r"threading\.(Lock|RLock|Condition|Semaphore)\(\)")
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if pattern.search(path.read_text("utf-8"))}
    assert found == {"base/fork.py"}


@forked
@pytest.mark.parametrize("ends", [True, False])
def test_a_fork_waits_for_what_others_do_under_a_lock(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr("fluidlite.base.fork._PATIENCE_SECONDS", 30.0 if ends else 0.2)
    lock, mine = new_rlock(), new_rlock()
    monkeypatch.setattr("fluidlite.base.fork._lock_providers", [lambda: (mine,), lambda: (lock,)])
    ready, end, steps = threading.Event(), threading.Event(), [0]

    def work() -> None:
        with lock:
            ready.set()
            while not end.wait(0.001) and (not ends or steps[0] < 300):
                steps[0] += 1
        steps.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    child = os.fork()
    if child == 0:
        taken = [one.acquire(blocking=False) for one in (lock, mine)]
        os._exit(0 if all(taken) and (steps[0] == 300 or not ends) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not is_held(lock) and not is_held(mine)
    assert thread.is_alive() != ends or steps[0] == 300
    end.set()
    thread.join()


@forked
def test_locks_of_others_are_free_in_a_child_and_ones_own_are_held() -> None:
    import threading

    free, mine, theirs = new_lock(), new_rlock(), new_rlock()
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        with free, theirs:
            ready.set()
            done.wait()

    other = threading.Thread(target=hold)
    other.start()
    ready.wait()
    with mine:
        child = os.fork()
        if child == 0:
            found = free.acquire(timeout=5) and theirs.acquire(timeout=5) and mine._is_owned()
            os._exit(0 if found else 1)
    done.set()
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
