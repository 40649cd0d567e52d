"""The profiler: what it counts, that it changes nothing, its trace, and what it refuses."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers, profiler
from fluidlite.compiler import instrumentation
from fluidlite.compiler.planning.plan import Launch
from fluidlite.errors import ProgramError
from fluidlite.profiler import statistics

PLACES = [str(place) for place in fluid.places()]
FEED = {"x": np.linspace(-1, 1, 48, dtype="float32").reshape(6, 8), "label": np.arange(6).reshape(6, 1) % 4}


def training() -> Any:
    """Build a classifier in the main program; return its loss."""
    x, label = layers.data("x", [8]), layers.data("label", [1], dtype="int64")
    found = layers.fc(layers.fc(x, 5, act="relu"), 4, act="softmax")
    loss = layers.mean(layers.cross_entropy(found, label))
    fluid.optimizer.Adam(0.1).minimize(loss)
    return loss


def counting(steps: int) -> tuple[fluid.Program, Any]:
    """A loop of a counter and a sum, and what it counts."""
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        i, total = layers.fill_constant([1], "int64", 0), layers.fill_constant([3], "float32", 0.0)
        limit = layers.fill_constant([1], "int64", steps)
        going = layers.less_than(i, limit)
        loop = layers.While(going)
        with loop.block():
            layers.assign(layers.elementwise_add(total, layers.exp(total)), total)
            layers.increment(i, 1, in_place=True)
            layers.less_than(i, limit, cond=going)
    return program, i


def launched(profile: profiler.Profile) -> list[Any]:
    """Rows of what ran on places."""
    return [row for row in profile.rows() if row.kind not in ("run", "event")]


def by_name(profile: profiler.Profile) -> dict[str, Any]:
    """Rows by their names."""
    return {row.name: row for row in profile.rows()}


def check_trace(trace: dict[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """See that a trace is what viewers read, and that what shares a row nests; return the events by row."""
    trace = json.loads(json.dumps(trace))
    names: dict[Any, str] = {}
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            key = (event["pid"], event["tid"]) if event["name"] == "thread_name" else event["pid"]
            if event["name"] in ("thread_name", "process_name"):
                assert key not in names, "a row has two names"
                names[key] = event["args"]["name"]
    last = None
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            continue
        assert event["ph"] == "X" and event["ts"] >= 0 and event["dur"] >= 0 and event["name"] and event["cat"]
        where = event["pid"], event["tid"]
        if last is not None and last[0] == where:
            assert event["ts"] >= last[1], "times of a row go back"
        last = where, event["ts"]
        rows[names[event["pid"]], names[where]].append(event)
    for row, events in rows.items():
        open_: list[float] = []
        for event in events:
            begin, end = event["ts"], event["ts"] + event["dur"]
            while open_ and open_[-1] <= begin + 2e-3:  # the sum of two rounded times
                open_.pop()
            assert not open_ or end <= open_[-1] + 2e-3, f"{event} of {row} ends behind what it began in"
            open_.append(end)
    return rows


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_counts_each_launch(place: str, mode: str) -> None:
    loss = training()
    exe = fluid.Executor(place, mode=mode, fallback="allow")
    exe.run(fluid.default_startup_program())
    exe.run(feed=FEED, fetch_list=[loss])
    with profiler.recorded() as profile:
        for _ in range(3):
            exe.run(feed=FEED, fetch_list=[loss])
    plan = exe.explain_last().plan
    views = exe._executables.last.live_ranges.views if exe._executables is not None else ()
    wanted = Counter(
        (
            step.call.op.type,
            str(step.choice.place),
            f"{step.choice.how}: {step.choice.text}" if not step.skip else "a view",
        )
        for at, step in enumerate(plan.steps)
        if isinstance(step, Launch) and at not in views
    )
    found = {(row.name, row.place, row.kernel): row.calls for row in launched(profile) if row.kind == "operator"}
    assert found == {key: 3 * count for key, count in wanted.items()}
    for row in launched(profile):
        assert 0 <= row.min <= row.ave <= row.max <= row.total and row.own == row.total
    assert by_name(profile)[f"run on {plan.place}"].calls == 3
    assert sum(row.total for row in launched(profile)) <= 1e9 * profile.seconds * (1 + len(profile.methods))
    rows = check_trace(profile.trace())
    queues = {row: events for row, events in rows.items() if row[0] != "host"}
    assert sum(map(len, queues.values())) == sum(row.calls for row in launched(profile))
    assert {row[0] for row in queues} == {row.place for row in launched(profile)}


@pytest.mark.parametrize("place", PLACES)
def test_changes_no_result(place: str) -> None:
    loss = training()
    found = []
    for timed in (False, True):
        exe, scope = fluid.Executor(place, fallback="allow"), fluid.Scope()
        exe.run(fluid.default_startup_program(), scope=scope)
        for name, variable in fluid.default_main_program().global_block().vars.items():
            if variable.persistable and ".w_" in name and "moment" not in name and "beta" not in name:
                scope.find_var(name).get_tensor().set(np.ones(variable.shape, "float32") * 0.1, exe.place)
        losses = []
        for step in range(6):
            if timed and step == 2:
                profiler.start_profiler("All")
            losses.append(exe.run(feed=FEED, fetch_list=[loss], scope=scope)[0])
            if timed and step == 4:
                profiler.stop_profiler(profile_path=None)
        found.append(losses)
    np.testing.assert_array_equal(*found)


def test_bytes_and_transfers() -> None:
    x = layers.data("x", [32])
    total = layers.elementwise_add(x, x)
    for place in PLACES:
        exe = fluid.Executor(place, mode="interpreted", fallback="allow")
        feed = {"x": np.ones((4, 32), "float32")}
        exe.run(feed=feed, fetch_list=[total])
        with profiler.recorded() as profile:
            exe.run(feed=feed, fetch_list=[total])
        row = by_name(profile)["elementwise_add"]
        assert row.nbytes == 3 * 4 * 32 * 4
        counts = profile.data()["transfers"]
        moved = sum(each["bytes_in"] for place, each in counts.items() if not place.startswith("cpu"))
        at_home = row.place == "cpu:0"
        assert moved == (0 if at_home else 512), counts
        assert any(r.kind == "transfer" and r.nbytes == 512 for r in profile.rows()) is not at_home


def test_how_times_are_taken() -> None:
    loss = training()
    methods = {}
    for place in PLACES:
        exe = fluid.Executor(place, fallback="allow")
        exe.run(fluid.default_startup_program())
        for state in ("All", "CPU"):
            with profiler.recorded(state) as profile:
                exe.run(feed=FEED, fetch_list=[loss])
            methods[place.split(":")[0], state] = profile.methods[str(exe.place)]
            assert profile.methods[str(exe.place)] in str(profile)
    wanted = {"cpu": "clock around", "opencl": "events", "fpga": "with a wait"}
    for (kind, state), how in methods.items():
        assert ("clock around" if state == "CPU" else wanted.get(kind, "")) in how, (kind, state, how)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_bodies_by_operator(place: str, mode: str) -> None:
    program, i = counting(5)
    exe = fluid.Executor(place, mode=mode, fallback="allow")
    exe.run(program, fetch_list=[i])
    with profiler.recorded() as profile:
        assert exe.run(program, fetch_list=[i])[0] == 5
    loops = [row for row in profile.rows() if row.name == "while"]
    assert [row.calls for row in loops] == [1] and 0 < loops[0].own < loops[0].total
    assert loops[0].kind == "control flow"
    assert {row.calls for row in launched(profile) if "exp" in row.name} == {5}
    assert by_name(profile)[f"sub-block on {exe.place}"].calls == 5
    assert by_name(profile)[f"run on {exe.place}"].calls == 1
    for (where, _), events in check_trace(profile.trace()).items():
        (loop,) = [e for e in events if e["name"] == "while"] or [None]
        for event in events if loop is not None and where != "host" else ():
            if "exp" in event["name"]:
                assert loop["ts"] <= event["ts"] and event["ts"] + event["dur"] <= loop["ts"] + loop["dur"] + 2e-3


def test_sizes_that_values_give() -> None:
    x = layers.data("x", [1])
    found = layers.reduce_sum(layers.cast(layers.where(layers.less_than(x, layers.zeros_like(x))), "float32"))
    exe = fluid.Executor("cpu")
    feed = {"x": np.array([[1.0], [-2.0], [-3.0]], "float32")}
    for _ in range(3):
        wanted = exe.run(feed=feed, fetch_list=[found])
    with profiler.recorded() as profile:
        for _ in range(4):
            assert exe.run(feed=feed, fetch_list=[found]) == wanted
    calls = {row.name: row.calls for row in launched(profile)}
    assert calls["reduce_sum" if "reduce_sum" in calls else "fused.cast_reduce_sum"] == 4
    check_trace(profile.trace())


def test_a_run_that_fails_leaves_it_usable() -> None:
    ids = layers.data("ids", [1], dtype="int64")
    table = layers.embedding(ids, [5, 3])
    total = layers.reduce_sum(layers.exp(table))
    for place in PLACES:
        for mode in ("compiled", "interpreted"):
            exe = fluid.Executor(place, mode=mode, fallback="allow")
            exe.run(fluid.default_startup_program())
            good = {"ids": np.array([[1], [4]])}
            with profiler.recorded() as profile:
                for _ in range(2):
                    exe.run(feed=good, fetch_list=[total])
                    with pytest.raises(fluid.errors.OutOfRangeError, match="lookup_table"):
                        exe.run(feed={"ids": np.array([[1], [9]])}, fetch_list=[total])
                exe.run(feed=good, fetch_list=[total])
            assert by_name(profile)[f"run on {exe.place}"].calls == 5
            assert 3 <= max(row.calls for row in launched(profile)) <= 5
            check_trace(profile.trace())
    assert instrumentation.timer() is None


def test_one_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = layers.data("x", [2])
    out, feed = layers.exp(x), {"x": np.ones((1, 2), "float32")}
    exe = fluid.Executor("cpu")
    with profiler.profiler("All", "total", tmp_path / "outer.json"):
        exe.run(feed=feed, fetch_list=[out])
        with pytest.raises(fluid.errors.ProgramError, match="on already"), profiler.recorded():
            raise AssertionError("the block of a refused profiler ran")
        with pytest.raises(ValueError, match="on already"), profiler.profiler("CPU", None, tmp_path / "inner.json"):
            raise AssertionError("the block of a refused profiler ran")
        exe.run(feed=feed, fetch_list=[out])
    assert not (tmp_path / "inner.json").exists()
    rows = check_trace(json.loads((tmp_path / "outer.json").read_text()))
    assert len([e for events in rows.values() for e in events if e["name"] == "run on cpu:0"]) == 2
    assert "sorted by total" in capsys.readouterr().out


def test_fluid_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = layers.data("x", [2])
    out, feed = layers.exp(x), {"x": np.ones((1, 2), "float32")}
    exe = fluid.Executor("cpu")
    profiler.stop_profiler("total", tmp_path / "none")  # Fluid does nothing if it is off
    profiler.reset_profiler()
    assert not capsys.readouterr().out and not (tmp_path / "none").exists()
    for state in ("CPU", "GPU", "All"):
        for key in (None, "default", "calls", "total", "max", "min", "ave"):
            profiler.start_profiler(state)
            exe.run(feed=feed, fetch_list=[out])
            profiler.reset_profiler()
            exe.run(feed=feed, fetch_list=[out])
            profiler.stop_profiler(key, str(tmp_path / "trace"))
            text = capsys.readouterr().out
            (line,) = [line for line in text.splitlines() if line.startswith("exp ")]
            assert " 1  " in line and "cpu:0" in line, line
            check_trace(json.loads((tmp_path / "trace").read_text()))
    with profiler.cuda_profiler(tmp_path / "cuda", "csv"):
        exe.run(feed=feed, fetch_list=[out])
    assert check_trace(json.loads((tmp_path / "cuda").read_text()))
    with pytest.raises(ZeroDivisionError), profiler.profiler("All", profile_path=tmp_path / "failed"):
        exe.run(feed=feed, fetch_list=[out])
        raise ZeroDivisionError
    assert check_trace(json.loads((tmp_path / "failed").read_text()))
    assert "exp" in capsys.readouterr().out and instrumentation.timer() is None


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: profiler.start_profiler("TPU"), "state.*'TPU'.*CPU, GPU, All"),
        (lambda: profiler.start_profiler("CPU", "Fast"), "tracer_option is 'Fast'"),
        (lambda: profiler.profiler("CPU", "time").__enter__(), "sorted_key.*'time'"),
        (lambda: profiler.stop_profiler("time"), "sorted_key.*'time'"),
        (lambda: profiler.cuda_profiler("f", "xml").__enter__(), "output_mode is 'xml'"),
        (lambda: profiler.RecordEvent(3), "name of an event is 3"),  # type: ignore[arg-type]
    ],
)
def test_refuses(call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()
    assert instrumentation.timer() is None


def test_a_trace_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiler.start_profiler("All")
    with pytest.raises(ProgramError, match="missing"):
        profiler.stop_profiler(None, tmp_path / "missing" / "trace")
    assert "Profiling Report" in capsys.readouterr().out and instrumentation.timer() is None


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "trace": lambda exe, to: profiler.stop_profiler(None, to),
    "graph": lambda exe, to: fluid.graphviz.Graph("g").save(to),
    "memory plan": lambda exe, to: exe.memory_plan.save(to),
    "sources": lambda exe, to: exe.write_sources(to),
}


@pytest.mark.parametrize("path", ["/dev/full", "/dev/null/a", "a\0b", 3], ids=repr)
@pytest.mark.parametrize("what", WRITES)
def test_texts_that_cannot_be_written(what: str, path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    exe, y = fluid.Executor("cpu"), layers.relu(layers.data("x", [3]))
    exe.run(feed={"x": np.ones((2, 3), "float32")}, fetch_list=[y])
    profiler.start_profiler("All")
    try:
        with pytest.raises(ProgramError, match=r"(?s)cannot be written to .*Do: "):
            WRITES[what](exe, path)
        assert what != "trace" or "Profiling Report" in capsys.readouterr().out
    finally:
        profiler.stop_profiler(profile_path=None)


@pytest.mark.parametrize("key", ["calls", "total", "max", "min", "ave"])
def test_sorted(key: str) -> None:
    loss = training()
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    with profiler.recorded() as profile:
        exe.run(feed=FEED, fetch_list=[loss])
    values = [getattr(row, key) for row in profile.rows(key)]
    assert values == sorted(values, reverse=True) and len(set(values)) > 1
    lines = profile.text(key).splitlines()
    names = [row.name for row in profile.rows(key) if row.kind not in ("run", "event")]
    assert [line.split("  ")[0] for line in lines if "cpu:0  " in line and "run on" not in line] == names


def test_events_of_the_user() -> None:
    x = layers.data("x", [2])
    out, feed = layers.exp(x), {"x": np.ones((1, 2), "float32")}
    exe = fluid.Executor("cpu")
    event = profiler.RecordEvent("reused")
    with event:  # nothing is on
        pass
    with profiler.recorded() as profile:
        for _ in range(2):
            with profiler.RecordEvent("epoch"):
                with event, event:
                    exe.run(feed=feed, fetch_list=[out])
                with pytest.raises(KeyError), profiler.RecordEvent("fails"):
                    raise KeyError
        profile_open = profiler.RecordEvent("ends later").__enter__()
    profile_open.__exit__(None, None, None)
    rows = {row.name: row.calls for row in profile.rows() if row.kind == "event"}
    assert rows == {"epoch": 2, "reused": 4, "fails": 2}
    (host,) = [events for row, events in check_trace(profile.trace()).items() if row[0] == "host"]
    assert [event["name"] for event in host[:4]] == ["epoch", "reused", "reused", "run on cpu:0"]


def test_threads_have_rows() -> None:
    x = layers.data("x", [2])
    out, feed = layers.exp(x), {"x": np.ones((1, 2), "float32")}
    program = fluid.default_main_program()
    barrier = threading.Barrier(3)

    def work() -> None:
        exe = fluid.Executor("cpu")
        barrier.wait(60)
        for _ in range(20):
            exe.run(program, feed=feed, fetch_list=[out], scope=fluid.Scope())

    threads = [threading.Thread(target=work) for _ in range(3)]
    with profiler.recorded() as profile:
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
    rows = check_trace(profile.trace())
    assert by_name(profile)["exp"].calls == 60
    assert len([row for row in rows if row[0] == "host"]) == 3
    assert len([row for row in rows if row[0] == "cpu:0"]) == 3


@pytest.mark.parametrize("place", [place for place in PLACES if place.startswith(("cpu", "opencl"))])
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_threads_that_share_an_executor(place: str, mode: str) -> None:
    """Each is timed on its own queue, also once a thread with its queue has ended."""
    x = layers.data("x", [2])
    out, program = layers.exp(x), fluid.default_main_program()
    exe = fluid.Executor(place, mode=mode)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(3):
                exe.run(program, feed={"x": np.ones((1, 2), "float32")}, fetch_list=[out])
        except BaseException as exc:
            errors.append(exc)

    work()
    with profiler.recorded() as profile:
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(60)
        work()
    assert not errors
    assert by_name(profile)["exp"].calls == 9
    rows = [row for row in check_trace(profile.trace()) if row[0] == str(exe.place)]
    assert len(rows) == 3


def test_packed_state_is_no_operator() -> None:
    """Neither of the first step, be it an operator or a copy, nor of a loop after which state may be another."""
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup):
        x = layers.data("x", [2, 3, 10, 10], append_batch_size=False)
        i, limit = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
        going = layers.less_than(i, limit)
        loop = layers.While(going)
        with loop.block():
            layers.increment(i, 1, in_place=True)
            layers.less_than(i, limit, cond=going)
        out = layers.conv2d(x, 8, filter_size=3, bias_attr=False)
    exe = fluid.Executor("cpu", libraries={"cpu": ["registers"]})
    exe.run(startup)
    feed = {"x": np.ones((2, 3, 10, 10), "float32")}
    exe.run(program, feed=feed, fetch_list=[out, i])
    with profiler.recorded() as profile:
        exe.run(program, feed=feed, fetch_list=[out, i])
    plan, rows = exe.explain_last().plan, launched(profile)
    counts = Counter(step.call.op.type for step in plan.steps if isinstance(step, Launch))
    outside = {row.name: row.calls for row in rows if row.name in counts and row.name not in ("increment", "less_than")}
    assert outside == {name: count for name, count in counts.items() if name in outside} and "conv2d" in outside
    assert by_name(profile)["while"].calls == 1
    assert [(row.kind, row.calls, row.nbytes) for row in rows if row.name == "packed state"] == [("packing", 2, 0)]


def test_the_table_goes_on_where_the_trace_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MAX_TIMELINE_EVENTS", 10)
    monkeypatch.setattr("fluidlite.profiler.recording.MAX_PENDING_MARKS", 8)
    x = layers.data("x", [2])
    out, feed = layers.exp(x), {"x": np.ones((1, 2), "float32")}
    exe = fluid.Executor("cpu")
    with profiler.recorded() as profile:
        for _ in range(30):
            exe.run(feed=feed, fetch_list=[out])
    assert by_name(profile)["exp"].calls == 30
    data = profile.data()
    assert data["dropped"] == 60 - sum(map(len, check_trace(profile.trace()).values())) > 0
    assert f"{data['dropped']:,} later" in str(profile)


def test_off_again_takes_the_fast_path() -> None:
    loss = training()
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        exe.run(feed=FEED, fetch_list=[loss])
    assert exe._executables is not None
    with profiler.recorded():
        for _ in range(3):
            exe.run(feed=FEED, fetch_list=[loss])
    before = exe._executables.hits
    exe.run(feed=FEED, fetch_list=[loss])
    paths = exe._executables.fast_paths.all()
    assert exe._executables.hits == before and {path.executable.timed for path in paths} == {True, False}
    assert all("timed_run" in path.source for path in paths if path.executable.timed)
    assert all("timed_run" not in path.source for path in paths if not path.executable.timed)


def test_computations_and_nodes() -> None:
    from fluidlite import graph as ng
    from fluidlite.transformers import make_transformer

    x = ng.placeholder([3])
    call = make_transformer("cpu").computation(ng.exp(x), x)
    call(np.ones(3, "float32"))
    with profiler.recorded() as profile:
        call(np.ones(3, "float32"))
    assert by_name(profile)["exp"].calls == 1


def test_cuda_stamps() -> None:
    from fluidlite.devices.cuda.device import CUDAStamp

    class Event:
        def __init__(self, at: float) -> None:
            self.at, self.waited = at, 0

        def synchronize(self) -> None:
            self.waited += 1

    cupy = SimpleNamespace(cuda=SimpleNamespace(get_elapsed_time=lambda a, b: b.at - a.at))
    first, second = (CUDAStamp(cupy, Event(at), lambda wait: wait()) for at in (2.0, 5.5))  # milliseconds
    second.wait()
    assert second.event.waited == 1 and second.seconds_since(first) == pytest.approx(3.5e-3)


def test_a_run_that_ends_after_the_profile() -> None:
    """It is not part of it."""
    began, goes_on = threading.Event(), threading.Event()

    def wait(a: Any) -> Any:
        began.set()
        assert goes_on.wait(60)
        return np.asarray(a) * 2

    x = layers.data("x", [8])
    out = fluid.default_main_program().current_block().create_var(name="out", dtype="float32", shape=[-1, 8])
    layers.py_func(wait, x, out)
    executor, program, results = fluid.Executor("cpu"), fluid.default_main_program(), []
    run = threading.Thread(target=lambda: results.append(executor.run(program, {"x": FEED["x"]}, [out])))
    with profiler.recorded() as profile:
        run.start()
        assert began.wait(60)
    goes_on.set()
    run.join(60)
    assert len(results) == 1
    assert not profile.rows("calls")
