"""Random programs over the operators that have samples: compiled, interpreted and by float64 references."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from fluidlite import plugin_loader
from fluidlite.base.dtypes import ALL
from fluidlite.cli.main import main
from fluidlite.platform.place import Place
from fluidlite.testing.fuzz.campaign import describe, fuzz
from fluidlite.testing.fuzz.from_samples import OPERATORS_PER_PROGRAM, samples_by_type
from fluidlite.testing.fuzz.generate import generate

SEED = int(os.environ.get("FLUIDLITE_FUZZ_SEED", "1"))
FIRST = int(os.environ.get("FLUIDLITE_FUZZ_FIRST", "0"))
FACTOR = int(os.environ.get("FLUIDLITE_FUZZ_FACTOR", "1"))
COUNTS = {"cpu": 14, "strict": 10, "fpga": 3, "opencl": 3}
"""Programs for each place: a kernel of OpenCL takes a tenth of a second to compile."""


@pytest.fixture(scope="module", autouse=True)
def strict() -> Iterator[None]:
    """A place that has an array namespace alone."""
    path = os.path.join(os.path.dirname(__file__), "..", "plugins")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path)
        assert plugin_loader.load("strict", "strict_device").state == "loaded"
        yield
        plugin_loader.unload("strict")


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", ["cpu", "strict", "fpga", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_random_programs_are_right(kind: str, require: Callable[..., None]) -> None:
    """FLUIDLITE_FUZZ_SEED, _FIRST and _FACTOR run other programs, and more."""
    require(kind)
    count = COUNTS[kind] * FACTOR
    print(f"fluidlite fuzz --place {kind} --seed {SEED} --first {FIRST} --count {count}")
    summary = fuzz(kind, SEED, FIRST, count, shrinking=10)
    print(summary.text())
    assert summary.programs == count and summary.compared > 10 * count
    assert not summary.findings, "\n".join(describe(*found, Place.parse(kind)) for found in summary.findings)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_operator_has_its_turn() -> None:
    """Each operator that has samples occurs in as many programs as give each one turn."""
    types = set(samples_by_type())
    left = set(types)
    for number in range(-(-len(types) // OPERATORS_PER_PROGRAM)):
        left -= generate(SEED, number, ALL).recipe.types()
    assert not left


def test_a_program_depends_on_seed_and_number_alone() -> None:
    """It is the same in whatever order programs are made: seed ranges may run in several processes."""
    first = generate(3, 7, ALL).recipe
    for number in (1, 2):
        generate(3, number, ALL)
    again = generate(3, 7, ALL).recipe
    assert (again.steps, again.fetches, again.targets) == (first.steps, first.fetches, first.targets)
    for mine, other in zip(again.runs, first.runs, strict=True):
        assert {n: a.tobytes() for n, a in mine.items()} == {n: a.tobytes() for n, a in other.items()}
    assert generate(4, 7, ALL).recipe.steps != first.steps


def test_the_command_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--place", "cpu", "--seed", "1", "--count", "2", "--operators"]) == 0
    out = capsys.readouterr().out
    assert "2 programs" in out and "; 0 findings" in out and "elementwise_" in out
