"""Kernels of the CPU in plain NumPy, for operators that walk sequences."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import hookimpl


@hookimpl
def register_kernels(register: Any) -> None:
    """Hand the kernels over."""
    from . import crf

    register(crf)
