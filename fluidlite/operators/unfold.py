"""unfold: the windows of an image as columns, which makes a convolution a product of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, all_agree, grad_inputs, grad_like, grad_outputs, like
from fluidlite.operators.math.unfolding import block_counts
from fluidlite.operators.samples import EVERY, WIDE, rand

_ATTRS = (
    Attr("kernel_sizes", "ints", doc="height and width of a window"),
    Attr("strides", "ints", doc="distance between two windows"),
    Attr("paddings", "ints", doc="padding above, left, below and right"),
    Attr("dilations", "ints", doc="distance between two elements of a window"),
)


def _dims(call: Call) -> tuple[int, ...]:
    x = call.dims("X")
    call.need(len(x) == 4, "X", "[images, channels, height, width]")
    rows, columns = block_counts(call)
    height, width = call.attr("kernel_sizes")
    return (
        x[0], -1 if x[1] < 0 else x[1] * height * width, -1 if rows < 0 or columns < 0 else rows * columns,
    )  # fmt: skip


def _infer_grad(call: Call) -> Inferred:
    dims = _dims(call)
    if not all_agree(call.dims("Y@GRAD"), dims):
        call.fail("Y@GRAD", f"{list(dims)}, the dims of Y")
    return grad_like("X")(call)


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, (kh, kw), (sh, sw), (dh, dw) = inputs["X"], attrs["kernel_sizes"], attrs["strides"], attrs["dilations"]
    up, left, down, right = attrs["paddings"]
    padded = np.pad(x, ((0, 0), (0, 0), (up, down), (left, right)))
    found = []
    for top in range(0, padded.shape[2] - dh * (kh - 1), sh):
        for side in range(0, padded.shape[3] - dw * (kw - 1), sw):
            window = padded[:, :, top : top + dh * (kh - 1) + 1 : dh, side : side + dw * (kw - 1) + 1 : dw]
            found.append(window.reshape(x.shape[0], x.shape[1] * kh * kw))
    return {"Y": np.stack(found, axis=-1)}


def _sample(name: str, x: Any, *sizes: Any, dtypes: tuple[str, ...] = ("float32",)) -> Sample:
    attrs = dict(zip(("kernel_sizes", "strides", "paddings", "dilations"), sizes, strict=True))
    return Sample({"X": x}, attrs, ("X",) if 0 < x.size < 500 else (), name=name, dtypes=dtypes)


register_op(
    "unfold",
    inputs=("X",),
    outputs=("Y",),
    attrs=_ATTRS,
    infer=lambda call: {"Y": like(call.spec("X"), _dims(call))},
    grad=GradRule("unfold_grad", ("X", "Y@GRAD"), ("X",)),
    dtypes={"X": ALL_FLOATS},
    reference=_reference,
    samples=lambda: [
        _sample("plain", rand(2, 3, 4, 5), [2, 2], [1, 1], [0, 0, 0, 0], [1, 1], dtypes=EVERY),
        _sample("padded", rand(1, 2, 4, 5), [3, 3], [1, 1], [1, 1, 1, 1], [1, 1], dtypes=EVERY),
        _sample("strides", rand(2, 2, 7, 5), [3, 2], [2, 3], [0, 1, 0, 1], [1, 1], dtypes=WIDE),
        _sample("uneven", rand(1, 2, 4, 5), [2, 3], [1, 2], [2, 0, 1, 3], [1, 1]),
        _sample("dilated", rand(1, 2, 7, 8), [2, 3], [2, 1], [1, 2, 0, 1], [3, 2], dtypes=WIDE),
        _sample("gaps", rand(1, 1, 7, 7), [1, 1], [3, 2], [0, 0, 0, 0], [1, 1]),
        _sample("all_padding", rand(1, 1, 1, 1), [2, 2], [1, 1], [2, 2, 2, 2], [1, 1]),
        _sample("whole", rand(2, 1, 3, 4), [3, 4], [1, 1], [0, 0, 0, 0], [1, 1]),
        _sample("large", rand(2, 3, 30, 41), [3, 3], [1, 1], [1, 1, 1, 1], [1, 1], dtypes=WIDE),
        _sample("no_images", rand(0, 3, 4, 4), [2, 2], [2, 2], [0, 0, 0, 0], [1, 1]),
    ],
    doc="Y[n, (c, i, j), (h, w)] = X[n, c, h strides + i dilations - paddings], 0 in the padding",
    source="Fluid unfold_op.cc",
)

register_op(
    "unfold_grad",
    inputs=grad_inputs("X", "Y@GRAD", meta=("X",)),
    outputs=grad_outputs("X"),
    attrs=_ATTRS,
    infer=_infer_grad,
    kernel_dtype="Y@GRAD",
    doc="X@GRAD = the sum of Y@GRAD over the windows that hold an element; half types add up in a float32 copy",
)
