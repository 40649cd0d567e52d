"""The plugin API: devices, kernels, operators, libraries, passes, transformers and hooks.

The only other public module for plugins is ``fluidlite.expr``, the primitives of operators' expressions. The version of
this module is the version of the plugin API; entry points belong to the group ``fluidlite.v1``.
"""

import typing as _typing

from fluidlite.base.dtypes import FLOATS as FLOATS, compute_dtype as compute_dtype, numpy_dtype as numpy_dtype
from fluidlite.base.errors import (
    CompileError as CompileError,
    DeviceError as DeviceError,
    DeviceLost as DeviceLost,
    DeviceUnavailable as DeviceUnavailable,
)
from fluidlite.base.exports import export as _export
from fluidlite.codegen import kernel_source as kernel_source
from fluidlite.compiler.factory import TransformerFactory as TransformerFactory
from fluidlite.compiler.ir.graph import Graph as Graph
from fluidlite.compiler.passes import GraphPass as GraphPass, PeepholeGraphPass as PeepholeGraphPass, visit as visit
from fluidlite.compiler.transformer import Transformer as Transformer
from fluidlite.expr.declare import gradient as gradient, operator as operator
from fluidlite.hookspecs import API_VERSION as API_VERSION, hookimpl as hookimpl
from fluidlite.layer_helper import LayerHelper as LayerHelper
from fluidlite.memory.allocation import Block as Block
from fluidlite.memory.strategies import (
    RawMemory as RawMemory,
    Strategy as Strategy,
    register_strategy as register_strategy,
)
from fluidlite.operators.math import fill_number as fill_number
from fluidlite.operators.scalar_op import binary as binary, unary as unary
from fluidlite.platform.array_namespace import ArrayBase as ArrayBase, ArrayNamespace as ArrayNamespace
from fluidlite.platform.context import Context as Context
from fluidlite.platform.device import Device as Device, DeviceBase as DeviceBase, DeviceInfo as DeviceInfo
from fluidlite.platform.device_context import ContextBase as ContextBase, Event as Event
from fluidlite.platform.device_memory import Allocator as Allocator, AllocatorBase as AllocatorBase, Span as Span
from fluidlite.platform.kernel_language import (
    KernelLanguage as KernelLanguage,
    KernelLanguageBase as KernelLanguageBase,
)
from fluidlite.platform.place import Place as Place
from fluidlite.program.kernel_io import IO as IO
from fluidlite.program.kernel_options import KernelOptions as KernelOptions
from fluidlite.program.kernel_registry import Library as Library, register_kernel as register_kernel
from fluidlite.program.op_call import Call as Call
from fluidlite.program.opdef import Attr as Attr, Slot as Slot
from fluidlite.program.operator_options import (
    Aliasing as Aliasing,
    Differentiation as Differentiation,
    Execution as Execution,
    Inference as Inference,
    Lowering as Lowering,
    Registration as Registration,
)
from fluidlite.program.prepared import Prepared as Prepared
from fluidlite.program.registry import register_op as register_op
from fluidlite.tensor.layout import Layout as Layout
from fluidlite.tensor.tensor import Tensor as Tensor
from fluidlite.tensor.tensor_spec import Spec as Spec


def __getattr__(name: str) -> _typing.Any:
    """Import the registration of samples on demand: running programs do not need it."""
    if name in ("Sample", "register_samples"):
        from fluidlite.conformance import samples

        return getattr(samples, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_export(__name__, "Sample", "kernel_source", "register_samples")
