"""Scalar expressions of elementwise operators, and kernels generated from them."""

from fluidlite.codegen.array_kernel import ArrayGenerator
from fluidlite.codegen.expr import scalar_reads, trace
from fluidlite.codegen.language_kernel import KernelLanguageGenerator
from fluidlite.program.codegen_registry import generators

__all__ = ["scalar_reads", "trace"]

generators["language"] = KernelLanguageGenerator()
generators["array"] = ArrayGenerator()
