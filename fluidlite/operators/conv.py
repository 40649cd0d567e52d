"""Convolution: conv2d, depthwise_conv2d, conv3d."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import operator
from fluidlite.geometry.convolving import RELU_BEFORE
from fluidlite.operators.conv_common import (
    FUSED,
    WORKSPACE,
    check_bias,
    check_depthwise_groups,
    check_groups,
    declare_gradient,
    grad_maker,
    relu_before,
    unfused_attrs,
    window_attrs,
    with_activations,
    with_bias,
    with_relu,
)
from fluidlite.operators.conv_windows import ConvWindows, conv_windows
from fluidlite.operators.windows import channels_to_end
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Execution, Lowering

_FUSED = (
    *FUSED,
    Attr("fuse_brelu", "bool", False, doc="Output = relu6 of the result"),
    Attr("fuse_brelu_threshold", "float", 6.0, doc="the bound of fuse_brelu"),
    Attr("fuse_residual_connection", "bool", False, doc="ResidualData is added if it is given; of no effect"),
)
"""Attributes of activations and additions that Fluid's passes fuse into a convolution."""

_IGNORED = (
    *(
        Attr(name, "float", 1.0, doc="of Fluid's int8 kernels; of no effect")
        for name in ("Scale_in", "Scale_out", "Scale_in_eltwise")
    ),
    Attr("Scale_weights", "floats", (1.0,), doc="of Fluid's int8 kernels; of no effect"),
    Attr("use_addto", "bool", False, doc="accepted for Fluid programs; of no effect"),
)


def _register(type: str, spatial: int, depthwise: bool = False) -> None:
    def checked_windows(x: e.Tensor, w: e.Tensor, attrs: Mapping[str, Any]) -> ConvWindows:
        windows = conv_windows(x, w, spatial, **attrs)
        groups, (_, channels, sizes) = windows.groups, windows.split_dims(x.dims)
        if depthwise:
            check_depthwise_groups(channels, groups, "conv2d")
        check_groups(channels, groups)
        if not e.agree(w.dims[0] % groups, 0):
            e.fail_attr("groups", f"a divisor of the channels of Output, {e.static_value(w.dims[0])} (dim 0 of Filter)")
        if not e.agree(w.dims[1], channels // groups):
            group_channels = e.static_value(channels // groups)
            e.fail("Filter", f"{group_channels} in dim 1: the channels of Input, {e.static_value(channels)}, a group")
        for i, (axis, n) in enumerate(zip(windows.axes, sizes, strict=True)):
            padded = n + (axis.before + axis.after)
            e.need(
                padded >= axis.reach,
                "Filter",
                f"a reach of {{0}} or less in spatial dim {i}, where Input has {{1}} and padding {{2}}; it has {{3}}",
                do="pad more, or use a smaller filter",
                numbers=(padded, n, padded - n, axis.reach),
            )
        return windows

    def conv(
        input_: e.Tensor, filter_: e.Tensor, bias: e.Tensor | None, residual_data: e.Tensor | None, **attrs: Any
    ) -> e.Tensor:
        image = with_relu(input_) if relu_before(type, attrs) else input_
        windows = checked_windows(image, filter_, attrs)
        y = windows.correlate(image, filter_)
        out = e.call(type, {"Input": image, "Filter": filter_}, unfused_attrs(attrs), lambda: {"Output": y})["Output"]
        check_bias(bias, input_, filter_.dims[0])
        out = with_bias(out, bias, windows.channels_last)
        if residual_data is not None:
            if not e.all_agree(residual_data.dims, y.dims):
                e.fail("ResidualData", f"{e.describe_dims(y.dims)}, the dims of Output")
            e.same_dtype(residual_data, input_)
            out = out + e.reshape(residual_data, y.dims)
        return with_activations(out, attrs)

    what = "one filter or more for each channel: " if depthwise else ""
    before = "the image is relu(Input)" if depthwise else "as in Fluid, only depthwise_conv2d applies it; of no effect"
    relu = (Attr(RELU_BEFORE, "bool", False, doc=before),) if spatial == 2 else ()
    op = operator(
        type,
        Differentiation(rule=grad_maker(type)),
        Execution(memory=WORKSPACE),
        Lowering(in_layout=channels_to_end("Input", "Output", "ResidualData")),
        inputs=(
            "Input",
            "Filter",
            Slot("Bias", dispensable=True, doc="added to each channel of Output"),
            Slot("ResidualData", dispensable=True, doc="added to Output"),
        ),
        outputs=("Output",),
        attrs=(*window_attrs(spatial), *relu, *_FUSED, *_IGNORED),
        dtypes=dict.fromkeys(("Input", "Filter", "Bias", "ResidualData"), ALL_FLOATS),
        source="Fluid conv_op.cc",
        doc=f"{what}Output[n, m, o] = sum over c, k of Input[n, c, o stride + k dilation - pad] Filter[m, c, k]",
    )(conv)
    declare_gradient(
        op,
        checked_windows,
        False,
        (),
        "Input@GRAD: Output@GRAD scattered through Filter; Filter@GRAD = sum of Output@GRAD Input",
    )


_register("conv2d", 2)
_register("depthwise_conv2d", 2, depthwise=True)
_register("conv3d", 3)
