from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, distinct, rand
from fluidlite.conformance.samples import Sample, register_samples


def _unpooled(n: int, c: int, h: int, w: int, size: int, dtype: str = "int32") -> dict[str, Any]:
    """X, and unique indices of its elements in a plane of ``size``."""
    rng = np.random.default_rng(3)
    places = np.stack([rng.permutation(size)[: h * w] for _ in range(n * c)]).reshape(n, c, h, w)
    return {"X": rand(n, c, h, w), "Indices": places.astype(dtype)}


@register_samples(
    "unpool",
    samples=lambda: [
        Sample(
            _unpooled(2, 3, 3, 2, 24),
            {"ksize": [2, 2], "strides": [2, 2], "unpooling_type": "max"},
            ("X",),
            name="windows",
            dtypes=EVERY,
        ),
        Sample(_unpooled(1, 2, 3, 3, 16), {"ksize": [2, 2], "unpooling_type": "max"}, ("X",), name="overlap"),
        Sample(
            _unpooled(1, 2, 3, 3, 25),
            {"ksize": [3, 3], "strides": [2, 2], "paddings": [1, 1], "unpooling_type": "max"},
            ("X",),
            name="padded",
            dtypes=WIDE,
        ),
        Sample(
            _unpooled(1, 2, 2, 3, 24, "int64"),
            {"ksize": [2, 2], "strides": [2, 2], "unpooling_type": "max"},
            ("X",),
            name="int64",
        ),
        Sample(
            {"X": rand(0, 2, 2, 2), "Indices": np.zeros((0, 2, 2, 2), "int32")},
            {"ksize": [2, 2], "unpooling_type": "max"},
            name="no_images",
        ),
    ],
)
def _reference_unpool(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, indices = inputs["X"], inputs["Indices"]
    numbers = zip(x.shape[2:], attrs["ksize"], attrs["strides"], attrs["paddings"], strict=True)
    out = np.zeros((*x.shape[:2], *((n - 1) * step - 2 * pad + k for n, k, step, pad in numbers)))
    for n, c, h, w in np.ndindex(*x.shape):
        out[n, c].flat[indices[n, c, h, w]] = x[n, c, h, w]
    return {"Out": out}


@register_samples(
    "spp",
    samples=lambda: [
        Sample(
            {"X": distinct(2, 3, 4, 4)}, {"pyramid_height": 3, "pooling_type": "max"}, ("X",), name="max", dtypes=EVERY
        ),
        Sample(
            {"X": distinct(2, 3, 4, 4)}, {"pyramid_height": 2, "pooling_type": "avg"}, ("X",), name="avg", dtypes=EVERY
        ),
        Sample({"X": distinct(1, 2, 7, 5)}, {"pyramid_height": 2, "pooling_type": "max"}, ("X",), name="max_uneven"),
        Sample({"X": distinct(1, 2, 7, 5)}, {"pyramid_height": 2, "pooling_type": "avg"}, ("X",), name="avg_uneven"),
        Sample({"X": distinct(1, 2, 3, 3)}, {"pyramid_height": 1, "pooling_type": "avg"}, ("X",), name="one_level"),
    ],
)
def _reference_spp(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, parts = inputs["X"], []
    images, channels, height, width = x.shape
    for level in range(attrs["pyramid_height"]):
        bins = 2**level
        kh, kw = int(np.ceil(height / bins)), int(np.ceil(width / bins))
        top, left = (kh * bins - height + 1) // 2, (kw * bins - width + 1) // 2
        padded = np.full((images, channels, kh * bins, kw * bins), np.nan)
        padded[:, :, top : top + height, left : left + width] = x
        windows = padded.reshape(images, channels, bins, kh, bins, kw)
        how = np.nanmax if attrs["pooling_type"] == "max" else np.nanmean
        parts.append(how(windows, axis=(3, 5)).reshape(images, channels * bins * bins))
    return {"Out": np.concatenate(parts, 1)}
