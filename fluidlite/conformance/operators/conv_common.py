from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import Attrs, Inputs, Outputs, away_from, rand
from fluidlite.conformance.samples import Sample


def reference_pads(sizes: Sequence[int], kernel: Sequence[int], attrs: Attrs) -> list[tuple[int, int]]:
    spatial, paddings = len(sizes), list(attrs["paddings"])
    if attrs.get("padding_algorithm") == "VALID":
        return [(0, 0)] * spatial
    if attrs.get("padding_algorithm") == "SAME":
        totals = [
            max(0, (int(np.ceil(n / s)) - 1) * s + k - n)
            for n, k, s in zip(sizes, kernel, attrs["strides"], strict=True)
        ]
        return [(total // 2, (total + 1) // 2) for total in totals]
    return [
        (paddings[i], paddings[i]) if len(paddings) == spatial else (paddings[2 * i], paddings[2 * i + 1])
        for i in range(spatial)
    ]


def reference_dilations(attrs: Attrs) -> list[int]:
    """Return the effective dilations; SAME ignores them."""
    return [1] * len(attrs["dilations"]) if attrs["padding_algorithm"] == "SAME" else list(attrs["dilations"])


def windows(
    padded: Any, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[Any, tuple[int, ...]]:
    """Return the windows of images, [images, channels, *kernel, *counts], and their counts along the spatial dims."""
    spatial = range(2, padded.ndim)
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    parts: Any = np.lib.stride_tricks.sliding_window_view(padded, reach, tuple(spatial))
    parts = parts[(..., *(slice(None, None, each) for each in (*strides, *dilations)))]
    return parts.transpose(0, 1, *range(padded.ndim, parts.ndim), *spatial), parts.shape[2 : padded.ndim]


def case(
    name: str,
    x: Sequence[int],
    w: Sequence[int],
    *,
    transposed: bool = False,
    check: bool = True,
    dtypes: tuple[str, ...] = ("float32",),
    bias: bool = False,
    residual: Sequence[int] = (),
    **attrs: Any,
) -> Sample:
    inputs = {"Input": away_from(rand(*x), 0.0), "Filter": rand(*w, seed=1)}
    if bias:
        inputs["Bias"] = rand(w[1] * attrs.get("groups", 1) if transposed else w[0], seed=2)
    if residual:
        inputs["ResidualData"] = rand(*residual, seed=3)
    return Sample(inputs, attrs, tuple(inputs) if check else (), name=name, dtypes=dtypes)


def fused(x: Sequence[int], w: Sequence[int], **attrs: Any) -> list[Sample]:
    leaky: dict[str, Any] = {"fuse_activation": "leaky_relu", "fuse_alpha": 0.3}
    return [
        case("fuse_relu", x, w, bias=True, fuse_relu=True, check=False, **attrs),
        case("fuse_leaky", x, w, check=False, **leaky, **attrs),
    ]


def with_epilogue(y: Any, inputs: Inputs, attrs: Attrs) -> Outputs:
    """Return Output of a channels-second convolution: add bias and residual data, apply fused activations."""
    if "Bias" in inputs:
        y = y + inputs["Bias"].reshape(-1, *(1,) * (y.ndim - 2))
    if "ResidualData" in inputs:
        y = y + channels_first(inputs["ResidualData"], attrs)
    return {"Output": in_data_format(reference_activation(y, attrs), attrs)}


def channels_first(x: Any, attrs: Attrs) -> Any:
    """Return an image with its channels second."""
    return np.moveaxis(x, -1, 1) if attrs["data_format"] in ("NHWC", "NDHWC") else x


def in_data_format(y: Any, attrs: Attrs) -> Any:
    """Return an image in the format of the attributes."""
    return np.moveaxis(y, 1, -1) if attrs["data_format"] in ("NHWC", "NDHWC") else y


def reference_activation(y: Any, attrs: Attrs) -> Any:
    """Apply the fused activations in order: relu, bounded relu, then fuse_activation."""
    name, alpha = attrs["fuse_activation"], attrs["fuse_alpha"]
    if attrs["fuse_relu"]:
        y = np.maximum(y, 0)
    if attrs.get("fuse_brelu"):
        y = np.clip(y, 0, attrs["fuse_brelu_threshold"])
    if name == "relu":
        return np.maximum(y, 0)
    if name == "relu6":
        return np.clip(y, 0, alpha)
    if name == "leaky_relu":
        return np.maximum(y, alpha * y)  # also for a slope above 1, as in leaky_relu
    return y / (1 + np.exp(-alpha * y)) if name == "swish" else y
