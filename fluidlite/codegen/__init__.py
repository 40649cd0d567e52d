"""Scalar expressions of elementwise operators, and kernels generated from them."""

from fluidlite.codegen.expr import scalar_reads, trace
from fluidlite.codegen.generate import generators

__all__ = ["generators", "scalar_reads", "trace"]
