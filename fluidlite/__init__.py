"""fluidlite: deep-learning programs on any device, with any computing library.

``import fluidlite as fluid`` and write what you wrote for Fluid 1.x.
"""

from collections.abc import Callable as _Callable

from fluidlite import average as average
from fluidlite import backward as backward
from fluidlite import clip as clip
from fluidlite import codegen as _codegen  # noqa: F401  puts the generators in their place
from fluidlite import core, errors, io, layers, loader, memory, metrics, operators, optimizer, reader, unique_name
from fluidlite import initializer as initializer
from fluidlite import nets as nets
from fluidlite import op as op
from fluidlite import regularizer as regularizer
from fluidlite import render as _render  # noqa: F401  puts the kernels of expressions in their place
from fluidlite.base.errors import FallbackWarning, FluidError, PluginWarning
from fluidlite.batch import batch
from fluidlite.clip import ErrorClipByValue
from fluidlite.core import is_compiled_with_cuda
from fluidlite.data_feeder import DataFeeder
from fluidlite.executor import Executor
from fluidlite.executor.explain import explain
from fluidlite.framework.backward import append_backward, calc_gradient, gradients
from fluidlite.framework.flags import get_flags, set_flags
from fluidlite.framework.installation import (
    cpu_places,
    cuda_pinned_places,
    cuda_places,
    in_dygraph_mode,
    require_version,
)
from fluidlite.framework.kernel_checks import debug
from fluidlite.framework.kernels import Library, register_kernel
from fluidlite.framework.op_proto import op_proto
from fluidlite.framework.opdef import Attr, GradRule, ScalarRule, Slot
from fluidlite.framework.operator import Operator
from fluidlite.framework.policy import get_fallback, set_fallback, set_libraries
from fluidlite.framework.program import (
    Block,
    Program,
    default_main_program,
    default_startup_program,
    device_guard,
    name_scope,
    program_guard,
)
from fluidlite.framework.registry import register_op
from fluidlite.framework.scope import Scope, global_scope, scope_guard
from fluidlite.framework.tensor import LoDTensor, Tensor
from fluidlite.framework.transfer import from_dlpack
from fluidlite.framework.variable import Parameter, Variable
from fluidlite.input import embedding, one_hot
from fluidlite.layers.io import _exact_data as data
from fluidlite.loader import plugins
from fluidlite.lod_tensor import create_lod_tensor, create_random_int_lodtensor
from fluidlite.param_attr import ParamAttr, WeightNormParamAttr
from fluidlite.platform.devices import named_place as _named_place
from fluidlite.platform.devices import places
from fluidlite.platform.place import CPUPlace, CUDAPinnedPlace, CUDAPlace, Place

__version__ = "0.1.0"

__all__ = [
    "Attr",
    "Block",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "DataFeeder",
    "ErrorClipByValue",
    "Executor",
    "FallbackWarning",
    "FluidError",
    "GradRule",
    "Library",
    "LoDTensor",
    "Operator",
    "ParamAttr",
    "Parameter",
    "Place",
    "PluginWarning",
    "Program",
    "ScalarRule",
    "Scope",
    "Slot",
    "Tensor",
    "Variable",
    "WeightNormParamAttr",
    "append_backward",
    "average",
    "batch",
    "calc_gradient",
    "clip",
    "core",
    "cpu_places",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "cuda_pinned_places",
    "cuda_places",
    "data",
    "debug",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "embedding",
    "errors",
    "explain",
    "from_dlpack",
    "get_fallback",
    "get_flags",
    "global_scope",
    "gradients",
    "in_dygraph_mode",
    "initializer",
    "io",
    "is_compiled_with_cuda",
    "layers",
    "loader",
    "memory",
    "metrics",
    "name_scope",
    "nets",
    "one_hot",
    "op_proto",
    "operators",
    "optimizer",
    "places",
    "plugins",
    "program_guard",
    "reader",
    "register_kernel",
    "register_op",
    "regularizer",
    "require_version",
    "scope_guard",
    "set_fallback",
    "set_flags",
    "set_libraries",
    "unique_name",
]


def __getattr__(name: str) -> _Callable[[int], Place]:
    return _named_place(name, __name__)  # such as OpenCLPlace: devices name them
