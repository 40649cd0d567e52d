"""What convolution and transposed convolution share: attributes, checks, gradients, what is fused, references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite.base.errors import GradientError
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import GRAD, Attr, Slot
from fluidlite.operators.inference import Inferred, all_agree, grad_like, same_dtype
from fluidlite.operators.math.convolving import ACTIVATIONS, EPILOGUE, RELU_BEFORE
from fluidlite.operators.windows import PADDING_ALGORITHM, channels_last, data_format, explicit_pads, per_dim


def window_attrs(spatial: int) -> tuple[Attr, ...]:
    """Return the attributes that say where windows lie."""
    return (
        Attr("strides", "ints", (1,) * spatial, doc="distance between windows in each spatial dim"),
        Attr("paddings", "ints", (0,) * spatial, doc="zeros around the image: one number a dim, or before and after"),
        Attr("groups", "int", 1, minimum=1, doc="groups of channels that do not see each other"),
        Attr("dilations", "ints", (1,) * spatial, doc="distance between the elements that a filter reads"),
        PADDING_ALGORITHM,
        data_format(spatial),
    )


FUSED = (
    Attr("fuse_relu", "bool", False, doc="Output = relu of the result"),
    Attr("fuse_brelu", "bool", False, doc="Output = relu6 of the result"),
    Attr("fuse_brelu_threshold", "float", 6.0, doc="the bound of fuse_brelu"),
    Attr("fuse_activation", "str", "", choices=("", *sorted(EPILOGUE)), doc="Output = that activation of the result"),
    Attr("fuse_alpha", "float", 0.0, doc="first parameter of fuse_activation: a slope, a bound, a factor"),
    Attr("fuse_beta", "float", 0.0, doc="taken for Fluid's sake; of no effect"),
    Attr("fuse_residual_connection", "bool", False, doc="ResidualData is added where given; of no effect"),
)
"""What Fluid's passes fuse into a convolution."""

WORKSPACE = "on a dialect, a few images padded with zeros, 8 MB or one image of them, and Filter in tiles"

_INT8 = tuple(Attr(name, "float", 1.0, doc="of Fluid's int8 kernels; of no effect")
              for name in ("Scale_in", "Scale_out", "Scale_in_eltwise"))  # fmt: skip
IGNORED = (
    *_INT8,
    Attr("Scale_weights", "floats", (1.0,), doc="of Fluid's int8 kernels; of no effect"),
    Attr("force_fp32_output", "bool", False, doc="of Fluid's int8 kernels; of no effect"),
    Attr("use_addto", "bool", False, doc="taken for Fluid's sake; of no effect"),
)


def relu_before(type: str, attrs: Mapping[str, Any]) -> bool:
    """Whether the image is relu(Input): as in Fluid, conv2d has the attribute too, and does not heed it."""
    return type.startswith("depthwise") and bool(attrs.get(RELU_BEFORE))


def check_operands(call: Call, spatial: int) -> None:
    """Raise unless Input and Filter have the rank, one dtype, and no dim of 0; check the lists of numbers."""
    order = "[N, H, W, C]" if channels_last(call) else "[N, C, H, W]"
    if spatial == 3:
        order = order.replace("H", "D, H")
    call.need(len(call.dims("Input")) == spatial + 2, "Input", f"rank {spatial + 2}: {order}")
    call.need(len(call.dims("Filter")) == spatial + 2, "Filter", f"rank {spatial + 2}")
    same_dtype(call, "Filter", "Input")
    call.need(0 not in call.dims("Input")[1:], "Input", "dims of 1 or more after the first")
    call.need(0 not in call.dims("Filter"), "Filter", "dims of 1 or more")
    per_dim(call, "strides", spatial)
    per_dim(call, "dilations", spatial)
    explicit_pads(call, spatial)


def check_bias(call: Call, channels: int) -> None:
    """Raise unless Bias, where given, has one number a channel of Output."""
    if call.has("Bias"):
        call.need(all_agree(call.dims("Bias"), (channels,)), "Bias", f"[{channels}], a number a channel of Output")
        same_dtype(call, "Bias", "Input")


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
        wanted = {slot: name for slot, name in outputs.items() if name is not None}
        if wanted:
            maker.op(type + "_grad", {**inputs, "Output" + GRAD: dout}, wanted, attrs)
        if maker.count("ResidualData"):
            given = maker.input_grad("ResidualData")
            if given is not None:
                maker.op("assign", {"X": dout}, {"Out": given})

    return grad


def second_grad_maker(type: str) -> Callable[[Any], None]:
    """Return the gradient function of a convolution's gradient: the convolution is linear in Input and in Filter."""

    def grad(maker: Any) -> None:
        names = {slot: maker.input(slot) for slot in ("Input", "Filter", "Output" + GRAD)}
        attrs = dict(maker.operator.attrs)
        if maker.count("Bias") or relu_before(type, attrs):
            raise GradientError(
                f"{type}_grad with Bias or a relu before has no gradient of its own; expected a bare convolution\n"
                "  Do: append the bias or the activation as an operator"
            )
        for slot, other in (("Input", "Filter"), ("Filter", "Input")):
            if not maker.count(slot + GRAD):
                continue
            given = {**names, slot: maker.output_grad(slot + GRAD)}
            dout, dother = maker.input_grad("Output" + GRAD), maker.input_grad(other)
            if dout is not None:
                maker.op(type, {"Input": given["Input"], "Filter": given["Filter"]}, {"Output": dout}, attrs)
            if dother is not None:
                maker.op(type + "_grad", given, {other + GRAD: dother}, attrs)

    return grad


def _plain(call: Call, *extra: str) -> dict[str, Any]:
    """Return the attributes without what is fused."""
    names = ("strides", "paddings", "groups", "dilations", "padding_algorithm", "data_format", *extra)
    return {name: call.attr(name) for name in names}


def decompose(*extra: str) -> Callable[[Call, Any], str | None]:
    """Return the decomposition of a convolution with Bias, ResidualData or something fused."""

    def decomposed(call: Call, build: Any) -> str | None:
        steps: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        if call.has("Bias"):
            axis = len(call.dims("Input")) - 1 if channels_last(call) else 1
            steps.append(("elementwise_add", {"Y": build.input("Bias")}, {"axis": axis}))
        if call.has("ResidualData"):
            steps.append(("elementwise_add", {"Y": build.input("ResidualData")}, {}))
        steps += [(type, {}, attrs) for type, attrs in _activations(call)]
        before = relu_before(call.op.type, call.attrs)
        if not steps and not before:
            return "nothing is fused"
        image = build.input("Input")
        if before:
            image = build("relu", {"X": image}, {"Out": build.temp()})
        outs = [build.temp() for _ in steps]
        outs.append(build.output("Output"))
        build(call.op.type, {"Input": image, "Filter": build.input("Filter")}, {"Output": outs[0]},
              _plain(call, *extra))  # fmt: skip
        for i, (type, inputs, attrs) in enumerate(steps):
            build(type, {"X": outs[i], **inputs}, {"Out": outs[i + 1]}, attrs)
        return None

    return decomposed


def _activations(call: Call) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    if call.attrs.get("fuse_relu"):
        found.append(("relu", {}))
    if call.attrs.get("fuse_brelu"):
        found.append(("relu6", {"threshold": call.attr("fuse_brelu_threshold")}))
    if call.attrs.get("fuse_activation"):
        type = call.attr("fuse_activation")
        parameter = EPILOGUE[type]
        found.append((type, {parameter: call.attr("fuse_alpha")} if parameter else {}))
    return found


def decompose_grad(*extra: str) -> Callable[[Call, Any], str | None]:
    """Return the decomposition of a gradient with Bias, or with a relu before."""

    def decomposed(call: Call, build: Any) -> str | None:
        before = relu_before(call.op.type, call.attrs)
        if not before and not call.has("Bias"):
            return "nothing is fused"
        dout = build.input("Output" + GRAD)
        image = build.input("Input")
        if before:
            image = build("relu", {"X": image}, {"Out": build.temp()})
        outs = {}
        if call.has("Input" + GRAD):
            outs["Input" + GRAD] = build.temp() if before else build.output("Input" + GRAD)
        if call.has("Filter" + GRAD):
            outs["Filter" + GRAD] = build.output("Filter" + GRAD)
        if outs:
            inputs = {"Input": image, "Filter": build.input("Filter"), "Output" + GRAD: dout}
            build(call.op.type, inputs, outs, _plain(call, *extra))
        if before and call.has("Input" + GRAD):
            inputs = {"Out": image, "Out" + GRAD: outs["Input" + GRAD]}
            build("relu_grad", inputs, {"X" + GRAD: build.output("Input" + GRAD)})
        if call.has("Bias" + GRAD):
            rank = len(call.dims("Input"))
            axes = [axis for axis in range(rank) if axis != (rank - 1 if channels_last(call) else 1)]
            build("reduce_sum", {"X": dout}, {"Out": build.output("Bias" + GRAD)}, {"dim": axes})
        return None

    return decomposed


def grad_slots() -> tuple[Slot, ...]:
    """Return the inputs of a gradient operator."""
    bias = Slot("Bias", dispensable=True, metadata_only=True)
    return (Slot("Input"), Slot("Filter"), bias, Slot("Output" + GRAD))


def infer_grad(call: Call) -> Inferred:
    """Each gradient is as its forward variable."""
    for name in ACTIVATIONS:
        if call.attrs.get(name):
            call.fail_attr(name, "none: a gradient does not go through a fused activation")
    return grad_like("Input", "Filter", *(["Bias"] if call.has("Bias") else []))(call)


# References --------------------------------------------------------------------------------------------------------


def reference_pads(sizes: Sequence[int], kernel: Sequence[int], attrs: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the padding that the attributes mean."""
    spatial, given = len(sizes), list(attrs["paddings"])
    if attrs["padding_algorithm"] == "VALID":
        return [(0, 0)] * spatial
    if attrs["padding_algorithm"] == "SAME":
        totals = [
            max(0, (int(np.ceil(n / s)) - 1) * s + k - n)
            for n, k, s in zip(sizes, kernel, attrs["strides"], strict=True)
        ]
        return [(total // 2, (total + 1) // 2) for total in totals]
    return [(given[i], given[i]) if len(given) == spatial else (given[2 * i], given[2 * i + 1]) for i in range(spatial)]


def reference_dilations(attrs: Mapping[str, Any]) -> list[int]:
    """Return the dilations that count: SAME has none."""
    return [1] * len(attrs["dilations"]) if attrs["padding_algorithm"] == "SAME" else list(attrs["dilations"])


def channels_first(x: Any, attrs: Mapping[str, Any]) -> Any:
    """Return an image with its channels second."""
    return np.moveaxis(x, -1, 1) if attrs["data_format"] in ("NHWC", "NDHWC") else x


def as_given(y: Any, attrs: Mapping[str, Any]) -> Any:
    """Return an image in the format of the attributes."""
    return np.moveaxis(y, 1, -1) if attrs["data_format"] in ("NHWC", "NDHWC") else y


def reference_activation(y: Any, attrs: Mapping[str, Any]) -> Any:
    """Return the activation that is fused."""
    name, alpha = attrs["fuse_activation"], attrs["fuse_alpha"]
    if attrs["fuse_relu"] or name == "relu":
        return np.maximum(y, 0)
    if attrs.get("fuse_brelu"):
        return np.clip(y, 0, attrs["fuse_brelu_threshold"])
    if name == "relu6":
        return np.clip(y, 0, alpha)
    if name == "leaky_relu":
        return np.where(y > 0, y, alpha * y)
    return y / (1 + np.exp(-alpha * y)) if name == "swish" else y
