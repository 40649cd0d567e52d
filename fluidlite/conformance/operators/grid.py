from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


@register_samples(
    "affine_grid",
    samples=lambda: [
        Sample({"Theta": rand(2, 2, 3)}, {"output_shape": [2, 3, 4, 5]}, ("Theta",), name="images", dtypes=EVERY),
        Sample({"Theta": rand(1, 2, 3), "OutputShape": np.array([1, 3, 2, 4], "int32")}, {}, ("Theta",), name="tensor"),
        Sample({"Theta": rand(1, 2, 3)}, {"output_shape": [1, 1, 1, 1]}, ("Theta",), name="pixel", dtypes=WIDE),
        Sample({"Theta": rand(0, 2, 3)}, {"output_shape": [0, 3, 4, 5]}, name="no_images"),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    _, _, height, width = inputs["OutputShape"] if "OutputShape" in inputs else attrs["output_shape"]
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    return {"Output": np.einsum("nij,hwj->nhwi", inputs["Theta"], np.stack([x, y, np.ones_like(x)], axis=-1))}
