"""Memory of one place, on a device whose memory is small and whose queue waits for the test."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import fluidlite as fluid
from fluidlite import memory, plugin_loader
from fluidlite.base.errors import AllocationError, DeviceLost, OutOfMemoryError, RegistryError
from fluidlite.memory import place_memory
from fluidlite.memory.sharing import Use, lock_contexts, turn
from fluidlite.memory.strategies import NamedStrategy, Strategy, register_strategy, size_class, strategies
from fluidlite.platform.context_pool import get_context, new_context
from fluidlite.tensor import tensor_cache as recycle
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

sys.path.append(str(Path(__file__).parents[1] / "plugins"))
from fake_device import FakeDevice, installed


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    fluid.places()
    with installed(FakeDevice(memory=1 << 16)) as found:
        yield found
        gc.collect()


# --- size classes ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 1 << 40), st.sampled_from([1, 16, 64, 256, 4096]))
def test_a_size_class_loses_at_most_an_eighth(nbytes: int, alignment: int) -> None:
    size = size_class(nbytes, alignment)
    assert size >= max(nbytes, 1)
    assert size % alignment == 0
    assert size < nbytes + alignment or size <= nbytes * 9 / 8 + alignment


@given(st.integers(0, 1 << 32), st.integers(0, 1 << 32), st.sampled_from([1, 64, 4096]))
def test_size_classes_are_monotonic_and_fixed_points(a: int, b: int, alignment: int) -> None:
    low, high = sorted((size_class(a, alignment), size_class(b, alignment)))
    assert [low, high] == [size_class(n, alignment) for n in sorted((a, b))]
    assert size_class(low, alignment) == low


# --- alloc, free, used -----------------------------------------------------------------------------------------------


def test_counts(device: FakeDevice) -> None:
    kind = device.kind
    assert memory.used(kind) == 0
    one, two = memory.alloc(kind, 100), memory.alloc(f"{kind}:0", 1000)
    now = memory.stats(kind)
    assert (now.used, now.padding, now.peak, now.live, now.allocations, now.frees) == (1100, 52, 1100, 2, 2, 0)
    assert now.reserved == memory.reserved(kind) == 128 + 1024
    assert str(now.place) == f"{kind}:0"
    memory.free(one)
    assert memory.used(kind) == 1000
    assert memory.peak(kind) == 1100
    assert memory.reserved(kind) == now.reserved  # the pool keeps it
    memory.reset_peak(kind)
    assert memory.peak(kind) == 1000
    memory.free(two, kind)
    assert memory.stats(kind).live == 0
    assert memory.stats(kind).padding == 0


def test_what_any_context_keeps_for_later_is_not_used(device: FakeDevice) -> None:
    kind, spec = device.kind, Spec.of((64,), "float32")
    one, two = contexts = new_context(kind), new_context(kind)
    for context in contexts:
        recycle.give(context, Tensor.of(spec, context.place, memory.alloc(kind, 256, context)))
    assert [context.idle_bytes for context in contexts] == [256, 256]
    memory.reset_peak(kind)
    assert (memory.used(kind), memory.peak(kind)) == (0, 0)
    mine = memory.alloc(kind, 1000, one)
    assert (memory.used(kind), memory.peak(kind)) == (1000, 1000)
    again = recycle.take(two, spec)
    assert (memory.used(kind), memory.peak(kind)) == (1256, 1256)
    del again, mine


def test_zero_bytes(device: FakeDevice) -> None:
    one, two = memory.alloc(device.kind, 0), memory.alloc(device.kind, 0)
    assert memory.used(device.kind) == 0
    assert memory.stats(device.kind).live == 2
    assert one.span().nbytes == 0
    memory.free(one)
    memory.free(two)
    assert memory.stats(device.kind).live == 0


def test_a_negative_size(device: FakeDevice) -> None:
    for _ in range(2):
        with pytest.raises(AllocationError, match=f"cannot allocate -1 bytes on {device.kind}:0"):
            memory.alloc(device.kind, -1)


@pytest.mark.parametrize("nbytes", [1.5, "10", None, -3])
def test_a_size_that_is_none(device: FakeDevice, nbytes: Any) -> None:
    arena = memory.arena(device.kind, 256)
    for alloc in (lambda: memory.alloc(device.kind, nbytes), lambda: arena.alloc(nbytes)):
        with pytest.raises(AllocationError, match=f"cannot allocate {nbytes!r} bytes"):
            alloc()
    assert arena.used == 0


def test_double_free(device: FakeDevice) -> None:
    one = memory.alloc(device.kind, 77)
    memory.free(one)
    with pytest.raises(AllocationError, match=f"double free: these 77 bytes on {device.kind}:0 were freed before"):
        memory.free(one)
    assert memory.stats(device.kind).frees == 1
    assert repr(one) == f"Allocation(77 bytes on {device.kind}:0, freed)"


def test_foreign_free(device: FakeDevice) -> None:
    one = memory.alloc(device.kind, 8)
    with pytest.raises(AllocationError, match=f"foreign free: the allocation is on {device.kind}:0, not on cpu:0"):
        memory.free(one, "cpu")
    for other in (3, None, b"bytes", object()):
        with pytest.raises(AllocationError, match=r"foreign free: .*was not made by memory.alloc"):
            memory.free(other)  # type: ignore[arg-type]
    piece = memory.arena(device.kind, 256).alloc(16)
    with pytest.raises(AllocationError, match=r"foreign free: .* is borrowed or part of an arena"):
        memory.free(piece)
    assert memory.stats(device.kind).frees == 0
    memory.free(one, device.kind)


def test_use_after_free(device: FakeDevice) -> None:
    one = memory.alloc(device.kind, 8)
    memory.free(one)
    for use in (one.span, one.live_block, one.address):
        with pytest.raises(AllocationError, match=f"use after free: 8 bytes on {device.kind}:0"):
            use()
    tensor = fluid.Tensor().set([1.0, 2.0], device.kind)
    assert tensor.allocation is not None
    memory.free(tensor.allocation)
    with pytest.raises(AllocationError, match="use after free"):
        tensor.numpy()


def test_memory_without_addresses_says_so(device: FakeDevice) -> None:
    with pytest.raises(AllocationError, match=r"has no address; use span\(\)"):
        memory.alloc(device.kind, 8).address()


def test_leaks_are_a_line_of_text(device: FakeDevice) -> None:
    assert memory.leaks(device.kind) == ""
    held = [memory.alloc(device.kind, 1000) for _ in range(2)]
    assert (
        memory.leaks(device.kind) == f"{device.kind}:0: 2 allocations of 2,000 bytes are still held (2 made, 0 freed)"
    )
    for each in held:
        memory.free(each)
    assert memory.leaks(device.kind) == ""


def test_a_dropped_allocation_is_freed(device: FakeDevice) -> None:
    one = memory.alloc(device.kind, 500)
    assert memory.used(device.kind) == 500
    del one
    gc.collect()
    assert memory.used(device.kind) == 0
    assert memory.stats(device.kind).frees == 1


# --- out of memory ---------------------------------------------------------------------------------------------------


def test_out_of_memory_names_the_numbers_and_the_process_goes_on(device: FakeDevice) -> None:
    one = memory.alloc(device.kind, 40_000)
    with pytest.raises(OutOfMemoryError) as caught:
        memory.alloc(device.kind, 50_000)
    assert str(caught.value).startswith(
        f"out of memory on {device.kind}:0: asked for 50,000 bytes, used 40,000, reserved 40,960 (the board is full)"
    )
    assert isinstance(caught.value, MemoryError)
    assert memory.stats(device.kind).live == 1
    memory.free(one)
    memory.free(memory.alloc(device.kind, 50_000))  # the pool was emptied for it: 40,960 + 53,248 exceed the memory
    assert memory.reserved(device.kind) < 65_536


def test_more_than_can_be_counted(device: FakeDevice) -> None:
    for nbytes in (1 << 40, 1 << 62, 1 << 63, 1 << 70):
        for place in (device.kind, "cpu"):
            with pytest.raises(OutOfMemoryError, match=f"asked for {nbytes:,} bytes"):
                memory.alloc(place, nbytes)


def test_a_limit(device: FakeDevice) -> None:
    memory.set_limit(device.kind, 1000)
    one = memory.alloc(device.kind, 900)
    with pytest.raises(OutOfMemoryError, match=r"asked for 200 bytes, used 900, reserved 960 \(its limit is 1,000\)"):
        memory.alloc(device.kind, 200)
    memory.free(one)
    two = memory.alloc(device.kind, 200)
    memory.set_limit(device.kind, None)
    three = memory.alloc(device.kind, 2000)
    memory.free(two)
    memory.free(three)


# --- strategies ------------------------------------------------------------------------------------------------------


def test_the_pool_reuses_a_block_of_the_same_size_class(device: FakeDevice) -> None:
    one = memory.alloc(device.kind, 1000)
    handle = one.span().handle
    memory.free(one)
    before = device.allocated
    two = memory.alloc(device.kind, 1010)
    assert two.span().handle == handle
    assert device.allocated == before
    three = memory.alloc(device.kind, 1000)
    assert three.span().handle != handle
    memory.free(two)
    memory.free(three)


def test_trim_gives_cached_blocks_back(device: FakeDevice) -> None:
    kept = memory.alloc(device.kind, 100)
    for each in [memory.alloc(device.kind, 1000) for _ in range(5)]:
        memory.free(each)
    assert memory.reserved(device.kind) == 128 + 5 * 1024
    released = device.released
    memory.trim(device.kind)
    assert device.released == released + 5
    assert memory.reserved(device.kind) == 128
    assert memory.used(device.kind) == 100
    memory.free(kept)


def test_the_direct_strategy_keeps_nothing(device: FakeDevice) -> None:
    memory.set_strategy(device.kind, "direct")
    assert memory.stats(device.kind).strategy == "direct"
    released = device.released
    memory.free(memory.alloc(device.kind, 1000))
    assert device.released == released + 1
    assert memory.reserved(device.kind) == 0
    one = memory.alloc(device.kind, 1)
    with pytest.raises(AllocationError, match="has 1 live allocations; change the strategy before"):
        memory.set_strategy(device.kind, "pool")
    memory.free(one)
    memory.set_strategy(device.kind, "pool")
    with pytest.raises(AllocationError, match=r"'buddy' is not .* use one of direct, pool, stream, arena"):
        memory.set_strategy(device.kind, "buddy")


# --- several contexts ------------------------------------------------------------------------------------------------


def test_a_block_that_another_context_used_waits_for_its_event(device: FakeDevice) -> None:
    mine, other = get_context(device.kind), new_context(device.kind)
    one = memory.alloc(device.kind, 1000)
    handle = one.span().handle
    one.used_by(other)
    device.held = True
    memory.free(one)
    two = memory.alloc(device.kind, 1000)
    assert two.span().handle != handle  # the other context may still read it
    device.go_on()
    three = memory.alloc(device.kind, 1000, mine)
    assert three.span().handle == handle
    memory.free(two)
    memory.free(three)


def test_a_dropped_block_that_another_context_used_waits_too(device: FakeDevice) -> None:
    other = new_context(device.kind)
    one = memory.alloc(device.kind, 1000)
    handle = one.span().handle
    one.used_by(other)
    device.held = True
    del one
    gc.collect()
    two = memory.alloc(device.kind, 1000)
    assert two.span().handle != handle
    device.go_on()
    assert memory.alloc(device.kind, 1000).span().handle == handle


def test_a_block_of_its_own_context_is_reused_at_once(device: FakeDevice) -> None:
    one = memory.alloc(device.kind, 1000)
    handle = one.span().handle
    one.used_by(get_context(device.kind))
    device.held = True
    memory.free(one)
    two = memory.alloc(device.kind, 1000)
    assert two.span().handle == handle
    memory.free(two)


def test_another_context_gets_a_block_once_its_owner_is_done(device: FakeDevice) -> None:
    other = new_context(device.kind)
    one = memory.alloc(device.kind, 1000)
    handle = one.span().handle
    device.held = True
    memory.free(one)
    two = memory.alloc(device.kind, 1000, other)
    assert two.span().handle != handle  # its own context may still work on it
    device.go_on()
    reserved = memory.reserved(device.kind)
    three = memory.alloc(device.kind, 1000, other)
    assert three.span().handle == handle
    assert three.context is other
    assert memory.reserved(device.kind) == reserved
    memory.free(two)
    memory.free(three)
    assert {block.context for block in other.spare_blocks[1024]} == {other}


def test_a_stream_ordered_block_is_taken_at_once_and_waited_for_on_the_device(device: FakeDevice) -> None:
    memory.set_strategy(device.kind, "stream")
    other = new_context(device.kind)
    one = memory.alloc(device.kind, 1000)
    handle = one.span().handle
    device.held = True
    memory.free(one)
    two = memory.alloc(device.kind, 1000, other)
    assert two.span().handle == handle
    assert other.raw.waited_for == [device.events[-1]]
    assert memory.stats(device.kind).strategy == "stream"
    memory.free(two)
    device.go_on()


def test_a_block_of_a_context_that_runs_is_left_to_it(device: FakeDevice) -> None:
    """Its thread may want the lock of the memory: who waited for it here would wait for ever."""
    one = memory.alloc(device.kind, 1000)
    handle = one.span().handle
    memory.free(one)
    found: list[Any] = []
    with get_context(device.kind).lock:
        thread = threading.Thread(target=lambda: found.append(memory.alloc(device.kind, 1000).span().handle))
        thread.start()
        thread.join(60)
        assert found and found != [handle]


def test_a_storm_of_sizes_is_trimmed(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place_memory, "MAX_CACHED_BYTES", 4096)
    for nbytes in range(64, 40_000, 512):
        memory.free(memory.alloc(device.kind, nbytes))
        assert memory.reserved(device.kind) <= 2 * max(4096, nbytes) + nbytes


def test_blocks_of_a_closed_context_are_used_again(device: FakeDevice) -> None:
    other = new_context(device.kind)
    one = memory.alloc(device.kind, 1000, other)
    handle = one.span().handle
    memory.free(one)
    other.close()
    assert memory.alloc(device.kind, 1000).span().handle == handle


def test_a_context_that_closes_as_an_event_is_asked_of_it_has_nothing_left_to_do(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = new_context(device.kind)

    def gone() -> None:
        other.close()
        raise AttributeError("the queue is gone")

    monkeypatch.setattr(other.raw, "record", gone)
    assert other.record().done()


def test_a_reader_elsewhere_waits_for_the_owner(device: FakeDevice) -> None:
    other = new_context(device.kind)
    one = memory.alloc(device.kind, 1000)
    recorded = len(device.events)
    with turn((other,), lambda: [Use(one, other, False)]):
        pass
    assert len(device.events) == recorded + 1
    assert other.raw.waited_for == [device.events[-1]]
    with turn((other,), lambda: [Use(one, other, False)]):  # it is known now
        pass
    mine = get_context(device.kind)
    with turn((mine,), lambda: [Use(one, mine, False)]):  # its own: nothing to wait for
        pass
    assert len(device.events) == recorded + 1


class Activation:
    """Records the contexts that are entered and left; fails where it is told to."""

    def __init__(self, context: Any, log: list[tuple[str, Any]], fails: tuple[str, Any]) -> None:
        self.context, self.log, self.fails = context, log, fails

    def _note(self, what: str) -> None:
        self.log.append((what, self.context))
        if self.fails == (what, self.context):
            raise OSError(what)

    def __enter__(self) -> None:
        self._note("enter")

    def __exit__(self, *error: object) -> None:
        self._note("leave")


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("what", ["enter", "leave"])
def test_contexts_are_left_and_unlocked_if_a_library_fails(
    device: FakeDevice, what: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = [get_context(device.kind), new_context(device.kind)]
    log: list[tuple[str, Any]] = []
    fails = what, contexts[which].raw
    monkeypatch.setattr(type(contexts[0].raw), "activate", lambda raw: Activation(raw, log, fails), raising=False)
    with pytest.raises(OSError, match=what), lock_contexts(contexts):
        assert what == "leave"
    one, other = (context.raw for context in contexts)
    entered = [("enter", one), ("enter", other)]
    if what == "leave":
        assert log == [*entered, ("leave", other), ("leave", one)]
    else:
        assert log == (entered[:1] if which == 0 else [*entered, ("leave", one)])
    unlocked: list[bool] = []

    def lock_elsewhere() -> None:
        for context in contexts:
            unlocked.append(context.lock.acquire(blocking=False))
            if unlocked[-1]:
                context.lock.release()

    thread = threading.Thread(target=lock_elsewhere)
    thread.start()
    thread.join()
    assert unlocked == [True, True]


def test_memory_of_a_lost_device_is_dropped(device: FakeDevice) -> None:
    one = memory.alloc(device.kind, 1000)
    device.failure = DeviceLost("unplugged")
    with pytest.raises(DeviceLost, match="was lost while waiting for the queue: unplugged"):
        get_context(device.kind).wait()
    released = device.released
    memory.free(one)
    assert device.released == released
    with pytest.raises(DeviceLost, match=f"{device.kind}:0 is lost: unplugged"):
        memory.alloc(device.kind, 10)
    assert memory.used("cpu") >= 0  # other places go on


# --- arenas ----------------------------------------------------------------------------------------------------------


def test_an_arena_aligns_and_fills_exactly(device: FakeDevice) -> None:
    arena = memory.arena(device.kind, 256)
    assert memory.used(device.kind) == 256
    first, second, third = arena.alloc(1), arena.alloc(65), arena.alloc(64)
    assert [piece.offset for piece in (first, second, third)] == [0, 64, 192]
    assert arena.used == 256
    assert first.span().handle == third.span().handle
    with pytest.raises(OutOfMemoryError, match=f"arena on {device.kind}:0 is full: asked for 1 bytes, used 256 of 256"):
        arena.alloc(1)
    arena.alloc(0)
    assert arena.used == 256
    assert memory.used(device.kind) == 256


def test_an_overflow_leaves_an_arena_as_it_was(device: FakeDevice) -> None:
    arena = memory.arena(device.kind, 256)
    arena.alloc(100)
    with pytest.raises(OutOfMemoryError):
        arena.alloc(200)
    assert arena.used == 100
    assert arena.alloc(128).offset == 128


def test_a_reset_makes_what_was_allocated_stale(device: FakeDevice) -> None:
    arena = memory.arena(device.kind, 256)
    piece = arena.alloc(10)
    with arena():
        tensor = fluid.Tensor().set([1.0, 2.0], device.kind)
        elsewhere = fluid.Tensor().set([3.0], "cpu")
    assert tensor.numpy().tolist() == [1, 2]
    assert arena.used == 64 + 16
    arena.reset()
    assert arena.used == 0
    for use in (piece.span, tensor.numpy, tensor.span):
        with pytest.raises(AllocationError, match=r"stale arena memory: .* before the arena's reset"):
            use()
    assert elsewhere.numpy().tolist() == [3]
    with arena():
        again = fluid.Tensor().set([5.0], device.kind)
    assert again.numpy().tolist() == [5]
    outside = fluid.Tensor().set([6.0], device.kind)
    arena.reset()
    assert outside.numpy().tolist() == [6]


def test_arenas_nest_and_close(device: FakeDevice) -> None:
    outer, inner = memory.arena(device.kind, 256), memory.arena(device.kind, 256)
    with outer():
        fluid.Tensor().set([1.0], device.kind)
        with inner():
            fluid.Tensor().set([1.0], device.kind)
        fluid.Tensor().set([1.0], device.kind)
    assert (outer.used, inner.used) == (64 + 8, 8)
    piece = outer.alloc(8)
    used = memory.used(device.kind)
    outer.close()
    assert memory.used(device.kind) == used - 256
    with pytest.raises(AllocationError, match="stale"):
        piece.span()
    with pytest.raises(OutOfMemoryError):
        outer.alloc(1)


def test_an_arena_is_for_the_thread_that_entered_it(device: FakeDevice) -> None:
    arena = memory.arena(device.kind, 256)
    with arena():
        thread = threading.Thread(target=lambda: fluid.Tensor().set([1.0], device.kind))
        thread.start()
        thread.join()
    assert arena.used == 0


# --- a plugin's strategy ---------------------------------------------------------------------------------------------


PLUGIN = """
from fluidlite.plugin import Strategy, hookimpl, register_strategy


@register_strategy("shelf")
class Shelf(Strategy):
    '''Keeps the last block of each size.'''

    caches = True

    def __init__(self, raw, room=4):
        super().__init__(raw)
        self.room, self.kept = room, {}

    def take(self, nbytes, context):
        kept = self.kept.pop(nbytes, None)
        return kept if kept is not None else self.raw.take(nbytes, context)

    def give(self, block):
        if block.size in self.kept or len(self.kept) >= self.room:
            self.raw.give(block)
        else:
            self.kept[block.size] = block

    def trim(self):
        for block in self.kept.values():
            self.raw.give(block)
        self.kept.clear()
"""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "shelf_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    record = plugin_loader.load("shelf", "shelf_plugin")
    yield record
    plugin_loader.unload("shelf")
    sys.modules.pop("shelf_plugin", None)


def test_a_plugins_strategy_by_name(device: FakeDevice, shelf: Any) -> None:
    assert (shelf.state, shelf.brought["strategies"]) == ("loaded", ["shelf"])
    memory.set_strategy(device.kind, "shelf", room=2)
    assert memory.stats(device.kind).strategy == "shelf"
    one, two = memory.alloc(device.kind, 1000), memory.alloc(device.kind, 1000)
    handle = one.span().handle
    memory.free(one)
    memory.free(two)
    assert memory.reserved(device.kind) == 1024  # the second went to the device
    assert memory.alloc(device.kind, 1000).span().handle == handle
    assert memory.used(device.kind) == 0
    memory.free(memory.alloc(device.kind, 64_000))  # the shelf is emptied for it
    with pytest.raises(AllocationError, match=r"'shelf' cannot be made so: .*unexpected keyword argument 'rooms'"):
        memory.set_strategy(device.kind, "shelf", rooms=2)
    assert memory.stats(device.kind).strategy == "shelf"
    memory.set_strategy(device.kind, "pool")
    assert memory.reserved(device.kind) == 0


def test_a_strategy_goes_with_its_plugin(device: FakeDevice, shelf: Any) -> None:
    memory.set_strategy(device.kind, "shelf")
    plugin_loader.unload("shelf")
    memory.free(memory.alloc(device.kind, 100))  # a place that uses it goes on
    with pytest.raises(AllocationError, match="'shelf' is not an allocation strategy"):
        memory.set_strategy(device.kind, "shelf")


def test_strategies_that_clash_or_are_none(device: FakeDevice) -> None:
    with pytest.raises(RegistryError, match=r"'pool' is registered twice: at .*strategies and at .*test_memory.py:\d+"):
        register_strategy("pool")(Strategy)
    with pytest.raises(RegistryError, match="takes a name"):
        register_strategy("")
    named = NamedStrategy("odd", lambda raw: 3, "here")  # type: ignore[arg-type, return-value]
    strategies.add(named)
    with pytest.raises(AllocationError, match=r"'odd' \(here\) made 3, no Strategy"):
        memory.set_strategy(device.kind, "odd")
    strategies.remove(named)
    memory.free(memory.alloc(device.kind, 100))


# --- a place that is an arena ----------------------------------------------------------------------------------------


def test_an_arena_for_a_place(device: FakeDevice) -> None:
    memory.set_strategy(device.kind, "arena", nbytes=256)
    assert memory.reserved(device.kind) == 256
    first, second, third = (memory.alloc(device.kind, nbytes) for nbytes in (1, 65, 64))
    assert [piece.offset for piece in (first, second, third)] == [0, 64, 192]  # it fills exactly
    assert memory.used(device.kind) == 130
    assert memory.alloc(device.kind, 0).nbytes == 0
    with pytest.raises(OutOfMemoryError, match=r"asked for 1 bytes, .*the arena is full: used 256 of 256"):
        memory.alloc(device.kind, 1)
    memory.free(second)
    with pytest.raises(AllocationError, match="double free"):
        memory.free(second)
    inner_holder = third
    memory.reset(device.kind)
    now = memory.stats(device.kind)
    assert (now.used, now.live, now.padding, now.allocations == now.frees) == (0, 0, 0, True)
    for use in (first.span, inner_holder.live_block, partial(memory.free, first)):
        with pytest.raises(AllocationError, match="stale arena memory"):
            use()
    inner = memory.arena(device.kind, 128)
    piece = inner.alloc(100)
    memory.reset(device.kind)
    with pytest.raises(AllocationError, match="stale"):
        piece.span()
    with pytest.raises(OutOfMemoryError):
        inner.alloc(1)
    del first, second, third, inner_holder, use
    memory.set_strategy(device.kind, "direct")
    assert memory.reserved(device.kind) == 0
    with pytest.raises(AllocationError, match="uses the strategy 'direct', which cannot be reset"):
        memory.reset(device.kind)


@pytest.mark.parametrize(
    "options", [{}, {"nbytes": 0}, {"nbytes": 1.5}, {"nbytes": 64, "size": 3}, {"nbytes": 1 << 20}]
)
def test_an_arena_that_cannot_be(device: FakeDevice, options: dict[str, Any]) -> None:
    with pytest.raises((AllocationError, OutOfMemoryError)):
        memory.set_strategy(device.kind, "arena", **options)
    assert memory.stats(device.kind).strategy == "pool"
    memory.free(memory.alloc(device.kind, 100))


def test_work_after_a_reset_waits_for_what_was_under_way_on_other_queues(device: FakeDevice) -> None:
    memory.set_strategy(device.kind, "arena", nbytes=1024)
    mine, other = get_context(device.kind), new_context(device.kind)
    memory.alloc(device.kind, 100, mine)
    device.held = True
    memory.reset(device.kind)
    memory.alloc(device.kind, 100, mine)
    assert mine.raw.waited_for == []  # its own queue is in order
    memory.alloc(device.kind, 100, other)
    memory.alloc(device.kind, 100, other)
    assert other.raw.waited_for == [device.events[-1]]
    device.go_on()
    memory.reset(device.kind)


# --- threads ---------------------------------------------------------------------------------------------------------


def test_threads_hammer_one_place(device: FakeDevice) -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(4)

    def work(seed: int) -> None:
        try:
            barrier.wait()
            held: list[Any] = []
            for step in range(400):
                held.append(memory.alloc(device.kind, (seed * 31 + step * 17) % 700))
                block = device.live[held[-1].span().handle]
                block[:] = seed
                if len(held) > 6:
                    one = held.pop(step % 5)
                    assert (device.live[one.span().handle] == seed).all()  # nobody else was given it
                    if step % 3:
                        memory.free(one)
                    del one  # else its finaliser queues it
            for one in held:
                memory.free(one)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    gc.collect()
    now = memory.stats(device.kind)
    assert (now.used, now.live, now.padding) == (0, 0, 0)
    assert now.allocations == now.frees == 1600
    memory.trim(device.kind)
    assert memory.reserved(device.kind) == 0
    assert device.live == {}
