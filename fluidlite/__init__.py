"""fluidlite: deep-learning programs on any device, with any computing library.

``import fluidlite as fluid`` and write what you wrote for Fluid 1.x.
"""

from importlib import import_module as _import_module
from typing import Any as _Any

from fluidlite import (  # noqa: F401  codegen, control_flow and render register what they have
    average as average,
    backward as backward,
    clip as clip,
    codegen as _codegen,
    compiler as _compiler,
    contrib as contrib,
    control_flow as _control_flow,
    core as core,
    dataset as dataset,
    debugger as debugger,
    default_scope_funcs as default_scope_funcs,
    errors as errors,
    evaluator as evaluator,
    framework as framework,
    graphviz as graphviz,
    incubate as incubate,
    initializer as initializer,
    install_check as install_check,
    io as io,
    layers as layers,
    loaders as loaders,
    memory as memory,
    metrics as metrics,
    net_drawer as net_drawer,
    nets as nets,
    op as op,
    operators as operators,
    optimizer as optimizer,
    plugin_loader as plugin_loader,
    reader as reader,
    recordio_writer as recordio_writer,
    regularizer as regularizer,
    render as _render,
    transpiler as transpiler,
    unique_name as unique_name,
)
from fluidlite.base.errors import (
    FallbackWarning as FallbackWarning,
    FluidError as FluidError,
    PluginWarning as PluginWarning,
)
from fluidlite.base.exports import export as _export
from fluidlite.batch import batch as batch
from fluidlite.clip import ErrorClipByValue as ErrorClipByValue
from fluidlite.compat.flags import get_flags as get_flags, set_flags as set_flags
from fluidlite.compat.installation import (
    cpu_places as cpu_places,
    cuda_pinned_places as cuda_pinned_places,
    cuda_places as cuda_places,
    in_dygraph_mode as in_dygraph_mode,
    require_version as require_version,
)
from fluidlite.compiler.executable import step_kernels as _step_kernels  # noqa: F401  puts itself in its place
from fluidlite.compiler.kernel_checks import debug as debug
from fluidlite.compiler.policy import (
    get_fallback as get_fallback,
    set_fallback as set_fallback,
    set_libraries as set_libraries,
)
from fluidlite.contrib import (
    BeginEpochEvent as BeginEpochEvent,
    BeginStepEvent as BeginStepEvent,
    CheckpointConfig as CheckpointConfig,
    EndEpochEvent as EndEpochEvent,
    EndStepEvent as EndStepEvent,
    Inferencer as Inferencer,
    Trainer as Trainer,
)
from fluidlite.core import is_compiled_with_cuda as is_compiled_with_cuda
from fluidlite.data_feeder import DataFeeder as DataFeeder
from fluidlite.dataset import (
    DatasetFactory as DatasetFactory,
    InMemoryDataset as InMemoryDataset,
    QueueDataset as QueueDataset,
)
from fluidlite.distributed.compiled_program import CompiledProgram as CompiledProgram
from fluidlite.distributed.strategies import BuildStrategy as BuildStrategy, ExecutionStrategy as ExecutionStrategy
from fluidlite.executor import Executor as Executor
from fluidlite.executor.explain import explain as explain
from fluidlite.framework import load_op_library as load_op_library
from fluidlite.input import embedding as embedding, one_hot as one_hot
from fluidlite.io.program_state import (
    load_program_state as load_program_state,
    set_program_state as set_program_state,
)
from fluidlite.io.state import load as load, save as save
from fluidlite.layers.io import _fluid_data
from fluidlite.lod_tensor import (
    create_lod_tensor as create_lod_tensor,
    create_random_int_lodtensor as create_random_int_lodtensor,
)
from fluidlite.parallel_executor import ParallelExecutor as ParallelExecutor
from fluidlite.param_attr import ParamAttr as ParamAttr, WeightNormParamAttr as WeightNormParamAttr
from fluidlite.platform.device_registry import named_place as _named_place, places as places
from fluidlite.platform.place import (
    CPUPlace as CPUPlace,
    CUDAPinnedPlace as CUDAPinnedPlace,
    CUDAPlace as CUDAPlace,
    Place as Place,
)
from fluidlite.plugin_loader import plugins as plugins
from fluidlite.program.backward import (
    append_backward as append_backward,
    calc_gradient as calc_gradient,
    gradients as gradients,
)
from fluidlite.program.block import Block as Block
from fluidlite.program.kernel_registry import Library as Library, register_kernel as register_kernel
from fluidlite.program.op_guards import device_guard as device_guard, name_scope as name_scope
from fluidlite.program.op_proto import op_proto as op_proto
from fluidlite.program.opdef import Attr as Attr, Slot as Slot
from fluidlite.program.operator import Operator as Operator
from fluidlite.program.program import (
    Program as Program,
    default_main_program as default_main_program,
    default_startup_program as default_startup_program,
    program_guard as program_guard,
)
from fluidlite.program.registry import register_op as register_op
from fluidlite.program.rules import GradRule as GradRule, ScalarRule as ScalarRule
from fluidlite.program.scope import Scope as Scope, global_scope as global_scope, scope_guard as scope_guard
from fluidlite.program.variable import Parameter as Parameter, Variable as Variable
from fluidlite.tensor.tensor import LoDTensor as LoDTensor, Tensor as Tensor
from fluidlite.tensor.tensor_array import LoDTensorArray as LoDTensorArray
from fluidlite.tensor.transfer import from_dlpack as from_dlpack
from fluidlite.transpiler import (
    InferenceTranspiler as InferenceTranspiler,
    memory_optimize as memory_optimize,
    release_memory as release_memory,
)

__version__ = "0.1.0"


vars(_compiler).update(  # Fluid's paths
    CompiledProgram=CompiledProgram, BuildStrategy=BuildStrategy, ExecutionStrategy=ExecutionStrategy
)


def __getattr__(name: str) -> _Any:
    if name in ("nn", "profiler"):  # imported when they are first asked for
        return _import_module(f"fluidlite.{name}")
    return _named_place(name, __name__)  # such as OpenCLPlace: devices name them


data = _fluid_data
_export(
    __name__,
    *("average", "clip", "core", "errors", "initializer", "io", "layers", "loaders", "memory", "metrics", "nets"),
    *("operators", "optimizer", "plugin_loader", "reader", "regularizer", "unique_name"),
)
