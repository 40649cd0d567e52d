"""Convolutions."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any

from benchmarks.operators.case import Case, Inputs, Numbers, functional, image, volume


def _images(filters: int, kernel: int, grouped: int = 0, transpose: bool = False) -> Callable[[Numbers, int], Inputs]:
    def make(numbers: Numbers, size: int) -> Inputs:
        n, c, h, w = image(size)
        dims = (c, 1) if grouped else (c, filters) if transpose else (filters, c)
        return {"Input": numbers.normal(n, c, h, w), "Filter": numbers.uniform(-0.1, 0.1, *dims, kernel, kernel)}

    return make


def _deep(numbers: Numbers, size: int) -> Inputs:
    """Small images of many channels, as in the last layers of a network."""
    channels = min(max(isqrt(size // 8), 16), 512)
    return {
        "Input": numbers.normal(8, channels, 2, 2),
        "Filter": numbers.uniform(-0.1, 0.1, channels, channels, 3, 3),
    }


def _volumes(transpose: bool = False) -> Callable[[Numbers, int], Inputs]:
    def make(numbers: Numbers, size: int) -> Inputs:
        n, c, d, h, w = volume(size)
        dims = (c, 8) if transpose else (8, c)
        return {"Input": numbers.normal(n, c, d, h, w), "Filter": numbers.uniform(-0.1, 0.1, *dims, 3, 3, 3)}

    return make


def _channels(size: int) -> int:
    return image(size)[1]


_BOTH: dict[str, Any] = {"grads": ("Input", "Filter"), "outputs": ("Output",), "tolerance": 1e-2}

CASES = [
    Case("conv2d", _images(32, 3), None, lambda x, w: functional.conv2d(x, w, padding=1), {"paddings": [1, 1]},
         share=0.5, **_BOTH),
    Case("conv2d", _images(64, 3), None, lambda x, w: functional.conv2d(x, w, stride=2, padding=1),
         {"paddings": [1, 1], "strides": [2, 2]}, share=0.5, name="of stride 2", **_BOTH),
    Case("conv2d", _images(64, 1), None, lambda x, w: functional.conv2d(x, w), name="of one element", share=0.5,
         **_BOTH),
    Case("conv2d", _images(32, 3), None, lambda x, w: functional.conv2d(x, w, padding=2, dilation=2),
         {"paddings": [2, 2], "dilations": [2, 2]}, share=0.25, name="dilated", **_BOTH),
    Case("conv2d", _deep, None, lambda x, w: functional.conv2d(x, w, padding=1), {"paddings": [1, 1]},
         name="of few windows", share=0.5, **_BOTH),
    Case("depthwise_conv2d", _images(32, 3, 1), None, lambda x, w: functional.conv2d(x, w, padding=1, groups=len(w)),
         lambda size: {"paddings": [1, 1], "groups": _channels(size)}, share=0.5, **_BOTH),
    Case("conv3d", _volumes(), None, lambda x, w: functional.conv3d(x, w, padding=1), {"paddings": [1, 1, 1]},
         share=0.25, **_BOTH),
    Case("conv2d_transpose", _images(16, 3, transpose=True), None,
         lambda x, w: functional.conv_transpose2d(x, w, stride=2), {"strides": [2, 2]}, share=0.25, **_BOTH),
    Case("depthwise_conv2d_transpose", _images(16, 3, 1), None,
         lambda x, w: functional.conv_transpose2d(x, w, groups=len(w)), lambda size: {"groups": _channels(size)},
         share=0.25, **_BOTH),
    Case("conv3d_transpose", _volumes(transpose=True), None,
         lambda x, w: functional.conv_transpose3d(x, w, stride=2), {"strides": [2, 2, 2]}, share=0.125, **_BOTH),
]  # fmt: skip
