"""Transposed convolution: conv2d_transpose, depthwise_conv2d_transpose, conv3d_transpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import operator
from fluidlite.operators.conv_common import (
    FUSED,
    GRAD_WORKSPACE,
    check_bias,
    check_depthwise_groups,
    check_groups,
    check_stride_product,
    declare_gradient,
    grad_maker,
    unfused_attrs,
    window_attrs,
    with_activations,
    with_bias,
)
from fluidlite.operators.conv_windows import ConvWindows, conv_windows
from fluidlite.operators.windows import channels_to_end
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Execution, Lowering

_SIZES = ("output_size", "output_padding")


def _output_windows(
    counts: Sequence[e.Number], windows: ConvWindows, output_size: Sequence[int], output_padding: Sequence[int]
) -> tuple[ConvWindows, list[e.Number]]:
    """The windows over Output, and its spatial dims: the smallest that hold all windows, or those of the attributes."""
    if output_size and len(output_size) != windows.spatial:
        e.fail_attr("output_size", f"{windows.spatial} numbers, one for each spatial dim")
    if output_padding and len(output_padding) != windows.spatial:
        e.fail_attr("output_padding", f"{windows.spatial} numbers, one for each spatial dim")
    axes, sizes = [], []
    for i, (axis, count) in enumerate(zip(windows.axes, counts, strict=True)):
        minimum = (count - 1) * axis.stride + axis.reach - (axis.before + axis.after)
        limit, n = max(axis.stride, axis.dilation), minimum
        if output_size:
            n = e.number(output_size[i])
            expected = f"a number in [{{0}}, {{1}}) in spatial dim {i}, where all have {{2}} windows"
            for condition in (minimum <= n, n < minimum + axis.stride):
                e.need_attr(condition, "output_size", expected, minimum, minimum + axis.stride, count)
        elif output_padding:
            if not 0 <= output_padding[i] < limit:
                e.fail_attr("output_padding", f"a number in [0, {limit}) in spatial dim {i}: below the stride")
            n = minimum + output_padding[i]
        e.need(
            n >= 1,
            "Input",
            f"windows that cover 1 or more in spatial dim {i}; they cover {{0}}",
            do="pad less",
            numbers=(n,),
        )
        axes.append(axis._replace(after=axis.after - (n - minimum), has_remainder=bool(output_size or output_padding)))
        sizes.append(n)
    return windows._replace(axes=tuple(axes)), sizes


def _register(type: str, spatial: int, depthwise: bool = False) -> None:
    def output_windows(x: e.Tensor, w: e.Tensor, attrs: Mapping[str, Any]) -> tuple[ConvWindows, list[e.Number]]:
        windows = conv_windows(x, w, spatial, **attrs)
        groups, (_, channels, counts) = windows.groups, windows.split_dims(x.dims)
        if depthwise:
            check_depthwise_groups(channels, groups, "conv2d_transpose")
        check_groups(channels, groups)
        if not e.agree(w.dims[0], channels):
            e.fail("Filter", f"{e.static_value(channels)} in dim 0, the channels of Input")
        check_stride_product(attrs["strides"])
        return _output_windows(counts, windows, attrs["output_size"], attrs["output_padding"])

    def conv_transpose(input_: e.Tensor, filter_: e.Tensor, bias: e.Tensor | None, **attrs: Any) -> e.Tensor:
        windows, sizes = output_windows(input_, filter_, attrs)
        y = windows.scatter(input_, filter_, sizes)
        operands = {"Input": input_, "Filter": filter_}
        out = e.call(type, operands, unfused_attrs(attrs, *_SIZES), lambda: {"Output": y})["Output"]
        check_bias(bias, input_, filter_.dims[1] * windows.groups)
        return with_activations(with_bias(out, bias, windows.channels_last), attrs)

    attrs = (
        *window_attrs(spatial),
        Attr(
            "output_size", "ints", (), minimum=1, doc="spatial dims of Output; none: the smallest that hold all windows"
        ),
        Attr("output_padding", "ints", (), minimum=0, doc="elements added at the end of the smallest Output"),
        *FUSED,
    )
    what = "one filter or more for each channel: " if depthwise else ""
    op = operator(
        type,
        Differentiation(rule=grad_maker(type)),
        Execution(memory=GRAD_WORKSPACE),
        Lowering(in_layout=channels_to_end("Input", "Output")),
        inputs=("Input", "Filter", Slot("Bias", dispensable=True, doc="added to each channel of Output")),
        outputs=("Output",),
        attrs=attrs,
        dtypes=dict.fromkeys(("Input", "Filter", "Bias"), ALL_FLOATS),
        source="Fluid conv_transpose_op.cc",
        doc=f"{what}Output[n, c, o stride + k dilation - pad] += sum over m of Input[n, m, o] Filter[m, c, k]",
    )(conv_transpose)
    declare_gradient(
        op,
        lambda x, w, attrs: output_windows(x, w, attrs)[0],
        True,
        _SIZES,
        "Input@GRAD = Filter over the windows of Output@GRAD; Filter@GRAD = sum of Input times those windows",
    )


_register("conv2d_transpose", 2)
_register("depthwise_conv2d_transpose", 2, depthwise=True)
_register("conv3d_transpose", 3)
