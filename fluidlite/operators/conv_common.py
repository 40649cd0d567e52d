"""Helpers of convolutions and transposed convolutions: attributes, checks, gradients, fused epilogues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from fluidlite import expr as e
from fluidlite.base.errors import GradientError
from fluidlite.expr.declare import gradient
from fluidlite.expr.scalars import function_of_scalar_rule
from fluidlite.geometry.convolving import ACTIVATIONS, EPILOGUE, RELU_BEFORE
from fluidlite.operators.conv_windows import ConvWindows
from fluidlite.operators.windows import PADDING_ALGORITHM, channels_to_end, data_format
from fluidlite.program.opdef import GRAD, Attr, OpDef
from fluidlite.program.operator_options import Differentiation, Execution, Lowering
from fluidlite.program.registry import ops

WINDOWS = ("strides", "paddings", "groups", "dilations", "padding_algorithm", "data_format")


def window_attrs(spatial: int) -> tuple[Attr, ...]:
    """Return the attributes of the window geometry."""
    return (
        Attr("strides", "ints", (1,) * spatial, doc="distance between windows in each spatial dim"),
        Attr("paddings", "ints", (0,) * spatial, doc="zeros around the image: one number a dim, or before and after"),
        Attr("groups", "int", 1, minimum=1, doc="number of independent groups of channels"),
        Attr("dilations", "ints", (1,) * spatial, doc="distance between the elements that a filter reads"),
        PADDING_ALGORITHM,
        data_format(spatial),
    )


FUSED = (
    Attr("fuse_relu", "bool", False, doc="Output = relu of the result"),
    Attr("fuse_activation", "str", "", choices=("", *sorted(EPILOGUE)), doc="Output = that activation of the result"),
    Attr("fuse_alpha", "float", 0.0, doc="first parameter of fuse_activation: a slope, a bound, a factor"),
    Attr("fuse_beta", "float", 0.0, doc="accepted for Fluid programs; of no effect"),
    Attr("force_fp32_output", "bool", False, doc="of Fluid's int8 kernels; of no effect"),
)
"""Activations that Fluid's passes fuse into a convolution, or a transposed one."""

WORKSPACE = (
    "in a kernel language, a few images padded with zeros, 8 MB or one image of them, and Filter in tiles; where "
    "arrays compute, Input padded with zeros, and 4 MB of windows"
)
GRAD_WORKSPACE = (
    "in a kernel language, a few images padded with zeros, 8 MB or one image of them, and Filter in tiles; where "
    "arrays compute, as many copies of the image as Filter has elements for a channel"
)
_MAX_CORRELATIONS = 1 << 16
"""Maximum product of strides: scattering windows to an image is one correlation for each residue modulo strides."""


def check_groups(channels: e.Number, groups: int) -> None:
    """Raise unless the groups divide the channels."""
    if not e.agree(channels % groups, 0):
        e.fail_attr("groups", f"a divisor of the channels of Input, {e.static_value(channels)}")


def check_depthwise_groups(channels: e.Number, groups: int, other: str) -> None:
    """Raise unless each channel is a group of its own."""
    if not e.agree(channels, groups):
        e.fail_attr("groups", f"the channels of Input, {e.static_value(channels)}", do=f"use {other} for fewer groups")


def check_stride_product(strides: Sequence[int]) -> None:
    """Raise if scattering windows to an image needs more than _MAX_CORRELATIONS correlations."""
    if prod(strides) > _MAX_CORRELATIONS:
        e.fail_attr(
            "strides", f"strides whose product is at most {_MAX_CORRELATIONS:,}, to scatter windows to the image"
        )


def check_bias(bias: e.Tensor | None, x: e.Tensor, channels: e.Number) -> None:
    """Raise unless Bias, if given, has one number for each channel of Output."""
    if bias is not None:
        if not e.all_agree(bias.dims, (channels,)):
            e.fail("Bias", f"{e.describe_dims((channels,))}, a number a channel of Output")
        e.same_dtype(bias, x)


# Fused epilogues ----------------------------------------------------------------------------------------------------


def unfused_attrs(attrs: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """Return the attributes of the convolution without those of fused epilogues."""
    return {name: attrs[name] for name in (*WINDOWS, *more)}


def with_bias(y: e.Tensor, bias: e.Tensor | None, channels_last: bool) -> e.Tensor:
    """Add a number to each channel of the result."""
    return y if bias is None else y + e.reshape(bias, (*bias.dims, *(1,) * (0 if channels_last else y.rank - 2)))


def with_activations(y: e.Tensor, attrs: Mapping[str, Any]) -> e.Tensor:
    """Apply the fused activations in order: relu, bounded relu, then fuse_activation."""
    if attrs["fuse_relu"]:
        y = _activation("relu", y)
    if attrs.get("fuse_brelu"):
        y = _activation("relu6", y, threshold=attrs["fuse_brelu_threshold"])
    name = attrs["fuse_activation"]
    if name:
        y = _activation(name, y, **({EPILOGUE[name]: attrs["fuse_alpha"]} if EPILOGUE[name] else {}))
    return y


def _activation(type: str, x: e.Tensor, **attrs: Any) -> e.Tensor:
    op = ops.get(type)
    function = function_of_scalar_rule(op)
    assert function is not None
    result: e.Tensor = function({"X": (x,)}, {**{a.name: a.default for a in op.attrs}, **attrs})["Out"]
    return result


def with_relu(x: e.Tensor) -> e.Tensor:
    """The image of a depthwise convolution that applies relu to its input first."""
    return e.cast(_activation("relu", x), x.dtype)


# Gradients ----------------------------------------------------------------------------------------------------------


def relu_before(type: str, attrs: Mapping[str, Any]) -> bool:
    """Whether the image is relu(Input). As in Fluid, conv2d has the attribute too, but ignores it."""
    return type.startswith("depthwise") and bool(attrs.get(RELU_BEFORE))


Checked = Callable[[e.Tensor, e.Tensor, Mapping[str, Any]], ConvWindows]
"""From Input, Filter and attributes to the windows of a call."""


def declare_gradient(op: OpDef, checked: Checked, transposed: bool, names: Sequence[str], doc: str) -> None:
    """Declare the gradient operator of a convolution; ``names`` are attributes that it reads beside :data:`WINDOWS`."""

    def backward(
        input_: e.Tensor, filter_: e.Tensor, bias: e.Tensor | None, doutput: e.Tensor, **attrs: Any
    ) -> tuple[e.Tensor, ...]:
        """Hand-written: the derived gradient always scatters windows, where a gather is faster."""
        check_stride_product(attrs["strides"])
        for name in ACTIVATIONS:
            if attrs.get(name):
                e.fail_attr(name, "none: a fused activation has no gradient")
        if doutput.rank != input_.rank:
            e.fail("Output" + GRAD, f"rank {input_.rank}, that of Input")
        before = relu_before(op.type, attrs)
        image = with_relu(input_) if before else input_
        windows = checked(image, filter_, attrs)

        def function() -> Mapping[str, e.Tensor]:
            if transposed:
                dx, dw = windows.correlate(doutput, filter_), windows.filter(doutput, input_, filter_)
            else:
                sizes = windows.split_dims(image.dims)[2]
                dx, dw = windows.scatter(doutput, filter_, sizes), windows.filter(image, doutput, filter_)
            return {"Input" + GRAD: e.reshape(dx, input_.dims), "Filter" + GRAD: dw}

        operands = {"Input": image, "Filter": filter_, "Output" + GRAD: doutput}
        results = e.call(f"{op.type}_grad", operands, unfused_attrs(attrs, *names), function)
        dx, channels = results["Input" + GRAD], doutput.rank - 1 if windows.channels_last else 1
        if before:
            dx = e.where(image > 0, dx, 0)
        return dx, results["Filter" + GRAD], e.reduce_sum(doutput, [k for k in range(doutput.rank) if k != channels])

    gradient(
        op,
        Differentiation(rule=second_grad_maker(op.type)),
        Execution(memory=GRAD_WORKSPACE),
        Lowering(in_layout=channels_to_end("Input", "Output" + GRAD, "Input" + GRAD)),
        writes=("Input", "Filter", "Bias"),
        metadata=("Bias",),
        doc=doc,
    )(backward)


def grad_maker(type: str) -> Callable[[Any], None]:
    """Return the gradient function of a convolution."""

    def grad(maker: Any) -> None:
        attrs = dict(maker.operator.attrs)
        named = [name for name in ACTIVATIONS if attrs.get(name)]
        if named:
            raise GradientError(
                f"{type} with {named[0]} has no gradient; expected an activation of its own\n"
                "  Do: append the activation as an operator when training"
            )
        inputs = {"Input": maker.input("Input"), "Filter": maker.input("Filter")}
        outputs = {slot + GRAD: maker.input_grad(slot) for slot in inputs}
        if maker.count("Bias"):
            inputs["Bias"], outputs["Bias" + GRAD] = maker.input("Bias"), maker.input_grad("Bias")
        dout = maker.output_grad("Output")
        requested = {slot: name for slot, name in outputs.items() if name is not None}
        if requested:
            maker.op(type + "_grad", {**inputs, "Output" + GRAD: dout}, requested, attrs)
        if maker.count("ResidualData"):
            residual_grad = maker.input_grad("ResidualData")
            if residual_grad is not None:
                maker.op("assign", {"X": dout}, {"Out": residual_grad})

    return grad


def second_grad_maker(type: str) -> Callable[[Any], None]:
    """Return the gradient function of a convolution's gradient.

    The convolution is linear in Input (after the optional relu), in Filter and in Bias.
    """

    def grad(maker: Any) -> None:
        names = {slot: maker.input(slot) for slot in ("Input", "Filter", "Output" + GRAD)}
        attrs = dict(maker.operator.attrs)
        for slot, other in (("Input", "Filter"), ("Filter", "Input")):
            if not maker.count(slot + GRAD):
                continue
            dout, dother = maker.input_grad("Output" + GRAD), maker.input_grad(other)
            if dout is None and dother is None:
                continue
            grad_inputs, call_attrs = {**names, slot: maker.output_grad(slot + GRAD)}, attrs
            if slot == "Input" and relu_before(type, attrs):
                grad_inputs[slot], call_attrs = maker.temporary(), {**attrs, RELU_BEFORE: False}
                relu_inputs = {"Out": names[slot], "Out" + GRAD: maker.output_grad(slot + GRAD)}
                maker.op("relu_grad", relu_inputs, {"X" + GRAD: grad_inputs[slot]})
            maker.op(
                type, {"Input": grad_inputs["Input"], "Filter": grad_inputs["Filter"]}, {"Output": dout}, call_attrs
            )
            maker.op(type + "_grad", grad_inputs, {other + GRAD: dother}, call_attrs)
        if maker.count("Bias" + GRAD):
            dout, zeros = maker.input_grad("Output" + GRAD), maker.temporary()
            if dout is not None:
                maker.op("fill_zeros_like", {"X": names["Output" + GRAD]}, {"Out": zeros})
                axis = -1 if attrs["data_format"] in ("NHWC", "NDHWC") else 1
                addends = {"X": zeros, "Y": maker.output_grad("Bias" + GRAD)}
                maker.op("elementwise_add", addends, {"Out": dout}, {"axis": axis})

    return grad
