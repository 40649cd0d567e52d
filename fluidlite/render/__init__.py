"""Expressions as code: array calls here, loops in a kernel language and LLVM IR to come."""

from fluidlite.render import kernels

__all__ = ["kernels"]
