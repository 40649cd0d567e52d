"""Functors and geometry that kernels of several libraries share."""

from fluidlite.operators.math.boxes import Box, Parts, box_of, parts_of
from fluidlite.operators.math.convolving import Convolution, Line, convolutions_of, nothing_fused
from fluidlite.operators.math.filling import fill_number
from fluidlite.operators.math.functor import Functor
from fluidlite.operators.math.maxouting import maxout_functor, maxout_grad_functor
from fluidlite.operators.math.pooling import PoolAxis, pool_axes, pool_planes
from fluidlite.operators.math.product import Gemm, gemms_of
from fluidlite.operators.math.resampling import Resample, Weights, resample_of
from fluidlite.operators.math.shuffling import Shuffle, shifted_channels, shuffle_of
from fluidlite.operators.math.unfolding import ImageRun, block_counts, image_runs, row_offsets
from fluidlite.operators.math.windowing import random_windows

__all__ = [
    "Box", "Convolution", "Functor", "Gemm", "ImageRun", "Line", "Parts", "PoolAxis", "Resample", "Shuffle", "Weights",
    "block_counts", "box_of", "convolutions_of", "fill_number", "gemms_of", "image_runs", "maxout_functor",
    "maxout_grad_functor", "nothing_fused", "parts_of", "pool_axes", "pool_planes", "random_windows", "resample_of",
    "row_offsets", "shifted_channels", "shuffle_of",
]  # fmt: skip
