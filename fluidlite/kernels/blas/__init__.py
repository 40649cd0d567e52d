"""Matrix products and updates through the cblas that NumPy's own wheel brings, without NumPy's cost of a call."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Any) -> None:
    """Name the library."""
    register(Library("blas", ("cpu",), 10, "the cblas inside NumPy, called directly"))


@hookimpl
def register_kernels(register: Any) -> None:
    """Hand the kernels over."""
    from . import conv, linear_algebra, optimizers

    register(conv)
    register(linear_algebra)
    register(optimizers)
