"""GEMMs and convolutions on GPUs by CuPy's cuBLAS; half types use the tensor cores."""

from __future__ import annotations

from fluidlite.kernels import Register, kernels_of_package
from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Register) -> None:
    """Register the library."""
    register(Library("cublas", ("cuda",), 20, "products of matrices, by CuPy's cuBLAS"))


register_kernels = kernels_of_package(__name__)
