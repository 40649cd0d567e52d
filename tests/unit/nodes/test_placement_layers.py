"""device_view and device_transfer in programs: numbers and gradients, and where values lie."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import ProgramError

X = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")
PLACES = [str(place) for place in fluid.places() if place.kind in ("cpu", "opencl", "fpga", "cuda")]
PAIRS = list(itertools.product(PLACES, repeat=2))


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize("home, other", PAIRS)
def test_a_program_over_two_places(home: str, other: str, mode: str) -> None:
    x = layers.data("x", [3, 4], append_batch_size=False)
    x.stop_gradient = False
    moved = layers.device_transfer(layers.tanh(x), other)
    with fluid.device_guard(other):
        y = layers.exp(layers.device_view(moved, other))
    back = layers.device_view(layers.device_transfer(y, home), home)
    loss = layers.reduce_sum(back * back)
    (grad,) = fluid.gradients([loss], [x])
    exe = fluid.Executor(home, mode=mode)
    for _ in range(3):
        found, slope = exe.run(feed={"x": X}, fetch_list=[loss, grad])
        t = np.tanh(X.astype("float64"))
        np.testing.assert_allclose(found, np.exp(2 * t).sum(), rtol=1e-5)
        np.testing.assert_allclose(slope, 2 * np.exp(2 * t) * (1 - t * t), rtol=1e-5)
    moved_to = [(str(move.source), str(move.target)) for move in exe.explain_last().plan.moves]
    assert ((home, other) in moved_to) == (home != other)
    assert ((other, home) in moved_to) == (home != other)


def test_a_view_of_another_memory_is_refused() -> None:
    for home, other in PAIRS:
        if home == other:
            continue
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            x = layers.data("x", [3, 4], append_batch_size=False)
            there = layers.device_transfer(layers.tanh(x), other)
            for value, place, lies in ((there, home, other), (layers.tanh(x), other, home)):
                y = layers.device_view(value, place)
                exe = fluid.Executor(home)
                with pytest.raises(ProgramError) as caught:
                    exe.run(feed={"x": X}, fetch_list=[y])
                text = str(caught.value)
                assert f"which lies on {lies}; expected on {place}" in text
                assert "test_placement_layers.py" in text
                assert f"layers.device_transfer copies it to {place}" in text
            assert exe.run(feed={"x": X}, fetch_list=[there])[0].shape == (3, 4)  # the next run works


def test_a_view_of_state_and_feeds_lies_at_home(place: str) -> None:
    state = layers.create_global_var([2], 3.0, "float32", persistable=True, name="held")
    x = layers.data("x", [2], append_batch_size=False)
    y = layers.device_view(x, place) + layers.device_view(state, place)
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    assert exe.run(feed={"x": np.float32([1, 2])}, fetch_list=[y])[0].tolist() == [4, 5]


def test_no_such_place() -> None:
    x = layers.data("x", [2], append_batch_size=False)
    for layer in (layers.device_view, layers.device_transfer):
        with pytest.raises(fluid.FluidError, match="is not a place kind"):
            layer(x, "Nowhere")
        y = layer(x, "nowhere")
        with pytest.raises(fluid.FluidError, match="no device serves place 'nowhere:0'"):
            fluid.Executor("cpu").run(feed={"x": np.float32([1, 2])}, fetch_list=[y])
