"""The command line: tables and JSON, and errors without tracebacks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fluidlite import io
from fluidlite.executor import Executor
from fluidlite.framework.policy import HOWS
from fluidlite.framework.program import Program
from fluidlite.framework.registry import ops
from fluidlite.framework.scope import Scope, global_scope, scope_guard
from fluidlite.platform.place import Place
from fluidlite.tools.cli import main
from fluidlite.tools.matrix import kernel_matrix, totals
from fluidlite.tools.reports import in_bytes


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


def test_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    assert "platform.cpu (built in)" in output(capsys, "plugins")
    verbose = output(capsys, "plugins", "--verbose")
    assert "devices: cpu" in verbose
    rows = json.loads(output(capsys, "plugins", "--json"))
    assert {row["state"] for row in rows if row["built_in"]} == {"loaded"}


def test_ops(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "ops", "relu*", "mean", "--place", "cpu")
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["mean", "relu", "relu6", "relu6_grad", "relu_grad"]
    assert lines[2].split() == ["relu", "generated", "array"]
    assert lines[-1] == "cpu:0: 5 operators: 4 generated, 1 generic"
    rows = json.loads(output(capsys, "ops", "relu", "--json"))
    assert rows[0]["places"]["cpu:0"]["libraries"] == ["array"]


def test_ops_can_be_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*options: str) -> list[str]:
        return [row["op"] for row in json.loads(output(capsys, "ops", "--place", "cpu", "--json", *options))]

    assert shown("--family", "softmax") == ["log_softmax", "log_softmax_grad", "softmax", "softmax_grad"]
    assert shown("--family", "softmax", "--no-gradients") == ["log_softmax", "softmax"]
    assert shown("--family", "crf", "--how", "pinned", "linear*") == ["linear_chain_crf", "linear_chain_crf_grad"]
    assert "pinned" in output(capsys, "ops", "--how", "dance", code=2)
    assert "there is no such operator" in output(capsys, "ops", "--family", "dance", code=2)


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
    assert data["kernels"]["crop"] == {"cpu:0": "generic plain"}


def test_the_matrix_covers_every_operator() -> None:
    rows = kernel_matrix(["cpu"])
    assert [row.op for row in rows] == [op.type for op in ops]
    place = Place("cpu")
    unknown = [row.op for row in rows if row.cells[place].how in ("?", "none")]
    assert unknown == []
    assert set(totals(rows, place)) <= {*HOWS, "control"}
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
        (("explain", "/nowhere/at/all"), 1, "SavedModelError: there is no file /nowhere/at/all"),
        (("explain", "{model}", "--place", "gpu"), 1, "PlaceError: no device serves place 'gpu:0'"),
        (("explain", "{model}", "--place", "CPU!"), 1, "PlaceError: 'CPU!'"),
        (("explain", "{model}", "--feed", "x=ab"), 1, "FeedError: --feed 'x=ab'"),
        (("explain", "{model}", "--feed", "y=3x3"), 1, "no variable 'y'"),
        (("ops", "nothing_like_it"), 2, "no operator is called nothing_like_it"),
        (("ops", "--place", "gpu"), 1, "PlaceError"),
        (("op", "reluu"), 1, "did you mean relu"),
        (("dance",), 2, "No such command"),
        (("demo", "--epochs", "0"), 2, "epochs"),
    ],
)
def test_errors_are_messages(
    capsys: pytest.CaptureFixture[str], model: Path, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    assert expected in output(capsys, *(a.format(model=model) for a in arguments), code=code)


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    assert "pip install 'fluidlite[cli]'" in output(capsys, "places", code=2)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "--help")
    for command in ("places", "plugins", "ops", "op", "explain", "demo"):
        assert command in text


def test_bytes_for_people() -> None:
    assert [in_bytes(n) for n in (None, 0, 1023, 1536, 3 << 30)] == ["unknown", "0 B", "1023 B", "1.5 KiB", "3.0 GiB"]
