"""Functors and geometry that kernels of several libraries share."""

from fluidlite.operators.math.functor import Functor
from fluidlite.operators.math.maxouting import maxout_functor, maxout_grad_functor
from fluidlite.operators.math.product import Gemm, gemms_of

__all__ = ["Functor", "Gemm", "gemms_of", "maxout_functor", "maxout_grad_functor"]
