"""A thin ``fluid.core`` for old programs: the names of Fluid's compiled core that scripts use."""

from collections.abc import Callable as _Callable
from typing import Any as _Any

from fluidlite.base.errors import EOFException as EOFException, FluidError as _FluidError
from fluidlite.base.exports import export as _export
from fluidlite.framework import is_compiled_with_cuda as is_compiled_with_cuda
from fluidlite.loaders.record_file import RecordIOWriter as RecordIOWriter
from fluidlite.platform.device_registry import devices as _devices, named_place as _named_place
from fluidlite.platform.place import (
    CPUPlace as CPUPlace,
    CUDAPinnedPlace as CUDAPinnedPlace,
    CUDAPlace as CUDAPlace,
    Place as Place,
)
from fluidlite.program.opdef import GRAD as _GRAD
from fluidlite.program.operator import EMPTY as _EMPTY
from fluidlite.program.roles import op_proto_and_checker_maker as op_proto_and_checker_maker
from fluidlite.program.scope import Scope as Scope
from fluidlite.program.selected_rows import SelectedRows as SelectedRows
from fluidlite.tensor.tensor import Tensor as _Tensor
from fluidlite.tensor.tensor_array import LoDTensorArray as LoDTensorArray
from fluidlite.tensor.var_type import AttrType as AttrType, VarType as VarType

EnforceNotMet = _FluidError
LoDTensor = _Tensor


class VarDesc:
    """Fluid's ``core.VarDesc``; only its ``VarType`` is of use."""

    VarType = VarType


def empty_var_name() -> str:
    """The name of an unused output or an absent input."""
    return _EMPTY


def grad_var_suffix() -> str:
    """The suffix of the names of gradients."""
    return _GRAD


kEmptyVarName = empty_var_name
kGradVarSuffix = grad_var_suffix


def get_cuda_device_count() -> int:
    """The number of usable CUDA devices."""
    return sum(place.kind == "cuda" for place in _devices.places())


def is_compiled_with_mkldnn() -> bool:
    """Return False: there is no MKL-DNN option; libraries are selected automatically."""
    return False


def is_compiled_with_dist() -> bool:
    """Return False: there are no parameter servers; mpirun starts several processes."""
    return False


def is_float16_supported(place: Place) -> bool:
    """Return True: places without native float16 compute in float32."""
    return True


def op_support_gpu(type: str) -> bool:
    """Whether the operator has kernels, or an expression to generate one, for CUDA places."""
    from fluidlite.program.kernel_registry import kernels
    from fluidlite.program.registry import ops

    op: _Any = ops.find(type)
    if op is None or op.host_only is not None:
        return False
    return op.scalar is not None or any({"cuda", "array", "language"} & set(k.places) for k in kernels.of(type))


def __getattr__(name: str) -> _Callable[[int], Place]:
    return _named_place(name, __name__)  # names of devices' places, such as OpenCLPlace


_export(__name__)
