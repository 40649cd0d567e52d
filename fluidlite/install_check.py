"""``fluid.install_check``: a small training on each place."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fluidlite import layers, optimizer, unique_name
from fluidlite.base.errors import FluidError
from fluidlite.executor import Executor
from fluidlite.initializer import Constant
from fluidlite.param_attr import ParamAttr
from fluidlite.platform.device_registry import devices
from fluidlite.program.program import Program, program_guard
from fluidlite.program.scope import Scope, scope_guard

__all__ = ["run_check"]


def _trains_correctly(place: Any) -> bool:
    """Whether two training steps on the place give the exact result."""
    with program_guard(Program(), startup := Program()), scope_guard(Scope()), unique_name.guard():
        x = layers.data("x", [2])
        out = layers.fc(x, 1, param_attr=ParamAttr(initializer=Constant(0.5)), bias_attr=False)
        loss = layers.mean(out)
        optimizer.SGD(0.25).minimize(loss)
        exe = Executor(place)
        exe.run(startup)
        feed = {"x": np.asarray([[2.0, 4.0]], "float32")}
        losses = [float(np.ravel(exe.run(loss.block.program, feed=feed, fetch_list=[loss])[0])[0]) for _ in range(2)]
    return losses == [3.0, 3.0 - 0.25 * (4 + 16)]


def run_check() -> None:
    """Train a small program on each place, and print whether it worked.

    Raises
    ------
    FluidError
        If the host's place does not work.
    """
    broken = []
    for place in devices.places():
        try:
            why = "" if _trains_correctly(place) else ": wrong numbers"
        except FluidError as exc:
            why = f": {exc}"
        sys.stdout.write(f"{place}: {'works' if not why else 'does not work' + why}\n")
        if why and place == devices.host():
            broken.append(why)
    if broken:
        raise FluidError(f"fluidlite does not work on {devices.host()}{broken[0]}")
    sys.stdout.write("fluidlite is installed successfully.\n")
