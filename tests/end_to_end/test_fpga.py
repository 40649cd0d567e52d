"""The fpga's own command log against explain, and what happens when its process dies."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid

layers = fluid.layers
KERNELS = {
    "matmul": "matmul", "mean": "reduce", "softmax_with_cross_entropy": "softmax_cross_entropy",
    "softmax_with_cross_entropy_grad": "softmax_cross_entropy_grad",
}  # fmt: skip
"""The board's name of operators that it has; of others it is the vector unit."""


@pytest.fixture(autouse=True)
def board(require: Callable[..., None]) -> None:
    require("fpga")
    fluid.set_fallback("allow")


def launched() -> list[dict[str, Any]]:
    import fluidlite_fpga

    moves = ("allocate", "release", "copy_in", "copy_out", "copy_within")
    return [entry for entry in fluidlite_fpga.command_log() if entry["command"] not in moves]


def native(report: Any) -> list[str]:
    """What explain says the board will launch, in order."""
    found = []
    for row in report.data():
        parts = row["parts"] or [row]
        found += [KERNELS.get(part["op"], "vector") for part in parts if part["library"] == "fpgann"]
    return found


def test_the_log_of_a_training_step_is_explains_native_lines() -> None:
    import fluidlite_fpga

    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, label = layers.data("x", [6]), layers.data("label", [1], dtype="int64")
        logits = layers.fc(layers.fc(x, 8, act="relu"), 3)
        loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor("fpga:0")
        exe.run(startup)
        feed = {"x": np.ones((4, 6), "float32"), "label": np.zeros((4, 1), "int64")}
        for _ in range(2):
            fluidlite_fpga.clear_command_log()
            before = fluid.explain(main, "fpga:0", {"x": (4, 6), "label": (4, 1)}, [loss])
            exe.run(main, feed, [loss])
            found = launched()
            assert [entry["command"] for entry in found] == native(before) == native(exe.explain_last())
    products = [entry["dims"] for entry in found if entry["command"] == "matmul"]
    # forward: [4, 6] [6, 8] and [4, 8] [8, 3]; backward: dW of both layers and dX of the second
    assert len(products) == 5
    programs = [entry["program"] for entry in found if entry["command"] == "vector"]
    assert programs.count("x0 0 max") == 1
    assert programs.count("x0 x1 +") == 2
    rows = exe.explain_last().data()
    hows = {row["op"]: row["how"] for row in rows}
    assert hows["relu"] == "native"
    assert hows["mul"] == "decomposed"
    assert hows["matmul"] == "native"  # each gradient of a product is one
    assert hows["softmax_with_cross_entropy"] == "native"
    assert all(row["refused"] for row in rows if row["how"] == "fallback")


def test_the_copies_of_the_log_are_the_contexts_counts() -> None:
    import fluidlite_fpga

    from fluidlite.platform.context_pool import get_context

    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = layers.data("x", [4])
        y = layers.relu(layers.sin(layers.relu(x)))
    exe = fluid.Executor("fpga:0")
    feed = {"x": np.ones((3, 4), "float32")}
    exe.run(main, feed, [y])
    fluidlite_fpga.clear_command_log()
    get_context("fpga:0").counts.reset()
    exe.run(main, feed, [y])
    commands = [entry["command"] for entry in fluidlite_fpga.command_log()]
    counts = get_context("fpga:0").counts
    assert (commands.count("copy_in"), commands.count("copy_out")) == (counts.copy_in, counts.copy_out) == (2, 2)


def test_the_processs_death_is_a_clear_error_and_other_places_go_on() -> None:
    code = """
    import json, os, signal, subprocess
    import numpy as np
    import fluidlite as fluid
    fluid.set_fallback("allow")
    layers = fluid.layers
    x = layers.data("x", [64])
    y = layers.fc(x, 64, act="relu")
    exe, scope = fluid.Executor("fpga:0"), fluid.Scope()
    exe.run(fluid.default_startup_program(), scope=scope)
    feed = {"x": np.ones((8, 64), "float32")}
    exe.run(feed=feed, fetch_list=[y], scope=scope)
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    assert len(children) == 1, children
    def kill(op, seen):
        if op.type == "mul":
            os.kill(int(children[0]), signal.SIGKILL)
    texts = []
    with fluid.debug(on_op=kill):
        try:
            exe.run(feed=feed, fetch_list=[y], scope=scope)
        except fluid.FluidError as error:
            texts.append(f"{type(error).__name__}: {error}")
    for attempt in (lambda: exe.run(feed=feed, fetch_list=[y], scope=scope), lambda: fluid.memory.alloc("fpga", 10)):
        try:
            attempt()
        except fluid.FluidError as error:
            texts.append(f"{type(error).__name__}: {error}")
    cpu, scope = fluid.Executor("cpu"), fluid.Scope()
    cpu.run(fluid.default_startup_program(), scope=scope)
    shape = cpu.run(feed=feed, fetch_list=[y], scope=scope)[0].shape
    print(json.dumps([texts, shape]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    texts, shape = json.loads(done.stdout.splitlines()[-1])
    assert shape == [8, 64]
    assert len(texts) == 3
    for text in texts:
        assert text.startswith("DeviceLost: ")
        assert "fpga:0" in text
    assert "is lost" in texts[1]
