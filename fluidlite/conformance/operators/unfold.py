from __future__ import annotations

from typing import Any

import numpy as np

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
    x, (kh, kw), (sh, sw), (dh, dw) = inputs["X"], attrs["kernel_sizes"], attrs["strides"], attrs["dilations"]
    up, left, down, right = attrs["paddings"]
    padded = np.pad(x, ((0, 0), (0, 0), (up, down), (left, right)))
    windows = []
    for top in range(0, padded.shape[2] - dh * (kh - 1), sh):
        for side in range(0, padded.shape[3] - dw * (kw - 1), sw):
            window = padded[:, :, top : top + dh * (kh - 1) + 1 : dh, side : side + dw * (kw - 1) + 1 : dw]
            windows.append(window.reshape(x.shape[0], x.shape[1] * kh * kw))
    return {"Y": np.stack(windows, axis=-1)}
