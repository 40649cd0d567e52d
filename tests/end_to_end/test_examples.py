"""The programs in ``examples/`` learn on every place."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.platform.device_registry import devices

pytestmark = pytest.mark.skipif(not find_spec("sklearn"), reason="the examples' data come from scikit-learn")
FOLDER = Path(__file__).parent.parent.parent / "examples"
MARKED = ("opencl", "cuda")
PLACES = [
    pytest.param(str(place), marks=[getattr(pytest.mark, place.kind)] if place.kind in MARKED else [])
    for place in fluid.places()
] + [pytest.param(kind, marks=pytest.mark.skip(reason)) for kind, reason in devices.kinds().items() if reason]


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("place", PLACES)
def test_a_line_fits_nearly_as_by_least_squares(place: str) -> None:
    losses, least = example("fit_a_line").main(place, epochs=40)
    assert losses[-1] < losses[0]
    assert least <= losses[-1] < 1.03 * least


@pytest.mark.parametrize("place", PLACES)
def test_digits_are_recognized_after_loading_the_model(place: str) -> None:
    losses, right = example("recognize_digits").main(place, epochs=5)
    assert losses[-1] < 0.2 * losses[0]
    assert right > 0.88


@pytest.mark.parametrize("place", PLACES)
def test_sequences_are_tagged_better_than_single_digits(place: str) -> None:
    losses, alone, together = example("tag_sequences").main(place, epochs=3)
    assert losses[-1] < 0.5 * losses[0]
    assert together > 0.8
    assert together > alone + 0.07


@pytest.mark.parametrize("name", ["lenet", "network_digits", "resnet"])
@pytest.mark.parametrize("place", PLACES)
def test_convolutions_read_digits(place: str, name: str) -> None:
    losses, right = example(name).main(place, epochs=3)
    assert losses[-1] < 0.3 * losses[0]
    assert right > 0.85


@pytest.mark.parametrize("place", PLACES)
def test_sequences_are_added(place: str) -> None:
    losses, right = example("nodes_sum_lstm").main(place, batches=8 if place != "cpu:0" else 60, size=8)
    assert np.mean(losses[-3:]) < 0.75 * np.mean(losses[:3])
    assert 0 <= right <= 1


@pytest.mark.parametrize("place", PLACES)
def test_nodes_read_digits(place: str) -> None:
    losses, right = example("nodes_digits").main(place, epochs=3)
    assert losses[-1] < 0.3 * losses[0]
    assert right > 0.83


@pytest.mark.parametrize("place", PLACES)
def test_a_graph_over_two_devices_trains_as_on_one(place: str) -> None:
    losses, apart = example("nodes_two_devices").main(place, steps=20)
    assert losses[-1] < 0.5 * losses[0]
    assert apart < 1e-5


@pytest.mark.parametrize("place", PLACES)
def test_a_small_gpt_reads_text(place: str) -> None:
    losses, saved = example("nodes_tiny_gpt").main(place, steps=20 if place != "cpu:0" else 80, batch=4)
    assert np.mean(losses[-5:]) < (3.4 if place != "cpu:0" else 3.1)
    assert losses[0] > 4
    assert saved > 0.25


def test_places_learn_alike() -> None:
    found = [example("fit_a_line").main(str(place), epochs=5)[0] for place in fluid.places()]
    np.testing.assert_allclose(found, [found[0]] * len(found), rtol=1e-4)


SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", ["fit_a_line", "new_operator"])
def test_the_command_line_runs_to_the_end(name: str) -> None:
    command = [sys.executable, FOLDER / f"{name}.py", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=FOLDER.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "new_operator"])
def test_the_command_line_takes_a_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not there, which is refused: on those that are, the cases above run what the command line does."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "nowhere"])
    with pytest.raises(fluid.FluidError, match="nowhere"):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


def test_scripts_are_short() -> None:
    for name in SCRIPTS:
        assert len((FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 80, name
