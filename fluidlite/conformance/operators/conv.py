from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from fluidlite.conformance.operators.conv_common import (
    case,
    channels_first,
    fused,
    reference_dilations,
    reference_pads,
    windows,
    with_epilogue,
)
from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs
from fluidlite.conformance.samples import Sample, register_samples


def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, w = channels_first(inputs["Input"], attrs), inputs["Filter"]
    kernel, groups, strides = w.shape[2:], attrs["groups"], attrs["strides"]
    dilations, pads = reference_dilations(attrs), reference_pads(x.shape[2:], kernel, attrs)
    padded = np.pad(x, [(0, 0), (0, 0), *pads])
    parts, counts = windows(padded, kernel, strides, dilations)
    columns = parts.reshape(x.shape[0], groups, prod(w.shape[1:]), prod(counts))
    y = w.reshape(groups, w.shape[0] // groups, -1) @ columns
    y = y.reshape(x.shape[0], w.shape[0], *counts)
    return with_epilogue(y, inputs, attrs)


def _fused(x: Sequence[int], w: Sequence[int], out: Sequence[int], **attrs: Any) -> list[Sample]:
    bounded: dict[str, Any] = {"fuse_brelu": True, "fuse_brelu_threshold": 0.5}
    return [
        case("residual", x, w, bias=True, residual=out, fuse_residual_connection=True, **attrs),
        *fused(x, w, **attrs),
        case("fuse_brelu", x, w, check=False, **bounded, **attrs),
    ]


def _samples_2d() -> list[Sample]:
    return [
        case("plain", (2, 3, 5, 6), (4, 3, 3, 3), dtypes=EVERY),
        case("padded", (2, 3, 5, 6), (4, 3, 3, 3), paddings=[1, 2], dtypes=EVERY),
        case("strides", (2, 2, 7, 8), (3, 2, 3, 3), strides=[2, 3], paddings=[1, 1], dtypes=WIDE),
        case("strides_beyond_kernel", (1, 2, 9, 8), (3, 2, 2, 1), strides=[3, 2], dtypes=WIDE),
        case("four_paddings", (1, 2, 5, 5), (2, 2, 3, 2), paddings=[0, 2, 1, 0]),
        case("dilations", (1, 2, 8, 9), (3, 2, 3, 3), dilations=[2, 3], paddings=[2, 1], dtypes=WIDE),
        case("dilated_strides", (1, 2, 9, 10), (2, 2, 3, 2), dilations=[2, 3], strides=[4, 2], paddings=[1, 2]),
        case("groups", (2, 4, 5, 5), (6, 2, 3, 3), groups=2, paddings=[1, 1], dtypes=EVERY),
        case("depthwise", (2, 3, 5, 5), (3, 1, 3, 3), groups=3, paddings=[1, 1], dtypes=WIDE),
        case("one_by_one", (2, 5, 4, 3), (4, 5, 1, 1), dtypes=EVERY),
        case("one_by_one_strided", (2, 5, 5, 4), (4, 5, 1, 1), strides=[2, 2]),
        case("one_by_one_padded", (1, 2, 3, 3), (2, 2, 1, 1), paddings=[1, 1]),
        case("one_by_one_groups", (2, 4, 3, 3), (6, 2, 1, 1), groups=2),
        case("same", (1, 2, 7, 6), (2, 2, 3, 4), padding_algorithm="SAME", strides=[2, 1], paddings=[5, 5]),
        case("same_not_dilated", (1, 2, 7, 7), (2, 2, 3, 3), padding_algorithm="SAME", dilations=[2, 2]),
        case("valid", (1, 2, 7, 6), (2, 2, 3, 3), padding_algorithm="VALID", paddings=[2, 2]),
        case("nhwc", (2, 5, 6, 3), (4, 3, 3, 3), data_format="NHWC", paddings=[1, 0], strides=[1, 2], dtypes=EVERY),
        case("nhwc_groups", (1, 5, 4, 4), (4, 2, 3, 2), data_format="NHWC", groups=2, paddings=[0, 1, 2, 0]),
        case("nhwc_one_by_one", (2, 4, 3, 5), (3, 5, 1, 1), data_format="NHWC"),
        case("nhwc_same", (1, 6, 7, 2), (2, 2, 3, 3), data_format="NHWC", padding_algorithm="SAME", strides=[2, 2]),
        case("any_layout", (1, 2, 4, 4), (2, 2, 3, 3), data_format="AnyLayout", check=False),
        case("whole_image", (3, 2, 4, 5), (3, 2, 4, 5)),
        case("odd_tiles", (2, 9, 11, 35), (17, 9, 3, 5), paddings=[1, 2], check=False, dtypes=WIDE),
        case("odd_tiles_strided", (1, 9, 21, 37), (9, 9, 3, 3), strides=[2, 2], check=False, dtypes=WIDE),
        case("many_channels", (2, 17, 7, 6), (33, 17, 3, 3), paddings=[1, 1], check=False),
        case("nhwc_many_channels", (1, 7, 6, 34), (64, 17, 3, 3), data_format="NHWC", groups=2, check=False),
        case("many_images", (70, 2, 3, 3), (3, 2, 2, 2), paddings=[1, 1], strides=[2, 1]),
        case("one", (1, 1, 1, 1), (1, 1, 1, 1)),
        case("no_images", (0, 2, 4, 4), (3, 2, 3, 3), check=False),
        case("bias", (2, 2, 4, 5), (3, 2, 3, 3), bias=True, paddings=[1, 1], use_mkldnn=True),
        case("bias_nhwc", (2, 4, 5, 2), (3, 2, 3, 3), bias=True, data_format="NHWC"),
        *_fused((1, 2, 4, 5), (3, 2, 3, 3), (1, 3, 2, 3)),
        case("fuse_named_relu", (1, 2, 4, 5), (3, 2, 3, 3), fuse_activation="relu", check=False),
        case("fuse_relu6", (1, 2, 4, 5), (3, 2, 3, 3), fuse_activation="relu6", fuse_alpha=0.5, check=False),
        case("fuse_swish", (1, 2, 4, 5), (3, 2, 3, 3), fuse_activation="swish", fuse_alpha=1.5, check=False),
    ]


def _samples_depthwise() -> list[Sample]:
    return [
        case("plain", (2, 3, 6, 5), (3, 1, 3, 3), groups=3, paddings=[1, 1], dtypes=EVERY),
        case("multiplier", (2, 3, 6, 5), (6, 1, 3, 3), groups=3, paddings=[1, 0], dtypes=WIDE),
        case("strides", (1, 4, 7, 8), (4, 1, 3, 2), groups=4, strides=[2, 3]),
        case("dilations", (1, 2, 8, 8), (4, 1, 3, 3), groups=2, dilations=[2, 2], paddings=[2, 2]),
        case("nhwc", (2, 5, 6, 3), (3, 1, 3, 3), groups=3, data_format="NHWC", paddings=[1, 1], dtypes=EVERY),
        case("nhwc_multiplier", (1, 5, 6, 2), (4, 1, 3, 3), groups=2, data_format="NHWC", strides=[2, 2]),
        case("relu_before", (2, 3, 6, 5), (3, 1, 3, 3), groups=3, fuse_relu_before_depthwise_conv=True),
        case("same", (1, 2, 5, 5), (2, 1, 3, 3), groups=2, padding_algorithm="SAME", strides=[2, 2]),
        *_fused((1, 3, 4, 5), (3, 1, 3, 3), (1, 3, 2, 3), groups=3),
        case("wide", (2, 5, 9, 40), (5, 1, 3, 3), groups=5, paddings=[1, 1], check=False, dtypes=WIDE),
    ]


def _samples_3d() -> list[Sample]:
    return [
        case("plain", (2, 2, 4, 5, 4), (3, 2, 2, 3, 2), dtypes=EVERY),
        case("padded", (1, 2, 3, 4, 5), (2, 2, 3, 3, 3), paddings=[1, 0, 2], dtypes=WIDE),
        case("strides", (1, 2, 5, 6, 7), (2, 2, 2, 3, 2), strides=[2, 3, 2], paddings=[1, 1, 1]),
        case("six_paddings", (1, 1, 3, 3, 3), (2, 1, 2, 2, 2), paddings=[0, 1, 1, 0, 2, 0]),
        case("dilations", (1, 1, 5, 6, 7), (2, 1, 2, 2, 3), dilations=[2, 1, 3], strides=[1, 2, 2]),
        case("groups", (2, 4, 3, 4, 3), (4, 2, 2, 2, 2), groups=2),
        case("depthwise", (1, 3, 3, 4, 4), (3, 1, 2, 3, 3), groups=3, paddings=[1, 1, 1]),
        case("ndhwc", (1, 3, 4, 5, 2), (3, 2, 2, 3, 3), data_format="NDHWC", paddings=[1, 1, 0], dtypes=WIDE),
        case("same", (1, 1, 4, 5, 6), (2, 1, 3, 3, 2), padding_algorithm="SAME", strides=[2, 2, 1]),
        case("valid", (1, 1, 4, 5, 4), (2, 1, 3, 3, 2), padding_algorithm="VALID", paddings=[1, 1, 1]),
        case("one_by_one", (2, 3, 2, 3, 2), (4, 3, 1, 1, 1)),
        *_fused((1, 1, 3, 3, 3), (2, 1, 2, 2, 2), (1, 2, 2, 2, 2)),
        case("no_images", (0, 1, 3, 3, 3), (2, 1, 2, 2, 2), check=False),
    ]


register_samples("conv2d", reference=_reference, samples=_samples_2d)


@register_samples("depthwise_conv2d", samples=_samples_depthwise)
def _reference_depthwise(inputs: Inputs, attrs: Attrs) -> Outputs:
    image = inputs["Input"]
    return _reference(
        {**inputs, "Input": np.maximum(image, 0) if attrs["fuse_relu_before_depthwise_conv"] else image}, attrs
    )


register_samples("conv3d", reference=_reference, samples=_samples_3d)
