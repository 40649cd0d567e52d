"""Images and sequences: im2sequence reads an image as a sequence of windows, row_conv looks ahead in sequences."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Lod, Spec
from fluidlite.operators.inference import (
    Inferred,
    agree,
    all_agree,
    grad_inputs,
    grad_like,
    grad_outputs,
    like,
    same_dtype,
)
from fluidlite.operators.math.unfolding import image_runs
from fluidlite.operators.samples import EVERY, WIDE, rand

# im2sequence -------------------------------------------------------------------------------------------------------

_UNFOLD_ATTRS = (
    Attr("kernels", "ints", doc="height and width of a window"),
    Attr("strides", "ints", (1, 1), doc="distance between two windows"),
    Attr("paddings", "ints", (0, 0, 0, 0), doc="padding above, left, below and right"),
    Attr("out_stride", "ints", (1, 1), doc="how much smaller X is than the sizes in Y"),
)


def _unfolded(call: Call) -> Spec:
    """Metadata of Out: a sequence for each image."""
    x = call.spec("X")
    call.need(x.rank == 4, "X", "[images, channels, height, width]")
    if call.has("Y"):
        y = call.dims("Y")
        call.need(len(y) == 2 and agree(y[0], x.dims[0]) and agree(y[1], 2), "Y", f"{[x.dims[0], 2]}, sizes of X")
    runs = image_runs(call)
    columns = -1 if x.dims[1] < 0 else x.dims[1] * prod(call.attr("kernels"))
    if runs is None:
        return Spec.of((-1, columns), x.dtype, lod_level=1)
    offsets = [0]
    for run in runs:
        offsets += [offsets[-1] + run.height * run.width * (i + 1) for i in range(run.images)]
    return Spec.of((offsets[-1], columns), x.dtype, lod=(tuple(offsets),))


def _infer_unfold_grad(call: Call) -> Inferred:
    dims = _unfolded(call).dims
    if not all_agree(call.dims("Out@GRAD"), dims):
        call.fail("Out@GRAD", f"{list(dims)}, the dims of Out")
    return grad_like("X")(call)


def _reference_unfold(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, (kh, kw), (sh, sw) = inputs["X"], attrs["kernels"], attrs["strides"]
    up, left, down, right = attrs["paddings"]
    rows = []
    for image, pixels in enumerate(x):
        height, width = pixels.shape[1:]
        if "Y" in inputs and len(x) > 1:
            height, width = np.ceil(inputs["Y"][image] / np.asarray(attrs["out_stride"])).astype(int)
        bottom, beyond = max(height + down, pixels.shape[1]), max(width + right, pixels.shape[2])
        whole = np.zeros((len(pixels), up + bottom, left + beyond))
        whole[:, up : up + pixels.shape[1], left : left + pixels.shape[2]] = pixels
        for top in range(0, height + up + down - kh + 1, sh):
            for side in range(0, width + left + right - kw + 1, sw):
                rows.append(whole[:, top : top + kh, side : side + kw].reshape(-1))
    return {"Out": np.asarray(rows).reshape(len(rows), x.shape[1] * kh * kw)}


def _unfold(name: str, x: Any, y: Any = None, dtypes: tuple[str, ...] = ("float32",), **attrs: Any) -> Sample:
    inputs = {"X": x} if y is None else {"X": x, "Y": np.asarray(y, "float32")}
    return Sample(inputs, attrs, ("X",), name=name, dtypes=dtypes)


register_op(
    "im2sequence",
    inputs=(Slot("X", doc="images, [images, channels, height, width]"),
            Slot("Y", dispensable=True, value=True, doc="heights and widths of the images, [images, 2]; they "
            "count where there are several images")),
    outputs=("Out",),
    attrs=_UNFOLD_ATTRS,
    infer=lambda call: {"Out": _unfolded(call)},
    grad=GradRule("im2sequence_grad", ("X", "Y", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL_FLOATS, "Y": (*FLOATS, *INTS)},
    reference=_reference_unfold,
    samples=lambda: [
        _unfold("plain", rand(2, 2, 3, 3), kernels=[2, 2], dtypes=EVERY),
        _unfold("strides", rand(2, 3, 4, 5), kernels=[2, 1], strides=[2, 1], paddings=[2, 1, 2, 1], dtypes=WIDE),
        _unfold("uneven", rand(1, 2, 4, 5), kernels=[3, 2], strides=[2, 3], paddings=[0, 1, 2, 0]),
        _unfold("one_pixel", rand(3, 4, 2, 2), kernels=[1, 1]),
        _unfold("sizes", rand(2, 2, 3, 3), [[6, 6], [4, 3]], kernels=[2, 2], paddings=[1, 0, 1, 0], out_stride=[2, 2]),
        _unfold("sizes_beyond", rand(3, 1, 4, 5), [[8, 10], [5, 8], [5, 8]], kernels=[2, 1]),
        _unfold("sizes_of_one", rand(1, 3, 4, 5), [[8, 10]], kernels=[2, 1], strides=[2, 1], out_stride=[2, 2]),
        Sample({"X": rand(0, 2, 3, 3)}, {"kernels": [2, 2]}, name="no_images"),
    ],
    doc="Out = a row for each window of each image, [channels, height, width] flat; one sequence an image",
    source="Fluid im2sequence_op.cc",
)  # fmt: skip

register_op(
    "im2sequence_grad",
    inputs=(Slot("X", metadata_only=True), Slot("Y", dispensable=True, value=True), "Out@GRAD"),
    outputs=grad_outputs("X"),
    attrs=_UNFOLD_ATTRS,
    infer=_infer_unfold_grad,
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = the sum of Out@GRAD over the windows in which an element lies",
)

# row_conv ----------------------------------------------------------------------------------------------------------


def _check_rows(call: Call) -> Spec:
    x, weights = call.spec("X"), call.dims("Filter")
    call.need(x.rank in (2, 3), "X", "[rows, width] with LoD, or [batch, steps, width]")
    if x.rank == 2 and not x.lod_level:
        call.fail(
            "X", "a LoD tensor: its sequences", do="declare the data with lod_level=1, or use [batch, steps, width]"
        )
    if len(weights) != 2 or not agree(weights[1], x.dims[-1]) or weights[0] == 0:
        call.fail("Filter", f"{['context', x.dims[-1]]}: as wide as X, and of one row or more")
    same_dtype(call, "Filter", "X")
    return x


def _infer_rows_grad(call: Call) -> Inferred:
    x = _check_rows(call)
    if not all_agree(call.dims("Out@GRAD"), x.dims):
        call.fail("Out@GRAD", f"{list(x.dims)}, the dims of Out")
    return grad_like("X", "Filter")(call)


def _reference_rows(inputs: Mapping[str, Any], attrs: Mapping[str, Any], lod: Mapping[str, Lod]) -> dict[str, Any]:
    x, weights = inputs["X"], inputs["Filter"]
    sequences = list(x) if x.ndim == 3 else [x[a:b] for a, b in pairwise(lod["X"][-1])]
    outs = []
    for sequence in sequences:
        ahead = np.concatenate([sequence, np.zeros_like(weights)])
        outs += [(ahead[t : t + len(weights)] * weights).sum(0) for t in range(len(sequence))]
    return {"Out": np.asarray(outs).reshape(x.shape)}


register_op(
    "row_conv",
    inputs=("X", "Filter"),
    outputs=("Out",),
    infer=lambda call: {"Out": like(_check_rows(call))},
    grad=GradRule("row_conv_grad", ("X", "Filter", "Out@GRAD"), ("X", "Filter")),
    dtypes={"X": ALL_FLOATS, "Filter": ALL_FLOATS},
    reference=_reference_rows,
    samples=lambda: [
        Sample({"X": rand(7, 4), "Filter": rand(3, 4, seed=1)}, {}, ("X", "Filter"), {"X": ((0, 2, 2, 7),)},
               name="sequences", dtypes=EVERY),
        Sample({"X": rand(2, 5, 3), "Filter": rand(2, 3, seed=1)}, {}, ("X", "Filter"), name="batch", dtypes=EVERY),
        Sample({"X": rand(6, 70), "Filter": rand(4, 70, seed=1)}, {}, ("X", "Filter"),
               {"X": ((0, 1, 3), (0, 1, 3, 6))}, name="wide", dtypes=WIDE),
        Sample({"X": rand(2, 2, 3), "Filter": rand(5, 3, seed=1)}, {}, ("X", "Filter"), name="long_context"),
        Sample({"X": rand(3, 2), "Filter": rand(1, 2, seed=1)}, {}, ("X", "Filter"), {"X": ((0, 3),)},
               name="no_context"),
        Sample({"X": rand(0, 2), "Filter": rand(2, 2)}, {}, (), {"X": ((0,),)}, name="no_rows"),
    ],
    doc="Out[t] = the sum over w of Filter[w] X[t + w], as far as the sequence reaches",
    memory="where arrays compute, X padded and a product before it is added: twice as much as X",
    source="Fluid row_conv_op.cc",
)  # fmt: skip

register_op(
    "row_conv_grad",
    inputs=grad_inputs("X", "Filter", "Out@GRAD"),
    outputs=grad_outputs("X", "Filter"),
    infer=_infer_rows_grad,
    doc="X@GRAD[t] = the sum over w of Filter[w] Out@GRAD[t - w]; "
    "Filter@GRAD[w] = the sum over t of X[t + w] Out@GRAD[t]",
    memory="as row_conv",
)
