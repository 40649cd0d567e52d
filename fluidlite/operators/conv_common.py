"""What convolutions and their transposes share: attributes, checks, windows of images, gradients, what is fused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from fluidlite import expr as e
from fluidlite.base.errors import GradientError
from fluidlite.expr.declare import gradient
from fluidlite.expr.scalars import tensor_function
from fluidlite.geometry.convolving import ACTIVATIONS, EPILOGUE, RELU_BEFORE
from fluidlite.operators.math.spans import explicit_pads, same_pads
from fluidlite.operators.windows import PADDING_ALGORITHM, channels_to_end, data_format
from fluidlite.program.opdef import GRAD, Attr, OpDef
from fluidlite.program.operator_options import Differentiation, Execution, Lowering
from fluidlite.program.registry import ops

WINDOWS = ("strides", "paddings", "groups", "dilations", "padding_algorithm", "data_format")


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


WORKSPACE = (
    "in a kernel language, a few images padded with zeros, 8 MB or one image of them, and Filter in tiles; where "
    "arrays compute, Input padded with zeros, and 4 MB of windows"
)
GRAD_WORKSPACE = (
    "in a kernel language, a few images padded with zeros, 8 MB or one image of them, and Filter in tiles; where "
    "arrays compute, the image to which windows are sent back as often as Filter has elements for a channel"
)
_MAX_CORRELATIONS = 1 << 16


# Where windows lie --------------------------------------------------------------------------------------------------


class Axis(NamedTuple):
    """Windows along one spatial dim of an image that is padded ``before`` and ``after``.

    ``longer``: the image may end behind the last window, by as much as ``after`` is less than 0.
    """

    taps: e.Number
    stride: int
    dilation: int
    before: e.Number
    after: e.Number
    longer: bool = False

    @property
    def reach(self) -> e.Number:
        """Elements from the first to the last of a window."""
        return e.window_reach(self.taps, self.dilation)


class Geometry(NamedTuple):
    """Windows over images [N, C, ...] or, with ``last``, [N, ..., C], whose channels are in groups."""

    axes: tuple[Axis, ...]
    groups: int
    last: bool

    @property
    def spatial(self) -> int:
        return len(self.axes)

    def split(self, dims: Sequence[e.Number]) -> tuple[e.Number, e.Number, tuple[e.Number, ...]]:
        """Images, channels and spatial dims."""
        return (dims[0], dims[-1], tuple(dims[1:-1])) if self.last else (dims[0], dims[1], tuple(dims[2:]))

    def join(self, images: e.Number, channels: Sequence[Any], spatial: Sequence[Any]) -> tuple[Any, ...]:
        """Those as dims."""
        return (images, *spatial, *channels) if self.last else (images, *channels, *spatial)

    def grouped(self, x: e.Tensor) -> e.Tensor:
        """Channels as groups, and channels of a group."""
        images, channels, spatial = self.split(x.dims)
        return e.reshape(x, self.join(images, (self.groups, channels // self.groups), spatial))

    def ungrouped(self, x: e.Tensor) -> e.Tensor:
        """Groups of channels as one axis."""
        group, channels = (x.dims[-2:]) if self.last else x.dims[1:3]
        spatial = x.dims[self.first : self.first + self.spatial]
        return e.reshape(x, self.join(x.dims[0], (group * channels,), spatial))

    def letters(self) -> tuple[str, str, str]:
        """The axes of the elements of windows, of windows, and of a filter, for contractions."""
        places, taps = "abd"[: self.spatial], "ijk"[: self.spatial]
        columns = f"n{places}{taps}gc" if self.last else f"ngc{taps}{places}"
        return columns, f"n{places}gm" if self.last else f"ngm{places}", f"gmc{taps}"

    @property
    def first(self) -> int:
        """The first spatial axis of an image in groups."""
        return 1 if self.last else 3

    def order(self) -> list[int]:
        """How windows lie whose elements stand beside each other, [.., count, taps, count, taps, ..], as columns."""
        at, n = self.first, self.spatial
        counts, taps = [at + 2 * i for i in range(n)], [at + 2 * i + 1 for i in range(n)]
        rest = [0, *([] if self.last else [1, 2])]
        behind = [at + 2 * n, at + 2 * n + 1] if self.last else []
        return [*rest, *((counts + taps) if self.last else (taps + counts)), *behind]

    def columns(self, x: e.Tensor) -> e.Tensor:
        """The elements of the windows of an image, zeros outside of it."""
        x = self.grouped(x)
        low: list[e.Number | int] = [0] * x.rank
        high: list[e.Number | int] = [0] * x.rank
        for i, axis in enumerate(self.axes):
            low[self.first + i], high[self.first + i] = axis.before, axis.after
        x = e.pad(x, low, high)
        for i, axis in reversed(list(enumerate(self.axes))):
            x = e.window(x, self.first + i, axis.taps, axis.stride, axis.dilation)
        return e.transpose(x, self.order())

    def image(self, columns: e.Tensor, sizes: Sequence[e.Number]) -> e.Tensor:
        """The image of these spatial dims to which elements of windows are added where they lie."""
        order = self.order()
        x = e.transpose(columns, [order.index(axis) for axis in range(len(order))])
        for i, axis in reversed(list(enumerate(self.axes))):
            padded = axis.before + sizes[i] + axis.after
            x = e.unwindow(x, self.first + 2 * i, padded, axis.stride, axis.dilation)
        starts: list[e.Number | int] = [0] * x.rank
        ends: list[e.Number | int] = [0] * x.rank
        kept = list(x.dims)
        for i, (axis, size) in enumerate(zip(self.axes, sizes, strict=True)):
            starts[self.first + i], kept[self.first + i], ends[self.first + i] = axis.before, size, -axis.after
        if any(axis.longer for axis in self.axes):
            return e.pad(x, [-n for n in starts], ends)
        return e.slices(x, starts, kept)

    def weights(self, w: e.Tensor) -> e.Tensor:
        """The filter by groups."""
        return e.reshape(w, (self.groups, w.dims[0] // self.groups, *w.dims[1:]))

    def correlate(self, x: e.Tensor, w: e.Tensor) -> e.Tensor:
        """The windows of an image times the filter."""
        columns, windows, taps = self.letters()
        made = e.contract(self.columns(e.wide(x)), self.weights(e.wide(w)), f"{columns},{taps}->{windows}")
        return self.ungrouped(made)

    def spread(self, y: e.Tensor, w: e.Tensor, sizes: Sequence[e.Number]) -> e.Tensor:
        """Windows sent back through the filter, to an image of these spatial dims: the adjoint of that.

        Where they begin side by side the elements of the image are windows of them, times the filter turned around.
        """
        if all(axis.stride == 1 for axis in self.axes):
            turned = e.transpose(self.weights(e.flip(e.wide(w), range(2, w.rank))), (0, 2, 1, *range(3, w.rank + 1)))
            rows = [
                axis._replace(before=axis.reach - 1 - axis.before, after=size - count + axis.before)
                for axis, size, count in zip(self.axes, sizes, self.split(y.dims)[2], strict=True)
            ]
            back = self._replace(axes=tuple(rows))
            flat = e.reshape(turned, (turned.dims[0] * turned.dims[1], *turned.dims[2:]))
            return back.correlate(y, flat)
        columns, windows, taps = self.letters()
        made = e.contract(self.grouped(e.wide(y)), self.weights(e.wide(w)), f"{windows},{taps}->{columns}")
        return self.ungrouped(self.image(made, sizes))

    def filter(self, x: e.Tensor, y: e.Tensor, w: e.Tensor) -> e.Tensor:
        """The sums of the windows of an image times tensors of the windows' dims, which are those of a filter."""
        columns, windows, taps = self.letters()
        made = e.contract(self.columns(e.wide(x)), self.grouped(e.wide(y)), f"{columns},{windows}->{taps}")
        return e.reshape(made, w.dims)


def geometry(
    x: e.Tensor,
    w: e.Tensor,
    spatial: int,
    strides: Sequence[int],
    paddings: Sequence[int],
    groups: int,
    dilations: Sequence[int],
    padding_algorithm: str,
    data_format: str,
    **_: Any,
) -> Geometry:
    """The windows of a call.

    Raises
    ------
    Refused
        Unless Input and Filter have the rank, one dtype, and no dim of 0, and lists of numbers their length.
    """
    last = data_format in ("NHWC", "NDHWC")
    order = "[N, H, W, C]" if last else "[N, C, H, W]"
    if spatial == 3:
        order = order.replace("H", "D, H")
    if x.rank != spatial + 2:
        e.fail("Input", f"rank {spatial + 2}: {order}")
    if w.rank != spatial + 2:
        e.fail("Filter", f"rank {spatial + 2}")
    e.same_dtype(w, x)
    for d in x.dims[1:]:
        e.need(d >= 1, "Input", "dims of 1 or more after the first")
    for d in w.dims:
        e.need(d >= 1, "Filter", "dims of 1 or more")
    steps, apart = e.per_dim("strides", strides, spatial), e.per_dim("dilations", dilations, spatial)
    explicit = explicit_pads(paddings, spatial)
    if padding_algorithm == "VALID":
        explicit = [(0, 0)] * spatial
    axes = []
    for i, (taps, step, gap, pads) in enumerate(zip(w.dims[2:], steps, apart, explicit, strict=True)):
        if padding_algorithm == "SAME":
            size = x.dims[i + (1 if last else 2)]
            axes.append(Axis(taps, step, 1, *same_pads(size, taps, step)))
        else:
            axes.append(Axis(taps, step, gap, e.number(pads[0]), e.number(pads[1])))
    return Geometry(tuple(axes), groups, last)


def check_groups(channels: e.Number, groups: int, slot: str) -> None:
    """Raise unless channels are a whole number in each group."""
    if not e.agree(channels % groups, 0):
        e.fail_attr("groups", f"a divisor of the channels of {slot}, {e.known(channels)}")


def check_one_each(channels: e.Number, groups: int, other: str) -> None:
    """Raise unless each channel is a group of its own."""
    if not e.agree(channels, groups):
        e.fail_attr("groups", f"the channels of Input, {e.known(channels)}", do=f"use {other} for fewer groups")


def check_spread(strides: Sequence[int]) -> None:
    """Raise if the way from windows back to an image is too many correlations, one for each place modulo strides."""
    if prod(strides) > _MAX_CORRELATIONS:
        e.fail_attr("strides", f"strides whose product is at most {_MAX_CORRELATIONS:,}, for a way back to the image")


def check_bias(bias: e.Tensor | None, x: e.Tensor, channels: e.Number) -> None:
    """Raise unless Bias, where given, has one number a channel of Output."""
    if bias is not None:
        if not e.all_agree(bias.dims, (channels,)):
            e.fail("Bias", f"{e.shown_dims((channels,))}, a number a channel of Output")
        e.same_dtype(bias, x)


# What is fused ------------------------------------------------------------------------------------------------------


def plain(attrs: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """Return the attributes without what is fused."""
    return {name: attrs[name] for name in (*WINDOWS, *more)}


def with_bias(y: e.Tensor, bias: e.Tensor | None, last: bool) -> e.Tensor:
    """The result with a number added to each channel."""
    return y if bias is None else y + e.reshape(bias, (*bias.dims, *(1,) * (0 if last else y.rank - 2)))


def activated(y: e.Tensor, attrs: Mapping[str, Any]) -> e.Tensor:
    """The result with the activations that are fused, in order: relu, bounded relu, the one that is named."""
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
    function = tensor_function(op)
    assert function is not None
    found: e.Tensor = function({"X": (x,)}, {**{a.name: a.default for a in op.attrs}, **attrs})["Out"]
    return found


def rectified(x: e.Tensor) -> e.Tensor:
    """The image of a depthwise convolution with a relu before."""
    return e.cast(_activation("relu", x), x.dtype)


# Gradients ----------------------------------------------------------------------------------------------------------


def relu_before(type: str, attrs: Mapping[str, Any]) -> bool:
    """Whether the image is relu(Input): as in Fluid, conv2d has the attribute too, and does not heed it."""
    return type.startswith("depthwise") and bool(attrs.get(RELU_BEFORE))


Checked = Callable[[e.Tensor, e.Tensor, Mapping[str, Any]], Geometry]
"""From Input, Filter and attributes to the windows of a call."""


def declare_gradient(op: OpDef, checked: Checked, transposed: bool, names: Sequence[str], doc: str) -> None:
    """Declare the gradient operator of a convolution; ``names`` are attributes that count beside :data:`WINDOWS`."""

    def backward(
        input_: e.Tensor, filter_: e.Tensor, bias: e.Tensor | None, doutput: e.Tensor, **attrs: Any
    ) -> tuple[e.Tensor, ...]:
        """Written: the derived one would always add up windows, where it is faster to read them."""
        check_spread(attrs["strides"])
        for name in ACTIVATIONS:
            if attrs.get(name):
                e.fail_attr(name, "none: a gradient does not go through a fused activation")
        if doutput.rank != input_.rank:
            e.fail("Output" + GRAD, f"rank {input_.rank}, that of Input")
        before = relu_before(op.type, attrs)
        image = rectified(input_) if before else input_
        windows = checked(image, filter_, attrs)

        def function() -> Mapping[str, e.Tensor]:
            if transposed:
                dx, dw = windows.correlate(doutput, filter_), windows.filter(doutput, input_, filter_)
            else:
                sizes = windows.split(image.dims)[2]
                dx, dw = windows.spread(doutput, filter_, sizes), windows.filter(image, doutput, filter_)
            return {"Input" + GRAD: e.reshape(dx, input_.dims), "Filter" + GRAD: dw}

        operands = {"Input": image, "Filter": filter_, "Output" + GRAD: doutput}
        found = e.call(f"{op.type}_grad", operands, plain(attrs, *names), function)
        dx, channels = found["Input" + GRAD], doutput.rank - 1 if windows.last else 1
        if before:
            dx = e.where(image > 0, dx, 0)
        return dx, found["Filter" + GRAD], e.reduce_sum(doutput, [k for k in range(doutput.rank) if k != channels])

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
        wanted = {slot: name for slot, name in outputs.items() if name is not None}
        if wanted:
            maker.op(type + "_grad", {**inputs, "Output" + GRAD: dout}, wanted, attrs)
        if maker.count("ResidualData"):
            given = maker.input_grad("ResidualData")
            if given is not None:
                maker.op("assign", {"X": dout}, {"Out": given})

    return grad


def second_grad_maker(type: str) -> Callable[[Any], None]:
    """Return the gradient function of a convolution's gradient.

    The convolution is linear in Input, behind the relu that may be before it, in Filter and in Bias.
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
            given, said = {**names, slot: maker.output_grad(slot + GRAD)}, attrs
            if slot == "Input" and relu_before(type, attrs):
                given[slot], said = maker.temporary(), {**attrs, RELU_BEFORE: False}
                of = {"Out": names[slot], "Out" + GRAD: maker.output_grad(slot + GRAD)}
                maker.op("relu_grad", of, {"X" + GRAD: given[slot]})
            maker.op(type, {"Input": given["Input"], "Filter": given["Filter"]}, {"Output": dout}, said)
            maker.op(type + "_grad", given, {other + GRAD: dother}, said)
        if maker.count("Bias" + GRAD):
            dout, zeros = maker.input_grad("Output" + GRAD), maker.temporary()
            if dout is not None:
                maker.op("fill_zeros_like", {"X": names["Output" + GRAD]}, {"Out": zeros})
                axis = -1 if attrs["data_format"] in ("NHWC", "NDHWC") else 1
                both = {"X": zeros, "Y": maker.output_grad("Bias" + GRAD)}
                maker.op("elementwise_add", both, {"Out": dout}, {"axis": axis})

    return grad
