"""Ends saves of a network in front of each of their actions on files, and says what each left.

``python tests/nn/kill_checkpoints.py FOLDER``
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite import nn

STEPS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.scandir"}
"""Audit events in front of which a save ends."""


def network(generation: int) -> nn.Network:
    """A network all of whose values, and whose step, are ``generation``."""
    made = nn.Network([4], optimizer=fluid.optimizer.Momentum(0.1, 0.9), loss="squared_error", seed=5)
    made.add_layer(nn.Dense(3))
    made.add_layer(nn.Dense(2))
    made.set_up()
    for layer in made.layers:
        for parameter in layer.parameters:
            layer.tensor(parameter).set(np.full(parameter.shape, generation, "float32"))
    made.state.step = generation
    return made


def generation_of(folder: Path) -> int:
    """What a folder holds; AssertionError for a mixture."""
    made = network(0)
    made.load(folder)
    found = {float(value) for array in made.parameters().values() for value in np.unique(array)}
    assert found == {float(made.state.step)}, f"values {found} with step {made.state.step}"
    return made.state.step


def dies_at(step: int, folder: Path, generation: int) -> bool:
    """Save in a child that ends in front of its ``step``-th action on files; False if it had fewer."""
    made = network(generation)
    child = os.fork()
    if not child:
        count = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if event in STEPS and str(folder) in str(arguments):
                count += 1
                if count == step:
                    os._exit(9)

        sys.addaudithook(hook)
        made.save(folder)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def main(root: Path) -> None:
    """End a save in front of each action; the folder holds the old network or the new one."""
    outcomes = {1: 0, 2: 0}
    step = 1
    while True:
        folder = root / f"step_{step}"
        network(1).save(folder)
        died = dies_at(step, folder, 2)
        outcomes[generation_of(folder)] += died
        network(3).save(folder)
        assert generation_of(folder) == 3
        names = {path.name for path in folder.iterdir()}
        assert names == {"__manifest__", "network.json", "network.safetensors"}, names
        if not died:
            break
        step += 1
    assert outcomes[1] > 3, outcomes
    assert outcomes[2] > 0, outcomes
    print(f"{step - 1} kills: {outcomes[1]} left the old network whole, {outcomes[2]} the new one")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
