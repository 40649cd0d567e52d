"""A training of six steps with random operators; or of three, and three more in another process.

    python resumed_training.py FOLDER WAY PLACE MODE FROM TO

It begins anew at FROM 0, else with what was saved into the folder; what is fetched is printed as hexadecimal digits.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite import layers


def build() -> tuple[fluid.Program, fluid.Program, list[Any]]:
    """A network with dropout, noise in a loop, numbers of the optimiser, and one that fixes its own seed."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed, startup.random_seed = 5, 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = layers.data("x", [4])
        hidden = layers.dropout(layers.fc(x, 12, act="relu"), 0.4)
        noise = layers.uniform_random([1, 12], min=-0.1, max=0.1)
        fixed = layers.gaussian_random([1, 12], seed=9)
        hidden = layers.elementwise_add(layers.elementwise_add(hidden, layers.reshape(noise, [12])), fixed)
        count = layers.fill_constant([1], "int64", 0)
        two = layers.fill_constant([1], "int64", 2)
        summed = layers.fill_constant([1, 3], "float32", 0.0)
        again = layers.less_than(count, two)
        loop = layers.While(again)
        with loop.block():
            layers.assign(layers.elementwise_add(summed, layers.gaussian_random([1, 3])), summed)
            layers.increment(count, in_place=True)
            layers.less_than(count, two, cond=again)
        loss = layers.mean(layers.fc(hidden, 1))
        fluid.optimizer.Dpsgd(0.1, clip=10.0, batch_size=4.0, sigma=0.5).minimize(loss)
    return main, startup, [loss, noise, summed, "fc_0.w_0"]


def compiled(program: fluid.Program, way: str, fetches: list[Any]) -> Any:
    """What runs: the program, or the program on two places."""
    if way != "members":
        return program
    return fluid.CompiledProgram(program).with_data_parallel(fetches[0].name, places=[fluid.CPUPlace()] * 2)


def save(way: str, exe: Any, folder: str, main: fluid.Program) -> None:
    """Save all that the program keeps."""
    if way in ("save", "paddle save"):
        fluid.save(main, f"{folder}/model", format="paddle" if " " in way else "fluidlite")
    else:
        fluid.io.save_persistables(exe, folder, main, "values" if way == "one file" else None)


def load(way: str, exe: Any, folder: str, main: fluid.Program) -> None:
    """Load it."""
    if way in ("save", "paddle save"):
        fluid.load(main, f"{folder}/model", exe)
    else:
        fluid.io.load_persistables(exe, folder, main, "values" if way == "one file" else None)


def train(folder: str, way: str, place: str, mode: str, start: int, stop: int) -> list[bytes]:
    """Run steps from ``start`` on; save after the third of ``stop`` 3. Return what they fetched."""
    main, startup, fetches = build()
    exe, found = fluid.Executor(place, mode=mode), []
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        if start:
            load(way, exe, folder, main)
        program = compiled(main, way, fetches)
        for step in range(start, stop):
            x = np.random.RandomState(step).rand(4, 4).astype("float32")
            found += [each.tobytes() for each in exe.run(program, {"x": x}, fetches)]
        if stop == 3:
            save(way, exe, folder, main)
    return found


if __name__ == "__main__":
    *names, begin, end = sys.argv[1:]
    print(*[each.hex() for each in train(names[0], names[1], names[2], names[3], int(begin), int(end))], sep="\n")
