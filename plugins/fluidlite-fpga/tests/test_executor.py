"""Fluid 1.x programs on ``fpga:0``, run by an Executor."""

from __future__ import annotations

from typing import Any

import fluidlite as fluid
import numpy as np

import fluidlite_fpga

PLACE = "fpga:0"


def kernels_run() -> list[str]:
    """Names of the kernels that the board has executed since the log was cleared."""
    moves = ("allocate", "release", "copy_in", "copy_out", "copy_within")
    return [entry["command"] for entry in fluidlite_fpga.command_log() if entry["command"] not in moves]


def build(train: bool) -> tuple[Any, Any, Any, Any]:
    """Return main program, startup program, prediction and loss of a two-layer network."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup):
        x = fluid.layers.data("x", shape=[6], dtype="float32")
        label = fluid.layers.data("label", shape=[1], dtype="float32")
        hidden = fluid.layers.fc(x, size=8, act="relu")
        prediction = fluid.layers.fc(hidden, size=1)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(prediction, label))
        if train:
            fluid.optimizer.SGD(learning_rate=0.05).minimize(loss)
    return main, startup, prediction, loss


def batch() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((16, 6)).astype("float32")
    return {"x": x, "label": x.sum(axis=1, keepdims=True)}


def test_places_lists_the_board() -> None:
    assert any(str(place) == PLACE for place in fluid.places())


def test_prediction_is_computed_on_the_board() -> None:
    main, startup, prediction, _ = build(train=False)
    results = []
    for place in ("cpu:0", PLACE):
        with fluid.scope_guard(fluid.Scope()):
            executor = fluid.Executor(place)
            executor.run(startup)
            fluidlite_fpga.clear_command_log()
            results += executor.run(main, feed=batch(), fetch_list=[prediction])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)
    assert kernels_run() == ["matmul", "vector", "vector", "matmul", "vector"]


def test_training_descends_on_the_board_alone() -> None:
    main, startup, _, loss = build(train=True)
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(PLACE, fallback="error")
        executor.run(startup)
        losses = [executor.run(main, feed=batch(), fetch_list=[loss])[0].item() for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_explain_names_the_kernels_and_the_fallbacks() -> None:
    main, _, _, _ = build(train=False)
    with fluid.program_guard(main, fluid.Program()):
        fluid.layers.sin(main.global_block().var("x"))
    text = str(fluid.explain(main, PLACE, feed={"x": (16, 6), "label": (16, 1)}))
    assert "fpgann" in text
    assert "native" in text
    assert "fallback" in text


def test_the_place_has_a_name_of_its_own() -> None:
    assert fluid.FPGAPlace(0) == fluid.Place("fpga", 0)
    executor = fluid.Executor(fluid.FPGAPlace(0))
    assert str(executor.place) == PLACE
