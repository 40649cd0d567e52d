"""Fluid's names of ``fluid.framework``, defined in ``fluidlite.program`` and ``fluidlite.compat``."""

from typing import Any as _Any

from fluidlite.base.dtypes import is_float as _is_float
from fluidlite.base.errors import ProgramError as _ProgramError
from fluidlite.base.exports import export as _export
from fluidlite.compat.flags import get_flags as get_flags, set_flags as set_flags
from fluidlite.compat.installation import (
    cpu_places as cpu_places,
    cuda_pinned_places as cuda_pinned_places,
    cuda_places as cuda_places,
    in_dygraph_mode as in_dygraph_mode,
    require_version as require_version,
)
from fluidlite.platform.device_registry import devices as _devices
from fluidlite.program.block import Block as Block
from fluidlite.program.op_guards import device_guard as device_guard, name_scope as name_scope
from fluidlite.program.op_proto import OpProto as _OpProto, OpProtoHolder as OpProtoHolder, op_proto as _op_proto
from fluidlite.program.opdef import GRAD as _GRAD
from fluidlite.program.operator import EMPTY as _EMPTY, Operator as Operator, grad_name as _grad_name
from fluidlite.program.program import (
    Program as Program,
    default_main_program as default_main_program,
    default_startup_program as default_startup_program,
    program_guard as program_guard,
    switch_main_program as switch_main_program,
    switch_startup_program as switch_startup_program,
)
from fluidlite.program.registry import ops as _ops
from fluidlite.program.variable import Parameter as Parameter, Variable as Variable
from fluidlite.tensor.var_type import dtype_of as convert_np_dtype_to_dtype_


def is_compiled_with_cuda() -> bool:
    """Whether a CUDA place can be used now."""
    return any(place.kind == "cuda" for place in _devices.places())


def get_all_op_protos() -> list[_OpProto]:
    """The definitions of all operators, in the form of ``fluid.op_proto``."""
    return [_op_proto(op.type) for op in _ops]


def dtype_is_floating(dtype: _Any) -> bool:
    """Whether a data type is a floating-point type."""
    return _is_float(convert_np_dtype_to_dtype_(dtype))


def get_var(name: str, program: Program | None = None) -> Variable:
    """The variable of that name in a program's global block; default: the default main program's."""
    return (program if program is not None else default_main_program()).global_block().var(name)


def load_op_library(lib_filename: str) -> None:
    """Raise ProgramError: libraries of Paddle's compiled operators cannot be loaded.

    Raises
    ------
    ProgramError
        Always.
    """
    raise _ProgramError(
        f"load_op_library: {lib_filename!r} holds operators that were compiled for Paddle"
        "\n  Do: declare the operator with fluid.register_op, and its kernels by a plugin (docs/plugins.md)"
    )


_get_var = get_var
grad_var_name = _grad_name
EMPTY_VAR_NAME = _EMPTY
TEMP_VAR_NAME = "@TEMP@"
GRAD_VAR_SUFFIX = _GRAD
ZERO_VAR_SUFFIX = "@ZERO"
CONTROL_DEP_VAR_PREFIX = "__control_var"

_export(__name__)
