"""Kernels for the memory capability: they only copy, so every device has them."""

from __future__ import annotations

from fluidlite.kernels import kernels_of_package

register_kernels = kernels_of_package(__name__)
