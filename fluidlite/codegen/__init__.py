"""Scalar expressions of elementwise operators, and kernels generated from them."""

from fluidlite.codegen import register as generate
from fluidlite.codegen.expr import scalar_reads, trace

__all__ = ["generate", "scalar_reads", "trace"]
