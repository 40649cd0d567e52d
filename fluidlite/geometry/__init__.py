"""Geometry of calls for hand-written kernels of all libraries: windows, GEMMs and convolutions in numbers."""

from fluidlite.base.exports import export as _export
from fluidlite.geometry.convolving import (
    Convolution as Convolution,
    CorrelationAxis as CorrelationAxis,
    convolutions_of as convolutions_of,
    fused_refusal as fused_refusal,
    unknown_dims as unknown_dims,
)
from fluidlite.geometry.pooling import PoolAxis as PoolAxis, pool_axes as pool_axes, pool_planes as pool_planes
from fluidlite.geometry.product import Gemm as Gemm, gemms_of as gemms_of
from fluidlite.geometry.windowing import random_windows as random_windows

_export(__name__)
