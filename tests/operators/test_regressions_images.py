"""Operators on images: no instance at all, and sizes that are none."""

from __future__ import annotations

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import ShapeError
from fluidlite.conformance.samples import Sample
from fluidlite.program.registry import ops
from fluidlite.testing import Case, check_sample

PLACES = [place for place in map(str, fluid.places()) if not place.startswith("fpga")]


@pytest.mark.parametrize("place", PLACES)
def test_a_crop_of_no_instances(place: str) -> None:
    inputs = {"X": np.zeros((0, 3, 9, 8), "float32"), "Seed": np.array([11])}
    check_sample(Case(ops.get("random_crop"), Sample(inputs, {"shape": [3, 5, 4]}), "none", "float32"), place)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", [np.nan, np.inf, -1.0, 1e12])
def test_sizes_of_images(place: str, size: float) -> None:
    program = fluid.Program()
    block = program.global_block()
    x, y = (
        block.create_var(name, dims, "float32", is_data=True) for name, dims in (("x", [2, 1, 4, 4]), ("y", [2, 2]))
    )
    out = block.create_var("out")
    block.append_op("im2sequence", {"X": x, "Y": y}, {"Out": out}, {"kernels": [2, 2]})
    feed = {"x": np.zeros((2, 1, 4, 4), "float32"), "y": np.array([[4, 4], [4, size]], "float32")}
    with pytest.raises(ShapeError, match=r"Y is .*sizes of images"):
        fluid.Executor(place).run(program, feed, [out])
