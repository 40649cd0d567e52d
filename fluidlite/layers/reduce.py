"""Reductions: means, sums, products, maxima and minima, all and any; isfinite, has_inf, has_nan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from fluidlite.layers.declare import also, layer, layer_like
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable

Dims = Union[int, Sequence[int], None]
_DIM_NAMES = {"dim": Attr("dim", "ints", doc="the dims, negative ones count from the end; None or []: all")}


@layer("mean")
def mean(x: Variable, name: str | None = None) -> Variable:
    """Return the mean of all elements, as [1].

    >>> mean(data("x", [2, 4, 4, 8, 8])).shape
    (1,)
    """


@layer("reduce_sum", _DIM_NAMES)
def reduce_sum(input: Variable, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """Return the sum over dims of a tensor.

    input: Floating-point numbers, int32 or int64, of any rank
    Returns: Of the input's dtype, without those dims; [1] if none is left
    Raises: If a dim is not one of the input's, or named twice

    >>> reduce_sum(data("input", [2, 3]), dim=1).shape
    (2,)
    """
    return also(dim=dim or [0], reduce_all=not dim)


@layer_like(reduce_sum, "reduce_mean")
def reduce_mean() -> None:
    """Return the mean over dims of floating-point numbers; arguments as of ``reduce_sum``.

    >>> reduce_mean(data("input", [2, 4, 8, 8]), dim=[2, 3], keep_dim=True).shape
    (2, 4, 1, 1)
    """


@layer_like(reduce_sum, "reduce_max")
def reduce_max() -> None:
    """Return the maximum over dims; arguments as of ``reduce_sum``.

    >>> reduce_max(data("input", [2, 1], "int64")).shape
    (1,)
    """


@layer_like(reduce_sum, "reduce_min")
def reduce_min() -> None:
    """Return the minimum over dims; arguments as of ``reduce_sum``.

    >>> reduce_min(data("input", [2, 4], "int64")).shape
    (1,)
    """


@layer_like(reduce_sum, "reduce_prod")
def reduce_prod() -> None:
    """Return the product over dims; arguments as of ``reduce_sum``.

    >>> reduce_prod(data("input", [2, 4, 8, 8])).shape
    (1,)
    """


@layer("reduce_all", _DIM_NAMES, stop_gradient=True)
def reduce_all(input: Variable, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """Return whether all truth values over dims are true; arguments as of ``reduce_sum``.

    input: bool

    >>> reduce_all(data("input", [2, 4], "bool")).shape
    (1,)
    """
    return also(dim=dim or [0], reduce_all=not dim)


@layer_like(reduce_all, "reduce_any")
def reduce_any() -> None:
    """Return whether one truth value over dims is true; arguments as of ``reduce_sum``.

    input: bool

    >>> reduce_any(data("input", [2, 4], "bool")).shape
    (1,)
    """


@layer("isfinite", stop_gradient=True)
def isfinite(x: Variable) -> Variable:
    """Return whether no element of ``x`` is infinite or NaN, as bool [1].

    >>> isfinite(data("x", [2, 4])).shape
    (1,)
    """


@layer("isinf", called="isinf", stop_gradient=True)
def has_inf(x: Variable) -> Variable:
    """Return whether an element of ``x`` is infinite, as bool [1].

    >>> has_inf(data("x", [2, 4, 8, 8])).shape
    (1,)
    """


@layer("isnan", called="isnan", stop_gradient=True)
def has_nan(x: Variable) -> Variable:
    """Return whether an element of ``x`` is NaN, as bool [1].

    >>> has_nan(data("x", [2, 4])).shape
    (1,)
    """
