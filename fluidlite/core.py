"""A thin ``fluid.core`` for old programs: the names of Fluid's compiled core that scripts use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.base.errors import FluidError as EnforceNotMet
from fluidlite.framework.opdef import GRAD
from fluidlite.framework.operator import EMPTY
from fluidlite.framework.scope import Scope
from fluidlite.framework.tensor import Tensor as LoDTensor
from fluidlite.framework.vartype import AttrType, VarType
from fluidlite.platform.devices import devices, named_place
from fluidlite.platform.place import CPUPlace, CUDAPinnedPlace, CUDAPlace, Place

__all__ = [
    "AttrType",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "EnforceNotMet",
    "LoDTensor",
    "Place",
    "Scope",
    "VarDesc",
    "empty_var_name",
    "get_cuda_device_count",
    "grad_var_suffix",
    "is_compiled_with_cuda",
    "kEmptyVarName",
    "kGradVarSuffix",
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


def op_support_gpu(type: str) -> bool:
    """Whether a CUDA place would run the operator itself, judged by its kernels and expression."""
    from fluidlite.framework.kernels import kernels
    from fluidlite.framework.registry import ops

    op: Any = ops.find(type)
    if op is None or op.host_only is not None:
        return False
    return op.scalar is not None or any({"cuda", "array", "dialect"} & set(k.places) for k in kernels.of(type))


def __getattr__(name: str) -> Callable[[int], Place]:
    return named_place(name, __name__)  # such as OpenCLPlace: devices name them
