"""Convolution: a number that is none stays in its group."""

from __future__ import annotations

import numpy as np
import pytest

import fluidlite as fluid

PLACES = [(place, None) for place in map(str, fluid.places()) if not place.startswith("fpga")]


@pytest.mark.parametrize(("place", "library"), [*PLACES, ("cpu:0", "plain")])
@pytest.mark.parametrize("type", ["conv2d", "depthwise_conv2d", "conv2d_transpose", "depthwise_conv2d_transpose"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("slot", ["x", "w"])
def test_groups_do_not_see_each_other(place: str, library: str | None, type: str, number: float, slot: str) -> None:
    program = fluid.Program()
    block = program.global_block()
    dims = {"x": (1, 3, 4, 4), "w": (3, 1, 2, 2)}
    x, w = (block.create_var(name, dims[name], "float32", is_data=True, stop_gradient=False) for name in "xw")
    out = block.create_var("out")
    block.append_op(type, {"Input": x, "Filter": w}, {"Output": out}, {"groups": 3})
    (grad,) = fluid.gradients([out], [x])
    feed = {name: np.random.default_rng(3).uniform(0.5, 1, size).astype("float32") for name, size in dims.items()}
    exe = fluid.Executor(place, libraries={"cpu": [library]} if library else None)
    expected = exe.run(program, feed, [out, grad])
    feed[slot][0, 0, 0, 0] = feed[slot][1 if slot == "w" else 0, 0, 1, 1] = number
    found = exe.run(program, feed, [out, grad])
    group = slice(2, 3) if slot == "w" else slice(1, 3)
    for before, after in zip(expected, found, strict=True):
        np.testing.assert_allclose(after[:, group], before[:, group], 1e-6)
    assert not np.isfinite(found[0]).all()
