"""Strategies of a place that is here, each in a process of its own, where nothing is allocated yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from forks import Forks

import fluidlite as fluid

Run = Callable[..., None]
KINDS = ("cpu", "opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})

HEAD = """
import gc, sys, threading, warnings
import numpy as np
import fluidlite as fluid
from fluidlite import layers, memory
from fluidlite.base.errors import AllocationError, OutOfMemoryError
from fluidlite.platform.context_pool import get_context, new_context

place, mode, strategy = sys.argv[1:]
main, startup = fluid.Program(), fluid.Program()
startup.random_seed = 3
with fluid.program_guard(main, startup), fluid.unique_name.guard():
    x = layers.data("x", [64])
    hidden = layers.tanh(layers.fc(x, 32))
    loss = layers.mean(layers.square(layers.fc(layers.concat([hidden, hidden], axis=1), 8)))
    fluid.optimizer.SGD(0.1).minimize(loss)


def feed(rows=40):
    return {"x": np.random.default_rng(rows).standard_normal((rows, 64)).astype("float32")}


def train(exe, scope, steps=4, rows=40):
    return [exe.run(main, feed(rows), [loss], scope=scope)[0].item() for _ in range(steps)]


def near(found):
    return np.allclose(found, right, rtol=1e-4)


def refused(what, *errors):
    try:
        what()
    except errors or AllocationError as error:
        return str(error)
    raise AssertionError("nothing was raised")


reference, scope = fluid.Executor("cpu", mode="interpreted"), fluid.Scope()
reference.run(startup, scope=scope)
right = train(reference, scope)
reference.close()
del scope, reference
gc.collect()
"""

ARENA = """
memory.set_strategy(place, "arena", nbytes=4 << 20)
assert memory.stats(place).strategy == "arena" and memory.reserved(place) == 4 << 20
exe = fluid.Executor(place, fallback="allow", mode=mode)
marks = set()
for turn in range(4):
    scope = fluid.Scope()  # one that draws the same random numbers
    exe.run(startup, scope=scope)
    assert near(train(exe, scope)), turn
    weight = scope.find_var("fc_0.w_0").get_tensor()
    kept = weight.numpy()
    before = kept.copy()
    memory.trim(place)
    within, user = memory.arena(place, 1 << 10), new_context(place)  # whoever has a piece of a piece is waited for, too
    piece = within.alloc(64, user)
    assert user in memory.memory_of(place).strategy.bump.users()
    assert 0 < memory.used(place) <= memory.reserved(place) == 4 << 20
    marks.add(memory.used(place))
    full, bump = memory.stats(place), memory.memory_of(place).strategy.bump
    assert full.used <= bump.payload and full.used + full.padding <= bump.used  # some were freed one by one
    tensor = fluid.Tensor().set(np.ones(1000, np.float32), place)
    memory.reset(place)
    now = memory.stats(place)
    assert (now.used, now.live, now.padding) == (0, 0, 0), now
    assert piece.stale and within.size == 0
    assert "stale arena memory" in refused(tensor.numpy)
    assert "stale arena memory" in refused(weight.numpy)
    assert "stale arena memory" in refused(lambda: memory.free(tensor.allocation))
    assert "stale arena memory" in refused(lambda: train(exe, scope, 1), fluid.FluidError)
    noise = [fluid.Tensor().set(np.full(50000, turn, np.float32), place) for _ in range(3)]
    assert (kept == before).all()  # what NumPy got is a copy
    memory.reset(place)
assert len(marks) == 1, marks
held = [memory.alloc(place, n) for n in (5, 1, 200, 64)]
now, bump = memory.stats(place), memory.memory_of(place).strategy.bump
assert (now.used, bump.payload) == (270, 270) and now.used + now.padding == bump.used > 270, now
memory.reset(place)
tensor.set(np.ones(3, np.float32))  # new contents get new memory
assert tensor.numpy().tolist() == [1, 1, 1]

# another thread's runs end before a reset, and it starts anew afterwards
barrier, failures = threading.Barrier(2), []


def other():
    mine = fluid.Scope()
    try:
        exe.run(startup, scope=mine)
        barrier.wait()
        while True:
            found = train(exe, mine, 1)
            assert np.isfinite(found).all()
    except AllocationError as error:
        failures.append(str(error))


thread = threading.Thread(target=other)
thread.start()
barrier.wait()
memory.reset(place)
thread.join(60)
assert not thread.is_alive() and "stale arena memory" in failures[0]

# in the middle of a run it is refused
with fluid.program_guard(fluid.Program(), fluid.Program()):
    y = layers.data("y", [4])
    out = y.block.create_var(name="out", shape=[-1, 4], dtype="float32")
    called = layers.py_func(lambda t: (memory.reset(place), t.numpy())[1], layers.scale(y, 2.0), out)
    doubled = layers.scale(called, 1.0)
    text = refused(lambda: exe.run(feed={"y": np.ones((2, 4), np.float32)}, fetch_list=[doubled]), fluid.FluidError)
    assert "in the middle of a run" in text, text

assert "the arena is full" in refused(lambda: fluid.Tensor().set(np.ones(2 << 20, np.float32), place), OutOfMemoryError)
exe.close()
del exe, scope, weight, tensor, noise
gc.collect()
memory.reset(place)
memory.set_strategy(place, "pool")
assert memory.reserved(place) == 0
"""

SMALL_ARENA = """
memory.set_strategy(place, "arena", nbytes=400_000)
exe = fluid.Executor(place, fallback="allow", mode=mode)
for turn in range(3):
    scope = fluid.Scope()
    exe.run(startup, scope=scope)
    text = refused(lambda: train(exe, scope, 1, rows=4000), OutOfMemoryError)
    assert "arena is full" in text, text
    memory.reset(place)
    scope = fluid.Scope()
    exe.run(startup, scope=scope)
    assert near(train(exe, scope, 4)), turn
    memory.reset(place)
assert memory.used(place) == 0
"""

WITHIN = """
exe, scope = fluid.Executor(place, fallback="allow", mode=mode), fluid.Scope()
exe.run(startup, scope=scope)
infer = main.clone(for_test=True).prune([loss]) if hasattr(main, "prune") else main
wanted = exe.run(infer, feed(), [loss], scope=scope)[0].item()
gc.collect()
arena = memory.arena(place, 1 << 20)
outside = memory.used(place)
used = set()
for turn in range(6):
    with arena():
        for _ in range(3):
            assert np.isclose(exe.run(infer, feed(), [loss], scope=scope)[0].item(), wanted)
    used.add(arena.used)
    assert np.isclose(exe.run(infer, feed(), [loss], scope=scope)[0].item(), wanted)
    arena.reset()
    assert arena.used == 0
    noise = arena.alloc(1 << 19)
    get_context(place).copy_in(noise.span(), memoryview(bytes([255]) * (1 << 19)))
    assert np.isclose(exe.run(infer, feed(), [loss], scope=scope)[0].item(), wanted)
    arena.reset()
assert len(used) == 1 and used.pop() > 0, used

state = scope.find_var("fc_0.w_0").get_tensor()
home, values = state.allocation, state.numpy().copy()
moved = state.move_to(arena)
assert moved is state and state.allocation is not home and arena.used >= values.nbytes
assert state.allocation.arena is arena
cut = arena.used
assert state.move_to(arena) is state and state.to(arena) is state and arena.used == cut
assert (state.numpy() == values).all()
for _ in range(4):
    assert np.isclose(exe.run(infer, feed(), [loss], scope=scope)[0].item(), wanted)
copy = fluid.Tensor().set(values, "cpu").to(arena)
assert copy.place == fluid.Place(place.split(":")[0]) and (copy.numpy() == values).all()
arena.reset()
assert "stale arena memory" in refused(lambda: exe.run(infer, feed(), [loss], scope=scope), fluid.FluidError)
state.set(values)
assert np.isclose(exe.run(infer, feed(), [loss], scope=scope)[0].item(), wanted)
small = memory.arena(place, 256)
with small():
    assert "is full" in refused(lambda: exe.run(infer, feed(), [loss], scope=scope), OutOfMemoryError)
assert np.isclose(exe.run(infer, feed(), [loss], scope=scope)[0].item(), wanted)
"""

EXHAUSTION = """
memory.set_strategy(place, strategy)
exe, scope = fluid.Executor(place, fallback="allow", mode=mode), fluid.Scope()
exe.run(startup, scope=scope)
start = {name: scope.find_var(name).get_tensor().numpy().copy() for name in scope.local_var_names()}
gc.collect()
memory.trim(place)
now = memory.stats(place)
failed = 0
for extra in range(0, 400_000, 8192):
    memory.set_limit(place, now.used + now.padding + extra)
    try:
        found, text = train(exe, scope, 1), ""
    except OutOfMemoryError as error:
        text = str(error)
    if not text:
        break
    failed += 1
    assert "out of memory on" in text and ("operator" in text or "moving" in text), text
    gc.collect()
    for name, value in start.items():
        scope.find_var(name).get_tensor().set(value)
    again = memory.stats(place)
    assert again.used <= now.used and again.live <= now.live, (extra, again, now)
assert 0 < failed < 48, failed
memory.set_limit(place, None)
assert near([*found, *train(exe, scope, 3)]), found
exe.close()
gc.collect()
assert memory.stats(place).live <= now.live
"""

ACROSS = """
memory.set_strategy(place, strategy)
sys.modules["fluidlite.memory.strategies"].PATIENCE = 2.0  # a queue is idle, and on a busy machine slow to say so
mine, other = get_context(place), new_context(place)
before, same = memory.reserved(place), 0
for turn in range(3):
    for context in (mine, other):
        block = memory.alloc(place, 4 << 20, context)
        context.copy_in(block.span(), memoryview(bytes([turn + 1]) * (4 << 20)))
        if strategy == "pool":
            context.wait()
        held = block.live_block()
        memory.free(block)
        owners = mine, other
        again = memory.alloc(place, 4 << 20, owners[context is mine])
        same += again.live_block() is held
        target = np.zeros(4 << 20, np.uint8)
        again.context.copy_out(target.data, again.span())
        again.context.wait()
        if strategy == "stream":
            assert (target == turn + 1).all()  # the copy in came before
        memory.free(again)
assert same == 6, same
assert memory.reserved(place) - before <= (4 << 20) * (1 if strategy == "stream" else 2), memory.reserved(place)
"""


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return f"{request.param}:0"


@pytest.fixture
def run(forks: Forks, tmp_path: Path) -> Run:
    """``run(text, *arguments)``: a program of HEAD and this text, which must end well."""

    def run(text: str, *arguments: str) -> None:
        file = tmp_path / "program.py"
        file.write_text(HEAD + text)
        done = forks(file, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_a_place_that_is_an_arena(place: str, mode: str, run: Run) -> None:
    run(ARENA, place, mode, "arena")


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_an_arena_that_is_full_in_the_middle_of_a_run(place: str, mode: str, run: Run) -> None:
    run(SMALL_ARENA, place, mode, "arena")


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_runs_within_an_arena_and_tensors_moved_there(place: str, mode: str, run: Run) -> None:
    run(WITHIN, place, mode, "pool")


@pytest.mark.parametrize("turn", range(3))
def test_memory_that_ends_in_the_middle_of_a_run(place: str, turn: int, run: Run) -> None:
    """At every point of it: nothing leaks, and the next run works. Each strategy, in one mode in turn."""
    strategy = ("direct", "pool", "stream")[turn]
    mode = ("compiled", "interpreted")[(turn + KINDS.index(place.partition(":")[0])) % 2]
    run(EXHAUSTION, place, mode, strategy)


@pytest.mark.parametrize("strategy", ["pool", "stream"])
def test_a_freed_block_serves_another_context(place: str, strategy: str, run: Run) -> None:
    run(ACROSS, place, "compiled", strategy)
