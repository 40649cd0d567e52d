"""A thin ``fluid.core`` for old programs: the names of Fluid's compiled core that scripts use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.base.errors import EOFException, FluidError as EnforceNotMet
from fluidlite.loaders.record_file import RecordIOWriter
from fluidlite.platform.device_registry import devices, named_place
from fluidlite.platform.place import CPUPlace, CUDAPinnedPlace, CUDAPlace, Place
from fluidlite.program.opdef import GRAD
from fluidlite.program.operator import EMPTY
from fluidlite.program.roles import op_proto_and_checker_maker
from fluidlite.program.scope import Scope
from fluidlite.program.selected_rows import SelectedRows
from fluidlite.tensor.tensor import Tensor as LoDTensor
from fluidlite.tensor.tensor_array import LoDTensorArray
from fluidlite.tensor.var_type import AttrType, VarType

__all__ = [
    "AttrType",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "EOFException",
    "EnforceNotMet",
    "LoDTensor",
    "LoDTensorArray",
    "Place",
    "RecordIOWriter",
    "Scope",
    "SelectedRows",
    "VarDesc",
    "empty_var_name",
    "get_cuda_device_count",
    "grad_var_suffix",
    "is_compiled_with_cuda",
    "is_compiled_with_dist",
    "is_compiled_with_mkldnn",
    "is_float16_supported",
    "kEmptyVarName",
    "kGradVarSuffix",
    "op_proto_and_checker_maker",
    "op_support_gpu",
]


class VarDesc:
    """Fluid's ``core.VarDesc``; only its ``VarType`` is of use."""

    VarType = VarType


def empty_var_name() -> str:
    """The name of an output that nobody wants, or an input that is absent."""
    return EMPTY


def grad_var_suffix() -> str:
    """What follows a variable's name in that of its gradient."""
    return GRAD


kEmptyVarName = empty_var_name
kGradVarSuffix = grad_var_suffix


def get_cuda_device_count() -> int:
    """How many CUDA devices can be used."""
    return sum(place.kind == "cuda" for place in devices.places())


def is_compiled_with_cuda() -> bool:
    """Whether a CUDA place can be used now (there is nothing compiled to ask)."""
    return get_cuda_device_count() > 0


def is_compiled_with_mkldnn() -> bool:
    """False: there is no MKL-DNN to ask for; libraries of a place are chosen by themselves."""
    return False


def is_compiled_with_dist() -> bool:
    """False: there are no parameter servers; several processes are started by mpirun."""
    return False


def is_float16_supported(place: Place) -> bool:
    """True: where a place has no float16 of its own, it computes in float32."""
    return True


def op_support_gpu(type: str) -> bool:
    """Whether a CUDA place would run the operator itself, judged by its kernels and expression."""
    from fluidlite.program.kernel_registry import kernels
    from fluidlite.program.registry import ops

    op: Any = ops.find(type)
    if op is None or op.host_only is not None:
        return False
    return op.scalar is not None or any({"cuda", "array", "language"} & set(k.places) for k in kernels.of(type))


def __getattr__(name: str) -> Callable[[int], Place]:
    return named_place(name, __name__)  # such as OpenCLPlace: devices name them
