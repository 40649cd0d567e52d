"""Several processes that mpirun starts: collective operators, training, and what happens when one fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from forks import Forks

import fluidlite as fluid
from fluidlite.distributed import shared_memory
from fluidlite.distributed.machine import free_processors

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_every_operator(mpirun: Run) -> None:
    """As it is here, and with processors that are free, with others, and where processes do not see one memory."""
    places = [str(place) for place in fluid.places() if place.kind != "cuda"]
    done = mpirun(3, "mpi_collectives.py", *places)
    assert done.returncode == 0, done.stderr
    for how in ("facts", "a thread", "no shared memory", "shared memory"):
        assert done.stdout.count(f"of 3 by {how}: all equal") == 3, how
        assert how == "facts" or done.stdout.count(f"of 3, on all kinds of places by {how}: all equal") == 3, how


@pytest.mark.skipif(not shared_memory.available(), reason="needs files without names, and stores in their order")
def test_memory_that_processes_share(mpirun: Run) -> None:
    done = mpirun(3, "mpi_shared.py", "all")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of 3: all equal") == 3


@pytest.mark.skipif(not shared_memory.available(), reason="needs files without names, and stores in their order")
def test_processes_that_reduce_other_numbers_are_told(mpirun: Run) -> None:
    done = mpirun(2, "mpi_shared.py", "other")
    assert done.returncode != 0
    assert (
        "the members do different operations: member 0 the sum of 3 float32, member 1 the sum of 4 float32"
        in done.stdout
    )


def test_a_processor_is_free_where_each_process_has_two() -> None:
    class Local:
        """The affinities that the processes of a machine tell."""

        def __init__(self, *affinities: list[int]) -> None:
            self.affinities = list(affinities)

        def allgather(self, mine: object) -> list[list[int]]:
            return self.affinities

        def Get_size(self) -> int:
            return len(self.affinities)

    assert free_processors(Local([0, 1]))
    assert not free_processors(Local([0, 1], [0, 1]))
    assert free_processors(Local([0, 1, 2, 3], [0, 1, 2, 3]))
    assert free_processors(Local([0, 1], [2, 3]))
    assert not free_processors(Local([0], [1]))


def test_three_processes_train_to_the_losses_of_one_with_the_whole_batch(
    mpirun: Run, forks: Forks, tmp_path: Path
) -> None:
    """By a network, by a program that Executor.run takes compiled, and by one whose gradients are rows of a table."""
    alone = forks(Path(__file__).with_name("mpi_training.py"), "cpu", "")
    assert alone.returncode == 0, alone.stderr
    done = mpirun(3, "mpi_training.py", "cpu", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for found, wanted in zip(json.loads(done.stdout), json.loads(alone.stdout), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        assert wanted[-1] < 0.6 * wanted[0]


@pytest.mark.parametrize(
    ("how", "messages"),
    [
        ("raise", ["ValueError: bad batch", "process 1 of 3 ended by ValueError: bad batch, while process"]),
        ("early", ["process 1 of 3 ended by ValueError: its part of the data is missing, while process"]),
        ("kill", ["KILLED BY SIGNAL|EXIT CODE: 9|Killed|signal 9"]),
        ("exit", ["process 1 of 3 left, while process"]),
        ("programs", ["of member 1 of 3 is not that of member 0"]),
    ],
)
def test_a_process_that_fails_ends_the_others(mpirun: Run, how: str, messages: list[str]) -> None:
    done = mpirun(3, "mpi_faults.py", how)  # for less time than they would wait for it
    assert done.returncode != 0
    assert "never" not in done.stdout
    text = done.stdout + done.stderr
    for message in messages:
        assert any(part in text for part in message.split("|")), text


def test_a_process_that_does_not_come_is_waited_for_no_longer_than_said(
    mpirun: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUIDLITE_COLLECTIVE_TIMEOUT", "3")
    done = mpirun(2, "mpi_faults.py", "hang")
    assert done.returncode != 0
    assert "waited 3 s for a barrier, and not all came" in done.stderr


def test_seconds_that_are_none_are_refused(mpirun: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUIDLITE_COLLECTIVE_TIMEOUT", "soon")
    done = mpirun(2, "mpi_faults.py", "none")
    assert done.returncode != 0
    assert "FLUIDLITE_COLLECTIVE_TIMEOUT is 'soon'; expected seconds above 0" in done.stderr


def test_without_mpi4py_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from fluidlite.distributed import mpi
    from fluidlite.distributed.groups import world

    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setattr(mpi, "_world", None)
    with pytest.raises(fluid.errors.MissingExtraError, match=r"fluidlite\[mpi\]"):
        world()


def test_alone_nothing_of_mpi_is_imported() -> None:
    code = (
        "import sys, fluidlite as fluid\nfrom fluidlite import nn\n"
        "n = nn.Network([2], loss='squared_error', optimizer=fluid.optimizer.SGD(0.1), distributed=True)\n"
        "n.add_layer(nn.Dense(1)); n.set_up(); print(n.group.size, 'mpi4py' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1 False\n"
