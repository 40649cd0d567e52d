"""The loaders' tests notice a ring that gives buffers away too early: each mutant makes one of them fail.

A mutant leaves out one of the waits, events or leases that order what is written into a buffer after what reads it. The
tests are those of tests/loaders/test_buffers.py, on a device whose queues do nothing before somebody waits.
"""

from __future__ import annotations

import gc
import importlib.util
import inspect
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fluidlite.loaders import epoch, ring

TESTS = Path(__file__).parents[1]
SECONDS = 20


class Mutant(NamedTuple):
    """A line of a method, and what stands there instead."""

    owner: Any
    method: str
    line: str
    instead: str


MUTANTS = {
    "a buffer is filled while its copy is under way": Mutant(ring.Ring, "fill", "slot.ready.wait()", "pass"),
    "a buffer is filled before who had it has read it": Mutant(
        ring.Ring, "fill", "self.context.wait_for(event)", "pass"
    ),
    "a batch is read before its copy is done": Mutant(ring.Ring, "lend", "reader.wait_for(slot.ready)", "pass"),
    "a buffer comes back with its batch": Mutant(
        epoch.EpochRun, "_take", "self._permits.put(True)", "self._permits.put(True); self._free.put(result.slot)"
    ),
    "a buffer that is held is filled again": Mutant(
        epoch.EpochRun, "_take", "self._ring.donate(slot)", "slot"
    ),
    "no queue is asked what it has enqueued": Mutant(
        epoch.EpochRun, "_accept", "_events(item.readers)", "()"
    ),
    "other queues are not asked": Mutant(
        epoch.EpochRun, "_accept", "item.readers", "item.readers & {get_context(self._ring.place)}"
    ),
    "the caller's own queue is not asked": Mutant(
        epoch.EpochRun, "_accept", "item.readers", "item.readers - {get_context(self._ring.place)}"
    ),
    "memory goes back before the caller's queue has read it": Mutant(
        ring.Lease, "__init__", "base.used_by(context)", "pass"
    ),
    "memory goes back before other queues have read it": Mutant(
        ring.Lease, "used_by", "self._base.used_by(context)", "pass"
    ),
    "a buffer is too small": Mutant(ring.Ring, "fill", "slot.allocation.nbytes < size", "slot.allocation.nbytes < 1"),
    "fields overlap": Mutant(ring.Ring, "_layout", "-(-spec.nbytes // self._alignment)", "(spec.nbytes // 1000)"),
}  # fmt: skip


def checks() -> Any:
    """The module with the loaders' tests."""
    spec = importlib.util.spec_from_file_location("loader_buffer_checks", TESTS / "loaders" / "test_buffers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lazy() -> Iterator[Any]:
    """A place whose queues do nothing before somebody waits."""
    sys.path.insert(0, str(TESTS / "plugins"))
    try:
        devices, fake = importlib.import_module("lazy_device"), importlib.import_module("fake_device")
    finally:
        sys.path.remove(str(TESTS / "plugins"))
    with fake.installed(devices.LazyDevice()) as device:
        yield device


def every(device: Any) -> list[Callable[[], None]]:
    """All checks, those of a lazy device first."""
    tests = checks()
    reads = tests.test_a_buffer_is_written_after_the_compute_that_reads_it
    return [
        lambda: tests.test_a_batch_is_there_for_what_reads_it(device),
        lambda: reads(device, {}),
        lambda: reads(device, {"buffers": 2, "preload": 1}),
        lambda: tests.test_a_buffer_is_written_after_other_queues_that_read_it(device),
        lambda: tests.test_memory_goes_back_after_the_compute_that_reads_it(device),
        lambda: tests.test_memory_goes_back_after_other_queues_that_read_it(device),
        lambda: tests.test_only_as_many_buffers_as_were_asked_for("cpu:0"),
        lambda: tests.test_batches_that_are_held_stay_as_they_are("cpu:0", {"buffers": 2, "preload": 2, "workers": 2}),
        lambda: tests.test_one_tensor_of_a_batch_keeps_it(),
        lambda: tests.test_buffers_grow_with_their_sequences("cpu:0"),
    ]


def fails(check: Callable[[], None], seconds: float = SECONDS) -> bool:
    """Whether a check raises, or does not end."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            check()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    found = thread.is_alive() or bool(errors)
    errors.clear()
    gc.collect()
    return found


def test_nothing_fails_without_a_mutant(lazy: Any) -> None:
    assert not [number for number, check in enumerate(every(lazy)) if fails(check, 200)]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_ring_is_caught(lazy: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    original = inspect.getattr_static(mutant.owner, mutant.method)
    text = textwrap.dedent(inspect.getsource(original))
    assert mutant.line in text, "the line has changed: break what stands there now"
    module = sys.modules[mutant.owner.__module__]
    made: dict[str, Any] = {}
    broken = textwrap.indent(text.replace(mutant.line, mutant.instead, 1), " ")
    within = f"from __future__ import annotations\ndef make(__class__):\n{broken}\n return {mutant.method}"
    exec(compile(within, "<mutant>", "exec"), vars(module), made)
    monkeypatch.setattr(original, "__code__", made["make"](mutant.owner).__code__)
    assert any(fails(check) for check in every(lazy)), f"no test noticed that {name}"
