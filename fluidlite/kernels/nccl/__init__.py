"""Collective operators between GPUs by CuPy's NCCL, without copies to the host."""

from __future__ import annotations

from fluidlite.kernels import Register, kernels_of_package
from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Register) -> None:
    """Register the library."""
    register(Library("nccl", ("cuda",), 20, "collective operators between GPUs, by CuPy's NCCL"))


register_kernels = kernels_of_package(__name__)
