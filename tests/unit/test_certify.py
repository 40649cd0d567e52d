"""The certificate: what is right passes, and what is wrong, crashes, hangs or is lost fails just its check."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fluidlite import plugin_loader
from fluidlite.base.errors import FluidError
from fluidlite.cli.main import main
from fluidlite.conformance import Certificate, CheckOutcome, certify, load_plugin_modules, page, workers
from fluidlite.conformance.certificate import FAILED, KNOWN, PASSED, describe_selection
from fluidlite.testing import checks

BAD = '''
"""A library for the CPU whose kernels do what kernels must not."""

import os
import signal
import sys
import time

from fluidlite.plugin import DeviceLost, Library, hookimpl, register_kernel


def wrong(call, context, io):
    io.array("Out")[...] = io.array("X") + 1


def crash(call, context, io):
    print("about to crash", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def hang(call, context, io):
    time.sleep(600)


def lose(call, context, io):
    raise DeviceLost("it was unplugged")


def chatter(call, context, io):
    print("a plugin that writes to standard output")
    os.write(1, b"{}")
    io.array("Out")[...] = 1 / (1 + context.xp.exp(-io.array("X")))


def make(op, work):
    @register_kernel(op, "cpu", library="bad", dtypes=("float64",))
    def kernel(call, context):
        return lambda context, io: work(call, context, io)

    return kernel


ALL = [make(op, work) for op, work in
       {"relu": wrong, "tanh": crash, "floor": hang, "ceil": lose, "sigmoid": chatter}.items()]


@hookimpl
def register_libraries(register):
    register(Library("bad", places=("cpu",), rank=1000))


@hookimpl
def register_kernels(register):
    for kernel in ALL:
        register(kernel)
'''


@pytest.fixture
def bad(tmp_path: Path) -> Iterator[str]:
    """A plugin file; what it brings goes again after the test."""
    path = tmp_path / "bad_library.py"
    path.write_text(BAD)
    yield str(path)
    plugin_loader.unload("bad_library")


def test_what_is_right_passes() -> None:
    seen: list[tuple[str, int, int]] = []
    found = certify("cpu", ["relu", "log_l*"], jobs=1, progress=lambda o, done, total: seen.append((o.id, done, total)))
    assert found.ok
    assert found.verdict == "PASSED (only relu, log_l*)"
    ids = [check.id for check in checks(["relu", "log_loss"])]
    assert sorted(outcome.id for outcome in found.outcomes) == sorted(ids)
    assert [done for _, done, _ in seen] == list(range(1, len(ids) + 1))
    assert {total for *_, total in seen} == {len(ids)}
    assert {row.operator: bool(row.kernel) and bool(row.gradient) for row in found.rows()} == {
        "relu": True, "log_loss": True,
    }  # fmt: skip
    assert found.raised_tolerances() == {}


def test_what_is_wrong_crashes_hangs_or_is_lost_fails_just_its_check(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operators = ["relu", "tanh", "floor", "ceil", "sigmoid"]
    ids = [check.id for check in checks(operators) if "empty" not in check.id and ".grad" not in check.id]
    wide = [next(id for id in ids if id.startswith(op + "[") and id.endswith("float64]")) for op in operators]
    others = [id for id in ids if id.endswith("float32]")]

    def overdue(worker: workers._Worker, timeout: float, asked: Any = workers._Worker.is_overdue) -> bool:
        """Of the others none is, however busy the machine is."""
        return worker.running == wide[2] and asked(worker, timeout)

    monkeypatch.setattr(workers._Worker, "is_overdue", overdue)
    found = certify("cpu", only=[*wide, *others], jobs=2, plugins=[bad], timeout=1)
    assert not found.ok
    assert found.verdict.startswith("FAILED")
    failed = {outcome.id: outcome for outcome in found.failures}
    assert sorted(failed) == sorted(wide[:4])  # the fifth only writes where replies go
    assert sorted(outcome.id for outcome in found.outcomes) == sorted([*wide, *others])
    text = {op: next(o.error for id, o in failed.items() if id.startswith(op + "[")) for op in operators[:4]}
    assert re.search(r"ConformanceError: relu\[.*elements are wrong; at \[[\d, ]*\] it is -?\d", text["relu"])
    assert re.search(r"the process that ran it was ended by SIGKILL; it wrote: .*about to crash", text["tanh"])
    assert "took longer than 1 s, and its process was ended" in text["floor"]
    assert "DeviceLost" in text["ceil"]
    reproduction = found.reproduction(failed[next(id for id in failed if id.startswith("relu["))])
    assert reproduction.startswith("fluidlite certify cpu:0 --plugin bad_library --check 'relu[")


def test_who_takes_long_for_an_outcome_finds_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a check that was done in time, though it is asked later than that."""
    now, begun = [0.0], list[tuple[Any, str]]()
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Quick(workers._Worker):
        """A process of one check, which is done when both have begun."""

        def __init__(self, setup: object, jobs: int, replies: Any) -> None:
            self.running, self.ready, self.replies = "", False, replies
            self.process: Any = SimpleNamespace(kill=lambda: None)
            replies.put((self, {"ready": True}))

        def send_chunk(self, chunk: Any) -> None:
            self.chunk = deque(chunk)
            begun.append((self, chunk[0]))
            self.replies.put((self, {"started": chunk[0]}))
            for worker, id in begun if len(begun) == 2 else ():
                self.replies.put((worker, {"outcome": {"id": id, "state": PASSED, "seconds": 0.0, "uses": []}}))
                self.replies.put((worker, {"ready": True}))

        def kill(self, why: str) -> None:
            raise AssertionError(why)

        def close(self) -> None:
            pass

    monkeypatch.setattr(workers, "_Worker", Quick)
    found = []
    for outcome in workers.run_in_processes([["a"], ["b"]], 2, {}, timeout=1.0):
        found.append((outcome.id, outcome.state))
        now[0] += 10
    assert found == [("a", PASSED), ("b", PASSED)]


def test_a_reproduction_fails_too_and_the_page_shows_it(
    bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    id = next(check.id for check in checks(["relu"]) if check.id.endswith("float64]"))
    html = tmp_path / "certificate.html"
    assert main(["certify", "cpu", "--plugin", bad, "--check", id, "--html", str(html), "-j", "1"]) == 1
    out = capsys.readouterr().out
    assert f"failed: {id}" in out
    assert f"Reproduce: fluidlite certify cpu:0 --plugin bad_library --check '{id}'" in out
    assert re.search(r"relu +native bad +1 +1", out)
    assert "FAILED (only relu[" in out
    text = html.read_text()
    assert text.count("<details>") == 1
    assert "elements are wrong" in text
    assert "A part of the checks only" in text


def test_known_failures(bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [check.id for check in checks(["relu"]) if ".grad" not in check.id]
    wrong, right = (next(id for id in ids if id.endswith(f"{dtype}]")) for dtype in ("float64", "float32"))
    known = tmp_path / "known.txt"
    known.write_text(f"{wrong}: adds one\n{right}: is right in fact\n")
    arguments = ["certify", "cpu", "--plugin", bad, "--known-failures", str(known), "--json", "-j", "1"]
    assert main([*arguments, "--check", wrong]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert data["checks"] == {PASSED: 0, FAILED: 0, KNOWN: 1}
    assert data["known_failures"] == [{"check": wrong, "reason": "adds one"}]
    assert main([*arguments, "--check", right]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["failures"][0]["error"] == "it passes, but is listed as a known failure: is right in fact"
    known.write_text("relux: no such operator\n")
    with pytest.raises(FluidError, match="no check is called relux"):
        certify("cpu", known_failures={"relux": "no such operator"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cpu", "--op", "rleu"], "no operator is called so; did you mean 'relu'?"),
        (["cpu", "--op", "relu_grad"], "it is checked with 'relu'"),
        (["cpu", "--op", "feed"], "has no reference, or no samples"),
        (["cpu", "--op", "randint"], "the bits of random numbers are checked with 'random'"),
        (["cpu", "--check", "relu[nothing]"], "no check is called 'relu[nothing]'; did you mean 'relu["),
        (["nowhere"], "no device serves place 'nowhere:0'"),
        (["cpu", "--plugin", "no_such_module"], "plugin 'no_such_module' cannot be loaded: ModuleNotFoundError"),
        (["cpu", "--plugin", "no_such_file.py"], "there is no plugin file no_such_file.py"),
    ],
)
def test_what_cannot_be_checked_is_said(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    assert main(["certify", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_process_that_does_not_start_is_an_error(tmp_path: Path, bad: str) -> None:
    load_plugin_modules([bad])
    Path(bad).write_text("raise SystemExit('not in another process')")
    with pytest.raises(FluidError, match=r"(?s)a process for checks did not start: .*not in another process"):
        certify("cpu", ["relu"], jobs=1, plugins=[bad])


def test_texts_are_escaped_and_loosened_tolerances_shown() -> None:
    outcome = CheckOutcome("relu[a:float32]", FAILED, 0.1, "Error: <b>&", "<i>", (("relu", "native", "<lib>"),))
    device = {
        "kind": "x", "name": "<script>", "memory": None, "alignment": 64, "queues": 1, "capabilities": ["memory"],
        "dtypes": ["float32"], "lacks": [], "host": False,
    }  # fmt: skip
    found = Certificate(
        "x:0", device, {"name": "x", "version": "1", "origin": "x"}, {"fluidlite": "1"}, "now", 1.0, 1, "",
        {"values": {"float32": (1e-5, 2e-5)}, "gradients": {"float32": (5e-5, 5e-5)}}, [outcome],
    )  # fmt: skip
    text = page(found)
    assert "<script>" not in text
    assert "<i>" not in re.sub(r"<i style", "", text)
    assert "2e-05 <small>instead of 1e-05</small>" in text
    assert "tolerance of values loosened by the device: float32 1e-05 to 2e-05" in found.summary()


def test_ways_in_words() -> None:
    assert describe_selection(Counter()) == ""
    assert describe_selection(Counter({("native", "lib"): 7, ("fallback", ""): 2})) == "native lib (fallback: 2 of 9)"
