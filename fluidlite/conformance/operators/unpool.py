from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, distinct, rand
from fluidlite.conformance.samples import Sample, register_samples


def _case(name: str, dims: tuple[int, ...], size: int, dtypes: Any = ("float32",), **attrs: Any) -> Sample:
    """X, and unique indices (int64 if ``name`` says so) of its elements in a plane of ``size``."""
    rng, (images, channels, height, width) = np.random.default_rng(3), dims
    planes = [rng.permutation(size)[: height * width] for _ in range(images * channels)]
    places = np.reshape(planes, dims).astype("int64" if name == "int64" else "int32")
    grads = ("X",) if images else ()
    return Sample(
        {"X": rand(*dims), "Indices": places}, {"unpooling_type": "max", **attrs}, grads, name=name, dtypes=dtypes
    )


@register_samples(
    "unpool",
    samples=lambda: [
        _case("windows", (2, 3, 3, 2), 24, EVERY, ksize=[2, 2], strides=[2, 2]),
        _case("overlap", (1, 2, 3, 3), 16, ksize=[2, 2]),
        _case("padded", (1, 2, 3, 3), 25, WIDE, ksize=[3, 3], strides=[2, 2], paddings=[1, 1]),
        _case("int64", (1, 2, 2, 3), 24, ksize=[2, 2], strides=[2, 2]),
        _case("no_images", (0, 2, 2, 2), 16, ksize=[2, 2]),
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
