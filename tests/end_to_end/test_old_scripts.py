"""Scripts in the style of the book for ``paddle.fluid`` run as they are, on the small data sets."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.paddle import run_script
from fluidlite.paddle.dataset import files
from fluidlite.paddle.script import ScriptError

FOLDER = Path(__file__).parent.parent / "old_scripts"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give every script programs, names and a scope of its own, and no data sets but the small ones."""
    monkeypatch.delenv(files.VARIABLE, raising=False)
    monkeypatch.setattr(files, "_chosen_folder", [])
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 1
    random.seed(1)  # of paddle.reader.shuffle
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        yield


def run(name: str, *arguments: object) -> dict[str, Any]:
    return run_script(FOLDER / f"{name}.py", list(map(str, arguments)))


def test_recognize_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", reason="the small data set of digits comes from scikit-learn")
    assert run("recognize_digits", "mlp", tmp_path, 1)["accuracy"] > 0.75
    assert "Inference result of image/infer_3.png is: " in capsys.readouterr().out


@pytest.mark.parametrize("network", ["resnet", *(["vgg"] if os.environ.get("FLUIDLITE_BOOKS") == "whole" else [])])
def test_image_classification(network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with the folded program, held against the plain one."""
    found = run("image_classification", network, tmp_path, 16)
    assert len(found["costs"]) == 16
    assert np.mean(found["costs"][-4:]) < 0.95 * np.mean(found["costs"][:4])
    np.testing.assert_allclose(found["probabilities"].sum(), 1, rtol=1e-5)
    assert "Test with Pass 0, Loss " in capsys.readouterr().out


def test_word2vec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = run("word2vec", tmp_path, 60)["costs"]
    assert len(costs) == 60
    assert np.mean(costs[-10:]) < 0.85 * costs[0]
    assert "Step 50: Average Cost " in capsys.readouterr().out


def test_understand_sentiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run("understand_sentiment", tmp_path, 20)
    assert found["accuracy"] > 0.9
    np.testing.assert_array_equal(found["probabilities"].argmax(axis=1), [0, 1, 1])
    assert "to be negative for review ' it was bad '" in capsys.readouterr().out


def test_fit_a_line_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fluidlite.paddle", str(FOLDER / "fit_a_line.py"), str(tmp_path), "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=FOLDER.parent.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Test cost, Step ") == 3
    assert "infer results: (House Price)\n0: " in done.stdout
    assert "paddle.dataset.uci_housing: " in done.stderr


def test_arrays_of_one_element_are_numbers_in_scripts_alone(tmp_path: Path) -> None:
    script = tmp_path / "numbers.py"
    script.write_text(
        "import paddle.fluid as fluid\n"
        "one, two = fluid.layers.fill_constant([1], 'float32', 2.5), fluid.layers.fill_constant([2], 'int64', 3)\n"
        "one, two = fluid.Executor(fluid.CPUPlace()).run(fetch_list=[one, two])\n"
        "said = float(one), int(one), '%.2f' % one, round(two.mean(), 1), float(one * 2)\n"
    )
    assert run_script(script)["said"] == (2.5, 2, "2.50", 3.0, 5.0)
    script.write_text(script.read_text() + "float(two)\n")
    with pytest.raises(ScriptError, match="an array of 2 elements is no number"):
        run_script(script)
    (plain,) = fluid.Executor("cpu").run(fetch_list=[fluid.layers.fill_constant([1], "float32", 2.5)])
    assert type(plain) is np.ndarray
