"""Transposed convolution: conv2d_transpose, depthwise_conv2d_transpose, conv3d_transpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Dims
from fluidlite.operators.conv_common import (
    WORKSPACE,
    as_given,
    channels_first,
    check_bias,
    check_operands,
    decompose,
    decompose_grad,
    grad_maker,
    grad_slots,
    infer_grad,
    reference_activation,
    reference_dilations,
    reference_pads,
    second_grad_maker,
    window_attrs,
)
from fluidlite.operators.inference import Inferred, agree, grad_outputs, like
from fluidlite.operators.math.convolving import EPILOGUE, shape_of
from fluidlite.operators.samples import EVERY, WIDE, rand
from fluidlite.operators.windows import channels_last, channels_to_end, join_dims, split_dims

SIZES = ("output_size", "output_padding")


def _sizes(call: Call, sizes: Dims) -> Dims:
    """Return the spatial dims of Output: the least that has all windows, or what output_size or the padding says."""
    shape = shape_of(call, sizes)
    least = tuple(shape.spread(n, i) for i, n in enumerate(sizes))
    wanted, padding = (call.attr(name) for name in SIZES)
    spatial = len(sizes)
    if wanted and len(wanted) != spatial:
        call.fail_attr("output_size", f"{spatial} numbers, one for each spatial dim")
    if padding and len(padding) != spatial:
        call.fail_attr("output_padding", f"{spatial} numbers, one for each spatial dim")
    found = []
    for i, n in enumerate(least):
        limit = max(shape.strides[i], shape.dilations[i])
        if wanted:
            if n >= 0 and not n <= wanted[i] < n + shape.strides[i]:
                call.fail_attr(
                    "output_size", f"a number in [{n}, {n + shape.strides[i]}) in spatial dim {i}, where all have "
                    f"{call.dims('Input')[i + (1 if channels_last(call) else 2)]} windows",
                )  # fmt: skip
            n = wanted[i]
        elif padding:
            if not 0 <= padding[i] < limit:
                call.fail_attr("output_padding", f"a number in [0, {limit}) in spatial dim {i}: below the stride")
            n = n + padding[i] if n >= 0 else -1
        if n == 0 or n < -1 or (n < 0 and sizes[i] >= 0 and shape.kernel[i] >= 0):
            call.fail("Input", f"windows that cover 1 or more in spatial dim {i}; they cover {n}", do="pad less")
        found.append(n)
    return tuple(found)


def _infer(spatial: int, depthwise: bool) -> Callable[[Call], Inferred]:
    def infer(call: Call) -> Inferred:
        check_operands(call, spatial)
        groups, last, w = call.attr("groups"), channels_last(call), call.dims("Filter")
        images, channels, sizes = split_dims(call.dims("Input"), last)
        if depthwise and not agree(channels, groups):
            call.fail_attr("groups", f"the channels of Input, {channels}", do="use conv2d_transpose for fewer groups")
        if channels >= 0 and channels % groups:
            call.fail_attr("groups", f"a divisor of the channels of Input, {channels}")
        if not agree(w[0], channels):
            call.fail("Filter", f"{channels} in dim 0, the channels of Input")
        made = w[1] * groups if w[1] >= 0 else -1
        check_bias(call, made)
        return {"Output": like(call.spec("Input"), join_dims(images, made, _sizes(call, sizes), last))}

    return infer


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, w = channels_first(inputs["Input"], attrs), inputs["Filter"]
    kernel, groups, strides = w.shape[2:], attrs["groups"], attrs["strides"]
    dilations, pads = reference_dilations(attrs), reference_pads(x.shape[2:], kernel, attrs)
    covered = [(n - 1) * s + d * (k - 1) + 1
               for n, s, d, k in zip(x.shape[2:], strides, dilations, kernel, strict=True)]  # fmt: skip
    sizes = [n - before - after for n, (before, after) in zip(covered, pads, strict=True)]
    if attrs["output_size"]:
        sizes = list(attrs["output_size"])
    elif attrs["output_padding"]:
        sizes = [n + extra for n, extra in zip(sizes, attrs["output_padding"], strict=True)]
    images, channels = x.shape[:2]
    weights = w.reshape(groups, channels // groups, w.shape[1], *kernel)
    room = [max(n, before + size) for n, size, (before, _) in zip(covered, sizes, pads, strict=True)]
    full = np.zeros((images, groups, w.shape[1], *room))
    for at in product(*map(range, x.shape[2:])):
        window: Any = [
            slice(o * s, o * s + d * (k - 1) + 1, d) for o, s, d, k in zip(at, strides, dilations, kernel, strict=True)
        ]
        rows = x[(..., *at)].reshape(images, groups, channels // groups)
        full[(..., *window)] += np.einsum("ngm,gm...->ng...", rows, weights)
    y = full.reshape(images, groups * w.shape[1], *room)
    kept: Any = [slice(before, before + n) for n, (before, _) in zip(sizes, pads, strict=True)]
    y = y[(..., *kept)]
    if "Bias" in inputs:
        y = y + inputs["Bias"].reshape(-1, *(1,) * len(sizes))
    return {"Output": as_given(reference_activation(y, attrs), attrs)}


def _case(
    name: str, x: Sequence[int], w: Sequence[int], *, check: bool = True, dtypes: tuple[str, ...] = ("float32",),
    bias: bool = False, **attrs: Any,
) -> Sample:  # fmt: skip
    inputs = {"Input": rand(*x), "Filter": rand(*w, seed=1)}
    if bias:
        inputs["Bias"] = rand(w[1] * attrs.get("groups", 1), seed=2)
    return Sample(inputs, attrs, tuple(inputs) if check else (), name=name, dtypes=dtypes)


def _fused(x: Sequence[int], w: Sequence[int], **attrs: Any) -> list[Sample]:
    """Return samples of what Fluid's passes fuse."""
    leaky: dict[str, Any] = {"fuse_activation": "leaky_relu", "fuse_alpha": 0.3}
    return [
        _case("fuse_relu", x, w, bias=True, fuse_relu=True, check=False, **attrs),
        _case("fuse_leaky", x, w, check=False, **leaky, **attrs),
    ]


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


def _register(type: str, spatial: int, samples: Callable[[], list[Sample]], depthwise: bool = False) -> None:
    attrs = (
        *window_attrs(spatial),
        Attr("output_size", "ints", (), minimum=1, doc="spatial dims of Output; none: the least that has all windows"),
        Attr("output_padding", "ints", (), minimum=0, doc="by how much Output is larger than the least, at its end"),
        Attr("fuse_relu", "bool", False, doc="Output = relu of the result"),
        Attr("fuse_activation", "str", "", choices=("", *sorted(EPILOGUE)),
             doc="Output = that activation of the result"),
        Attr("fuse_alpha", "float", 0.0, doc="parameter of fuse_activation"),
        Attr("fuse_beta", "float", 0.0, doc="taken for Fluid's sake; of no effect"),
        Attr("force_fp32_output", "bool", False, doc="of Fluid's int8 kernels; of no effect"),
    )  # fmt: skip
    what = "one filter or more for each channel: " if depthwise else ""
    register_op(
        type,
        inputs=("Input", "Filter", Slot("Bias", dispensable=True, doc="added to each channel of Output")),
        outputs=("Output",),
        attrs=attrs,
        infer=_infer(spatial, depthwise),
        grad=grad_maker(type),
        decompose=decompose(*SIZES),
        dtypes={slot: ALL_FLOATS for slot in ("Input", "Filter", "Bias")},
        reference=_reference,
        samples=samples,
        in_layout=channels_to_end("Input", "Output"),
        doc=f"{what}Output[n, c, o stride + k dilation - pad] += sum over m of Input[n, m, o] Filter[m, c, k]",
        memory=WORKSPACE,
        source="Fluid conv_transpose_op.cc",
    )
    register_op(
        type + "_grad",
        inputs=grad_slots(),
        outputs=grad_outputs("Input", "Filter", "Bias"),
        attrs=attrs,
        infer=infer_grad,
        grad=second_grad_maker(type),
        decompose=decompose_grad(*SIZES),
        kernel_dtype="Output@GRAD",
        in_layout=channels_to_end("Input", "Output@GRAD", "Input@GRAD"),
        doc="Input@GRAD = Filter over the windows of Output@GRAD; Filter@GRAD = sum of Input times those windows",
        memory=WORKSPACE,
    )


_register("conv2d_transpose", 2, _samples_2d)
_register("depthwise_conv2d_transpose", 2, _samples_depthwise, depthwise=True)
_register("conv3d_transpose", 3, _samples_3d)
