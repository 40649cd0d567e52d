from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, NUMBERS, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


@register_samples(
    "pixel_shuffle",
    samples=lambda: [
        Sample({"X": rand(2, 8, 3, 2)}, {"upscale_factor": 2}, ("X",), name="two", dtypes=NUMBERS),
        Sample({"X": rand(1, 18, 2, 3)}, {"upscale_factor": 3}, ("X",), name="three", dtypes=WIDE),
        Sample({"X": rand(2, 3, 2, 2)}, {}, ("X",), name="one"),
        Sample({"X": rand(0, 4, 2, 2)}, {"upscale_factor": 2}, name="no_images"),
    ],
)
def _reference_pixel(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, r = inputs["X"], attrs["upscale_factor"]
    n, c, h, w = x.shape
    parts = x.reshape(n, c // (r * r), r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
    return {"Out": parts.reshape(n, c // (r * r), h * r, w * r)}


@register_samples(
    "space_to_depth",
    samples=lambda: [
        Sample({"X": rand(2, 8, 4, 2)}, {}, ("X",), name="two", dtypes=NUMBERS),
        Sample({"X": rand(1, 9, 3, 6)}, {"blocksize": 3}, ("X",), name="three", dtypes=WIDE),
        Sample({"X": rand(1, 16, 12, 4)}, {"blocksize": 4}, ("X",), name="four"),
        Sample({"X": rand(0, 4, 2, 2)}, {}, name="no_images"),
    ],
)
def _reference_depth(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, s = inputs["X"], attrs["blocksize"]
    n, c, h, w = x.shape
    larger = np.zeros((n, c // (s * s), h * s, w * s), x.dtype)
    for k in range(c):
        offset, channel = divmod(k, c // (s * s))
        larger[:, channel, offset // s :: s, offset % s :: s] = x[:, k]
    return {"Out": larger.reshape(n, c * s * s, h // s, w // s)}


@register_samples(
    "shuffle_channel",
    samples=lambda: [
        Sample({"X": rand(2, 6, 3, 2)}, {"group": 2}, ("X",), name="two", dtypes=EVERY),
        Sample({"X": rand(1, 6, 2, 3)}, {"group": 3}, ("X",), name="three", dtypes=WIDE),
        Sample({"X": rand(1, 4, 2, 2)}, {}, ("X",), name="one"),
        Sample({"X": rand(0, 4, 2, 2)}, {"group": 2}, name="no_images"),
    ],
)
def _reference_channel(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, group = inputs["X"], attrs["group"]
    size = x.shape[1] // group
    return {"Out": x[:, [g * size + k for k in range(size) for g in range(group)]]}


@register_samples(
    "temporal_shift",
    samples=lambda: [
        Sample({"X": rand(6, 4, 3, 2)}, {"seg_num": 3}, ("X",), name="quarter", dtypes=EVERY),
        Sample({"X": rand(4, 7, 2, 2)}, {"seg_num": 2, "shift_ratio": 0.4}, ("X",), name="ratio", dtypes=WIDE),
        Sample({"X": rand(3, 8, 1, 2)}, {"seg_num": 1}, ("X",), name="one_step"),
        Sample({"X": rand(4, 3, 2, 2)}, {"seg_num": 4, "shift_ratio": 0.1}, ("X",), name="no_channel"),
        Sample({"X": rand(0, 4, 2, 2)}, {"seg_num": 2}, name="no_images"),
    ],
)
def _reference_shift(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, steps = inputs["X"], attrs["seg_num"]
    first = int(np.float32(x.shape[1]) * np.float32(attrs["shift_ratio"]))
    second = int(np.float32(x.shape[1]) * 2 * np.float32(attrs["shift_ratio"]))
    out = x.copy()
    for image in range(len(x)):
        step = image % steps
        out[image, :first] = x[image - 1, :first] if step > 0 else 0
        out[image, first:second] = x[image + 1, first:second] if step < steps - 1 else 0
    return {"Out": out}
