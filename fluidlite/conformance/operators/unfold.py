from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from fluidlite.conformance.operators.conv_common import windows
from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


def _sample(name: str, x: Any, *sizes: Any, dtypes: tuple[str, ...] = ("float32",)) -> Sample:
    attrs = dict(zip(("kernel_sizes", "strides", "paddings", "dilations"), sizes, strict=True))
    return Sample({"X": x}, attrs, ("X",) if 0 < x.size < 500 else (), name=name, dtypes=dtypes)


@register_samples(
    "unfold",
    samples=lambda: [
        _sample("plain", rand(2, 3, 4, 5), [2, 2], [1, 1], [0, 0, 0, 0], [1, 1], dtypes=EVERY),
        _sample("padded", rand(1, 2, 4, 5), [3, 3], [1, 1], [1, 1, 1, 1], [1, 1], dtypes=EVERY),
        _sample("strides", rand(2, 2, 7, 5), [3, 2], [2, 3], [0, 1, 0, 1], [1, 1], dtypes=WIDE),
        _sample("uneven", rand(1, 2, 4, 5), [2, 3], [1, 2], [2, 0, 1, 3], [1, 1]),
        _sample("dilated", rand(1, 2, 7, 8), [2, 3], [2, 1], [1, 2, 0, 1], [3, 2], dtypes=WIDE),
        _sample("gaps", rand(1, 1, 7, 7), [1, 1], [3, 2], [0, 0, 0, 0], [1, 1]),
        _sample("all_padding", rand(1, 1, 1, 1), [2, 2], [1, 1], [2, 2, 2, 2], [1, 1]),
        _sample("whole", rand(2, 1, 3, 4), [3, 4], [1, 1], [0, 0, 0, 0], [1, 1]),
        _sample("large", rand(2, 3, 30, 41), [3, 3], [1, 1], [1, 1, 1, 1], [1, 1], dtypes=WIDE),
        _sample("no_images", rand(0, 3, 4, 4), [2, 2], [2, 2], [0, 0, 0, 0], [1, 1]),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, (up, left, down, right) = inputs["X"], attrs["paddings"]
    padded = np.pad(x, ((0, 0), (0, 0), (up, down), (left, right)))
    parts, counts = windows(padded, attrs["kernel_sizes"], attrs["strides"], attrs["dilations"])
    return {"Y": parts.reshape(x.shape[0], x.shape[1] * prod(attrs["kernel_sizes"]), prod(counts))}
