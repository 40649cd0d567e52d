"""The functors of maxout: the maximum of ``groups`` neighbouring channels."""

from __future__ import annotations

from fluidlite.operators.math.functor import Functor

maxout_functor = Functor(
    "maxout",
    "maxout(context, call) -> run(context, io): from X [N, C, H, W] to Out [N, C / groups, H, W], where "
    "Out[n, c] is the maximum of X[n, c * groups], ..., X[n, c * groups + groups - 1], position by position; the "
    "attribute axis says where the channels are: 1, or the last.",
)

maxout_grad_functor = Functor(
    "maxout_grad",
    "maxout_grad(context, call) -> run(context, io): X@GRAD of X, Out and Out@GRAD; of equal maxima "
    "the one of the lowest channel gets the gradient.",
)
