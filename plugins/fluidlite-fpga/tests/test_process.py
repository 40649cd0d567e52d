"""The board's process: its end is an error, never a hang, and it never outlives the host."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fluidlite.plugin import DeviceError, DeviceLost, DeviceUnavailable, Span

from fluidlite_fpga import FpgaDevice
from fluidlite_fpga.device import BOARDS, MEMORY
from fpga_simulator import wire

MEMORY_LEFT = 700_032
"""An allocation that fits into a board's memory once, but not twice."""

Within = Callable[[float, Callable[[], Any]], Any]


def gone(pid: int, seconds: float = 60.0) -> bool:
    """Whether a process that is not our child ends in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def stop(pid: int) -> None:
    """Suspend a board's process."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def test_a_board_starts_with_its_first_use() -> None:
    device = FpgaDevice(boards=1, memory=4096)
    assert device.probe() == 1
    assert device.info(0).memory == 4096
    assert not device.info(0).host
    assert device._links == {}
    device.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc tells how many threads a process has")
def test_a_board_computes_with_one_thread(device: FpgaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of a BLAS spin while they wait for each other: on a busy machine a small matmul takes 60 ms with them."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    device.allocator(0).allocate(64)
    assert "Threads:\t1\n" in Path(f"/proc/{device.link(0).pid}/status").read_text()


def test_killed_while_idle(device: FpgaDevice, within: Within) -> None:
    context, allocator = device.context(0, 0), device.allocator(0)
    handle = allocator.allocate(64)
    pid = device.link(0).pid
    os.kill(pid, signal.SIGKILL)
    text = f"the process {pid} of fpga:0 was killed by SIGKILL"
    with pytest.raises(DeviceLost, match=text):
        within(60, lambda: allocator.allocate(64))
    with pytest.raises(DeviceLost, match=text):
        within(60, context.wait)
    with pytest.raises(DeviceLost, match="Found out by: copy_in of 8 bytes"):
        within(60, lambda: context.copy_in(Span(handle, 0, 8), memoryview(bytes(8))))
    within(60, lambda: allocator.release(handle))
    device.context(1, 0).wait()  # the other board goes on


def test_killed_while_the_host_waits(device: FpgaDevice, within: Within) -> None:
    context, pid = device.context(0, 0), device.link(0).pid
    context.wait()
    stop(pid)
    fence = context.record()
    assert not fence.done()
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(DeviceLost, match="SIGKILL"):
        within(60, fence.wait)
    assert fence.done()


@pytest.mark.parametrize("kind", ["copy_in", "copy_out", "launch"])
def test_killed_amid_commands(device: FpgaDevice, within: Within, kind: str) -> None:
    context = device.context(0, 0)
    nbytes = 1 << 19
    span = Span(device.allocator(0).allocate(nbytes), 0, nbytes)
    host = np.zeros(nbytes, np.uint8)
    step: dict[str, Callable[[], None]] = {
        "copy_in": lambda: context.copy_in(span, host.data),
        "copy_out": lambda: context.copy_out(host.data, span),
        "launch": lambda: context.enqueue("relu", "float32", [span, span], (nbytes // 4,)),
    }
    threading.Timer(0.2, os.kill, (device.link(0).pid, signal.SIGKILL)).start()

    def work() -> None:
        while True:
            step[kind]()

    with pytest.raises(DeviceLost, match="was killed by SIGKILL"):
        within(60, work)


def test_an_interrupted_copy_ends_the_board_and_not_in_a_hang(device: FpgaDevice, within: Within) -> None:
    context, pid = device.context(0, 0), device.link(0).pid
    nbytes = 1 << 20
    span = Span(device.allocator(0).allocate(nbytes), 0, nbytes)
    stop(pid)
    link, thread_id = device.link(0)._socket, threading.get_ident()

    def interrupt() -> None:
        """Interrupt the copy after it has filled the socket's buffer, which nobody reads."""
        while select.select([], [link], [], 0)[1]:
            time.sleep(0.01)
        signal.pthread_kill(thread_id, signal.SIGINT)

    # A process that a shell without job control started in the background ignores SIGINT; so do its Python programs.
    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            context.copy_in(span, memoryview(bytes(nbytes)))
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    os.kill(pid, signal.SIGCONT)
    with pytest.raises(DeviceLost, match="was closed as an interrupt cut short: copy_in of 1048576 bytes"):
        within(60, context.wait)


def test_a_closed_board_says_so(device: FpgaDevice) -> None:
    context, pid = device.context(0, 0), device.link(0).pid
    fence = context.record()
    device.close()
    device.close()
    fence.wait()  # what was in the queue is done
    with pytest.raises(DeviceLost, match=f"the process {pid} of fpga:0 was closed"):
        context.wait()
    assert gone(pid)


def test_threads_share_a_board(device: FpgaDevice, within: Within) -> None:
    allocator = device.allocator(0)
    results: list[bool] = []

    def work(number: int) -> None:
        context = device.context(0, 0)
        span = Span(allocator.allocate(4000), 0, 4000)
        sent = np.full(1000, number, np.float32)
        for _ in range(50):
            got = np.zeros_like(sent)
            context.copy_in(span, sent.data)
            context.enqueue("vector", "float32", [span, span], (1, 1, 0, 1, 1000, 1000), (), "x0 x0 +")
            context.copy_out(got.data, span)
            context.record().wait()
            results.append(bool((got == 2 * number).all()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        within(60, thread.join)
    assert len(results) == 400
    assert all(results)


class Garbage:
    """A cycle that only the garbage collector finds, with a finaliser."""

    def __init__(self, finaliser: Callable[[], Any], errors: list[BaseException]) -> None:
        self.itself, self.finaliser, self.errors = self, finaliser, errors

    def __del__(self) -> None:
        try:
            self.finaliser()
        except BaseException as error:
            self.errors.append(error)


def test_a_finaliser_amid_a_command_neither_waits_nor_cuts_it(
    device: FpgaDevice, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python collects garbage between the two parts of a command, on the thread that sends it."""
    context, allocator = device.context(0, 0), device.allocator(0)
    span, freed = Span(allocator.allocate(64), 0, 64), allocator.allocate(MEMORY_LEFT)
    sent, got, errors = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8), list[BaseException]()
    fence, halves = context.record(), []

    def cut(link: Any, header: wire.Header, fields: bytes, data: memoryview) -> None:
        link.sendall(header._replace(nbytes=len(fields) + data.nbytes).pack() + fields)
        halves.append(header.code)
        monkeypatch.setattr(wire, "send", send)
        gc.collect()
        link.sendall(data)

    def work() -> None:
        Garbage(lambda: allocator.release(freed), errors)
        Garbage(context.wait, errors)
        Garbage(fence.wait, errors)
        Garbage(lambda: allocator.allocate(8), errors)
        monkeypatch.setattr(wire, "send", cut)
        context.copy_in(span, sent.data)
        context.copy_out(got.data, span)
        context.wait()

    send = wire.send
    gc.disable()
    try:
        within(60, work)
    finally:
        gc.enable()
    assert halves == [wire.Op.COPY_IN]
    np.testing.assert_array_equal(got, sent)
    texts = sorted(str(error).partition("; ")[0] for error in errors)
    assert texts == [f"fpga:0: {what} was asked for while this thread sent: copy_in of 64 bytes"
                     for what in ("allocation of 8 bytes", "fence")]  # fmt: skip
    log = [entry["command"] for entry in device.command_log(0)]
    assert log[-4:] == ["allocate", "copy_in", "release", "copy_out"]
    assert allocator.allocate(MEMORY_LEFT) == freed  # the released block is free again


def test_a_finaliser_on_the_thread_that_receives_waits_for_nothing(device: FpgaDevice, within: Within) -> None:
    context, allocator, link = device.context(0, 0), device.allocator(0), device.link(0)
    freed, errors, handle_answer = allocator.allocate(MEMORY_LEFT), list[BaseException](), link._handle_answer

    def collecting(header: wire.Header, body: wire.Body) -> None:
        del link.__dict__["_handle_answer"]
        Garbage(lambda: allocator.release(freed), errors)
        Garbage(context.wait, errors)
        gc.collect()
        handle_answer(header, body)

    link.__dict__["_handle_answer"] = collecting
    within(60, context.wait)  # it waits in what was there before
    within(60, context.wait)
    assert [type(error) for error in errors] == [DeviceError]
    assert "fence was asked for on the thread that receives the board's answers" in str(errors[0])
    assert allocator.allocate(MEMORY_LEFT) == freed


def test_closing_sends_what_was_released(device: FpgaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, send = [], wire.send

    def record_and_send(link: Any, header: wire.Header, fields: bytes, data: memoryview) -> None:
        sent.append(header.code)
        send(link, header, fields, data)

    handle = device.allocator(0).allocate(64)
    monkeypatch.setattr(wire, "send", record_and_send)
    device.allocator(0).release(handle)
    assert not sent
    device.close()
    assert sent == [wire.Op.RELEASE]


HOST = """
import os, sys
from fluidlite_fpga import FpgaDevice
device = FpgaDevice(boards=1, memory=4096)
device.context(0, 0).wait()
print(device.link(0).pid, flush=True)
if sys.argv[1] == "fork":
    child = os.fork()
    if not child:
        try:
            device.context(0, 0).wait()
        except Exception as error:
            print(type(error).__name__, "of which this is a fork" in str(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    device.context(0, 0).wait()
    print("the parent goes on", flush=True)
if sys.argv[1] == "wait":
    sys.stdin.read()
"""


def host(mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", HOST, mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("kill", [False, True])
def test_no_orphan(kill: bool) -> None:
    with host("wait" if kill else "end") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        if kill:
            process.kill()
        assert process.wait(60) == (-signal.SIGKILL if kill else 0)
    assert gone(pid)


def test_a_forked_child_is_kept_from_its_parents_board() -> None:
    with host("fork") as process:
        assert process.stdout is not None
        pid, *lines = process.stdout.read().splitlines()
        assert process.wait(60) == 0
    assert lines == ["DeviceLost True", "the parent goes on"]
    assert gone(int(pid))


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOARDS, "3")
    monkeypatch.setenv(MEMORY, "8192")
    device = FpgaDevice()
    assert device.probe() == 3
    assert device.info(2).memory == 8192
    monkeypatch.setenv(BOARDS, "many")
    with pytest.raises(DeviceUnavailable, match="FLUIDLITE_FPGA_BOARDS is 'many'"):
        FpgaDevice().probe()
