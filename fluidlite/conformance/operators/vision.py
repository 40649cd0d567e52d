from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Lods, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


def _unfold(name: str, x: Any, y: Any = None, dtypes: tuple[str, ...] = ("float32",), **attrs: Any) -> Sample:
    inputs = {"X": x} if y is None else {"X": x, "Y": np.asarray(y, "float32")}
    return Sample(inputs, attrs, ("X",), name=name, dtypes=dtypes)


@register_samples(
    "im2sequence",
    samples=lambda: [
        _unfold("plain", rand(2, 2, 3, 3), kernels=[2, 2], dtypes=EVERY),
        _unfold("strides", rand(2, 3, 4, 5), kernels=[2, 1], strides=[2, 1], paddings=[2, 1, 2, 1], dtypes=WIDE),
        _unfold("uneven", rand(1, 2, 4, 5), kernels=[3, 2], strides=[2, 3], paddings=[0, 1, 2, 0]),
        _unfold("one_pixel", rand(3, 4, 2, 2), kernels=[1, 1]),
        _unfold("sizes", rand(2, 2, 3, 3), [[6, 6], [4, 3]], kernels=[2, 2], paddings=[1, 0, 1, 0], out_stride=[2, 2]),
        _unfold("sizes_beyond", rand(3, 1, 4, 5), [[8, 10], [5, 8], [5, 8]], kernels=[2, 1]),
        _unfold("sizes_between", rand(2, 1, 4, 4), [[8.75, 6.25], [5.5, 8]], kernels=[2, 2], out_stride=[2, 2]),
        _unfold("sizes_of_one", rand(1, 3, 4, 5), [[8, 10]], kernels=[2, 1], strides=[2, 1], out_stride=[2, 2]),
        Sample({"X": rand(0, 2, 3, 3)}, {"kernels": [2, 2]}, name="no_images"),
    ],
)
def _reference_unfold(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, (kh, kw), (sh, sw) = inputs["X"], attrs["kernels"], attrs["strides"]
    up, left, down, right = attrs["paddings"]
    if min(attrs["out_stride"]) < 1:
        raise ValueError("sizes in Y are larger than X by a number that is none")
    rows = []
    for image, pixels in enumerate(x):
        height, width = pixels.shape[1:]
        if "Y" in inputs and len(x) > 1:
            height, width = np.ceil(np.trunc(inputs["Y"][image]) / np.asarray(attrs["out_stride"])).astype(int)
        bottom, beyond = max(height + down, pixels.shape[1]), max(width + right, pixels.shape[2])
        whole = np.zeros((len(pixels), up + bottom, left + beyond))
        whole[:, up : up + pixels.shape[1], left : left + pixels.shape[2]] = pixels
        for top in range(0, height + up + down - kh + 1, sh):
            for side in range(0, width + left + right - kw + 1, sw):
                rows.append(whole[:, top : top + kh, side : side + kw].reshape(-1))
    return {"Out": np.asarray(rows).reshape(len(rows), x.shape[1] * kh * kw)}


def _rows(name: str, dims: tuple[int, ...], context: int, *lod: Any, dtypes: tuple[str, ...] = ("float32",)) -> Sample:
    inputs = {"X": rand(*dims), "Filter": rand(context, dims[-1], seed=1)}
    return Sample(inputs, {}, ("X", "Filter") if dims[0] else (), {"X": lod} if lod else {}, name, dtypes)


@register_samples(
    "row_conv",
    samples=lambda: [
        _rows("sequences", (7, 4), 3, (0, 2, 2, 7), dtypes=EVERY),
        _rows("batch", (2, 5, 3), 2, dtypes=EVERY),
        _rows("wide", (6, 70), 4, (0, 1, 3), (0, 1, 3, 6), dtypes=WIDE),
        _rows("long_context", (2, 2, 3), 5),
        _rows("no_context", (3, 2), 1, (0, 3)),
        _rows("no_rows", (0, 2), 2, (0,)),
    ],
)
def _reference_rows(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    x, weights = inputs["X"], inputs["Filter"]
    sequences = list(x) if x.ndim == 3 else [x[a:b] for a, b in pairwise(lod["X"][-1])]
    outs = []
    for sequence in sequences:
        ahead = np.concatenate([sequence, np.zeros_like(weights)])
        outs += [(ahead[t : t + len(weights)] * weights).sum(0) for t in range(len(sequence))]
    return {"Out": np.asarray(outs).reshape(x.shape)}
