from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


def _places(images: int, rows: int, columns: int, height: int, width: int) -> Any:
    """Return positions between pixels, some outside, none near a pixel's row or column."""
    rng = np.random.default_rng(3)
    pixels = [
        rng.integers(-2, size + 1, (images, rows, columns)) + rng.uniform(0.2, 0.8, (images, rows, columns))
        for size in (width, height)
    ]
    scaled = [2 * places / max(size - 1, 1) - 1 for places, size in zip(pixels, (width, height), strict=True)]
    return np.asarray(np.stack(scaled, axis=-1), "float32")


_BOTH = ("X", "Grid")


@register_samples(
    "grid_sampler",
    samples=lambda: [
        Sample({"X": rand(2, 3, 4, 5), "Grid": _places(2, 4, 5, 4, 5)}, {}, _BOTH, name="images", dtypes=WIDE),
        Sample({"X": rand(1, 2, 3, 4), "Grid": _places(1, 2, 6, 3, 4)}, {}, _BOTH, name="other_size"),
        Sample({"X": rand(1, 2, 1, 3), "Grid": _places(1, 2, 2, 1, 3)}, {}, ("X",), name="line"),
        Sample({"X": rand(1, 1, 3, 3), "Grid": np.zeros((1, 2, 2, 2), "float32") + 1}, {}, ("X",), name="last_pixel"),
        Sample({"X": rand(1, 2, 9, 12), "Grid": rand(1, 12, 13, 2, low=-1.1, high=1.1)}, {}, name="anywhere"),
        Sample({"X": rand(0, 2, 3, 4), "Grid": rand(0, 3, 4, 2)}, {}, name="no_images"),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, grid = inputs["X"], inputs["Grid"]
    height, width = x.shape[2:]
    out = np.zeros((*x.shape[:2], *grid.shape[1:3]))
    for n, i, j in np.ndindex(grid.shape[:3]):
        column, row = (grid[n, i, j] + 1) / 2 * (width - 1, height - 1)
        across = np.maximum(0, 1 - np.abs(column - np.arange(width)))  # the weight of a pixel by its distance
        out[n, :, i, j] = x[n] @ across @ np.maximum(0, 1 - np.abs(row - np.arange(height)))
    return {"Output": out}
