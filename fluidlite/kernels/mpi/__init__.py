"""Collective operators through host memory: between processes by MPI, between threads of a process in memory."""

from __future__ import annotations

from fluidlite.kernels import Register, kernels_of_package
from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Register) -> None:
    """Register the library."""
    register(Library("mpi", ("*",), 0, "collective operators through the host, by mpi4py where mpirun started several"))


register_kernels = kernels_of_package(__name__)
