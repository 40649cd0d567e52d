"""Pooling: windows that lie in the padding altogether."""

from __future__ import annotations

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.conformance.samples import Sample
from fluidlite.program.registry import ops
from fluidlite.testing import Case, check_sample

PLACES = [place for place in map(str, fluid.places()) if not place.startswith("fpga")]
X = np.arange(4, dtype="float32").reshape(1, 1, 2, 2)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_every_window_in_the_padding(place: str, dtype: str) -> None:
    attrs = {"pooling_type": "avg", "ksize": [1, 4], "strides": [4, 1], "paddings": [2, 1, 0, 2], "exclusive": False,
             "ceil_mode": True}  # fmt: skip
    check_sample(Case(ops.get("pool2d"), Sample({"X": X}, attrs), "padding", dtype), place)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("indexed", [False, True])
def test_the_greatest_of_nothing_is_the_lowest_number(place: str, indexed: bool) -> None:
    attrs = {"ksize": [1, 1], "strides": [1, 1], "paddings": [1, 0]}
    program = fluid.Program()
    block = program.global_block()
    x, out, mask = block.create_var("x", X.shape, "float32", is_data=True), *map(block.create_var, ("out", "mask"))
    if indexed:
        block.append_op("max_pool2d_with_index", {"X": x}, {"Out": out, "Mask": mask}, attrs)
    else:
        block.append_op("pool2d", {"X": x}, {"Out": out}, {**attrs, "pooling_type": "max"})
    found = fluid.Executor(place).run(program, {"x": X}, [out, mask] if indexed else [out])
    lowest = np.finfo("float32").min
    np.testing.assert_array_equal(found[0][0, 0], [[lowest] * 2, [0, 1], [2, 3], [lowest] * 2])
    if indexed:
        np.testing.assert_array_equal(found[1][0, 0], [[-1, -1], [0, 1], [2, 3], [-1, -1]])
