"""Elements of images in another order: pixel_shuffle, space_to_depth, shuffle_channel, temporal_shift."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL, ALL_FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Dims
from fluidlite.operators.inference import Inferred, grad_outputs, like
from fluidlite.operators.samples import EVERY, WIDE, ints, rand


def _image(call: Call, slot: str) -> Dims:
    dims = call.dims(slot)
    call.need(len(dims) == 4, slot, "[images, channels, height, width]")
    return dims


def _times(n: int, factor: int) -> int:
    return -1 if n < 0 else n * factor


def _part(call: Call, attr: str, slot: str, n: int, divisor: int, what: str) -> int:
    """Return n / divisor; an error if that is no whole number."""
    if n >= 0 and n % divisor:
        call.fail_attr(attr, f"a number with which {divisor} divides {n}, the {what} of {slot} ({call.shown(slot)})")
    return -1 if n < 0 else n // divisor


def _shuffle(
    type: str,
    attr: Attr,
    out_dims: Callable[[Call], Dims],
    x_dims: Callable[[Call], Dims],
    reference: Any,
    samples: Callable[[], list[Sample]],
    doc: str,
) -> None:
    """Declare an operator that is a transpose of views, and its gradient, which is the same backwards."""
    register_op(
        type,
        inputs=("X",),
        outputs=("Out",),
        attrs=(attr,),
        infer=lambda call: {"Out": like(call.spec("X"), out_dims(call))},
        grad=GradRule(f"{type}_grad", ("Out@GRAD",), ("X",)),
        dtypes={"X": ALL},
        reference=reference,
        samples=samples,
        doc=doc,
        source=f"Fluid {type}_op.cc",
    )
    register_op(
        f"{type}_grad",
        inputs=("Out@GRAD",),
        outputs=grad_outputs("X"),
        attrs=(attr,),
        infer=lambda call: {"X@GRAD": like(call.spec("Out@GRAD"), x_dims(call))},
        doc="X@GRAD = Out@GRAD in the order of X",
    )


# pixel_shuffle -----------------------------------------------------------------------------------------------------


def _pixel_out(call: Call) -> Dims:
    (n, c, h, w), r = _image(call, "X"), call.attr("upscale_factor")
    return n, _part(call, "upscale_factor", "X", c, r * r, "channels"), _times(h, r), _times(w, r)


def _pixel_x(call: Call) -> Dims:
    (n, c, h, w), r = _image(call, "Out@GRAD"), call.attr("upscale_factor")
    parts = [_part(call, "upscale_factor", "Out@GRAD", size, r, what) for size, what in ((h, "height"), (w, "width"))]
    return n, _times(c, r * r), parts[0], parts[1]


def _reference_pixel(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, r = inputs["X"], attrs["upscale_factor"]
    n, c, h, w = x.shape
    out = np.zeros((n, c // (r * r), h * r, w * r), x.dtype)
    for i in range(r):
        for j in range(r):
            out[:, :, i::r, j::r] = x[:, i * r + j :: r * r]
    return {"Out": out}


_shuffle(
    "pixel_shuffle",
    Attr("upscale_factor", "int", 1, minimum=1, doc="how many times height and width grow"),
    _pixel_out,
    _pixel_x,
    _reference_pixel,
    lambda: [
        Sample({"X": rand(2, 8, 3, 2)}, {"upscale_factor": 2}, ("X",), name="two", dtypes=EVERY),
        Sample({"X": rand(1, 18, 2, 3)}, {"upscale_factor": 3}, ("X",), name="three", dtypes=WIDE),
        Sample({"X": rand(2, 3, 2, 2)}, {}, ("X",), name="one"),
        Sample({"X": ints(1, 4, 2, 2)}, {"upscale_factor": 2}, name="int64", dtypes=("int64",)),
        Sample({"X": rand(0, 4, 2, 2)}, {"upscale_factor": 2}, name="no_images"),
    ],
    "Out[n, c, h r + i, w r + j] = X[n, c r^2 + i r + j, h, w], r = upscale_factor",
)

# space_to_depth ----------------------------------------------------------------------------------------------------


def _depth_out(call: Call) -> Dims:
    (n, c, h, w), s = _image(call, "X"), call.attr("blocksize")
    _part(call, "blocksize", "X", c, s * s, "channels")
    rows, columns = (_part(call, "blocksize", "X", size, s, what) for size, what in ((h, "height"), (w, "width")))
    return n, _times(c, s * s), rows, columns


def _depth_x(call: Call) -> Dims:
    (n, c, h, w), s = _image(call, "Out@GRAD"), call.attr("blocksize")
    return n, _part(call, "blocksize", "Out@GRAD", c, s * s, "channels"), _times(h, s), _times(w, s)


def _reference_depth(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, s = inputs["X"], attrs["blocksize"]
    n, c, h, w = x.shape
    larger = np.zeros((n, c // (s * s), h * s, w * s), x.dtype)
    for k in range(c):
        offset, channel = divmod(k, c // (s * s))
        larger[:, channel, offset // s :: s, offset % s :: s] = x[:, k]
    return {"Out": larger.reshape(n, c * s * s, h // s, w // s)}


_shuffle(
    "space_to_depth",
    Attr("blocksize", "int", 2, minimum=2, doc="how many times height and width shrink"),
    _depth_out,
    _depth_x,
    _reference_depth,
    lambda: [
        Sample({"X": rand(2, 8, 4, 2)}, {}, ("X",), name="two", dtypes=EVERY),
        Sample({"X": rand(1, 9, 3, 6)}, {"blocksize": 3}, ("X",), name="three", dtypes=WIDE),
        Sample({"X": rand(1, 16, 12, 4)}, {"blocksize": 4}, ("X",), name="four"),
        Sample({"X": ints(1, 4, 2, 2)}, {}, name="int64", dtypes=("int64",)),
        Sample({"X": rand(0, 4, 2, 2)}, {}, name="no_images"),
    ],
    "Out = the elements of an image of c / s^2 channels, h s by w s, whose element [k, i s + b, j s + d] is "
    "X[(b s + d) c / s^2 + k, i, j], under the dims [c s^2, h / s, w / s]; s = blocksize",
)

# shuffle_channel ---------------------------------------------------------------------------------------------------


def _channel_dims(slot: str) -> Callable[[Call], Dims]:
    def dims(call: Call) -> Dims:
        found = _image(call, slot)
        _part(call, "group", slot, found[1], call.attr("group"), "channels")
        return found

    return dims


def _reference_channel(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, group = inputs["X"], attrs["group"]
    size = x.shape[1] // group
    return {"Out": x[:, [g * size + k for k in range(size) for g in range(group)]]}


_shuffle(
    "shuffle_channel",
    Attr("group", "int", 1, minimum=1, doc="how many groups the channels form"),
    _channel_dims("X"),
    _channel_dims("Out@GRAD"),
    _reference_channel,
    lambda: [
        Sample({"X": rand(2, 6, 3, 2)}, {"group": 2}, ("X",), name="two", dtypes=EVERY),
        Sample({"X": rand(1, 6, 2, 3)}, {"group": 3}, ("X",), name="three", dtypes=WIDE),
        Sample({"X": rand(1, 4, 2, 2)}, {}, ("X",), name="one"),
        Sample({"X": rand(0, 4, 2, 2)}, {"group": 2}, name="no_images"),
    ],
    "Out[n, k group + g] = X[n, g c / group + k]",
)

# temporal_shift ----------------------------------------------------------------------------------------------------

_SHIFT_ATTRS = (
    Attr("seg_num", "int", minimum=1, doc="how many steps each sequence of images has"),
    Attr("shift_ratio", "float", 0.25, minimum=0, maximum=0.5,
         doc="the part of the channels that comes one step later, and the part that comes one earlier"),
)  # fmt: skip


def _infer_shift(slot: str, target: str) -> Callable[[Call], Inferred]:
    def infer(call: Call) -> Inferred:
        dims = _image(call, slot)
        _part(call, "seg_num", slot, dims[0], call.attr("seg_num"), "images")
        if not 0 < call.attr("shift_ratio") < 0.5:
            call.fail_attr("shift_ratio", "a number between 0 and 0.5")
        return {target: like(call.spec(slot))}

    return infer


def _reference_shift(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, steps = inputs["X"], attrs["seg_num"]
    first = int(np.float32(x.shape[1]) * np.float32(attrs["shift_ratio"]))
    second = int(np.float32(x.shape[1]) * 2 * np.float32(attrs["shift_ratio"]))
    out = x.copy()
    for image in range(len(x)):
        step = image % steps
        out[image, :first] = x[image - 1, :first] if step > 0 else 0
        out[image, first:second] = x[image + 1, first:second] if step < steps - 1 else 0
    return {"Out": out}


register_op(
    "temporal_shift",
    inputs=("X",),
    outputs=("Out",),
    attrs=_SHIFT_ATTRS,
    infer=_infer_shift("X", "Out"),
    grad=GradRule("temporal_shift_grad", ("Out@GRAD",), ("X",)),
    dtypes={"X": ALL_FLOATS},
    reference=_reference_shift,
    samples=lambda: [
        Sample({"X": rand(6, 4, 3, 2)}, {"seg_num": 3}, ("X",), name="quarter", dtypes=EVERY),
        Sample({"X": rand(4, 7, 2, 2)}, {"seg_num": 2, "shift_ratio": 0.4}, ("X",), name="ratio", dtypes=WIDE),
        Sample({"X": rand(3, 8, 1, 2)}, {"seg_num": 1}, ("X",), name="one_step"),
        Sample({"X": rand(4, 3, 2, 2)}, {"seg_num": 4, "shift_ratio": 0.1}, ("X",), name="no_channel"),
        Sample({"X": rand(0, 4, 2, 2)}, {"seg_num": 2}, name="no_images"),
    ],
    doc="Out = X with a first part of the channels one step later in each sequence of images, a second part one "
    "earlier, zeros moving in",
    source="Fluid temporal_shift_op.cc",
)

register_op(
    "temporal_shift_grad",
    inputs=("Out@GRAD",),
    outputs=grad_outputs("X"),
    attrs=_SHIFT_ATTRS,
    infer=_infer_shift("Out@GRAD", "X@GRAD"),
    doc="X@GRAD = Out@GRAD with the same parts moved back",
)
