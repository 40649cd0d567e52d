"""Fluid's names of ``fluid.framework``; what they name lives in ``fluidlite.program`` and ``fluidlite.compat``."""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import ProgramError
from fluidlite.compat.flags import get_flags, set_flags
from fluidlite.compat.installation import (
    cpu_places,
    cuda_pinned_places,
    cuda_places,
    in_dygraph_mode,
    require_version,
)
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import CUDAPlace
from fluidlite.program.block import Block
from fluidlite.program.op_guards import device_guard, name_scope
from fluidlite.program.op_proto import OpProto, OpProtoHolder, op_proto
from fluidlite.program.opdef import GRAD
from fluidlite.program.operator import EMPTY, Operator, grad_name as grad_var_name
from fluidlite.program.program import (
    Program,
    default_main_program,
    default_startup_program,
    program_guard,
    switch_main_program,
    switch_startup_program,
)
from fluidlite.program.registry import ops
from fluidlite.program.variable import Parameter, Variable
from fluidlite.tensor.var_type import dtype_of as convert_np_dtype_to_dtype_


def is_compiled_with_cuda() -> bool:
    """Whether a CUDA place can be used now."""
    return any(place.kind == CUDAPlace().kind for place in devices.places())


def get_all_op_protos() -> list[OpProto]:
    """The definitions of all operators, as ``fluid.op_proto`` shows one."""
    return [op_proto(op.type) for op in ops]


def dtype_is_floating(dtype: Any) -> bool:
    """Whether a data type is one of floats."""
    return is_float(convert_np_dtype_to_dtype_(dtype))


def get_var(name: str, program: Program | None = None) -> Variable:
    """The variable of that name in a program's global block; default: the default main program's."""
    return (program if program is not None else default_main_program()).global_block().var(name)


def load_op_library(lib_filename: str) -> None:
    """Refuse: a library of compiled operators of Paddle cannot be loaded.

    Raises
    ------
    ProgramError
        Always.
    """
    raise ProgramError(
        f"load_op_library: {lib_filename!r} holds operators that were compiled for Paddle"
        "\n  Do: declare the operator with fluid.register_op, and its kernels by a plugin (docs/plugins.md)"
    )


_get_var = get_var
EMPTY_VAR_NAME = EMPTY
TEMP_VAR_NAME = "@TEMP@"
GRAD_VAR_SUFFIX = GRAD
ZERO_VAR_SUFFIX = "@ZERO"
CONTROL_DEP_VAR_PREFIX = "__control_var"

__all__ = [
    "CONTROL_DEP_VAR_PREFIX",
    "EMPTY_VAR_NAME",
    "GRAD_VAR_SUFFIX",
    "TEMP_VAR_NAME",
    "ZERO_VAR_SUFFIX",
    "Block",
    "OpProtoHolder",
    "Operator",
    "Parameter",
    "Program",
    "Variable",
    "convert_np_dtype_to_dtype_",
    "cpu_places",
    "cuda_pinned_places",
    "cuda_places",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "dtype_is_floating",
    "get_all_op_protos",
    "get_flags",
    "get_var",
    "grad_var_name",
    "in_dygraph_mode",
    "is_compiled_with_cuda",
    "load_op_library",
    "name_scope",
    "program_guard",
    "require_version",
    "set_flags",
    "switch_main_program",
    "switch_startup_program",
]
