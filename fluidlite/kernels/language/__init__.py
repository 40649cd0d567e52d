"""Handwritten kernels in a kernel language: one source for OpenCL, CUDA and the C compiler of any plugin.

They use no barriers, local memory or atomics: a work-item computes one element, row or tile of the output alone and in
a fixed order, so results are bitwise reproducible. Sizes are arguments: another batch size compiles nothing, except
once a kernel that packs for many rows.
"""

from __future__ import annotations

from fluidlite.kernels import Register, kernels_of_package
from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Register) -> None:
    """Register the libraries of kernels that need vector registers; all other kernels belong to "plain"."""
    register(
        Library("winograd", ("*",), 30, "convolutions of 3 x 3 with fewer products, rounded at the size of a tile")
    )
    register(Library("registers", ("*",), 20, "convolutions and products whose sums stay in vector registers"))


register_kernels = kernels_of_package(__name__)
