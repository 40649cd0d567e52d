"""What hand-written kernels of several libraries ask of a call: boxes, windows, products, weights, in numbers."""

from fluidlite.geometry.boxes import Box, Parts, box_of, parts_of
from fluidlite.geometry.convolving import Convolution, Line, convolutions_of, nothing_fused
from fluidlite.geometry.pooling import PoolAxis, pool_axes, pool_planes
from fluidlite.geometry.product import Gemm, gemms_of
from fluidlite.geometry.resampling import Resample, Weights, resample_of
from fluidlite.geometry.shuffling import Shuffle, shifted_channels, shuffle_of
from fluidlite.geometry.unfolding import ImageRun, block_counts, image_runs, row_offsets
from fluidlite.geometry.windowing import random_windows

__all__ = [
    "Box", "Convolution", "Gemm", "ImageRun", "Line", "Parts", "PoolAxis", "Resample", "Shuffle", "Weights",
    "block_counts", "box_of", "convolutions_of", "gemms_of", "image_runs", "nothing_fused", "parts_of", "pool_axes",
    "pool_planes", "random_windows", "resample_of", "row_offsets", "shifted_channels", "shuffle_of",
]  # fmt: skip
