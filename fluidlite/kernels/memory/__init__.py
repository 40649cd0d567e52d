"""Kernels for the memory capability: every device has them, for they only copy."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import hookimpl


@hookimpl
def register_kernels(register: Any) -> None:
    """Hand the kernels over."""
    from . import copies, creation, metadata

    register(copies)
    register(creation)
    register(metadata)
