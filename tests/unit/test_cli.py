"""The command line: tables and JSON, and errors without tracebacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite.graph as ng
from fluidlite import io, plugin_loader
from fluidlite.cli.kernel_matrix import kernel_matrix, totals
from fluidlite.cli.main import main
from fluidlite.cli.reports import in_bytes, places_report
from fluidlite.compiler.policy import KERNEL_KINDS
from fluidlite.executor import Executor
from fluidlite.platform.place import Place
from fluidlite.plugin import Execution
from fluidlite.program.program import Program, default_main_program, program_guard
from fluidlite.program.registry import ops
from fluidlite.program.scope import Scope, global_scope, scope_guard


def output(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return out if code == 0 else err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    program = Program()
    block = program.global_block()
    x = block.create_var("x", [-1, 3], "float32", is_data=True)
    w = block.create_parameter("w", [3, 4], "float32")
    hidden, out = block.create_var("hidden"), block.create_var("out")
    block.append_op("mul", {"X": x, "Y": w}, {"Out": hidden})
    block.append_op("relu", {"X": hidden}, {"Out": out})
    with scope_guard(Scope()):
        global_scope().var("w").get_tensor().set(np.ones((3, 4), "float32"), "cpu")
        io.save_inference_model(tmp_path / "model", ["x"], [out], Executor("cpu"), program)
    return tmp_path / "model"


def test_places(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "places")
    assert "cpu:0" in text
    rows: list[dict[str, Any]] = json.loads(output(capsys, "places", "--json"))
    assert rows[0]["place"] == "cpu:0"
    assert "float32" in rows[0]["dtypes"]
    for row in rows:
        assert row["usable"] or f"{row['place']} cannot be used: {row['reason']}" in text


PLUGIN = """
from fluidlite.plugin import Library, hookimpl, register_kernel

@register_kernel("relu", "cpu", library="cliplug")
def relu(call, context):
    return lambda context, io: context.xp.maximum(io.array("X"), 0, out=io.array("Out"))

@hookimpl
def register_libraries(register):
    register(Library("cliplug", places=("cpu",), rank=99))

@hookimpl
def register_kernels(register):
    register(relu)
"""


@pytest.mark.parametrize(
    "command",
    [
        ("places",),
        ("plugins",),
        ("ops", "relu", "--place", "cpu"),
        ("op", "relu", "--place", "cpu"),
        ("explain", "MODEL"),
        ("passes", "MODEL"),
        ("sources", "MODEL", "--feed", "x=2x3", "--to", "TO"),
        ("profile", "MODEL", "--feed", "x=2x3", "--runs", "1"),
        ("bench", "relu", "--seconds", "0.001"),
    ],
)
def test_a_plugin_that_is_not_installed(
    command: tuple[str, ...], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cliplug.py"
    path.write_text(PLUGIN)
    words = {"MODEL": str(model), "TO": str(tmp_path / "sources")}
    try:
        text = output(capsys, *(words.get(word, word) for word in command), "--plugin", str(path))
        assert any(record.name == "cliplug" for record in plugin_loader.plugins())
        assert "cliplug" in text or command[0] in ("places", "passes", "sources")
    finally:
        plugin_loader.unload("cliplug")
        sys.modules.pop("cliplug", None)


def test_the_package_runs_as_the_command() -> None:
    found = subprocess.run([sys.executable, "-m", "fluidlite", "places", "--json"], capture_output=True, check=True)
    assert json.loads(found.stdout)[0]["place"] == "cpu:0"


def test_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    assert "devices.cpu (built in)" in output(capsys, "plugins")
    verbose = output(capsys, "plugins", "--verbose")
    assert "devices: cpu" in verbose
    rows = json.loads(output(capsys, "plugins", "--json"))
    assert {row["state"] for row in rows if row["built_in"]} == {"loaded"}


def test_ops(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "ops", "relu*", "mean", "--place", "cpu")
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["mean", "relu", "relu6", "relu6_grad", "relu_grad"]
    assert lines[2].split() == ["relu", "generated", "array", "language"]
    assert lines[-1] == "cpu:0: 5 operators: 5 generated"
    rows = json.loads(output(capsys, "ops", "relu", "--json"))
    assert rows[0]["places"]["cpu:0"]["libraries"] == ["array", "language"]


def test_ops_can_be_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*options: str) -> list[str]:
        return [row["op"] for row in json.loads(output(capsys, "ops", "--place", "cpu", "--json", *options))]

    assert shown("--family", "softmax", "*soft*") == ["log_softmax", "log_softmax_grad", "softmax", "softmax_grad"]
    assert shown("--family", "softmax", "--no-gradients", "*soft*") == ["log_softmax", "softmax"]
    assert shown("--family", "crf", "--how", "pinned", "linear*") == ["linear_chain_crf", "linear_chain_crf_grad"]
    assert "pinned" in output(capsys, "ops", "--how", "dance", code=2)
    assert "there is no such operator" in output(capsys, "ops", "--family", "dance", code=2)
    few = ("--family", "softmax", "--how", "fallback", "*soft*")
    assert output(capsys, "ops", "--place", "cpu", *few) == "no operator is of --family softmax --how fallback\n"
    assert shown(*few) == []
    assert "no operator is called dance" in output(capsys, "ops", "dance", code=2)


def test_op(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "op", "leaky_relu", "--place", "cpu")
    lines = [line.split() for line in text.splitlines()]
    assert text.startswith("leaky_relu: Out = max(X, alpha X)\n")
    assert "  Gradient: leaky_relu_grad reads X, Out@GRAD; writes X@GRAD" in text
    assert ["input", "X", "floats"] in lines
    assert ["alpha", "float", "0.02", "see", "the", "formula"] in lines
    assert ["leaky_relu_grad", "generated", "array"] in lines
    data = json.loads(output(capsys, "op", "crop", "--place", "cpu", "--json"))
    assert data["family"] == "crop"
    assert data["inputs"]["Offsets"] == "optional, numbers read when planning, int32, int64"
    assert data["attrs"]["offsets"]["allowed"] == "0 or more"
    assert data["gradient"] == "crop_grad reads Out@GRAD and only the dims of X, Offsets; writes X@GRAD"
    assert data["kernels"]["crop"] == {"cpu:0": "generated array"}


def test_the_matrix_covers_every_operator() -> None:
    rows = kernel_matrix(["cpu"])
    assert [row.op for row in rows] == [op.type for op in ops]
    place = Place("cpu")
    unknown = [row.op for row in rows if row.cells[place].how in ("?", "none")]
    assert unknown == []
    assert set(totals(rows, place)) <= {*KERNEL_KINDS, "control"}
    assert totals(rows, place).get("fallback", 0) == 0


def test_explain(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    text = output(capsys, "explain", str(model), "--feed", "x=64x3", "--html", str(page))
    assert text.startswith("Plan on cpu:0")
    assert "relu" in text
    assert "2 operators" in text
    assert "<table>" in page.read_text()
    data = json.loads(output(capsys, "explain", str(model / "__model__"), "-f", "x=64x3", "--json"))
    assert [row["op"] for row in data["operators"]] == ["mul", "relu"]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("explain", "/nowhere/at/all"), 2, "SavedModelError: there is no file /nowhere/at/all"),
        (("explain", "{model}", "--place", "gpu"), 2, "PlaceError: no device serves place 'gpu:0'"),
        (("explain", "{model}", "--place", "CPU!"), 2, "PlaceError: 'CPU!'"),
        (("explain", "{model}", "--feed", "x=ab"), 2, "FeedError: --feed 'x=ab'"),
        (("explain", "{model}", "--feed", "y=3x3"), 2, "no variable 'y'"),
        (("ops", "nothing_like_it"), 2, "no operator is called nothing_like_it"),
        (("ops", "nothing_like_it", "--json"), 2, "no operator is called nothing_like_it"),
        (("ops", "nothing_like_it", "--how", "fallback", "--json"), 2, "no operator is called nothing_like_it"),
        (("ops", "--place", "gpu"), 2, "PlaceError"),
        (("op", "reluu"), 2, "did you mean 'relu'"),
        (("explain", "{model}", "--html", "/nowhere/at/all.html"), 2, "there is no folder /nowhere/at"),
        (("certify", "cpu", "--html", "/nowhere/at/all.html"), 2, "there is no folder /nowhere/at"),
        (("certify", "cpu", "--html", "/"), 2, "/ is a folder"),
        (("sources", "{model}", "--to", __file__), 2, "is a file"),
        *(
            ((*command, "--feed", f"x={dims}"), 2, "OutOfMemoryError: 'x' of dims [")
            for command in (("sources", "{model}", "--to", "/nowhere/to"), ("profile", "{model}"))
            for dims in ("99999999999x3", "999999999999999999999x3", "0x999999999999999999999")
        ),
        (("new-plugin", "acme", "--kind", "device", "--to", __file__), 2, "is a file"),
        (("fuzz", "--count", "-1"), 2, "--count"),
        (("bench", "relu", "--place", "gpu"), 2, "PlaceError"),
        (("dance",), 2, "No such command"),
        (("demo", "--epochs", "0"), 2, "epochs"),
    ],
)
def test_errors_are_messages(
    capsys: pytest.CaptureFixture[str], model: Path, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    text = output(capsys, *(a.format(model=model) for a in arguments), code=code)
    assert expected in text or expected in " ".join(text.replace("│", " ").split())  # a long path breaks the line


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    assert "pip install 'fluidlite[cli]'" in output(capsys, "places", code=2)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "--help")
    for command in ("places", "plugins", "ops", "op", "explain", "demo"):
        assert command in text


def test_bytes_for_people() -> None:
    assert [in_bytes(n) for n in (None, 0, 1023, 1536, 3 << 30)] == ["unknown", "0 B", "1023 B", "1.5 KiB", "3.0 GiB"]


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """The text of a program with work for the passes, and without a name of what to fetch."""
    program = Program()
    block = program.global_block()
    x = block.create_var("x", [-1, 4], "float32", is_data=True)
    names = [block.create_var(name) for name in ("halves", "whole", "spare", "out")]
    block.append_op("reshape2", {"X": x}, {"Out": names[0]}, {"shape": [-1, 2, 2]})
    block.append_op("reshape2", {"X": names[0]}, {"Out": names[1]}, {"shape": [-1, 4]})
    block.append_op("exp", {"X": names[1]}, {"Out": names[2]})
    block.append_op("tanh", {"X": names[1]}, {"Out": names[3]})
    path = tmp_path / "chain.json"
    path.write_text(program.to_json())
    return path


def test_passes(capsys: pytest.CaptureFixture[str], model: Path, chain: Path) -> None:
    text = output(capsys, "passes", str(chain), "--fetch", "out")
    assert text.startswith("on cpu:0, for out:\n  halves = reshape2(X=x, shape=[-1, 2, 2])  # test_cli.py:")
    assert "prune  DeadCode: 4 -> 3 operators; -1 exp" in text
    assert "simplify  SimplifyShapes: 3 -> 1 operators; -2 reshape2" in text
    assert "\n  - whole = reshape2(X=halves" in text
    assert "\n  + out = tanh(X=x)" in text
    assert "simplify  FoldConstants: nothing to do" in text
    assert text.endswith("in all: 4 -> 1 operators\n")
    assert "for spare, out:" in output(capsys, "passes", str(chain)), "what nobody reads"
    assert "for out:" in output(capsys, "passes", str(model), "--place", "cpu")
    only = output(capsys, "passes", str(chain), "--fetch", "out", "--pass", "SimplifyShapes")
    assert only.strip().startswith("simplify  SimplifyShapes: 3 -> 1")
    assert "DeadCode" not in only
    data = json.loads(output(capsys, "passes", str(chain), "--fetch", "out", "--json"))
    steps = {step["name"]: step for step in data["steps"]}
    assert steps["SimplifyShapes"]["counts"] == {"reshape2": -2}
    assert len(steps["SimplifyShapes"]["before"]) == 3
    assert data["after"] == steps["SimplifyShapes"]["after"]


def test_passes_of_a_program_with_actions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with program_guard(Program(), Program()):
        x, v = ng.placeholder((2,)), ng.variable((2,), 1.0)
        ng.sequential([ng.assign(v, (v - 0) * x), v * 3])
        path = tmp_path / "actions.json"
        path.write_text(default_main_program().to_json())
    text = output(capsys, "passes", str(path))
    assert "= read_state()" in text
    assert "= write_state(" in text
    assert "-1 elementwise_sub, -1 fill_constant" in text


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        (("--fetch", "nobody"), 2, "FetchError: the program has no variable 'nobody' to fetch"),
        (("--place", "abacus"), 2, "PlaceError: there is no transformer 'abacus' here; the choices are "),
        (("--pass", "Undo"), 2, "--pass Undo: expected one of"),
    ],
)
def test_bad_passes(
    options: tuple[str, ...], code: int, expected: str, capsys: pytest.CaptureFixture[str], chain: Path
) -> None:
    assert expected in output(capsys, "passes", str(chain), *options, code=code)


def test_passes_of_a_program_with_control_flow(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from fluidlite.program.opdef import Attr
    from fluidlite.program.registry import register_op

    definition = register_op("test_loop", Execution(run=lambda frame, op: None), attrs=(Attr("sub_block", "block"),))
    program = Program()
    inner = program.create_block()
    program.rollback()
    program.global_block().append_op("test_loop", {}, {}, {"sub_block": inner.idx})
    path = tmp_path / "loop.json"
    path.write_text(program.to_json())
    try:
        assert "control flow: it runs as it is, without passes" in output(capsys, "passes", str(path), code=2)
    finally:
        ops.remove(definition)


def test_profile_of_a_model(capsys: pytest.CaptureFixture[str], model: Path, chain: Path, tmp_path: Path) -> None:
    for place in places_there():
        text = output(capsys, "profile", str(model), "--place", place, "--feed", "x=2x3", "--runs", "4")
        assert f"{place}: times by" in text and f"run on {place}" in text and "sorted by total" in text
        data = json.loads(
            output(capsys, "profile", str(model), "-p", place, "--feed", "x=2x3", "--runs", "4", "--json")
        )
        assert {row["calls"] for row in data["rows"]} == {4}
    trace = tmp_path / "trace.json"
    options = [
        "--mode",
        "interpreted",
        "--runs",
        "1",
        "--fetch",
        "out",
        "--sort",
        "default",
        "--state",
        "CPU",
        "--json",
    ]
    text = output(capsys, "profile", str(chain), "--feed", "x=2x4", "--trace", str(trace), *options)
    assert {row["name"] for row in json.loads(text)["rows"]} == {"reshape2", "tanh", "run on cpu:0"}
    assert {e["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"} >= {"tanh"}


SCRIPT = """
import sys
import numpy as np
import paddle.fluid as fluid
x = fluid.layers.data("x", shape=[4])
y = fluid.layers.tanh(x)
exe = fluid.Executor(fluid.CPUPlace())
for _ in range(int(sys.argv[1])):
    print(exe.run(feed={"x": np.zeros((1, 4), "float32")}, fetch_list=[y])[0].sum())
if len(sys.argv) > 2:
    raise KeyError(sys.argv[2])
"""


def test_profile_of_a_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    for place in places_there():
        text = output(capsys, "profile", str(path), "3", "--place", place)
        assert text.count("0.0\n") == 3 and f"run on {place}" in text
    assert "run on cpu:0" in output(capsys, "profile", str(path), "1")
    trace = tmp_path / "trace.json"
    assert main(["profile", str(path), "--trace", str(trace), "--", "2", "oops"]) == 1
    out, err = capsys.readouterr()
    assert "tanh" in out and "KeyError: 'oops'" in err and json.loads(trace.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [("", 0, ""), ("None", 0, ""), ("0", 0, ""), ("3", 3, ""), ("'no data'", 1, "no data\n"), ("2.5", 1, "2.5\n")],
)
def test_profile_of_a_script_that_exits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ends: str, code: int, said: str
) -> None:
    """The table and the trace are there, and the exit code is the script's."""
    path, trace = tmp_path / "script.py", tmp_path / "trace.json"
    path.write_text(f"{SCRIPT}sys.exit({ends})\n")
    assert main(["profile", str(path), "--trace", str(trace), "2"]) == code
    out, err = capsys.readouterr()
    assert "tanh" in out and "run on cpu:0" in out and err == said
    assert {"tanh"} <= {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing.py"], "missing.py"),
        (["missing"], "missing"),
        (["{model}", "--sort", "time"], "'time'"),
        (["{model}", "--state", "TPU"], "'TPU'"),
        (["{model}"], "--feed x="),
        (["{model}", "--feed", "z=2x3"], "'z'"),
        (["{model}", "--feed", "x=2x3", "--fetch", "nobody"], "'nobody'"),
        (["{model}", "--feed", "x=2x3", "--mode", "fast"], "'fast'"),
        (["{model}", "--feed", "x=2x3", "--place", "nowhere"], "nowhere"),
        (["{model}", "more", "--feed", "x=2x3"], "profile [OPTIONS]"),
    ],
)
def test_profile_refuses(capsys: pytest.CaptureFixture[str], model: Path, arguments: list[str], text: str) -> None:
    from fluidlite.compiler.instrumentation import timer

    assert text in output(capsys, "profile", *[each.format(model=model) for each in arguments], code=2)
    assert timer() is None


def places_there() -> list[str]:
    return [row["place"] for row in places_report() if row["usable"]]
