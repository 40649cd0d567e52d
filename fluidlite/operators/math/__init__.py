"""Math functors: one function with an implementation for each library."""

from fluidlite.operators.math.fill import fill_number
from fluidlite.operators.math.functor import Functor
from fluidlite.operators.math.maxout import maxout_functor, maxout_grad_functor

__all__ = ["Functor", "fill_number", "maxout_functor", "maxout_grad_functor"]
