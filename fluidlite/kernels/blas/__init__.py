"""Kernels that call the cblas inside NumPy's wheel directly, without the overhead of a NumPy call."""

from __future__ import annotations

from fluidlite.kernels import Register, kernels_of_package
from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Register) -> None:
    """Register the libraries."""
    register(Library("blas", ("cpu",), 10, "the cblas inside NumPy, called directly"))
    register(Library("im2col", ("cpu",), 25, "convolutions of few windows by that cblas, the filter where it lies"))


register_kernels = kernels_of_package(__name__)
