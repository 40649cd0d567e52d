"""Compiles kernels in a kernel language's C to LLVM IR."""

from fluidlite.codegen.llvm.translate import c_to_llvm

__all__ = ["c_to_llvm"]
