"""Pooling, its reverse, and resampling of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.operators.case import Array, Case, Inputs, Numbers, functional, image, torch, volume


def _images(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.distinct(*image(size))}


def _volumes(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.distinct(*volume(size))}


def _sequences(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(max(size // 4096, 1), 16, min(size // 16, 256))}


def _pooled(numbers: Numbers, size: int) -> Inputs:
    n, c, h, w = image(size)
    where = numbers.random.integers(0, 2, (2, n, c, h, w))
    places = (2 * np.arange(h)[:, None] + where[0]) * 2 * w + 2 * np.arange(w) + where[1]
    return {"X": numbers.normal(n, c, h, w), "Indices": places.astype(np.int32)}


def _parts(x: Array) -> Array:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2)


def _pool(kind: str, kernel: int, stride: int, pad: int = 0, rank: int = 2) -> dict[str, Any]:
    return {"pooling_type": kind, "ksize": [kernel] * rank, "strides": [stride] * rank, "paddings": [pad] * rank}


def _windows(kernel: int, stride: int, rank: int = 2) -> dict[str, Any]:
    return {"ksize": [kernel] * rank, "strides": [stride] * rank}


def _resampled(type: str, mode: str, make: Any, axes: int, share: float) -> Case:
    corners = {} if mode == "nearest" else {"align_corners": True}
    sizes = ("out_d", "out_h", "out_w")[-axes:]

    def attrs(size: int) -> dict[str, Any]:
        dims = make(Numbers("dims"), size)["X"].shape[-axes:]
        given = {name: 2 * dim for name, dim in zip(sizes, dims, strict=True)}
        return {**given, "interp_method": mode, "align_corners": mode != "nearest"}

    def eager(x: Any) -> Any:
        return functional.interpolate(x, tuple(2 * dim for dim in x.shape[-axes:]), mode=mode, **corners)

    return Case(type, make, None, eager, attrs, ("X",), share=share)


_INDEX: dict[str, Any] = {"outputs": ("Out", "Mask"), "grads": ("X",)}

CASES = [
    Case("pool2d", _images, lambda x: _parts(x).max((3, 5)), lambda x: functional.max_pool2d(x, 2), _pool("max", 2, 2),
         ("X",), name="max 2"),
    Case("pool2d", _images, None, lambda x: functional.max_pool2d(x, 3, 2, 1), _pool("max", 3, 2, 1), ("X",),
         name="max 3, overlapping"),
    Case("pool2d", _images, lambda x: _parts(x).mean((3, 5)), lambda x: functional.avg_pool2d(x, 2), _pool("avg", 2, 2),
         ("X",), name="avg 2"),
    Case("pool2d", _images, None, lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
         _pool("avg", 3, 2, 1), ("X",), name="avg 3, overlapping"),
    Case("pool2d", _images, lambda x: x.mean((2, 3)), lambda x: functional.adaptive_avg_pool2d(x, 1),
         {"pooling_type": "avg", "ksize": [1, 1], "global_pooling": True}, ("X",), name="global"),
    Case("pool2d", _images, None, lambda x: functional.adaptive_avg_pool2d(x, 7),
         {"pooling_type": "avg", "ksize": [7, 7], "adaptive": True}, ("X",), name="adaptive"),
    Case("pool3d", _volumes, None, lambda x: functional.max_pool3d(x, 2), _pool("max", 2, 2, rank=3), ("X",),
         name="max"),
    Case("pool3d", _volumes, None, lambda x: functional.avg_pool3d(x, 2), _pool("avg", 2, 2, rank=3), ("X",),
         name="avg"),
    Case("max_pool2d_with_index", _images, None, lambda x: functional.max_pool2d(x, 2, 2, return_indices=True),
         _windows(2, 2), **_INDEX),
    Case("max_pool3d_with_index", _volumes, None, lambda x: functional.max_pool3d(x, 2, 2, return_indices=True),
         _windows(2, 2, 3), **_INDEX),
    Case("unpool", _pooled, None, lambda x, i: functional.max_unpool2d(x, i.long(), 2, 2),
         {**_windows(2, 2), "unpooling_type": "max"}, ("X",), share=0.25),
    Case("spp", _images, None,
         lambda x: torch.cat([functional.adaptive_max_pool2d(x, k).flatten(1) for k in (1, 2, 4)], 1),
         {"pyramid_height": 3, "pooling_type": "max"}, ("X",)),
    Case("maxout", _images, lambda x: x.reshape(len(x), -1, 2, *x.shape[2:]).max(2),
         lambda x: x.reshape(len(x), -1, 2, *x.shape[2:]).amax(2), {"groups": 2}, ("X",)),
    _resampled("nearest_interp", "nearest", _images, 2, 0.25),
    _resampled("bilinear_interp", "bilinear", _images, 2, 0.25),
    _resampled("bicubic_interp", "bicubic", _images, 2, 0.125),
    _resampled("linear_interp", "linear", _sequences, 1, 0.25),
    _resampled("trilinear_interp", "trilinear", _volumes, 3, 0.0625),
]  # fmt: skip
