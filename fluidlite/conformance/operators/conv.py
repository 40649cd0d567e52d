from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from fluidlite.conformance.operators.conv_common import (
    channels_first,
    in_data_format,
    reference_activation,
    reference_dilations,
    reference_pads,
)
from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, away_from, rand
from fluidlite.conformance.samples import Sample, register_samples


def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, w = channels_first(inputs["Input"], attrs), inputs["Filter"]
    kernel, groups, strides = w.shape[2:], attrs["groups"], attrs["strides"]
    dilations = reference_dilations(attrs)
    padded: Any = np.pad(x, [(0, 0), (0, 0), *reference_pads(x.shape[2:], kernel, attrs)])
    counts = [
        (n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(padded.shape[2:], kernel, strides, dilations, strict=True)
    ]
    weights = w.reshape(groups, w.shape[0] // groups, -1)
    y: Any = np.zeros((x.shape[0], groups, weights.shape[1], *counts))
    for at in product(*map(range, counts)):
        inside: list[Any] = [
            slice(o * s, o * s + d * (k - 1) + 1, d) for o, s, d, k in zip(at, strides, dilations, kernel, strict=True)
        ]
        window = padded[(..., *inside)]
        rows = window.reshape(x.shape[0], groups, weights.shape[2])
        y[(..., *at)] = np.einsum("ngk,gmk->ngm", rows, weights)
    y = y.reshape(x.shape[0], w.shape[0], *counts)
    if "Bias" in inputs:
        y = y + inputs["Bias"].reshape(-1, *(1,) * len(counts))
    if "ResidualData" in inputs:
        y = y + channels_first(inputs["ResidualData"], attrs)
    return {"Output": in_data_format(reference_activation(y, attrs), attrs)}


def _case(
    name: str,
    x: Sequence[int],
    w: Sequence[int],
    *,
    check: bool = True,
    dtypes: tuple[str, ...] = ("float32",),
    bias: bool = False,
    residual: Sequence[int] = (),
    **attrs: Any,
) -> Sample:
    inputs = {"Input": away_from(rand(*x), 0.0), "Filter": rand(*w, seed=1)}
    if bias:
        inputs["Bias"] = rand(w[0], seed=2)
    if residual:
        inputs["ResidualData"] = rand(*residual, seed=3)
    return Sample(inputs, attrs, tuple(inputs) if check else (), name=name, dtypes=dtypes)


def _fused(x: Sequence[int], w: Sequence[int], out: Sequence[int], **attrs: Any) -> list[Sample]:
    """Return samples of what Fluid's passes fuse."""
    leaky: dict[str, Any] = {"fuse_activation": "leaky_relu", "fuse_alpha": 0.3}
    bounded: dict[str, Any] = {"fuse_brelu": True, "fuse_brelu_threshold": 0.5}
    return [
        _case("residual", x, w, bias=True, residual=out, fuse_residual_connection=True, **attrs),
        _case("fuse_relu", x, w, bias=True, fuse_relu=True, check=False, **attrs),
        _case("fuse_brelu", x, w, check=False, **bounded, **attrs),
        _case("fuse_leaky", x, w, check=False, **leaky, **attrs),
    ]


def _samples_2d() -> list[Sample]:
    return [
        _case("plain", (2, 3, 5, 6), (4, 3, 3, 3), dtypes=EVERY),
        _case("padded", (2, 3, 5, 6), (4, 3, 3, 3), paddings=[1, 2], dtypes=EVERY),
        _case("strides", (2, 2, 7, 8), (3, 2, 3, 3), strides=[2, 3], paddings=[1, 1], dtypes=WIDE),
        _case("strides_beyond_kernel", (1, 2, 9, 8), (3, 2, 2, 1), strides=[3, 2], dtypes=WIDE),
        _case("four_paddings", (1, 2, 5, 5), (2, 2, 3, 2), paddings=[0, 2, 1, 0]),
        _case("dilations", (1, 2, 8, 9), (3, 2, 3, 3), dilations=[2, 3], paddings=[2, 1], dtypes=WIDE),
        _case("dilated_strides", (1, 2, 9, 10), (2, 2, 3, 2), dilations=[2, 3], strides=[4, 2], paddings=[1, 2]),
        _case("groups", (2, 4, 5, 5), (6, 2, 3, 3), groups=2, paddings=[1, 1], dtypes=EVERY),
        _case("depthwise", (2, 3, 5, 5), (3, 1, 3, 3), groups=3, paddings=[1, 1], dtypes=WIDE),
        _case("one_by_one", (2, 5, 4, 3), (4, 5, 1, 1), dtypes=EVERY),
        _case("one_by_one_strided", (2, 5, 5, 4), (4, 5, 1, 1), strides=[2, 2]),
        _case("one_by_one_padded", (1, 2, 3, 3), (2, 2, 1, 1), paddings=[1, 1]),
        _case("one_by_one_groups", (2, 4, 3, 3), (6, 2, 1, 1), groups=2),
        _case("same", (1, 2, 7, 6), (2, 2, 3, 4), padding_algorithm="SAME", strides=[2, 1], paddings=[5, 5]),
        _case("same_not_dilated", (1, 2, 7, 7), (2, 2, 3, 3), padding_algorithm="SAME", dilations=[2, 2]),
        _case("valid", (1, 2, 7, 6), (2, 2, 3, 3), padding_algorithm="VALID", paddings=[2, 2]),
        _case("nhwc", (2, 5, 6, 3), (4, 3, 3, 3), data_format="NHWC", paddings=[1, 0], strides=[1, 2], dtypes=EVERY),
        _case("nhwc_groups", (1, 5, 4, 4), (4, 2, 3, 2), data_format="NHWC", groups=2, paddings=[0, 1, 2, 0]),
        _case("nhwc_one_by_one", (2, 4, 3, 5), (3, 5, 1, 1), data_format="NHWC"),
        _case("nhwc_same", (1, 6, 7, 2), (2, 2, 3, 3), data_format="NHWC", padding_algorithm="SAME", strides=[2, 2]),
        _case("any_layout", (1, 2, 4, 4), (2, 2, 3, 3), data_format="AnyLayout", check=False),
        _case("whole_image", (3, 2, 4, 5), (3, 2, 4, 5)),
        _case("odd_tiles", (2, 9, 11, 35), (17, 9, 3, 5), paddings=[1, 2], check=False, dtypes=WIDE),
        _case("odd_tiles_strided", (1, 9, 21, 37), (9, 9, 3, 3), strides=[2, 2], check=False, dtypes=WIDE),
        _case("many_channels", (2, 17, 7, 6), (33, 17, 3, 3), paddings=[1, 1], check=False),
        _case("nhwc_many_channels", (1, 7, 6, 34), (64, 17, 3, 3), data_format="NHWC", groups=2, check=False),
        _case("many_images", (70, 2, 3, 3), (3, 2, 2, 2), paddings=[1, 1], strides=[2, 1]),
        _case("one", (1, 1, 1, 1), (1, 1, 1, 1)),
        _case("no_images", (0, 2, 4, 4), (3, 2, 3, 3), check=False),
        _case("bias", (2, 2, 4, 5), (3, 2, 3, 3), bias=True, paddings=[1, 1], use_mkldnn=True),
        _case("bias_nhwc", (2, 4, 5, 2), (3, 2, 3, 3), bias=True, data_format="NHWC"),
        *_fused((1, 2, 4, 5), (3, 2, 3, 3), (1, 3, 2, 3)),
        _case("fuse_named_relu", (1, 2, 4, 5), (3, 2, 3, 3), fuse_activation="relu", check=False),
        _case("fuse_relu6", (1, 2, 4, 5), (3, 2, 3, 3), fuse_activation="relu6", fuse_alpha=0.5, check=False),
        _case("fuse_swish", (1, 2, 4, 5), (3, 2, 3, 3), fuse_activation="swish", fuse_alpha=1.5, check=False),
    ]


def _samples_depthwise() -> list[Sample]:
    return [
        _case("plain", (2, 3, 6, 5), (3, 1, 3, 3), groups=3, paddings=[1, 1], dtypes=EVERY),
        _case("multiplier", (2, 3, 6, 5), (6, 1, 3, 3), groups=3, paddings=[1, 0], dtypes=WIDE),
        _case("strides", (1, 4, 7, 8), (4, 1, 3, 2), groups=4, strides=[2, 3]),
        _case("dilations", (1, 2, 8, 8), (4, 1, 3, 3), groups=2, dilations=[2, 2], paddings=[2, 2]),
        _case("nhwc", (2, 5, 6, 3), (3, 1, 3, 3), groups=3, data_format="NHWC", paddings=[1, 1], dtypes=EVERY),
        _case("nhwc_multiplier", (1, 5, 6, 2), (4, 1, 3, 3), groups=2, data_format="NHWC", strides=[2, 2]),
        _case("relu_before", (2, 3, 6, 5), (3, 1, 3, 3), groups=3, fuse_relu_before_depthwise_conv=True),
        _case("same", (1, 2, 5, 5), (2, 1, 3, 3), groups=2, padding_algorithm="SAME", strides=[2, 2]),
        *_fused((1, 3, 4, 5), (3, 1, 3, 3), (1, 3, 2, 3), groups=3),
        _case("wide", (2, 5, 9, 40), (5, 1, 3, 3), groups=5, paddings=[1, 1], check=False, dtypes=WIDE),
    ]


def _samples_3d() -> list[Sample]:
    return [
        _case("plain", (2, 2, 4, 5, 4), (3, 2, 2, 3, 2), dtypes=EVERY),
        _case("padded", (1, 2, 3, 4, 5), (2, 2, 3, 3, 3), paddings=[1, 0, 2], dtypes=WIDE),
        _case("strides", (1, 2, 5, 6, 7), (2, 2, 2, 3, 2), strides=[2, 3, 2], paddings=[1, 1, 1]),
        _case("six_paddings", (1, 1, 3, 3, 3), (2, 1, 2, 2, 2), paddings=[0, 1, 1, 0, 2, 0]),
        _case("dilations", (1, 1, 5, 6, 7), (2, 1, 2, 2, 3), dilations=[2, 1, 3], strides=[1, 2, 2]),
        _case("groups", (2, 4, 3, 4, 3), (4, 2, 2, 2, 2), groups=2),
        _case("depthwise", (1, 3, 3, 4, 4), (3, 1, 2, 3, 3), groups=3, paddings=[1, 1, 1]),
        _case("ndhwc", (1, 3, 4, 5, 2), (3, 2, 2, 3, 3), data_format="NDHWC", paddings=[1, 1, 0], dtypes=WIDE),
        _case("same", (1, 1, 4, 5, 6), (2, 1, 3, 3, 2), padding_algorithm="SAME", strides=[2, 2, 1]),
        _case("valid", (1, 1, 4, 5, 4), (2, 1, 3, 3, 2), padding_algorithm="VALID", paddings=[1, 1, 1]),
        _case("one_by_one", (2, 3, 2, 3, 2), (4, 3, 1, 1, 1)),
        *_fused((1, 1, 3, 3, 3), (2, 1, 2, 2, 2), (1, 2, 2, 2, 2)),
        _case("no_images", (0, 1, 3, 3, 3), (2, 1, 2, 2, 2), check=False),
    ]


register_samples("conv2d", reference=_reference, samples=_samples_2d)


@register_samples("depthwise_conv2d", samples=_samples_depthwise)
def _reference_depthwise(inputs: Inputs, attrs: Attrs) -> Outputs:
    image = inputs["Input"]
    return _reference(
        {**inputs, "Input": np.maximum(image, 0) if attrs["fuse_relu_before_depthwise_conv"] else image}, attrs
    )


register_samples("conv3d", reference=_reference, samples=_samples_3d)
