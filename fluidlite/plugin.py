"""All that a plugin may use: devices, kernels, operators, libraries, passes, transformers and hooks.

The version of this module is the version of the plugin API; entry points belong to the group
``fluidlite.v1``. Everything else in fluidlite is private to plugins, built-in ones included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fluidlite import expr
from fluidlite.base.bounded import Bounded, CacheInfo
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
from fluidlite.base.fork import hold_at_fork, new_lock, new_rlock
from fluidlite.codegen import kernel_source
from fluidlite.codegen.epilogue import Accumulation, accumulation
from fluidlite.codegen.epilogue_text import EpilogueText, epilogue_refusal, epilogue_text
from fluidlite.codegen.llvm import c_to_llvm
from fluidlite.codegen.pairwise import Pairwise
from fluidlite.codegen.philox import uniform as philox_uniform
from fluidlite.codegen.sums import pairwise_sum
from fluidlite.expr.declare import gradient, operator
from fluidlite.framework.call import Call
from fluidlite.framework.io import IO
from fluidlite.framework.kernels import Kernel, Library, register_kernel
from fluidlite.framework.layout import Layout
from fluidlite.framework.opdef import Attr, GradRule, OpDef, ScalarRule, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.relayout import Relaid
from fluidlite.framework.spec import Spec
from fluidlite.framework.tensor import Tensor
from fluidlite.geometry import (
    Box,
    Convolution,
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
    gemms_of,
    image_runs,
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
from fluidlite.hookspecs import hookimpl
from fluidlite.layer_helper import LayerHelper
from fluidlite.memory.allocation import Block
from fluidlite.memory.strategies import RawMemory, Strategy, register_strategy
from fluidlite.operators.math import Functor, fill_number, maxout_functor, maxout_grad_functor
from fluidlite.operators.scalar_op import binary, scalar_op, unary
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

if TYPE_CHECKING:
    from fluidlite.conformance.samples import Sample, register_samples

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
    "Block",
    "Bounded",
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
    "LayerHelper",
    "Layout",
    "Library",
    "Line",
    "MissingExtraError",
    "OpDef",
    "OutOfRangeError",
    "Pairwise",
    "Parts",
    "PeepholeGraphPass",
    "Place",
    "PlaceLike",
    "PoolAxis",
    "RawMemory",
    "Relaid",
    "Resample",
    "Sample",
    "ScalarRule",
    "ShapeError",
    "Shuffle",
    "Slot",
    "Span",
    "Spec",
    "Strategy",
    "Tensor",
    "Transformer",
    "TransformerFactory",
    "Weights",
    "accumulation",
    "binary",
    "block_counts",
    "box_of",
    "c_to_llvm",
    "channels_to_end",
    "compute_dtype",
    "convolutions_of",
    "epilogue_refusal",
    "epilogue_text",
    "expr",
    "fill_number",
    "gemms_of",
    "gradient",
    "hold_at_fork",
    "hookimpl",
    "image_runs",
    "is_float",
    "kernel_source",
    "maxout_functor",
    "maxout_grad_functor",
    "new_lock",
    "new_rlock",
    "nothing_fused",
    "numpy_dtype",
    "operator",
    "pairwise_sum",
    "parts_of",
    "philox_uniform",
    "pool_axes",
    "pool_planes",
    "random_windows",
    "register_kernel",
    "register_op",
    "register_samples",
    "register_strategy",
    "resample_of",
    "row_offsets",
    "scalar_op",
    "shifted_channels",
    "shuffle_of",
    "unary",
    "visit",
]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of a dtype's name (bfloat16 by ml_dtypes)."""
    return NUMPY[name]


def __getattr__(name: str) -> Any:
    """Import what registers samples when a plugin asks for it: a program that runs has no use for samples."""
    if name in ("Sample", "register_samples"):
        from fluidlite.conformance import samples

        return getattr(samples, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
