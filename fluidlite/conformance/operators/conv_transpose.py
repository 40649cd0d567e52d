from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from fluidlite.conformance.operators.conv_common import (
    case,
    channels_first,
    fused,
    reference_dilations,
    reference_pads,
    with_epilogue,
)
from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs
from fluidlite.conformance.samples import Sample, register_samples


def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, w = channels_first(inputs["Input"], attrs), inputs["Filter"]
    kernel, groups, strides = w.shape[2:], attrs["groups"], attrs["strides"]
    dilations, pads = reference_dilations(attrs), reference_pads(x.shape[2:], kernel, attrs)
    covered = [
        (n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(x.shape[2:], strides, dilations, kernel, strict=True)
    ]
    sizes = [n - before - after for n, (before, after) in zip(covered, pads, strict=True)]
    if attrs["output_size"]:
        sizes = list(attrs["output_size"])
    elif attrs["output_padding"]:
        sizes = [n + extra for n, extra in zip(sizes, attrs["output_padding"], strict=True)]
    images, channels = x.shape[:2]
    weights = w.reshape(groups, channels // groups, w.shape[1], *kernel)
    room = [max(n, before + size) for n, size, (before, _) in zip(covered, sizes, pads, strict=True)]
    full = np.zeros((images, groups, w.shape[1], *room))
    rows = x.reshape(images, groups, channels // groups, *x.shape[2:])
    for tap in product(*map(range, kernel)):
        reached: Any = [
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, n, s, d in zip(tap, x.shape[2:], strides, dilations, strict=True)
        ]
        full[(..., *reached)] += np.einsum("ngm...,gmc->ngc...", rows, weights[(..., *tap)])
    y = full.reshape(images, groups * w.shape[1], *room)
    window: Any = [slice(before, before + n) for n, (before, _) in zip(sizes, pads, strict=True)]
    y = y[(..., *window)]
    return with_epilogue(y, inputs, attrs)


_case = partial(case, transposed=True)
_fused = partial(fused, transposed=True)


def _samples_2d() -> list[Sample]:
    return [
        _case("plain", (2, 3, 4, 5), (3, 4, 3, 3), dtypes=EVERY),
        _case("strides", (2, 3, 4, 5), (3, 2, 3, 3), strides=[2, 3], paddings=[1, 1], dtypes=EVERY),
        _case("strides_beyond_kernel", (1, 2, 3, 4), (2, 3, 2, 1), strides=[3, 2]),
        _case("paddings", (2, 2, 4, 5), (2, 3, 3, 3), paddings=[1, 2]),
        _case("four_paddings", (1, 2, 5, 5), (2, 2, 3, 2), paddings=[0, 2, 1, 0], strides=[2, 1]),
        _case("dilations", (1, 2, 4, 5), (2, 3, 3, 2), dilations=[2, 3], dtypes=WIDE),
        _case("dilated_strides", (1, 2, 4, 5), (2, 2, 3, 2), dilations=[2, 3], strides=[4, 2], paddings=[1, 2]),
        _case("groups", (2, 4, 3, 4), (4, 3, 3, 3), groups=2, strides=[2, 2], paddings=[1, 1], dtypes=WIDE),
        _case("output_size", (1, 2, 4, 5), (2, 3, 3, 3), strides=[2, 3], output_size=[10, 17]),
        _case("output_padding", (1, 2, 4, 5), (2, 3, 3, 3), strides=[2, 3], output_padding=[1, 2]),
        _case("output_padding_dilated", (1, 2, 4, 5), (2, 3, 2, 2), dilations=[3, 2], output_padding=[2, 1]),
        _case("same", (1, 2, 5, 6), (2, 2, 3, 4), padding_algorithm="SAME", strides=[2, 1], paddings=[2, 2]),
        _case("same_not_dilated", (1, 2, 5, 5), (2, 2, 3, 3), padding_algorithm="SAME", dilations=[2, 2]),
        _case("valid", (1, 2, 4, 4), (2, 2, 3, 3), padding_algorithm="VALID", paddings=[1, 1]),
        _case("nhwc", (2, 4, 5, 3), (3, 4, 3, 3), data_format="NHWC", strides=[2, 1], paddings=[1, 0], dtypes=EVERY),
        _case("nhwc_groups", (1, 3, 4, 4), (4, 2, 3, 2), data_format="NHWC", groups=2, output_size=[5, 5]),
        _case("one_window", (3, 4, 1, 1), (4, 2, 3, 2), groups=2, strides=[2, 2]),
        _case("one_window_nhwc", (3, 1, 1, 4), (4, 2, 3, 2), data_format="NHWC"),
        _case("one_by_one", (2, 5, 3, 4), (5, 4, 1, 1), dtypes=WIDE),
        _case("one_by_one_strided", (1, 3, 3, 4), (3, 2, 1, 1), strides=[2, 3]),
        _case("odd_tiles", (2, 17, 5, 19), (17, 9, 4, 4), strides=[2, 2], paddings=[1, 1], check=False, dtypes=WIDE),
        _case("many_channels", (2, 17, 5, 6), (17, 33, 3, 3), paddings=[1, 1], check=False),
        _case("bias", (2, 2, 3, 4), (2, 3, 3, 3), bias=True),
        _case("bias_nhwc", (2, 3, 4, 2), (2, 3, 3, 3), bias=True, data_format="NHWC", groups=2),
        *_fused((1, 2, 3, 4), (2, 3, 3, 3)),
        _case("any_layout", (1, 2, 4, 4), (2, 2, 3, 3), data_format="AnyLayout", check=False),
        _case("no_images", (0, 2, 3, 3), (2, 3, 3, 3), check=False),
    ]


def _samples_depthwise() -> list[Sample]:
    return [
        _case("plain", (2, 3, 4, 5), (3, 1, 3, 3), groups=3, dtypes=EVERY),
        _case("strides", (2, 4, 4, 5), (4, 1, 4, 4), groups=4, strides=[2, 2], paddings=[1, 1], dtypes=WIDE),
        _case("multiplier", (1, 2, 4, 5), (2, 3, 3, 2), groups=2, strides=[2, 1]),
        _case("dilations", (1, 2, 4, 5), (2, 1, 3, 2), groups=2, dilations=[2, 1]),
        _case("same", (1, 2, 4, 5), (2, 1, 3, 3), groups=2, padding_algorithm="SAME", strides=[2, 2]),
        _case("output_size", (1, 2, 4, 5), (2, 1, 3, 3), groups=2, strides=[2, 3], output_size=[10, 17]),
        _case("output_padding", (1, 2, 4, 5), (2, 1, 3, 3), groups=2, strides=[2, 3], output_padding=[1, 2]),
        *_fused((1, 2, 3, 4), (2, 1, 3, 3), groups=2),
        _case("bias", (1, 2, 3, 4), (2, 1, 3, 3), bias=True, groups=2),
        _case("nhwc", (1, 4, 5, 3), (3, 1, 3, 3), groups=3, data_format="NHWC", strides=[1, 2]),
    ]


def _samples_3d() -> list[Sample]:
    return [
        _case("plain", (2, 2, 3, 4, 3), (2, 3, 2, 3, 2), dtypes=EVERY),
        _case("strides", (1, 2, 3, 3, 4), (2, 2, 3, 2, 3), strides=[2, 3, 2], paddings=[1, 0, 1], dtypes=WIDE),
        _case("six_paddings", (1, 1, 3, 3, 3), (1, 2, 2, 2, 2), paddings=[0, 1, 1, 0, 0, 1]),
        _case("dilations", (1, 1, 3, 3, 4), (1, 2, 2, 3, 2), dilations=[2, 1, 3], strides=[1, 2, 2]),
        _case("groups", (1, 4, 2, 3, 3), (4, 1, 2, 2, 2), groups=2),
        _case("output_size", (1, 1, 2, 3, 3), (1, 2, 2, 2, 2), strides=[2, 2, 3], output_size=[5, 6, 10]),
        _case("output_padding", (1, 1, 2, 3, 3), (1, 2, 2, 2, 2), strides=[2, 2, 3], output_padding=[1, 0, 2]),
        _case("same", (1, 1, 3, 4, 3), (1, 2, 3, 2, 3), padding_algorithm="SAME", strides=[2, 2, 1]),
        _case("valid", (1, 1, 3, 3, 3), (1, 2, 2, 2, 2), padding_algorithm="VALID", paddings=[1, 1, 1]),
        _case("ndhwc", (1, 2, 3, 4, 2), (2, 3, 2, 3, 2), data_format="NDHWC", strides=[2, 1, 2], dtypes=WIDE),
        *_fused((1, 1, 2, 3, 3), (1, 2, 2, 2, 2)),
        _case("bias", (1, 1, 2, 3, 3), (1, 2, 2, 2, 2), bias=True),
        _case("no_images", (0, 1, 2, 3, 3), (1, 2, 2, 2, 2), check=False),
    ]


register_samples("conv2d_transpose", reference=_reference, samples=_samples_2d)
register_samples("depthwise_conv2d_transpose", reference=_reference, samples=_samples_depthwise)
register_samples("conv3d_transpose", reference=_reference, samples=_samples_3d)
