"""Memory plans: nothing overlaps, little is lost, and what the report says is so."""

from __future__ import annotations

import gc
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from networks import Net, lenet, network, random_program, runs

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite import layers, memory
from fluidlite.compiler.executable.executable import Executable
from fluidlite.compiler.memory.memory_plan import MemoryPlan
from fluidlite.compiler.memory.offset_allocator import allocate_offsets, by_size, by_time, lower_bound
from fluidlite.compiler.passes import FuseEpilogues, GraphPass, PassList, ScheduleUpdates, default_passes
from fluidlite.platform.device_memory import Span
from fluidlite.platform.device_registry import devices
from fluidlite.transformers import Transformer

# Offsets -------------------------------------------------------------------------------------------------------------

spans_of = st.lists(
    st.tuples(st.integers(0, 999), st.integers(-1, 30), st.integers(0, 9)).map(lambda s: (s[0], s[1], s[1] + s[2])),
    max_size=40,
)


@pytest.mark.parametrize("strategy", [by_size, by_time, allocate_offsets])
@given(spans=spans_of, alignment=st.sampled_from([1, 64, 128]))
@settings(max_examples=150)
def test_what_lives_together_lies_apart(strategy: Any, spans: list[tuple[int, int, int]], alignment: int) -> None:
    offsets, total = strategy(spans, alignment)
    assert len(offsets) == len(spans)
    assert total >= lower_bound(spans)
    for k, (nbytes, start, end) in enumerate(spans):
        assert offsets[k] % alignment == 0
        assert offsets[k] + nbytes <= total
        for j in range(k):
            other, first, last = spans[j]
            if start <= last and first <= end and nbytes and other:
                assert offsets[k] + nbytes <= offsets[j] or offsets[j] + other <= offsets[k]


def test_the_lower_bound_is_the_largest_live_set() -> None:
    assert lower_bound([(10, 0, 1), (5, 1, 2), (8, 2, 3)]) == 15
    assert lower_bound([]) == 0
    assert allocate_offsets([(10, 0, 1), (5, 1, 2), (8, 2, 3)], 1)[1] == 15


def test_a_gap_in_the_middle_is_taken() -> None:
    spans = [(64, 0, 9), (64, 0, 3), (64, 0, 9), (64, 4, 9)]
    for strategy in (by_size, by_time):
        assert strategy(spans, 64)[1] == 192


# Of programs ---------------------------------------------------------------------------------------------------------


def bound_by(exe: fluid.Executor) -> Executable:
    """What an executor ran last."""
    assert exe._executables is not None
    assert exe._executables.last is not None
    return exe._executables.last


@pytest.mark.parametrize("net", [lenet(), network()], ids=["lenet", "network"])
def test_a_plan_is_close_to_its_lower_bound(net: Net) -> None:
    _, exe, _ = runs(net, "cpu", "compiled", 1)
    plan = bound_by(exe).memory
    assert len(plan.buffers) > 10
    assert plan.lower_bound <= plan.planned <= 1.05 * plan.lower_bound + 64 * len(plan.buffers)
    assert plan.unshared > 1.2 * plan.planned


def _poison(executable: Executable) -> None:
    """After each step, fill all bytes of the arenas that hold no living value with 0xFF: NaN in every float."""
    steps = {id(step): index for index, step in enumerate(executable.plan.steps)}
    last = {id(owner): k for k, owner in enumerate(executable.owners)}

    def fill(step: int) -> None:
        for place, storage in executable.buffers.items():
            alive = sorted(
                (b.offset, b.offset + b.nbytes) for b in executable.memory.buffers
                if b.place == place and b.start <= step < b.end
            )  # fmt: skip
            assert storage.allocation is not None
            handle, start, _ = storage.allocation.span()
            at = 0
            for low, high in [*alive, (storage.nbytes, storage.nbytes)]:
                if low > at:
                    bytes_ = memoryview(b"\xff" * (low - at))
                    executable.frame.contexts[place].copy_in(Span(handle, start + at, low - at), bytes_)
                at = max(at, high)

    for k, (action, owner) in enumerate(zip(list(executable.actions), executable.owners, strict=True)):
        if last[id(owner)] == k:

            def poisoned(action: Any = action, step: int = steps[id(owner)]) -> None:
                action()
                fill(step)

            executable.actions[k] = poisoned


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all that is bound fill dead memory with NaN."""
    attach = Executable._attach

    def attach_poisoned(self: Executable) -> None:
        attach(self)
        _poison(self)

    monkeypatch.setattr(Executable, "_attach", attach_poisoned)
    monkeypatch.setattr(
        "fluidlite.compiler.executable.linker.merge_launches", lambda actions, owners: (actions, owners)
    )


@pytest.mark.parametrize("place", ["cpu", pytest.param("opencl", marks=pytest.mark.opencl), "fpga"])
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_dead_memory_is_never_read(place: str, first: int, require: Callable[..., None], poisoned: None) -> None:
    require(place)
    for seed in range(first, first + {"cpu": 10, "opencl": 4}.get(place, 2)):
        net = random_program(seed)
        wanted, _, _ = runs(net, place, "interpreted")
        found, exe, _ = runs(net, place, "compiled")
        assert bound_by(exe).attached == 1
        for one, other in zip(wanted, found, strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-5, err_msg=f"random_program({seed}) on {place}")


@pytest.mark.parametrize("place", ["cpu", pytest.param("opencl", marks=pytest.mark.opencl)])
@pytest.mark.parametrize("make", [lenet, network])
def test_networks_read_no_dead_memory(
    place: str, make: Any, require: Callable[..., None], poisoned: None
) -> None:  # fmt: skip
    require(place)
    wanted, _, _ = runs(make(), place, "interpreted", 4)
    found, _, _ = runs(make(), place, "compiled", 4)
    np.testing.assert_allclose(np.ravel(found), np.ravel(wanted), rtol=1e-4)


def test_a_plan_that_overlaps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from fluidlite.compiler.memory import memory_plan

    monkeypatch.setattr(
        memory_plan, "allocate_offsets", lambda spans, alignment: ([0] * len(spans), max(s[0] for s in spans))
    )
    with pytest.raises(
        fluid.FluidError, match=r"memory plan: step 0, mul writes 'fc_0.tmp_0' over 'x', which it reads"
    ):
        runs(network(), "cpu", "compiled", 1)


@pytest.mark.parametrize("place", ["cpu", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_offsets_are_as_the_device_wants_them(place: str, require: Callable[..., None]) -> None:
    require(place)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [3, 5], append_batch_size=False)
        turned = layers.transpose(layers.cast(x, "int8"), [1, 0])
        wide = layers.transpose(layers.cast(x, "float64"), [1, 0])
        exe = fluid.Executor(place, mode="compiled")
        values = np.arange(15, dtype="float32").reshape(3, 5)
        small, large = exe.run(feed={"x": values}, fetch_list=[turned, wide])
    np.testing.assert_array_equal(small, values.T)
    np.testing.assert_array_equal(large, values.T)
    alignment = devices.unit(place).info.alignment
    plan = bound_by(exe).memory
    assert {b.nbytes for b in plan.buffers} >= {15, 120}
    assert all(b.offset % alignment == 0 for b in plan.buffers)


# Sharing -------------------------------------------------------------------------------------------------------------


def _plan_of(build: Callable[[], list[Any]], feed: Any, place: str = "cpu") -> tuple[list[Any], MemoryPlan]:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        wanted = build()
        exe = fluid.Executor(place, mode="compiled", passes=())  # as the program says
        values = exe.run(feed=feed, fetch_list=wanted)
        return values, bound_by(exe).memory


def test_a_view_has_the_memory_of_what_it_views() -> None:
    def build() -> list[Any]:
        hidden = layers.tanh(layers.data("x", [4, 6], append_batch_size=False))
        return [layers.transpose(layers.reshape(hidden, [6, 4]), [1, 0]), hidden]

    x = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    (turned, hidden), plan = _plan_of(build, {"x": x})
    np.testing.assert_allclose(turned, np.tanh(x).reshape(6, 4).T, rtol=1e-6)
    np.testing.assert_allclose(hidden, np.tanh(x), rtol=1e-6)
    shared = [b for b in plan.buffers if len(b.names) == 2]
    assert [set(b.names) for b in shared] == [{"tanh_0.tmp_0", "reshape2_0.tmp_0"}]


def test_what_is_written_before_a_view_ends_is_no_view() -> None:
    def build() -> list[Any]:
        hidden = layers.tanh(layers.data("x", [4, 6], append_batch_size=False))
        seen = layers.reshape(hidden, [24])
        block = hidden.block
        block.append_op("scale", {"X": hidden}, {"Out": hidden}, {"scale": 3.0})
        return [layers.scale(seen, 1.0), hidden]

    x = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    (seen, hidden), plan = _plan_of(build, {"x": x})
    np.testing.assert_allclose(seen, np.tanh(x).reshape(24), rtol=1e-6)
    np.testing.assert_allclose(hidden, 3 * np.tanh(x), rtol=1e-6)
    assert not any({"tanh_0.tmp_0", "reshape2_0.tmp_0"} <= set(b.names) for b in plan.buffers)


def test_a_large_chain_runs_in_one_buffer() -> None:
    def build() -> list[Any]:
        hidden = layers.data("x", [16384], append_batch_size=False)
        for _ in range(10):
            hidden = layers.scale(hidden, 1.5)
        return [layers.mean(hidden)]

    (mean,), plan = _plan_of(build, {"x": np.ones(16384, "float32")})
    np.testing.assert_allclose(mean, 1.5**10, rtol=1e-5)
    assert plan.planned < 3 * 65536


def test_state_and_what_is_fetched_large_lie_elsewhere() -> None:
    def build() -> list[Any]:
        return [layers.scale(layers.data("x", [32768], append_batch_size=False), 2.0)]

    (doubled,), plan = _plan_of(build, {"x": np.ones(32768, "float32")})
    assert doubled.sum() == 65536
    assert plan.planned == 0
    assert plan.buffers == ()


# The peak that the allocator measures --------------------------------------------------------------------------------


def _peak(passes: Callable[[], PassList], place: str = "cpu") -> int:
    """Bytes beyond state that training takes at most."""
    net = network(depth=6, width=256, batch=8)
    main, startup, feed, wanted = net
    scope, exe = fluid.Scope(), fluid.Executor(place, mode="compiled")
    exe._graphs._make_passes = passes
    exe.run(startup, scope=scope)
    gc.collect()
    memory.trim(place)
    before = memory.used(place)
    memory.reset_peak(place)
    for _ in range(3):
        exe.run(main, feed, wanted, scope=scope)
    found = memory.peak(place) - before
    planned = bound_by(exe).memory.planned
    assert planned <= found <= planned + 65536
    exe.close()
    assert memory.used(place) <= before
    return found


@pytest.mark.parametrize("place", ["cpu", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_updates_that_run_early_lower_the_peak(place: str, require: Callable[..., None]) -> None:
    require(place)

    def without(*kinds: type[GraphPass]) -> PassList:
        return PassList([item for item in default_passes() if not isinstance(item, (FuseEpilogues, *kinds))])

    gradient = 256 * 256 * 4  # which a product that adds to the velocity does not store at all
    assert _peak(lambda: without(ScheduleUpdates), place) > 6 * gradient
    assert _peak(without, place) < 2.5 * gradient


# The report ----------------------------------------------------------------------------------------------------------


def test_the_report(cpu: Transformer, tmp_path: Path) -> None:
    x = ng.placeholder((-1, 8))
    hidden = ng.tanh(ng.matmul(x, ng.constant(np.ones((8, 8), "float32"))))
    computation = cpu.computation(ng.sum(ng.softmax(hidden)), x)
    with pytest.raises(ValueError, match="call it once"):
        computation.memory_plan  # noqa: B018
    computation(np.ones((4, 8)))
    plan = computation.memory_plan
    data = plan.data()
    assert data["planned"] == plan.planned > 0
    assert data["lower_bound"] == plan.lower_bound == max(
        sum(b.nbytes for b in plan.live(step)) for step in range(-1, len(plan.steps) + 1)
    )  # fmt: skip
    assert data["steps"] == list(plan.steps)
    assert [b["start"] for b in data["buffers"]] == [b.start for b in plan.buffers]
    lines = str(plan).splitlines()
    assert len(lines) == len(plan.buffers) + 2
    assert lines[0].split() == ["bytes", "offset", "steps", "kind", "name"]
    assert f"planned {plan.planned:,} on cpu:0" in lines[-1]
    plan.save(tmp_path / "plan.svg")
    picture = ElementTree.parse(tmp_path / "plan.svg").getroot()
    shown = [title.text or "" for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(shown) == sum(b.nbytes > 0 for b in plan.buffers)
    assert all(f"{b.nbytes:,} bytes at {b.offset:,}" in " ".join(shown) for b in plan.buffers if b.nbytes)


def test_a_transformer_may_bring_storage_of_its_own() -> None:
    from fluidlite.compiler.memory.storage import DeviceBufferStorage, DeviceTensor

    made: list[Any] = []

    class Own(Transformer):
        def device_buffer_storage(self, context: Any) -> DeviceBufferStorage:
            made.append(super().device_buffer_storage(context))
            return made[-1]

        def device_tensor(self, storage: DeviceBufferStorage, spec: Any, offset: int) -> Any:
            tensor = super().device_tensor(storage, spec, offset)
            made.append(tensor)
            return tensor

    with Own("cpu") as transformer:
        x = ng.placeholder((2, 2))
        assert transformer.computation(ng.sum(ng.exp(x)), x)(np.zeros((2, 2))) == 4
        (storage,) = [item for item in made if isinstance(item, DeviceBufferStorage)]
        tensors = [item for item in made if isinstance(item, DeviceTensor)]
        assert storage.nbytes > 0
        assert all(t.storage is storage and t.byte_offset + t.spec.nbytes <= storage.nbytes for t in tensors)
        view = tensors[0].numpy()
        tensors[0].set(np.full(tensors[0].dims, 7, tensors[0].dtype))
        assert (tensors[0].numpy() == 7).all()
        assert not (view == 7).any()
