"""LLVM IR for kernels that are written in a kernel language's C."""

from fluidlite.codegen.llvm.translate import c_to_llvm

__all__ = ["c_to_llvm"]
