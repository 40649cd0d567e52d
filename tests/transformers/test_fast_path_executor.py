"""``Executor.run`` takes the fast path where a run looks as one before; results are those of the interpreter."""

from __future__ import annotations

import gc
import linecache
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers, memory
from fluidlite.compiler import instrumentation as observe
from fluidlite.compiler.executable import fast_path as direct
from fluidlite.compiler.executable.call_signature import CallSignature, Texts
from fluidlite.compiler.executable.executable_cache import MAX_EXECUTABLES
from fluidlite.platform.device_registry import devices
from fluidlite.program.kernel_registry import Library, kernels

F32 = "float32"


class Case:
    """A program of one sum and one scaled state, and an executor."""

    def __init__(self, mode: str = "compiled") -> None:
        self.main, self.startup, self.scope = fluid.Program(), fluid.Program(), fluid.Scope()
        with fluid.program_guard(self.main, self.startup):
            x, y = layers.data("x", [3]), layers.data("y", [3])
            self.kept = layers.create_global_var([3], 2.0, F32, persistable=True, name="kept")
            self.sum = layers.elementwise_add(x, y)
            self.scaled = layers.elementwise_mul(self.sum, self.kept)
        self.exe = fluid.Executor("cpu", mode=mode)
        self.exe.run(self.startup, scope=self.scope)

    def feed(self, value: float = 1.0, rows: int = 2) -> dict[str, Any]:
        return {"x": np.full((rows, 3), value, F32), "y": np.ones((rows, 3), F32)}

    def run(self, value: float = 1.0, rows: int = 2, **more: Any) -> Any:
        given = {"fetch_list": [self.sum, self.scaled], "scope": self.scope, **more}
        found = self.exe.run(self.main, self.feed(value, rows), **given)
        expected = np.full((rows, 3), value + 1, F32)
        np.testing.assert_array_equal(found[0], expected)
        return found

    def runs(self, times: int = 3) -> None:
        for number in range(times):
            np.testing.assert_array_equal(self.run(number)[1], np.full((2, 3), 2 * (number + 1), F32))


@pytest.fixture
def case(taken: list[bool]) -> Case:
    made = Case()
    made.runs()
    assert taken[-1] is True
    taken.clear()
    return made


def test_results_and_feeds_are_copies(case: Case, taken: list[bool]) -> None:
    feed = case.feed(4)
    first, _ = case.exe.run(case.main, feed, [case.sum, case.scaled], scope=case.scope)
    feed["x"][:] = 9
    case.run(0)
    assert (first == 5).all()
    first[:] = 7
    case.run(1)
    assert taken == [True] * 3


@pytest.mark.parametrize("fetch", [
    ["sum", "scaled"], ("sum", "scaled"), ["scaled", "sum"], ["sum"], "sum", ["sum", "sum"], [], None,
], ids=str)  # fmt: skip
@pytest.mark.parametrize("by_name", [True, False])
def test_what_is_fetched_is_what_was_asked_for(case: Case, fetch: Any, by_name: bool) -> None:
    values = {"sum": case.sum, "scaled": case.scaled}

    def asked(name: str) -> Any:
        return "".join(list(values[name].name)) if by_name else values[name]  # a string that is equal, not the same

    wanted = asked(fetch) if isinstance(fetch, str) else fetch and type(fetch)(asked(name) for name in fetch)
    names = [fetch] if isinstance(fetch, str) else list(fetch or ())
    for value in (1.0, 5.0, 2.0):
        found = case.exe.run(case.main, case.feed(value), wanted, scope=case.scope)
        assert [array.tolist() for array in found] == [
            np.full((2, 3), (value + 1) * (2 if name == "scaled" else 1), F32).tolist() for name in names
        ]
        assert len({id(array) for array in found}) == len(found)


def test_a_variable_of_another_program_names_one_of_this(case: Case, taken: list[bool]) -> None:
    test = case.main.clone(for_test=True)
    for value in (1.0, 2.0, 3.0, 4.0):
        found = case.exe.run(test, case.feed(value), [case.sum], scope=case.scope)
        assert (found[0] == value + 1).all()
    assert taken == [True, True]


def test_other_feeds_go_the_usual_way(case: Case, taken: list[bool]) -> None:
    feed = case.feed(3)
    wide = np.zeros((2, 6), F32)
    wide[:, ::2] = 3
    tensor = fluid.Tensor()
    tensor.set(feed["x"])
    for other, straight in (
        (feed["x"].tolist(), False), (tensor, True), (feed["x"].astype("float16"), False),
        (wide[:, ::2], True), (np.asfortranarray(feed["x"]), True),
    ):  # fmt: skip
        taken.clear()
        found = case.exe.run(case.main, {"x": other, "y": feed["y"]}, [case.sum], scope=case.scope)
        assert (found[0] == 4).all()
        case.exe.run(case.main, {"x": other, "y": feed["y"]}, [case.sum], scope=case.scope)
        assert taken[-1] is straight


def test_tensors_that_others_use_go_the_usual_way(case: Case, taken: list[bool]) -> None:
    feed = case.feed(3)
    wide = fluid.Tensor().set(np.repeat(feed["x"], 2, axis=1))
    other = fluid.Tensor()
    thread = threading.Thread(target=lambda: other.set(feed["x"]))  # its memory is of that thread's context
    thread.start()
    thread.join()
    preallocated = memory.arena("cpu", 1 << 12)
    with preallocated():
        arena = fluid.Tensor().set(feed["x"])
    for each in (wide[:, ::2], other, arena):
        for _ in range(2):
            taken.clear()
            found = case.exe.run(case.main, {"x": each, "y": feed["y"]}, [case.sum], scope=case.scope)
            assert (found[0] == 4).all()
            assert taken[-1] is False
    gone = fluid.Tensor().set(feed["x"])
    fluid.memory.free(gone.allocation)
    with pytest.raises(fluid.errors.AllocationError, match="use after free"):
        case.exe.run(case.main, {"x": gone, "y": feed["y"]}, [case.sum], scope=case.scope)
    case.runs(1)


@pytest.mark.parametrize("feed, text", [
    ({"x": np.ones((2, 3), F32)}, "y"), ({"x": np.ones((2, 3), F32), "z": np.ones((2, 3), F32)}, "'z'"),
    ({"x": np.ones((2, 4), F32), "y": np.ones((2, 3), F32)}, "dims"),
    ({"x": np.ones((2, 3)), "y": np.ones((2, 3), F32)}, "float32"), ([], None), (7, "mapping"),
])  # fmt: skip
def test_wrong_feeds_are_the_usual_errors(case: Case, feed: Any, text: str | None) -> None:
    with pytest.raises(fluid.FluidError, match=text):
        case.exe.run(case.main, feed, [case.sum, case.scaled], scope=case.scope)
    case.runs(1)


@pytest.mark.parametrize("fetch", [["nothing"], [True], [np.ones(2)], [None], 7])
def test_wrong_fetches_are_the_usual_errors(case: Case, fetch: Any) -> None:
    with pytest.raises((fluid.FluidError, TypeError)):
        case.exe.run(case.main, case.feed(), fetch, scope=case.scope)
    case.runs(1)


def test_tensors_are_asked_for(case: Case, taken: list[bool]) -> None:
    (found,) = case.exe.run(case.main, case.feed(2), [case.sum], scope=case.scope, return_numpy=False)
    assert isinstance(found, fluid.Tensor)
    assert (found.numpy() == 3).all()
    assert taken == []


def test_every_batch_size_has_its_way(case: Case, taken: list[bool]) -> None:
    sizes = (2, 5, 7)
    for rows in (*sizes, *sizes):  # the arena grows first
        case.run(1, rows)
    taken.clear()
    for _ in range(3):
        for rows in sizes:
            assert case.run(2, rows)[1].shape == (rows, 3)
    assert taken.count(True) == 9
    executables: Any = case.exe._executables
    for rows in range(1, 2 * MAX_EXECUTABLES):  # a storm of sizes stays bounded
        case.run(1, rows)
    assert len(executables.fast_paths.all()) <= MAX_EXECUTABLES
    case.runs()
    assert taken[-1] is True


def test_programs_take_turns(case: Case, taken: list[bool]) -> None:
    other = Case()
    other.exe = case.exe
    for _ in range(3):
        other.run(3)
        case.run(4)
    taken.clear()
    for _ in range(3):
        other.run(5)
        case.run(6)
    assert taken == [True] * 6


# The world changes


def test_another_scope_has_its_own_state(case: Case, taken: list[bool]) -> None:
    scope = fluid.Scope()
    case.exe.run(case.startup, scope=scope)
    scope.find_var("kept").tensor.set(np.full(3, 10, F32))
    for _ in range(3):
        assert (case.run(1, scope=scope)[1] == 20).all()
        assert (case.run(1)[1] == 4).all()
    assert taken.count(True) >= 4
    with fluid.scope_guard(scope):
        assert (case.run(1, scope=None)[1] == 20).all()
    child = case.scope.new_scope()
    assert (case.run(1, scope=child)[1] == 4).all()
    child.var("kept").tensor.set(np.full(3, 5, F32))
    assert (case.run(1, scope=child)[1] == 10).all()


def test_variables_that_are_made_and_forgotten_are_seen(case: Case) -> None:
    child = case.scope.new_scope()
    for _ in range(3):
        assert (case.run(1, scope=child)[1] == 4).all()
    child.var("kept").tensor.set(np.full(3, 5, F32))
    assert (case.run(1, scope=child)[1] == 10).all()
    child.erase(["kept"])
    assert (case.run(1, scope=child)[1] == 4).all()
    case.scope.erase(["kept"])
    with pytest.raises(fluid.FluidError, match="kept"):
        case.run(1, scope=child)


def moved(tensor: fluid.Tensor) -> None:
    other = fluid.Tensor()
    other.set(np.full(3, 7, F32))
    tensor.share_data_with(other)


def set_anew(tensor: fluid.Tensor) -> None:
    tensor.set(np.full(3, 7, F32))


def freed_and_set(tensor: fluid.Tensor) -> None:
    memory.free(tensor.allocation)
    tensor.allocation = None
    tensor.set(np.full(3, 7, F32))


def viewed(tensor: fluid.Tensor) -> None:
    wide = fluid.Tensor()
    wide.set(np.array([[7, 0], [7, 0], [7, 0]], F32))
    tensor.share_data_with(wide[:, 0])


def viewed_further_on(tensor: fluid.Tensor) -> None:
    wide = fluid.Tensor()
    wide.set(np.array([2, 2, 2, 7, 7, 7], F32))
    tensor.share_data_with(wide[:3])
    tensor.share_data_with(wide[3:])


@pytest.mark.parametrize("change", [moved, set_anew, freed_and_set, viewed, viewed_further_on])
def test_state_that_is_elsewhere_is_seen(case: Case, change: Any) -> None:
    change(case.scope.find_var("kept").tensor)
    for _ in range(3):
        assert (case.run(1)[1] == 14).all()


def test_state_of_other_dims_is_planned_again(case: Case) -> None:
    case.scope.find_var("kept").tensor.set(np.full(1, 5, F32))
    assert (case.run(1)[1] == 10).all()


def test_the_registry_is_watched(case: Case, taken: list[bool]) -> None:
    library = Library("another", ("*",), 1, "for this test")
    kernels.add_library(library)
    try:
        for _ in range(3):
            case.run()
    finally:
        kernels.remove_library(library)
    for _ in range(3):
        case.run()
    assert taken.count(True) == 2  # each third call: the second one makes the fast path


def test_the_policy_is_watched(case: Case, taken: list[bool]) -> None:
    fluid.set_fallback("allow")
    case.run()
    assert taken == [False]
    case.run()
    case.run()
    assert taken == [False, False, True]


@pytest.fixture
def everywhere() -> Iterator[list[str]]:
    seen: list[str] = []

    def observer(observation: observe.Observation) -> None:
        seen.append(observation.op.type)

    observe.set_process_observer(observer, True)
    yield seen
    observe.set_process_observer(observer, False)


def test_observers_of_all_threads_see_it(case: Case, everywhere: list[str], taken: list[bool]) -> None:
    case.run()
    assert everywhere == ["elementwise_add", "elementwise_mul"]
    assert taken == [False]


def test_observers_come_and_go(case: Case, taken: list[bool]) -> None:
    for _ in range(3):
        seen: list[str] = []
        with fluid.debug(on_op=lambda op, io, seen=seen: seen.append(op.type)):
            case.run()
            case.run()
        assert seen == ["elementwise_add", "elementwise_mul"] * 2
        case.run()
    assert taken == [False, False, True] * 3


def append(case: Case) -> None:
    with fluid.program_guard(case.main, case.startup):
        layers.assign(layers.scale(case.sum, 2.0), case.sum)


def append_by_hand(case: Case) -> None:
    block = case.main.global_block()
    op = block.append_op("scale", {"X": case.sum}, {"Out": case.sum}, {"scale": 2.0})
    del block.ops[-1]
    case.main.touch()
    for _ in range(3):
        case.run()
    block.ops.append(op)


@pytest.mark.parametrize("edit", [append, append_by_hand])
def test_edits_of_the_program_are_seen(case: Case, edit: Any) -> None:
    edit(case)
    for value in (1.0, 3.0):
        found = case.exe.run(case.main, case.feed(value), [case.sum], scope=case.scope)
        assert (found[0] == 2 * (value + 1)).all()


def test_the_seed_of_the_program_is_seen(taken: list[bool]) -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        drawn = layers.uniform_random([4])
    exe = fluid.Executor("cpu")

    def draws(seed: int) -> list[Any]:
        program.random_seed, scope = seed, fluid.Scope()
        return [exe.run(program, fetch_list=[drawn], scope=scope)[0].tolist() for _ in range(3)]

    first, other = draws(5), draws(6)
    assert taken.count(True) >= 2
    assert first != other
    assert draws(5) == first
    assert len({tuple(line) for line in first}) == 3


def test_a_lost_device_raises(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = devices.unit("cpu")
    unit.lost = "somebody pulled the plug"
    try:
        with pytest.raises(fluid.errors.DeviceLost, match="plug"):
            case.run()
    finally:
        unit.lost = None
    case.runs()


def test_a_closed_executor_raises(case: Case) -> None:
    case.exe.close()
    with pytest.raises(fluid.FluidError, match="closed"):
        case.run()


def test_threads_share_an_executor(case: Case) -> None:
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            for _ in range(40):
                case.run(number, 2 + number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    work(9)
    for thread in threads:
        thread.join(60)
    assert wrong == []
    case.runs()


def test_a_thread_that_ended_leaves_no_way_behind(case: Case) -> None:
    """A later thread may have its number, but not its context."""
    for _ in range(6):
        thread = threading.Thread(target=case.runs)
        thread.start()
        thread.join(60)
    case.runs()
    assert len(case.exe._executables.fast_paths.all()) <= MAX_EXECUTABLES


# What it does beside the values


def test_the_last_run_is_told(case: Case) -> None:
    case.run(1, 2)
    case.run(1, 5)
    for rows in (2, 5, 2):
        case.run(1, rows)
        assert "elementwise_mul" in str(case.exe.explain_last())
        executables: Any = case.exe._executables
        assert executables.last.plan.feeds["x"].dims == (rows, 3)


def test_copies_and_launches_are_counted() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [2048], append_batch_size=False)
        y = layers.softmax(layers.softmax(x))
    exe, scope = fluid.Executor("cpu"), fluid.Scope()
    counts = fluid.platform.context_pool.get_context("cpu").counts
    given = {"x": np.ones(2048, F32)}
    found = []
    for _ in range(4):
        before = counts.launches, counts.copy_out, counts.bytes_out
        exe.run(program, given, [y, x], scope=scope)
        found.append((counts.launches - before[0], counts.copy_out - before[1], counts.bytes_out - before[2]))
    assert len(set(found)) == 1
    assert found[0][1:] == (2, 2 * 2048 * 4)


def test_versions_rise(case: Case) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        count = layers.create_global_var([1], 0.0, F32, persistable=True, name="count")
        layers.increment(count, 1.0)
    scope = fluid.Scope()
    case.exe.run(startup, scope=scope)
    tensor = scope.find_var("count").tensor
    versions = []
    for number in range(1, 6):
        case.exe.run(main, scope=scope)
        versions.append(tensor.version)
        assert tensor.numpy().item() == number
    assert versions == sorted(set(versions))


def test_large_feeds_are_read_where_they_are_and_large_results_handed_over(taken: list[bool]) -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [64])
        y = layers.tanh(x)
        small = layers.reduce_max(y)
    exe, scope = fluid.Executor("cpu"), fluid.Scope()
    given = np.linspace(-1, 1, 64 * 1000, dtype=F32).reshape(1000, 64)
    kept = []
    for number in range(5):
        large, most = exe.run(program, {"x": given * number}, [y, small], scope=scope)
        kept.append(large)
        assert most.item() == pytest.approx(np.tanh(number), abs=1e-6)
    assert taken == [True] * 3
    for number, large in enumerate(kept):
        np.testing.assert_allclose(large, np.tanh(given * number), atol=1e-6)
        assert large.flags.writeable
    turned = np.asfortranarray(given)  # elements that do not lie in order are copied first
    np.testing.assert_allclose(exe.run(program, {"x": turned}, [y], scope=scope)[0], np.tanh(given), atol=1e-6)


def test_all_memory_goes_with_the_executor() -> None:
    """No circle holds it."""

    def work() -> None:
        case = Case()
        for rows in (2, 5000):
            for _ in range(3):
                case.run(1, rows)

    work()
    gc.collect()
    before = memory.used("cpu")
    gc.disable()
    try:
        work()
        assert memory.used("cpu") == before
    finally:
        gc.enable()


# The text


def test_the_text_can_be_read_and_is_shared_by_sizes(case: Case) -> None:
    for rows in (2, 3, 3, 2):
        case.run(1, rows)
    executables: Any = case.exe._executables
    ways = [fast_path for fast_path in executables.fast_paths.all() if fast_path.executable.plan.feeds]
    assert len(ways) == 2
    assert len({fast_path.source for fast_path in ways}) == 1
    assert "def call(program, feed, fetch_list, scope):" in ways[0].source
    file = direct.texts.of(ways[0].form)[1].co_filename
    assert "".join(linecache.getlines(file)) == ways[0].source


def test_texts_are_bounded() -> None:
    some = Texts(max_entries=3)
    forms = [CallSignature((), ("copied",) * number, (), ()) for number in range(5)]
    codes = [some.of(form)[1] for form in forms]
    assert [bool(linecache.getlines(code.co_filename)) for code in codes] == [False, False, True, True, True]
    assert some.of(forms[4])[1] is codes[4]
    assert some.of(forms[0])[1] is not codes[0]


def test_errors_show_the_line_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    case.runs()
    executables: Any = case.exe._executables
    (fast_path,) = [fast_path for fast_path in executables.fast_paths.all() if fast_path.executable.plan.feeds]

    def broken(*args: Any) -> None:
        raise RuntimeError("the kernel is broken")

    names = fast_path.call.__globals__
    usual = {name: value for name, value in names.items() if name.startswith(("action", "chain"))}
    for name in usual:
        names[name] = broken if name.startswith("action") else type("Broken", (), {"run": staticmethod(broken)})
    with pytest.raises(fluid.FluidError, match=r"elementwise|fused") as caught:
        case.run()
    assert "the kernel is broken" in str(caught.value)
    lines = "".join(traceback.format_exception(caught.value))
    assert "    chain0.run()\n" in lines or "    action0()\n" in lines
    names.update(usual)
    case.runs()


def test_what_ran_last_is_told_after_its_scope_ended() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        y = fluid.layers.relu(fluid.layers.data("x", [3]))
    exe = fluid.Executor("cpu")
    with fluid.scope_guard(fluid.Scope()):
        for _ in range(4):
            exe.run(program, {"x": np.ones((2, 3), "float32")}, [y])
    assert exe._executables is not None and not len(exe._executables)
    assert [row["op"] for row in exe.explain_last().data()] == ["relu"]


def test_keys_of_what_is_bound_no_more_are_forgotten() -> None:
    exe = fluid.Executor("cpu")
    for number in range(MAX_EXECUTABLES + 20):
        program = fluid.Program()
        with fluid.program_guard(program, fluid.Program()):
            y = fluid.layers.scale(fluid.layers.data("x", [3]), float(number))
        exe.run(program, {"x": np.ones((2, 3), "float32")}, [y])
    assert exe._executables is not None and len(exe._executables._keys) <= MAX_EXECUTABLES


@pytest.mark.parametrize("indent", [8, 12, 16])
def test_names_in_a_loaded_program_are_no_code(indent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "w\n" + " " * indent + "import fluidlite; fluidlite.ran = True  #"
    written = fluid.Program()
    block = written.global_block()
    x, w = block.create_var("x", [2, 3], "float32", is_data=True), block.create_var(evil, [3], persistable=True)
    block.append_op("elementwise_add", {"X": x, "Y": w}, {"Out": block.create_var("o")})
    program, scope = fluid.Program.from_json(written.to_json()), fluid.Scope()
    scope.var(evil).get_tensor().set(np.ones(3, "float32"), fluid.CPUPlace())
    monkeypatch.setattr(fluid, "ran", False, raising=False)
    exe = fluid.Executor("cpu")
    for _ in range(4):
        exe.run(program, {"x": np.ones((2, 3), "float32")}, ["o"], scope=scope)
    scope.var(evil).get_tensor().set(np.zeros((1, 3), "float32"), fluid.CPUPlace())  # state that is not as it was
    exe.run(program, {"x": np.ones((2, 3), "float32")}, ["o"], scope=scope)
    assert not fluid.ran  # type: ignore[attr-defined]
