"""Permutations of image elements: pixel_shuffle, space_to_depth, shuffle_channel, temporal_shift."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL, ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.inference import Inferred, spec_like
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Differentiation, Inference

_IMAGES = "[images, channels, height, width]"
_GRAD_DOC = "X@GRAD = Out@GRAD in the order of X"


def _image(x: e.Tensor) -> e.Tensor:
    if x.rank != 4:
        e.fail(e.slot(x), _IMAGES)
    return x


def _part(attr: str, x: e.Tensor, axis: int, divisor: int) -> e.Number:
    """Divide a dim of images; fail if the divisor does not divide it."""
    size, what = x.dims[axis], ("images", "channels", "height", "width")[axis]
    expected = f"a number with which {divisor} divides {{0}}, the {what} of {e.slot(x)} ({{{e.slot(x)}}})"
    e.need_attr(size % divisor == 0, attr, expected, size)
    return size // divisor


def _permuted(x: e.Tensor, split: tuple[e.Number | int, ...], axes: tuple[int, ...], *dims: e.Number | int) -> e.Tensor:
    """Reshape, transpose, reshape."""
    return e.reshape(e.transpose(e.reshape(x, split), axes), dims)


# pixel_shuffle -----------------------------------------------------------------------------------------------------


@operator(
    "pixel_shuffle",
    dtypes={"X": ALL},
    source="Fluid pixel_shuffle_op.cc",
    attrs=[Attr("upscale_factor", "int", 1, minimum=1, doc="how many times height and width grow")],
    doc="Out[n, c, h r + i, w r + j] = X[n, c r^2 + i r + j, h, w], r = upscale_factor",
)
def pixel_shuffle(x: e.Tensor, *, upscale_factor: int) -> e.Tensor:
    """Move channels to the pixels of a block."""
    (n, _, h, w), r = _image(x).dims, upscale_factor
    c = _part("upscale_factor", x, 1, r * r)
    return _permuted(x, (n, c, r, r, h, w), (0, 1, 4, 2, 5, 3), n, c, h * r, w * r)


@gradient(pixel_shuffle, doc=_GRAD_DOC)
def pixel_shuffle_grad(dout: e.Tensor, *, upscale_factor: int) -> e.Tensor:
    """Hand-written, as the others here: it takes the dims from Out@GRAD, so that X is not read."""
    (n, c, _, _), r = _image(dout).dims, upscale_factor
    h, w = _part("upscale_factor", dout, 2, r), _part("upscale_factor", dout, 3, r)
    return _permuted(dout, (n, c, h, r, w, r), (0, 1, 3, 5, 2, 4), n, c * (r * r), h, w)


# space_to_depth ----------------------------------------------------------------------------------------------------


@operator(
    "space_to_depth",
    dtypes={"X": ALL},
    source="Fluid space_to_depth_op.cc",
    attrs=[Attr("blocksize", "int", 2, minimum=2, doc="how many times height and width shrink")],
    doc="Out = the elements of an image of c / s^2 channels, h s by w s, whose element [k, i s + b, j s + d] is "
    "X[(b s + d) c / s^2 + k, i, j], under the dims [c s^2, h / s, w / s]; s = blocksize",
)
def space_to_depth(x: e.Tensor, *, blocksize: int) -> e.Tensor:
    """Move channels to the pixels of a block, then reshape the larger image."""
    (n, c, h, w), s = _image(x).dims, blocksize
    depth, rows, columns = (_part("blocksize", x, axis, by) for axis, by in ((1, s * s), (2, s), (3, s)))
    return _permuted(x, (n, s, s, depth, h, w), (0, 3, 4, 1, 5, 2), n, c * (s * s), rows, columns)


@gradient(space_to_depth, doc=_GRAD_DOC)
def space_to_depth_grad(dout: e.Tensor, *, blocksize: int) -> e.Tensor:
    """The inverse permutation."""
    (n, _, h, w), s = _image(dout).dims, blocksize
    c = _part("blocksize", dout, 1, s * s)
    return _permuted(dout, (n, -1, h * s, s, w * s, s), (0, 3, 5, 1, 2, 4), n, c, h * s, w * s)


# shuffle_channel ---------------------------------------------------------------------------------------------------


@operator(
    "shuffle_channel",
    inputs={"X": "[images, channels, height, width]"},
    dtypes={"X": ALL},
    source="Fluid shuffle_channel_op.cc",
    attrs=[Attr("group", "int", 1, minimum=1, doc="how many groups the channels form")],
    doc="Out[n, k group + g] = X[n, g c / group + k]",
)
def shuffle_channel(x: e.Tensor, *, group: int) -> e.Tensor:
    """Transpose groups and the channels of a group."""
    n, c, h, w = _image(x).dims
    return _permuted(x, (n, group, _part("group", x, 1, group), h, w), (0, 2, 1, 3, 4), n, c, h, w)


@gradient(shuffle_channel, doc=_GRAD_DOC)
def shuffle_channel_grad(dout: e.Tensor, *, group: int) -> e.Tensor:
    """The inverse permutation."""
    n, c, h, w = _image(dout).dims
    return _permuted(dout, (n, _part("group", dout, 1, group), group, h, w), (0, 2, 1, 3, 4), n, c, h, w)


# temporal_shift ----------------------------------------------------------------------------------------------------


def _infer_shift(slot: str, target: str) -> Callable[[Call], Inferred]:
    """The dims are those of X; the number of channels may be unknown."""

    def infer(call: Call) -> Inferred:
        dims, steps = call.dims(slot), call.attr("seg_num")
        call.need(len(dims) == 4, slot, _IMAGES)
        if dims[0] >= 0 and dims[0] % steps:
            expected = f"a number with which {steps} divides {dims[0]}, the images of {slot} ({call.describe(slot)})"
            call.fail_attr("seg_num", expected)
        if not 0 < call.attr("shift_ratio") < 0.5:
            call.fail_attr("shift_ratio", "a number between 0 and 0.5")
        return {target: spec_like(call.spec(slot))}

    return infer


def _ends(channels: int, ratio: float) -> tuple[int, int]:
    """The ends of the channels shifted to the next step and to the previous one; rounded in float32, as in Fluid."""
    count, part = np.float32(channels), np.float32(ratio)
    return int(count * part), int(count * np.float32(2) * part)


def _shifted(x: e.Tensor, seg_num: int, shift_ratio: float, steps_by: int) -> e.Tensor:
    n, c, h, w = x.dims
    first, second = _ends(e.exactly(c), shift_ratio)
    steps = e.reshape(x, (n // seg_num, seg_num, c, h, w))
    parts = []
    for start, end, move in ((0, first, steps_by), (first, second, -steps_by), (second, c, 0)):
        part = e.slice_axis(steps, 2, start, end - start)
        parts.append(e.pad(part, (0, move, 0, 0, 0), (0, -move, 0, 0, 0)))
    return e.reshape(e.concat(parts, 2), x.dims)


@operator(
    "temporal_shift",
    Inference(_infer_shift("X", "Out")),
    inputs={"X": "[sequences * seg_num, channels, height, width], floating"},
    dtypes={"X": ALL_FLOATS},
    source="Fluid temporal_shift_op.cc",
    attrs=[
        Attr("seg_num", "int", minimum=1, doc="how many steps each sequence of images has"),
        Attr(
            "shift_ratio",
            "float",
            0.25,
            minimum=0,
            maximum=0.5,
            static=True,
            doc="the part of the channels that comes one step later, and the part that comes one earlier",
        ),
    ],
    doc="Out = X with a first part of the channels one step later in each sequence of images, a second part one "
    "earlier, zeros moving in",
)
def temporal_shift(x: e.Tensor, *, seg_num: int, shift_ratio: float) -> e.Tensor:
    """Shift by padding one end and cropping the other."""
    return _shifted(x, seg_num, shift_ratio, 1)


def _shift_back_grad(maker: Any) -> None:
    """The gradient of the backward shift is the shift; deriving it would need the number of channels."""
    attrs = {name: maker.attr(name) for name in ("seg_num", "shift_ratio")}
    maker.op("temporal_shift", {"X": maker.output_grad("X@GRAD")}, {"Out": maker.input_grad("Out@GRAD")}, attrs)


@gradient(
    temporal_shift,
    Inference(_infer_shift("Out@GRAD", "X@GRAD")),
    Differentiation(rule=_shift_back_grad),
    doc="X@GRAD = Out@GRAD with the same parts moved back",
)
def temporal_shift_grad(dout: e.Tensor, *, seg_num: int, shift_ratio: float) -> e.Tensor:
    """Hand-written: the derived gradient adds padded slices."""
    return _shifted(dout, seg_num, shift_ratio, -1)
