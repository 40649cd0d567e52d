"""grid_sampler: an image read at any places, each from the four pixels around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import GradRule, Sample
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, agree, grad_inputs, grad_like, grad_outputs, like, same_dtype
from fluidlite.operators.samples import WIDE, rand


def _infer(call: Call) -> Inferred:
    x, grid = call.spec("X"), call.dims("Grid")
    same_dtype(call, "Grid", "X")
    call.need(x.rank == 4, "X", "[images, channels, height, width]")
    call.need(0 not in x.dims[2:], "X", "images with a pixel or more")
    call.need(len(grid) == 4 and agree(grid[3], 2), "Grid", "[images, rows, columns, 2]: x and y of each place")
    if not agree(grid[0], x.dims[0]):
        call.fail("Grid", f"{x.dims[0]} images, as X")
    return {"Output": like(x, (x.dims[0] if x.dims[0] >= 0 else grid[0], x.dims[1], *grid[1:3]))}


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, grid = inputs["X"], inputs["Grid"]
    height, width = x.shape[2:]
    out = np.zeros((*x.shape[:2], *grid.shape[1:3]))
    for n, i, j in np.ndindex(grid.shape[:3]):
        column, row = (grid[n, i, j] + 1) / 2 * (width - 1, height - 1)
        for h in range(height):
            for w in range(width):  # a pixel counts by how near it is, in each direction
                out[n, :, i, j] += x[n, :, h, w] * max(0, 1 - abs(row - h)) * max(0, 1 - abs(column - w))
    return {"Output": out}


def _places(images: int, rows: int, columns: int, height: int, width: int, seed: int = 3) -> Any:
    """Return places between pixels, some of them outside, none of them near a pixel's row or column."""
    rng = np.random.default_rng(seed)
    found = [
        rng.integers(-2, size + 1, (images, rows, columns)) + rng.uniform(0.2, 0.8, (images, rows, columns))
        for size in (width, height)
    ]
    scaled = [2 * places / max(size - 1, 1) - 1 for places, size in zip(found, (width, height), strict=True)]
    return np.asarray(np.stack(scaled, axis=-1), "float32")


_READS = ("X", "Grid", "Output@GRAD")
_BOTH = ("X", "Grid")

register_op(
    "grid_sampler",
    inputs=_BOTH,
    outputs=("Output",),
    infer=_infer,
    grad=GradRule("grid_sampler_grad", _READS, _BOTH),
    dtypes={"X": FLOATS, "Grid": FLOATS},
    reference=_reference,
    samples=lambda: [
        Sample({"X": rand(2, 3, 4, 5), "Grid": _places(2, 4, 5, 4, 5)}, {}, _BOTH, name="images", dtypes=WIDE),
        Sample({"X": rand(1, 2, 3, 4), "Grid": _places(1, 2, 6, 3, 4)}, {}, _BOTH, name="other_size"),
        Sample({"X": rand(1, 2, 1, 3), "Grid": _places(1, 2, 2, 1, 3)}, {}, ("X",), name="line"),
        Sample({"X": rand(1, 1, 3, 3), "Grid": np.zeros((1, 2, 2, 2), "float32") + 1}, {}, ("X",), name="last_pixel"),
        Sample({"X": rand(1, 2, 9, 12), "Grid": rand(1, 12, 13, 2, low=-1.1, high=1.1)}, {}, name="anywhere"),
        Sample({"X": rand(0, 2, 3, 4), "Grid": rand(0, 3, 4, 2)}, {}, name="no_images"),
    ],
    doc="Output[n, :, i, j] = X[n] at x = (Grid[n, i, j, 0] + 1) / 2 (width - 1) and y likewise, from the four pixels "
    "around it; 0 outside",
    source="Fluid grid_sampler_op.cc",
)

register_op(
    "grid_sampler_grad",
    inputs=grad_inputs(*_READS),
    outputs=grad_outputs(*_BOTH),
    infer=grad_like(*_BOTH),
    kernel_dtype="Output@GRAD",
    doc="X@GRAD = the sum of Output@GRAD with the weights of its pixels; Grid@GRAD = Output@GRAD times the differences "
    "of neighbouring pixels",
)
