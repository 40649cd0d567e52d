"""Contexts: pooled by place and thread, counted, guarded, and lost with their device."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import memory
from fluidlite.base.errors import (
    CompileError,
    DeviceError,
    DeviceLost,
    DeviceUnavailable,
    FluidError,
    OutOfMemoryError,
    PlaceError,
    RegistryError,
)
from fluidlite.platform.array_namespace import ArrayBase
from fluidlite.platform.context_pool import get_context, new_context
from fluidlite.platform.device import DeviceBase, DeviceInfo
from fluidlite.platform.device_context import ContextBase
from fluidlite.platform.device_memory import Span
from fluidlite.platform.device_registry import devices
from fluidlite.platform.kernel_language import KernelLanguageBase

sys.path.append(str(Path(__file__).parents[1] / "plugins"))
from fake_device import FakeDevice, installed


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    fluid.places()
    with installed(FakeDevice(queues=2)) as found:
        yield found
        gc.collect()


def test_one_default_context_a_place_and_thread(device: FakeDevice) -> None:
    context = get_context(device.kind)
    assert get_context(f"{device.kind}:0") is context
    assert get_context(fluid.Place(device.kind)) is context
    assert get_context("cpu") is not context
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(get_context(device.kind)))
    thread.start()
    thread.join()
    assert found[0] is not context
    assert context.place == fluid.Place(device.kind)
    assert repr(context) == f"Context('{device.kind}:0')"


def test_contexts_share_queues_in_turn(device: FakeDevice) -> None:
    contexts = [new_context(device.kind) for _ in range(4)]
    assert [context.raw.queue for context in contexts] == [0, 1, 0, 1]
    assert contexts[0].queue == 0  # an attribute of the plugin's own
    with pytest.raises(AttributeError):
        _ = contexts[0].nothing


def test_a_threads_contexts_close_with_it(device: FakeDevice) -> None:
    thread = threading.Thread(target=lambda: get_context(device.kind))
    thread.start()
    thread.join()
    gc.collect()
    assert device.made[-1].closes == 1


def test_closing_twice_is_fine(device: FakeDevice) -> None:
    context = new_context(device.kind)
    context.close()
    context.close()
    assert context.raw.closes == 1


def test_copies_are_counted_with_their_bytes(device: FakeDevice) -> None:
    context = get_context(device.kind)
    one, two = memory.alloc(device.kind, 64).span(), memory.alloc(device.kind, 64)
    context.counts.reset()
    context.copy_in(Span(one.handle, 0, 10), memoryview(bytes(range(10))))
    context.copy_within(two.span(), one)
    back = np.zeros(4, np.uint8)
    context.copy_out(back.data, Span(two.span().handle, 3, 4))
    context.wait()
    assert back.tolist() == [3, 4, 5, 6]
    counts = context.counts
    assert (counts.copy_in, counts.copy_out, counts.copy_within) == (1, 1, 1)
    assert (counts.bytes_in, counts.bytes_out) == (10, 4)
    context.copy_in(Span(one.handle, 0, 0), memoryview(b""))
    context.copy_out(memoryview(bytearray()), Span(one.handle, 0, 0))
    assert (counts.copy_in, counts.copy_out) == (1, 1)  # of nothing: not even called


def test_a_plugins_exception_gets_the_place_and_what_was_done(device: FakeDevice) -> None:
    context = get_context(device.kind)
    device.failure = OSError("bus error")
    with pytest.raises(
        DeviceError, match=f"{device.kind}:0 failed while waiting for the queue: OSError: bus error"
    ) as caught:
        context.wait()
    assert isinstance(caught.value.__cause__, OSError)
    device.failure = None
    context.wait()
    with pytest.raises(DeviceError, match="failed while copying 4 bytes in: KeyError: 999"):
        context.copy_in(Span(999, 0, 4), memoryview(bytes(4)))


def test_a_lost_device_poisons_its_place_only(device: FakeDevice) -> None:
    context = get_context(device.kind)
    device.failure = DeviceLost("unplugged")
    with pytest.raises(DeviceLost, match=f"{device.kind}:0 was lost while waiting for the queue: unplugged"):
        context.wait()
    device.failure = None
    for use in (
        context.wait,
        lambda: get_context(device.kind),
        lambda: new_context(device.kind),
        lambda: fluid.Executor(device.kind),
    ):
        with pytest.raises(DeviceLost, match=f"{device.kind}:0 is lost: unplugged\n  Other places go on"):
            use()
    assert fluid.Executor("cpu")
    with installed(FakeDevice()) as other:
        get_context(other.kind).wait()
    context.close()


def test_library_handles_are_made_once(device: FakeDevice) -> None:
    context = get_context(device.kind)
    made: list[object] = []

    def make() -> object:
        made.append(object())
        return made[-1]

    assert context.handle("fft", make) is context.handle("fft", make)
    assert len(made) == 1
    with pytest.raises(DeviceError, match="failed while making the handle 'blas': ZeroDivisionError"):
        context.handle("blas", lambda: 1 / 0)


def test_an_event_of_a_base_context_waits() -> None:
    waited = []

    class Minimal(ContextBase):
        def wait(self) -> None:
            waited.append(1)

    context = Minimal(fluid.Place("cpu"))
    event = context.record()
    assert waited == [1]
    assert event.done()
    event.wait()
    with pytest.raises(NotImplementedError, match="Minimal must define copy_in"):
        context.copy_in(Span(0, 0, 0), memoryview(b""))


# --- kernel languages -------------------------------------------------------------------------------------------------


class CountingLanguage:
    """Compiles to the source's length; refuses what says "error"."""

    def __init__(self) -> None:
        self.compiled = 0
        self.launched: list[Any] = []

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> Any:
        self.compiled += 1
        if "error" in source:
            raise CompileError("line 1: no error allowed")
        return len(source)

    def launch(self, context: Any, kernel: Any, items: int, args: Any, group: int | None = None) -> None:
        self.launched.append((kernel, items, list(args)))


def test_a_source_is_compiled_once_a_context(device: FakeDevice) -> None:
    context = get_context(device.kind)
    language = context.language = CountingLanguage()
    kernel = context.compile("void f() {}", "f", ("buffer",))
    assert context.compile("void f() {}", "f", ("buffer",)) == kernel
    assert language.compiled == 1
    context.compile("void f() {}", "f", ("buffer", "int64"))
    assert language.compiled == 2
    with pytest.raises(CompileError, match=f"{device.kind}:0 refused the generated kernel g:\nline 1") as caught:
        context.compile("error", "g", ())
    assert caught.value.source == "error"
    context.counts.reset()
    context.launch(kernel, 5, [1, 2])
    context.launch(kernel, 0, [1, 2])
    assert language.launched == [(kernel, 5, [1, 2])]
    assert context.counts.launches == 1


# --- the status word -------------------------------------------------------------------------------------------------


def test_the_status_word_is_read_and_cleared(device: FakeDevice) -> None:
    context = new_context(device.kind)
    assert not context.may_have_error
    assert context.begin_status() is None
    handle, offset = context.status_args()
    assert context.may_have_error
    device.live[handle][offset : offset + 32].view(np.int64)[:] = [8, 99, 10, 0]
    word = context.begin_status()
    context.wait()
    assert context.end_status(word) == (7, 99, 10)
    assert not context.may_have_error
    assert device.live[handle][offset : offset + 32].view(np.int64).tolist() == [0, 0, 0, 0]
    context.status_args()
    word = context.begin_status()
    context.wait()
    assert context.end_status(word) is None
    assert (context.counts.copy_in, context.counts.copy_out) == (0, 0)  # counted apart
    assert context.counts.status_reads == 2
    context.close()
    assert handle not in device.live


# --- the table of devices --------------------------------------------------------------------------------------------


class Odd(DeviceBase):
    """A device whose probe does what the test says."""

    def __init__(self, answer: Any) -> None:
        self.kind = FakeDevice().kind
        self.answer = answer
        self.probes = 0

    def probe(self) -> int:
        self.probes += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]

    def info(self, index: int) -> DeviceInfo:
        raise OSError("no facts")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (DeviceUnavailable("no driver\n  Do: install it"), "no driver\n  Do: install it"),
        (ValueError("odd"), r"probe\(\) raised ValueError: odd"),
        (0, "no device found"),
        (-1, r"probe\(\) returned -1, not a count"),
        ("two", r"probe\(\) returned 'two', not a count"),
        (1, r"probe\(\) said 1, but device 0 raised OSError: no facts"),
    ],
)
def test_a_device_that_cannot_be_used_says_why_and_is_asked_once(answer: Any, reason: str) -> None:
    with installed(Odd(answer)) as device:
        for _ in range(2):
            with pytest.raises(DeviceUnavailable, match=f"{device.kind} cannot be used here: {reason}"):
                fluid.Executor(device.kind)
        assert device.probes == 1
        assert fluid.Place(device.kind) not in fluid.places()
        assert devices.kinds()[device.kind]
        assert fluid.Place("cpu") in fluid.places()


class Wrong(FakeDevice):
    """One function of it, or of what it hands over, does something else."""

    def __init__(self, name: str, instead: Any) -> None:
        super().__init__()
        where, _, method = name.partition(".")
        if not method:
            setattr(self, where, instead)
            return
        make = getattr(self, where)

        def made(*given: Any) -> Any:
            thing = make(*given)
            setattr(thing, method, instead)
            return thing

        setattr(self, where, made)


def gives(answer: Any) -> Any:
    """A function that returns, or raises, what it was told to."""

    def function(*given: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return function


@pytest.mark.parametrize("what", ["none", "another", "raises", "full", "lost"])
@pytest.mark.parametrize(
    "name",
    ["context", "allocator", "array", "language", "allocator.allocate", "context.wait", "context.activate"],
)
def test_what_a_device_hands_over_wrongly_is_told_with_its_place(name: str, what: str) -> None:
    answers = {"none": None, "another": "rubbish", "raises": ValueError("odd"), "full": MemoryError("full")}
    answer = answers.get(what, DeviceLost("unplugged"))
    fine = {"array": ["none"], "language": ["none"], "context.wait": ["none", "another"]}
    with installed(Wrong(name, gives(answer))) as device:
        if what in fine.get(name, ()):
            new_context(device.kind)
            return
        with pytest.raises(FluidError, match=device.kind) as error:
            new_context(device.kind)
        if what == "another" and "." not in name:
            assert "returned 'rubbish'; expected an object that has " in str(error.value)
        if name in ("array", "language"):
            assert isinstance(error.value, DeviceUnavailable)
            return
        assert isinstance(error.value, OutOfMemoryError) == (what == "full")
        assert (devices.unit(device.kind).lost is not None) == (what == "lost")


def test_a_namespace_without_functions_is_refused_at_once() -> None:
    """It was taken, and operators said that None has no attribute 'reshape'."""
    with installed(Wrong("array", gives(ArrayBase()))) as device:
        with pytest.raises(FluidError, match=r"array\(0\) returned .*; expected an object that has xp") as error:
            new_context(device.kind)
        assert device.kind in str(error.value)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"alignment": 0}, "alignment=0; expected an integer of 1 or more"),
        ({"alignment": "64"}, "alignment='64'; expected an integer"),
        ({"alignment": 96}, "alignment=96; expected a power of two"),
        ({"memory": -1}, "memory=-1; expected an integer"),
        ({"memory": 1e9}, "memory=1000000000.0; expected an integer"),
        ({"tolerance": {"flaot32": 1e-5}}, "tolerance of 'flaot32': 1e-05; expected float16, "),
        ({"tolerance": {"float32": "big"}}, "tolerance of 'float32': 'big'; expected float16, .*: between 0.0 and 1.0"),
        ({"tolerance": {"float32": float("nan")}}, "tolerance of 'float32': nan; expected float16, "),
        ({"tolerance": 1e-5}, "tolerance=1e-05; expected a mapping"),
        ({"queues": 0}, "queues=0; expected an integer"),
        ({"dtypes": ("float32", "float33")}, "expected a tuple of bool, "),
        ({"dtypes": "float32"}, "expected a tuple of bool, "),
    ],
)
def test_facts_that_cannot_be(facts: dict[str, Any], reason: str) -> None:
    with (
        installed(Wrong("info", gives(DeviceInfo("odd", **facts)))) as device,
        pytest.raises(DeviceUnavailable, match=reason),
    ):
        fluid.Executor(device.kind)


HANGS = """
import atexit, sys
sys.path.append({plugins!r})
held = []
atexit.register(lambda: print([context.closes for device in held for context in device.made]))  # after all others
from fake_device import FakeDevice
from fluidlite.platform import context_pool
from fluidlite.platform.device_registry import devices

context_pool.PATIENCE_AT_EXIT = 0.2
for hangs in (False, True):
    held.append(FakeDevice())
    devices.add(held[-1])
    context = context_pool.get_context(held[-1].kind)
    held[-1].held = hangs
"""


def test_a_queue_that_hangs_keeps_no_process() -> None:
    """What it uses is left as it is; other queues are closed."""
    code = HANGS.format(plugins=str(Path(__file__).parents[1] / "plugins"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout.strip() == "[1, 0]"
    assert "is left open: its queue has not ended in 0.2 s" in done.stderr


def test_a_word_that_no_kernel_language_has() -> None:
    with pytest.raises(RegistryError, match="a kernel language has no 'words'; did you mean 'keywords'"):
        KernelLanguageBase(words={})
    assert KernelLanguageBase(name="mine", suffix=".cl").suffix == ".cl"


def test_no_handle_is_kept(device: FakeDevice) -> None:
    """A function that forgot to return: the next allocation asks the device again."""
    context = get_context(device.kind)
    allocator = memory.memory_of(context.place).strategy.raw.allocator(context)
    allocator.allocate = gives(None)
    for _ in range(2):
        with pytest.raises(DeviceError, match=rf"{device.kind}:0 .*allocate\(\d+\) returned None; expected a handle"):
            memory.alloc(device.kind, 100)
    del allocator.allocate
    memory.free(memory.alloc(device.kind, 100))


def test_a_removed_device_is_gone(device: FakeDevice) -> None:
    other = FakeDevice()
    with installed(other):
        get_context(other.kind)
    with pytest.raises(PlaceError, match=f"no device serves place '{other.kind}:0'"):
        get_context(other.kind)


def test_the_host_says_so() -> None:
    assert devices.host() == fluid.Place("cpu")
    assert devices.unit("cpu").info.host
    assert set(devices.unit("cpu").capabilities()) >= {"array", "memory"}
