"""Kills saves of a small model, and says what each left: run by test_saved_folders, or by hand with more kills.

``python tests/unit/kill_saves.py KILLS SEED [FILENAME]``
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fluidlite import io
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope, global_scope, scope_guard

NAMES = [f"w_{number}" for number in range(6)]
EXECUTOR: Any = SimpleNamespace(place="cpu")
STEPS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.scandir"}
"""Audit events in front of which :func:`dies_at` ends a save."""


def program(targets: int) -> tuple[Program, list[Any]]:
    """A model whose program also differs from one generation to the next."""
    made = Program()
    block = made.global_block()
    for name in NAMES:
        block.create_parameter(name, [64, 64], "float32")
    found = []
    for number in range(len(NAMES) - targets, len(NAMES)):
        out = block.create_var(f"out_{number}")
        block.append_op("scale", {"X": NAMES[number]}, {"Out": out})
        found.append(out)
    for number in range(len(NAMES) - targets):  # all of them are used, and saved
        block.append_op("elementwise_add", {"X": found[0], "Y": NAMES[number]}, {"Out": found[0]})
    return made, found


def save(folder: Path, generation: int, filename: str | None) -> None:
    """Save values that all are ``generation``, with a program that fetches one target or two."""
    made, targets = program(1 + generation % 2)
    with scope_guard(Scope()):
        for name in NAMES:
            global_scope().var(name).get_tensor().set(np.full((64, 64), generation, "float32"), "cpu")
        io.save_inference_model(folder, [], targets, EXECUTOR, made, params_filename=filename)


def load(folder: Path, filename: str | None) -> int:
    """The generation that a folder holds.

    Raises
    ------
    AssertionError
        If it holds a mixture.
    """
    with scope_guard(Scope()):
        _, _, targets = io.load_inference_model(folder, EXECUTOR, params_filename=filename)
        found = set()
        for name in NAMES:
            variable = global_scope().find_var(name)
            assert variable is not None
            found |= set(np.unique(variable.get_tensor().numpy()).tolist())
    assert len(found) == 1, f"a mixture of {found}"
    (generation,) = found
    assert len(targets) == 1 + int(generation) % 2, f"values {generation} with a program of {len(targets)} targets"
    return int(generation)


def dies_at(step: int, folder: Path, generation: int, filename: str | None) -> bool:
    """Save in a child process that ends in front of its ``step``-th action on files; False if it had fewer."""
    child = os.fork()
    if not child:
        count = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if event in STEPS:
                count += 1
                if count == step:
                    os._exit(9)

        sys.addaudithook(hook)
        save(folder, generation, filename)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def killed(folder: Path, first: int, seconds: float, filename: str | None) -> None:
    """Save one generation after another in a child process, and kill it after a while."""
    child = os.fork()
    if not child:
        generation = first
        while True:
            save(folder, generation, filename)
            generation += 1
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def main(kills: int, seed: int, filename: str | None) -> None:
    """End saves in front of each action, then kill others at random moments; raise if one left a mixture."""
    names = {"__manifest__", "__model__", *([filename] if filename else [f"{name}.safetensors" for name in NAMES])}
    outcomes = {True: 0, False: 0}
    with tempfile.TemporaryDirectory() as root:
        step = 1
        while True:
            folder = Path(root) / f"step_{step}"
            save(folder, 1, filename)
            died = dies_at(step, folder, 2, filename)
            generation = load(folder, filename)
            assert generation in (1, 2)
            outcomes[generation == 2] += died
            again = dies_at(step, folder, 3, filename)  # and a kill while the next save ends the one before
            assert load(folder, filename) in (generation, 3)
            save(folder, 4, filename)
            assert load(folder, filename) == 4
            assert {path.name for path in folder.iterdir()} == names
            if not died and not again:
                break
            step += 1
        assert outcomes[True] and outcomes[False], outcomes
        folder, chance = Path(root) / "random", random.Random(seed)
        began = time.monotonic()
        save(folder, 1, filename)
        usual = time.monotonic() - began
        generation = 1
        for _ in range(kills):
            killed(folder, generation + 1, chance.uniform(0, 2 * usual), filename)
            found = load(folder, filename)
            assert found >= generation, f"{found} after {generation}"
            generation = found
        save(folder, generation + 1, filename)
        assert {path.name for path in folder.iterdir()} == names
    print(f"{step} steps: {outcomes[False]} old, {outcomes[True]} new")
    print(f"{kills} kills at random moments, seed {seed}: {generation} generations, 0 mixtures")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
