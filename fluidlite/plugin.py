"""All that a plugin may use: devices, kernels, operators, libraries and hooks.

The version of this module is the version of the plugin API; entry points belong to the group
``fluidlite.v1``. Everything else in fluidlite is private to plugins, built-in ones included.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
from fluidlite.framework.call import Call
from fluidlite.framework.io import IO
from fluidlite.framework.kernels import Kernel, Library, register_kernel
from fluidlite.framework.layout import Layout
from fluidlite.framework.opdef import Attr, GradRule, OpDef, Sample, ScalarRule, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.framework.tensor import Tensor
from fluidlite.hookspecs import hookimpl
from fluidlite.operators.math import Functor, Gemm, gemms_of, maxout_functor, maxout_grad_functor
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

API_VERSION = 1

__all__ = [
    "ALL_FLOATS",
    "API_VERSION",
    "FLOATS",
    "HALVES",
    "INTS",
    "IO",
    "ITEMSIZE",
    "Allocator",
    "AllocatorBase",
    "ArrayBase",
    "ArrayNamespace",
    "Attr",
    "Call",
    "CompileError",
    "Context",
    "ContextBase",
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
    "Event",
    "FluidError",
    "Functor",
    "Gemm",
    "GradRule",
    "Kernel",
    "KernelNotFoundError",
    "Layout",
    "Library",
    "MissingExtraError",
    "OpDef",
    "OutOfRangeError",
    "Place",
    "PlaceLike",
    "Sample",
    "ScalarRule",
    "ShapeError",
    "Slot",
    "Span",
    "Spec",
    "Tensor",
    "compute_dtype",
    "dialect_library",
    "dialect_math_call",
    "gemms_of",
    "hookimpl",
    "is_float",
    "maxout_functor",
    "maxout_grad_functor",
    "numpy_dtype",
    "register_kernel",
    "register_op",
]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of a dtype's name (bfloat16 by ml_dtypes)."""
    return NUMPY[name]
