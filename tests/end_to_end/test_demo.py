"""One program that reads digits, trained on every place that can be used here."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest

import fluidlite as fluid
from fluidlite.base.errors import MissingExtraError, PlaceError
from fluidlite.cli import demo
from fluidlite.cli.main import main
from fluidlite.platform.device_registry import devices

pytestmark = pytest.mark.skipif(not find_spec("sklearn"), reason="the demo's data come from scikit-learn")


@pytest.fixture(scope="module")
def found() -> demo.DemoResult:
    return demo.run(epochs=3)


def test_every_place_learns_the_same(found: demo.DemoResult) -> None:
    assert [result.place for result in found.results] == fluid.places()
    assert found.problems == []
    assert found.ok
    assert found.difference <= demo.MAX_LOSS_DIFFERENCE
    for result in found.results:
        assert len(result.losses) == 3 * 22
        assert result.losses[-1] < result.losses[0] / 3
        assert result.accuracy > 0.9
        assert result.seconds > 0
        assert result.peak > 4 * (64 * 64 + 64 * 64 + 64 * 10)


def test_a_place_with_a_capability_computes_by_itself(found: demo.DemoResult) -> None:
    for result in found.results:
        unit, summary = devices.unit(result.place), result.report.summary
        assert summary["operators"] > 0
        if unit.array is not None or unit.language is not None:
            assert summary["fallback"] == summary["transfers"] == 0
            assert summary["feeds"] == (0 if unit.info.host else 2)


def test_the_same_place_gives_the_same_losses() -> None:
    first, second = (demo.run(["cpu"], epochs=1).results[0].losses for _ in range(2))
    assert first == second


def test_places_that_disagree_are_a_problem(found: demo.DemoResult) -> None:
    one = found.results[0]
    other = replace(one, losses=[loss * 1.001 for loss in one.losses], accuracy=one.accuracy - 0.02)
    problems = demo.compare([one, other]).problems
    assert len(problems) == 2
    assert "losses differ" in problems[0]
    assert "accuracies differ" in problems[1]
    broken = replace(one, losses=[float("nan")] * len(one.losses))
    assert not demo.compare([one, broken]).ok
    assert not demo.compare([]).ok


def test_the_command_prints_table_and_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--place", "cpu", "--epochs", "1", "--hidden", "8", "--batch", "400"]) == 0
    text = capsys.readouterr().out
    assert "hidden layers of 8" in text
    assert "Plan on cpu:0" in text
    assert "accuracy" in text


def test_errors_are_messages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlaceError):
        demo.run(["abacus"])
    assert main(["demo", "--place", "abacus"]) == 2
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match=r"fluidlite\[demo\]"):
        demo.run(["cpu"])
    assert main(["demo", "--place", "cpu"]) == 2
    assert "Traceback" not in capsys.readouterr().err
