"""Operators on feature maps beside convolution and pooling, and positions of words."""

from __future__ import annotations

import numpy as np

from benchmarks.operators.case import Case, Inputs, Numbers, functional, image, torch


def _maps(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(*image(size)), "Y": numbers.normal(*image(size))}


def _images(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(*image(size))}


def _angles(numbers: Numbers, size: int) -> Inputs:
    return {"Theta": numbers.normal(max(size // 4096, 1), 2, 3)}


def _sampled(numbers: Numbers, size: int) -> Inputs:
    images, _, height, width = image(size)
    return {"X": numbers.normal(*image(size)), "Grid": numbers.uniform(-0.9, 0.9, images, height, width, 2)}


def _words(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(max(size // 4096, 1), 64, min(64, size // 64))}


_WINDOWS = {"kernel_sizes": [3, 3], "strides": [1, 1], "paddings": [1, 1, 1, 1], "dilations": [1, 1]}

CASES = [
    Case("unfold", _images, None, lambda x: functional.unfold(x, 3, padding=1), _WINDOWS, ("X",), ("Y",), share=0.125),
    Case("fsp", _maps, lambda x, y: np.einsum("nihw,njhw->nij", x, y, optimize=True) / np.float32(x[0, 0].size),
         lambda x, y: torch.bmm(x.flatten(2), y.flatten(2).transpose(1, 2)) / x[0, 0].numel(), {}, ("X", "Y"),
         tolerance=1e-2),
    Case("affine_grid", _angles, None,
         lambda theta: functional.affine_grid(theta, (len(theta), 1, 32, 32), align_corners=True),
         lambda size: {"output_shape": [max(size // 4096, 1), 1, 32, 32]}, ("Theta",), ("Output",)),
    Case("grid_sampler", _sampled, None, lambda x, grid: functional.grid_sample(x, grid, align_corners=True), {},
         ("X", "Grid"), ("Output",), tolerance=1e-2),
    Case("add_position_encoding", _words, None, None, {"alpha": 0.5, "beta": 1.0}, ("X",)),
]  # fmt: skip
