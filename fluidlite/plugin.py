"""All that a plugin may use: devices, kernels, operators, libraries, passes, transformers and hooks.

The version of this module is the version of the plugin API; entry points belong to the group
``fluidlite.v1``. Everything else in fluidlite is private to plugins, built-in ones included.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.bounded import CacheInfo
from fluidlite.base.dtypes import ALL_FLOATS, FLOATS, HALVES, INTS, ITEMSIZE, NUMPY, compute_dtype, is_float
from fluidlite.base.errors import (
    CompileError,
    DeviceError,
    DeviceLost,
    DeviceUnavailable,
    FluidError,
    KernelNotFoundError,
    MissingExtraError,
    OutOfRangeError,
    ShapeError,
)
from fluidlite.codegen.dialect_math import library as dialect_library
from fluidlite.codegen.dialect_math import math_call as dialect_math_call
from fluidlite.codegen.epilogue import Accumulation, accumulation
from fluidlite.codegen.epilogue_text import EpilogueText, epilogue_refusal, epilogue_text
from fluidlite.codegen.llvm import c_to_llvm
from fluidlite.codegen.philox import uniform as philox_uniform
from fluidlite.framework.call import Call
from fluidlite.framework.io import IO
from fluidlite.framework.kernels import Kernel, Library, register_kernel
from fluidlite.framework.layout import Layout
from fluidlite.framework.opdef import Attr, GradRule, OpDef, Sample, ScalarRule, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.relayout import Relaid
from fluidlite.framework.spec import Spec
from fluidlite.framework.tensor import Tensor
from fluidlite.hookspecs import hookimpl
from fluidlite.operators.math import (
    Box,
    Convolution,
    Functor,
    Gemm,
    ImageRun,
    Line,
    Parts,
    PoolAxis,
    Resample,
    Shuffle,
    Weights,
    block_counts,
    box_of,
    convolutions_of,
    fill_number,
    gemms_of,
    image_runs,
    maxout_functor,
    maxout_grad_functor,
    nothing_fused,
    parts_of,
    pool_axes,
    pool_planes,
    random_windows,
    resample_of,
    row_offsets,
    shifted_channels,
    shuffle_of,
)
from fluidlite.operators.windows import channels_to_end
from fluidlite.platform.context import Context
from fluidlite.platform.device import (
    Allocator,
    AllocatorBase,
    ArrayBase,
    ArrayNamespace,
    ContextBase,
    Device,
    DeviceBase,
    DeviceContext,
    DeviceInfo,
    Dialect,
    DialectBase,
    DoneEvent,
    Event,
    Span,
)
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.transformers.factory import TransformerFactory
from fluidlite.transformers.passes import GraphPass, PeepholeGraphPass, visit
from fluidlite.transformers.transformer import Transformer
from fluidlite.transformers.values import Graph, GraphOp, GraphValue

API_VERSION = 1

__all__ = [
    "ALL_FLOATS",
    "API_VERSION",
    "FLOATS",
    "HALVES",
    "INTS",
    "IO",
    "ITEMSIZE",
    "Accumulation",
    "Allocator",
    "AllocatorBase",
    "ArrayBase",
    "ArrayNamespace",
    "Attr",
    "Box",
    "CacheInfo",
    "Call",
    "CompileError",
    "Context",
    "ContextBase",
    "Convolution",
    "Device",
    "DeviceBase",
    "DeviceContext",
    "DeviceError",
    "DeviceInfo",
    "DeviceLost",
    "DeviceUnavailable",
    "Dialect",
    "DialectBase",
    "DoneEvent",
    "EpilogueText",
    "Event",
    "FluidError",
    "Functor",
    "Gemm",
    "GradRule",
    "Graph",
    "GraphOp",
    "GraphPass",
    "GraphValue",
    "ImageRun",
    "Kernel",
    "KernelNotFoundError",
    "Layout",
    "Library",
    "Line",
    "MissingExtraError",
    "OpDef",
    "OutOfRangeError",
    "Parts",
    "PeepholeGraphPass",
    "Place",
    "PlaceLike",
    "PoolAxis",
    "Relaid",
    "Resample",
    "Sample",
    "ScalarRule",
    "ShapeError",
    "Shuffle",
    "Slot",
    "Span",
    "Spec",
    "Tensor",
    "Transformer",
    "TransformerFactory",
    "Weights",
    "accumulation",
    "block_counts",
    "box_of",
    "c_to_llvm",
    "channels_to_end",
    "compute_dtype",
    "convolutions_of",
    "dialect_library",
    "dialect_math_call",
    "epilogue_refusal",
    "epilogue_text",
    "fill_number",
    "gemms_of",
    "hookimpl",
    "image_runs",
    "is_float",
    "maxout_functor",
    "maxout_grad_functor",
    "nothing_fused",
    "numpy_dtype",
    "parts_of",
    "philox_uniform",
    "pool_axes",
    "pool_planes",
    "random_windows",
    "register_kernel",
    "register_op",
    "resample_of",
    "row_offsets",
    "shifted_channels",
    "shuffle_of",
    "visit",
]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of a dtype's name (bfloat16 by ml_dtypes)."""
    return NUMPY[name]
