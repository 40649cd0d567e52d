from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil, floor, prod
from typing import Any

import numpy as np

from fluidlite.conformance.operators.conv_common import channels_first, in_data_format, reference_pads
from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, distinct, rand
from fluidlite.conformance.samples import Sample, register_samples


def _reference_windows(size: int, axis: int, attrs: Attrs) -> list[tuple[int, int]]:
    """Windows along a spatial dim, unclipped; adaptive ones are always inside X."""
    k = attrs["ksize"]
    if attrs["global_pooling"]:
        return [(0, size)]
    if attrs["adaptive"]:
        n = k[axis]
        return [(floor(o * size / n), ceil((o + 1) * size / n)) for o in range(n)]
    step, (before, after) = attrs["strides"][axis], reference_pads([size] * len(k), k, attrs)[axis]
    windows = (size + before + after - k[axis]) / step + 1
    count = ceil(windows) if attrs.get("ceil_mode") else floor(windows)
    return [(o * step - before, o * step - before + k[axis]) for o in range(count)]


def _reference_parts(x: Any, attrs: Attrs) -> Iterator[tuple[tuple[int, ...], Any, tuple[slice, ...], int]]:
    """Yield (index in Out, the window in all images and channels, its position, its size with padding)."""
    space = x.shape[2:]
    windows = [_reference_windows(n, axis, attrs) for axis, n in enumerate(space)]
    for where in product(*(range(len(each)) for each in windows)):
        bounds = [windows[axis][o] for axis, o in enumerate(where)]
        inside = tuple(slice(max(a, 0), max(min(b, n), 0)) for (a, b), n in zip(bounds, space, strict=True))
        yield where, x[(..., *inside)], inside, prod(b - a for a, b in bounds)


def _counts(x: Any, attrs: Attrs) -> tuple[int, ...]:
    return tuple(len(_reference_windows(n, axis, attrs)) for axis, n in enumerate(x.shape[2:]))


def _reference_pool(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = channels_first(inputs["X"], attrs)
    out: Any = np.zeros((*x.shape[:2], *_counts(x, attrs)))
    for where, part, _, padded in _reference_parts(x, attrs):
        flat = part.reshape(*x.shape[:2], prod(part.shape[2:]))
        if attrs["pooling_type"] == "max":
            out[(..., *where)] = flat.max(-1)
        else:
            out[(..., *where)] = flat.sum(-1) / (padded if not attrs["exclusive"] else flat.shape[-1])
    return {"Out": in_data_format(out, attrs)}


def _reference_indexed(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["X"]
    dims = (*x.shape[:2], *_counts(x, attrs))
    out: Any = np.zeros(dims)
    mask: Any = np.zeros(dims, "int32")
    places = np.arange(prod(x.shape[2:])).reshape(x.shape[2:])
    for where, part, inside, _ in _reference_parts(x, attrs):
        flat = part.reshape(*x.shape[:2], prod(part.shape[2:]))
        out[(..., *where)] = flat.max(-1)
        mask[(..., *where)] = places[inside].reshape(-1)[flat.argmax(-1)]
    return {"Out": out, "Mask": mask}


def _sample(name: str, x: Any, *grads: str, dtypes: tuple[str, ...] = ("float32",), **attrs: Any) -> Sample:
    return Sample({"X": x}, attrs, grads or ("X",), name=name, dtypes=dtypes)


def _pool2d_samples() -> list[Sample]:
    x, odd, deep = distinct(2, 3, 6, 6), distinct(1, 2, 7, 5), distinct(2, 5, 6, 3)
    two: dict[str, Any] = {"ksize": [2, 2], "strides": [2, 2]}
    three: dict[str, Any] = {"ksize": [3, 3]}
    return [
        _sample("max", x, pooling_type="max", **two, dtypes=EVERY),
        _sample("avg", x, pooling_type="avg", **two, dtypes=EVERY),
        _sample("max_overlap", odd, pooling_type="max", ksize=[3, 2], strides=[2, 1], dtypes=WIDE),
        _sample("avg_overlap", odd, pooling_type="avg", ksize=[3, 2], strides=[2, 1], dtypes=WIDE),
        _sample("max_unit_strides", odd, pooling_type="max", **three, paddings=[1, 1]),
        _sample("max_padded", odd, pooling_type="max", **three, strides=[2, 2], paddings=[1, 1], dtypes=EVERY),
        _sample("avg_padded", odd, pooling_type="avg", **three, strides=[2, 2], paddings=[1, 1], dtypes=EVERY),
        _sample("avg_inclusive", odd, pooling_type="avg", **three, strides=[2, 2], paddings=[1, 1], exclusive=False),
        _sample("max_gaps", odd, pooling_type="max", ksize=[1, 2], strides=[3, 3]),
        _sample("avg_gaps", odd, pooling_type="avg", ksize=[1, 2], strides=[3, 3]),
        _sample("max_global", x, pooling_type="max", ksize=[2, 2], global_pooling=True, paddings=[1, 1], dtypes=WIDE),
        _sample("avg_global", x, pooling_type="avg", ksize=[-1, -1], global_pooling=True, dtypes=EVERY),
        _sample("avg_whole", odd, pooling_type="avg", ksize=[7, 5]),
        _sample("max_long", distinct(1, 2, 16, 18), pooling_type="max", ksize=[8, 9], strides=[8, 9], dtypes=WIDE),
        _sample("avg_long", distinct(1, 2, 16, 18), pooling_type="avg", ksize=[8, 9], strides=[8, 9], dtypes=WIDE),
        _sample("max_ceil", odd, pooling_type="max", ksize=[2, 2], strides=[2, 2], ceil_mode=True, dtypes=WIDE),
        _sample("avg_ceil", odd, pooling_type="avg", ksize=[2, 2], strides=[2, 2], ceil_mode=True),
        _sample("avg_ceil_inclusive", odd, pooling_type="avg", **two, ceil_mode=True, exclusive=False),
        _sample("max_uneven", odd, pooling_type="max", **three, strides=[2, 2], paddings=[0, 1, 2, 0]),
        _sample("avg_uneven", odd, pooling_type="avg", **three, strides=[2, 2], paddings=[0, 1, 2, 0]),
        _sample("max_same", odd, pooling_type="max", **three, strides=[2, 2], padding_algorithm="SAME"),
        _sample("avg_same", odd, pooling_type="avg", ksize=[2, 2], strides=[1, 2], padding_algorithm="SAME"),
        _sample("valid", odd, pooling_type="max", **three, paddings=[1, 1], padding_algorithm="VALID"),
        _sample("max_adaptive", odd, pooling_type="max", ksize=[3, 2], adaptive=True, dtypes=WIDE),
        _sample("avg_adaptive", odd, pooling_type="avg", ksize=[3, 2], adaptive=True, dtypes=EVERY),
        _sample("avg_adaptive_even", x, pooling_type="avg", ksize=[3, 2], adaptive=True),
        _sample("adaptive_larger", odd, pooling_type="avg", ksize=[9, 3], adaptive=True),
        _sample("max_nhwc", deep, pooling_type="max", **three, strides=[2, 2], paddings=[1, 1], data_format="NHWC"),
        _sample(
            "avg_nhwc",
            deep,
            pooling_type="avg",
            **three,
            strides=[2, 2],
            paddings=[1, 1],
            data_format="NHWC",
            dtypes=EVERY,
        ),
        _sample("adaptive_nhwc", deep, pooling_type="avg", ksize=[2, 4], adaptive=True, data_format="NHWC"),
        _sample("global_nhwc", deep, pooling_type="avg", ksize=[1, 1], global_pooling=True, data_format="NHWC"),
        _sample("any_layout", x, pooling_type="max", **two, data_format="AnyLayout"),
        _sample(
            "avg_all_in_padding",
            x[:1, :1, :2, :2],
            pooling_type="avg",
            ksize=[1, 4],
            strides=[4, 1],
            paddings=[2, 1, 0, 2],
            exclusive=False,
            ceil_mode=True,
        ),
        _sample("one", distinct(1, 1, 1, 1), pooling_type="max", ksize=[1, 1]),
        Sample({"X": distinct(2, 3, 70, 150)}, {"pooling_type": "max", **three, "strides": [2, 2]}, name="max_wide"),
        Sample({"X": rand(2, 3, 70, 150)}, {"pooling_type": "avg", **three, "paddings": [1, 1]}, name="avg_wide"),
        Sample({"X": rand(0, 3, 4, 4)}, {"pooling_type": "avg", **two}, name="no_images"),
    ]


def _pool3d_samples() -> list[Sample]:
    x, deep = distinct(1, 2, 5, 4, 3), distinct(1, 4, 3, 5, 2)
    two: dict[str, Any] = {"ksize": [2, 2, 2], "strides": [2, 1, 1]}
    return [
        _sample("max", x, pooling_type="max", **two, dtypes=EVERY),
        _sample("avg", x, pooling_type="avg", **two, dtypes=EVERY),
        _sample("max_padded", x, pooling_type="max", **two, paddings=[1, 0, 1]),
        _sample("avg_padded", x, pooling_type="avg", **two, paddings=[1, 0, 1], dtypes=WIDE),
        _sample("inclusive", x, pooling_type="avg", **two, paddings=[1, 1, 0], exclusive=False),
        _sample("global", x, pooling_type="avg", ksize=[1, 1, 1], global_pooling=True),
        _sample("ceil", x, pooling_type="max", **{**two, "strides": [2, 3, 2]}, ceil_mode=True),
        _sample("uneven", x, pooling_type="avg", **two, paddings=[1, 0, 0, 1, 0, 0]),
        _sample("same", x, pooling_type="avg", **two, padding_algorithm="SAME"),
        _sample("max_adaptive", x, pooling_type="max", ksize=[2, 3, 2], adaptive=True),
        _sample("avg_adaptive", x, pooling_type="avg", ksize=[2, 3, 2], adaptive=True, dtypes=WIDE),
        _sample("max_ndhwc", deep, pooling_type="max", **two, data_format="NDHWC"),
        _sample("avg_ndhwc", deep, pooling_type="avg", **two, paddings=[0, 1, 1], data_format="NDHWC"),
        Sample({"X": rand(2, 0, 4, 4, 4)}, {"pooling_type": "avg", **two}, name="no_channels"),
    ]


register_samples("pool2d", reference=_reference_pool, samples=_pool2d_samples)
register_samples("pool3d", reference=_reference_pool, samples=_pool3d_samples)


def _indexed2d_samples() -> list[Sample]:
    x, odd = distinct(2, 3, 6, 6), distinct(1, 2, 7, 5)
    ties = np.array([[[[1, 3, 3], [3, 2, 3], [0, 0, 0]]]], "float32")
    return [
        _sample("windows", x, ksize=[2, 2], strides=[2, 2], dtypes=EVERY),
        _sample("overlap", odd, ksize=[3, 2], strides=[2, 1], dtypes=WIDE),
        _sample("padded", odd, ksize=[3, 3], strides=[2, 2], paddings=[1, 1], dtypes=EVERY),
        _sample("unit_strides", odd, ksize=[3, 3], paddings=[1, 1]),
        _sample("global", x, ksize=[2, 2], global_pooling=True, paddings=[1, 1]),
        _sample("adaptive", odd, ksize=[3, 2], adaptive=True, dtypes=WIDE),
        _sample("adaptive_even", x, ksize=[2, 3], adaptive=True),
        Sample({"X": ties}, {"ksize": [2, 2]}, name="ties"),
        Sample({"X": distinct(2, 3, 70, 150)}, {"ksize": [3, 3], "strides": [2, 2]}, name="wide"),
        Sample({"X": rand(0, 3, 4, 4)}, {"ksize": [2, 2]}, name="no_images"),
    ]


def _indexed3d_samples() -> list[Sample]:
    x = distinct(1, 2, 5, 4, 3)
    return [
        _sample("windows", x, ksize=[2, 2, 2], strides=[2, 1, 1], dtypes=EVERY),
        _sample("padded", x, ksize=[2, 3, 2], strides=[2, 1, 1], paddings=[1, 1, 0]),
        _sample("global", x, ksize=[1, 1, 1], global_pooling=True),
        _sample("adaptive", x, ksize=[2, 3, 2], adaptive=True, dtypes=WIDE),
    ]


register_samples("max_pool2d_with_index", reference=_reference_indexed, samples=_indexed2d_samples)
register_samples("max_pool3d_with_index", reference=_reference_indexed, samples=_indexed3d_samples)
