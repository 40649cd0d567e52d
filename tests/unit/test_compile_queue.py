"""Modules become machine code here or in processes beside this one: the same code, whatever happens to these."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

pytest.importorskip("llvmlite")

import llvmlite.binding as llvm

from fluidlite.base.errors import DeviceError
from fluidlite.devices.cpu import compile_queue
from fluidlite.devices.cpu.compile_queue import MIN_JOBS_PER_PROCESS, VARIABLE, CompileQueue, Job, max_processes
from fluidlite.devices.cpu.object_code import object_code

ADDS = "define i64 @f(i64 %x) {{\n  %y = add i64 %x, {}\n  ret i64 %y\n}}\n"
MACHINE = 3, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
PATIENCE_SECONDS = 60


def refuse(*_: Any) -> bytes:
    raise AssertionError("compiled here")


def put(queue: CompileQueue, numbers: range) -> list[Job]:
    return [queue.put(ADDS.format(i), *MACHINE) for i in numbers]


def wait(done: Callable[[], bool]) -> None:
    end = monotonic() + PATIENCE_SECONDS
    while not done():
        assert monotonic() < end
        sleep(0.01)


@pytest.fixture(autouse=True)
def _processes(monkeypatch: pytest.MonkeyPatch) -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    monkeypatch.setenv(VARIABLE, "2")
    monkeypatch.setattr(compile_queue, "IDLE_SECONDS", 0.2)


def test_processes_make_the_same_code() -> None:
    queue = CompileQueue(refuse)
    jobs = put(queue, range(4 * MIN_JOBS_PER_PROCESS))
    wait(lambda: all(job.code is not None for job in jobs))
    assert [queue.result(job) for job in jobs] == [object_code(*job.request) for job in jobs]
    assert len({job.code for job in jobs}) == len(jobs) and all(job.seconds > 0 for job in jobs)
    wait(lambda: queue._processes == 0)
    again = put(queue, range(100, 100 + 2 * MIN_JOBS_PER_PROCESS))  # they begin anew
    wait(lambda: all(job.code is not None for job in again))
    wait(lambda: queue._processes == 0)


def test_few_modules_begin_no_process() -> None:
    queue = CompileQueue(object_code)
    jobs = put(queue, range(MIN_JOBS_PER_PROCESS))
    assert queue._processes == 0 and [queue.result(job) for job in jobs] == [object_code(*job.request) for job in jobs]


def test_nothing_waits_where_no_process_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    queue = CompileQueue(object_code)
    jobs = put(queue, range(4 * MIN_JOBS_PER_PROCESS))
    assert queue._processes == 0
    assert [queue.result(job) for job in reversed(jobs)] == [object_code(*job.request) for job in reversed(jobs)]


def test_threads_share_what_waits() -> None:
    queue = CompileQueue(object_code)
    jobs, found = put(queue, range(6 * MIN_JOBS_PER_PROCESS)), dict[int, bytes]()

    def ask(turned: int) -> None:
        for job in jobs[::turned]:
            found[turned * job.number] = queue.result(job)

    threads = [threading.Thread(target=ask, args=(turned,)) for turned in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    for job in jobs:
        assert found[job.number] == found[-job.number] == object_code(*job.request)


@pytest.mark.parametrize("begin", ["import sys; sys.exit(1)", "print('READY')", "no Python"])
def test_a_process_that_does_not_begin_is_done_without(begin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_queue, "_BEGIN", begin)
    queue = CompileQueue(object_code)
    jobs = put(queue, range(4 * MIN_JOBS_PER_PROCESS))
    assert [queue.result(job) for job in jobs] == [object_code(*job.request) for job in jobs]
    wait(lambda: queue._processes == 0)
    assert not queue._usable
    put(queue, range(4 * MIN_JOBS_PER_PROCESS))
    assert queue._processes == 0


def test_no_executable_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    queue = CompileQueue(object_code)
    jobs = put(queue, range(2 * MIN_JOBS_PER_PROCESS))
    assert [queue.result(job) for job in jobs] == [object_code(*job.request) for job in jobs]
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(sys, "executable", "")
    assert max_processes() == 0
    monkeypatch.undo()
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert max_processes() == 0


@pytest.mark.parametrize("answer", ["", "stdout.buffer.write(b'12345')"], ids=["none", "half of one"])
def test_what_a_process_leaves_undone_is_compiled_here(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_queue, "_BEGIN", f"""if 1:
        import marshal, sys
        marshal.dump("READY", sys.stdout.buffer)
        sys.stdout.flush()
        marshal.load(sys.stdin.buffer)
        {"sys." + answer if answer else "pass"}
    """)  # fmt: skip
    queue = CompileQueue(object_code)
    jobs = put(queue, range(2 * MIN_JOBS_PER_PROCESS))
    wait(lambda: any(job.claimed_in == 0 for job in jobs) or queue._processes == 0)
    assert [queue.result(job) for job in jobs] == [object_code(*job.request) for job in jobs]
    assert queue._usable  # it was given back, and not waited for


@pytest.mark.parametrize("here", [True, False], ids=["here", "in a process"])
def test_refused_text_is_said(here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(int(not here)))
    queue = CompileQueue(object_code if here else refuse)
    jobs = [queue.put("define i64 @f() { ret i32 0 }", *MACHINE) for _ in range(2 * MIN_JOBS_PER_PROCESS)]
    if not here:
        wait(lambda: all(job.reason for job in jobs))
    for job in jobs:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="type"):
                queue.result(job)


def test_an_interrupt_gives_the_module_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    answers: list[Any] = [KeyboardInterrupt, b"code"]

    def compile(*_: Any) -> bytes:
        answer = answers.pop(0)
        if answer is KeyboardInterrupt:
            raise KeyboardInterrupt
        assert isinstance(answer, bytes)
        return answer

    queue = CompileQueue(compile)
    (job,) = put(queue, range(1))
    with pytest.raises(KeyboardInterrupt):
        queue.result(job)
    assert queue.result(job) == b"code"


def test_what_a_process_never_answers_is_compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_queue, "PATIENCE_SECONDS", 0.1)
    queue = CompileQueue(object_code)
    jobs = put(queue, range(MIN_JOBS_PER_PROCESS))
    assert [queue._take() for _ in jobs] == jobs
    assert [queue.result(job) for job in jobs] == [object_code(*job.request) for job in jobs]
    assert queue._generation == 1 and not queue._usable  # it waited once, and lets no process begin again


def test_what_nobody_asks_for_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    queue = CompileQueue(object_code)
    jobs = put(queue, range(3))
    assert len(queue._waiting) == 3
    del jobs
    gc.collect()
    assert not queue._waiting


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_compiles_what_others_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever threads and processes of the parent were at when it was forked."""
    queue = CompileQueue(object_code)
    jobs = put(queue, range(6 * MIN_JOBS_PER_PROCESS))
    for job in jobs[::2]:
        job.claimed_in = 0
    child = os.fork()
    if not child:
        queue.begin_anew()
        os._exit(any(queue.result(job) != object_code(*job.request) for job in jobs))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_variable_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max_processes() == 2
    for wrong in ("-1", "two", "1.5"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(DeviceError, match=f"{VARIABLE} is '{wrong}'; expected a number"):
            max_processes()
    monkeypatch.delenv(VARIABLE)
    assert 0 <= max_processes() <= compile_queue.MAX_PROCESSES


def test_who_sets_it_wrongly_reads_its_name(tmp_path: Path) -> None:
    script = """
import fluidlite as fluid
out = fluid.layers.relu(fluid.layers.data("x", [3]) * 2.0)
fluid.Executor("cpu").run(feed={"x": [[1.0, 2.0, 3.0]] * 1000}, fetch_list=[out])
"""
    environment = {**os.environ, VARIABLE: "two", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "LLVM refuses" not in done.stderr
    assert f"{VARIABLE} is 'two'; expected a number\n  Do: unset it" in done.stderr


TRAINS = """
import numpy as np
import fluidlite as fluid
x = fluid.layers.data("x", [20])
y = x
for width in (30, 40, 50):
    y = fluid.layers.dropout(fluid.layers.fc(y, width, act="tanh"), 0.3)
loss = fluid.layers.mean(fluid.layers.softmax(y) * y)
fluid.optimizer.Adam(0.1).minimize(loss)
fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 3
exe = fluid.Executor("cpu")
exe.run(fluid.default_startup_program())
rng = np.random.default_rng(0)
for _ in range(3):
    print(exe.run(feed={"x": rng.random((2000, 20), "float32")}, fetch_list=[loss])[0].tobytes().hex())
info = exe.cache_info()["kernels on disk"]
print(info.misses, info.hits)
"""


def test_a_program_trains_alike(tmp_path: Path) -> None:
    found = []
    for processes, folder in (("0", "a"), ("2", "b"), ("2", "b")):
        environment = {**os.environ, VARIABLE: processes, "XDG_CACHE_HOME": str(tmp_path / folder)}
        done = subprocess.run(
            [sys.executable, "-c", TRAINS], env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert (done.returncode, done.stderr) == (0, "")
        *losses, counts = done.stdout.splitlines()
        found.append((losses, [int(count) for count in counts.split()]))
    (alone, cold), (beside, as_cold), (again, disk) = found
    assert alone == beside == again
    assert cold[0] == as_cold[0] > 2 * MIN_JOBS_PER_PROCESS and disk == [0, cold[0]]
