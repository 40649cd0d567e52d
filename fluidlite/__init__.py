"""fluidlite (the fronts are being written; the lead will restore this file)."""

from fluidlite import codegen as _codegen  # noqa: F401
from fluidlite import loader, memory, operators, unique_name
from fluidlite.base.errors import FallbackWarning, FluidError, PluginWarning
from fluidlite.executor import Executor
from fluidlite.framework.backward import append_backward, calc_gradient, gradients
from fluidlite.framework.explain import explain
from fluidlite.framework.kernels import Library, register_kernel
from fluidlite.framework.observe import debug
from fluidlite.framework.op_proto import op_proto
from fluidlite.framework.policy import get_fallback, set_fallback, set_libraries
from fluidlite.framework.program import Block, Program, default_main_program, default_startup_program, name_scope, program_guard
from fluidlite.framework.registry import register_op
from fluidlite.framework.scope import Scope, global_scope, scope_guard
from fluidlite.framework.tensor import LoDTensor, Tensor
from fluidlite.framework.transfer import from_dlpack
from fluidlite.framework.variable import Parameter, Variable
from fluidlite.loader import plugins
from fluidlite.platform.devices import places
from fluidlite.platform.place import CPUPlace, CUDAPinnedPlace, CUDAPlace, OpenCLPlace, Place
