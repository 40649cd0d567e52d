"""Kernels for the array capability: any device whose memory an Array-API namespace can view."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import hookimpl


@hookimpl
def register_kernels(register: Any) -> None:
    """Hand every family over."""
    from . import creation, index, linear_algebra, loss, maxout, metrics, reduce, shape, softmax, top_k

    for family in (creation, index, linear_algebra, loss, maxout, metrics, reduce, shape, softmax, top_k):
        register(family)
