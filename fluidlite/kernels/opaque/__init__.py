"""Array kernels of operators without an expression: sorts, searches, sequence recursions, hashes, samples."""

from __future__ import annotations

from fluidlite.kernels import kernels_of_package

register_kernels = kernels_of_package(__name__)
