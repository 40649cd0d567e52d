"""Code generation for tensor expressions: array calls here, loops in a kernel language in ``loops``."""

from fluidlite.render import kernels
from fluidlite.render.loops import kernels as loop_kernels

__all__ = ["kernels", "loop_kernels"]
