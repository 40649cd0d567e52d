"""Layers that make one number of many: means, sums, products and extremes, and tests of a whole tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import check_ints, check_variable
from fluidlite.layers.common import append

__all__ = [
    "has_inf", "has_nan", "isfinite", "mean", "reduce_all", "reduce_any", "reduce_max", "reduce_mean", "reduce_min",
    "reduce_prod", "reduce_sum",
]  # fmt: skip

Dims = Union[int, Sequence[int], None]


def mean(x: Variable, name: str | None = None) -> Variable:
    """Return the mean of all elements, as [1].

    Parameters
    ----------
    x : Variable
    name : str, optional

    Returns
    -------
    Variable
    """
    return append("mean", "mean", {"X": check_variable("x", x)}, name=name)


def _reduce(
    type: str, input: Variable, dim: Dims, keep_dim: bool, name: str | None, stop_gradient: bool = False
) -> Variable:
    dims = [] if dim is None else check_ints("dim", dim)
    attrs = {"dim": dims or [0], "keep_dim": keep_dim, "reduce_all": not dims}
    inputs = {"X": check_variable("input", input)}
    return append(type, type, inputs, attrs, name=name, stop_gradient=stop_gradient)


def reduce_sum(input: Variable, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """Return the sum over dims of a tensor.

    Parameters
    ----------
    input : Variable
        Floating-point numbers, int32 or int64, of any rank.
    dim : int or list of int, optional
        The dims to sum over; negative ones count from the end. None or []: all.
    keep_dim : bool
        Keep the dims that are summed over, as 1.
    name : str, optional

    Returns
    -------
    Variable
        Of the input's dtype, without those dims; [1] if none is left.

    Raises
    ------
    AttributeValueError
        If a dim is not one of the input's, or named twice.
    """
    return _reduce("reduce_sum", input, dim, keep_dim, name)


def reduce_mean(input: Variable, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """Return the mean over dims of floating-point numbers; arguments as of ``reduce_sum``.

    Parameters
    ----------
    input : Variable
    dim : int or list of int, optional
    keep_dim : bool
    name : str, optional

    Returns
    -------
    Variable
    """
    return _reduce("reduce_mean", input, dim, keep_dim, name)


def reduce_max(input: Variable, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """Return the maximum over dims; arguments as of ``reduce_sum``.

    Parameters
    ----------
    input : Variable
    dim : int or list of int, optional
    keep_dim : bool
    name : str, optional

    Returns
    -------
    Variable
    """
    return _reduce("reduce_max", input, dim, keep_dim, name)


def reduce_min(input: Variable, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """Return the minimum over dims; arguments as of ``reduce_sum``.

    Parameters
    ----------
    input : Variable
    dim : int or list of int, optional
    keep_dim : bool
    name : str, optional

    Returns
    -------
    Variable
    """
    return _reduce("reduce_min", input, dim, keep_dim, name)


def reduce_prod(input: Variable, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """Return the product over dims; arguments as of ``reduce_sum``.

    Parameters
    ----------
    input : Variable
    dim : int or list of int, optional
    keep_dim : bool
    name : str, optional

    Returns
    -------
    Variable
    """
    return _reduce("reduce_prod", input, dim, keep_dim, name)


def reduce_all(input: Variable, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """Return whether all truth values over dims are true; arguments as of ``reduce_sum``.

    Parameters
    ----------
    input : Variable
        bool.
    dim : int or list of int, optional
    keep_dim : bool
    name : str, optional

    Returns
    -------
    Variable
    """
    return _reduce("reduce_all", input, dim, keep_dim, name, stop_gradient=True)


def reduce_any(input: Variable, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """Return whether one truth value over dims is true; arguments as of ``reduce_sum``.

    Parameters
    ----------
    input : Variable
        bool.
    dim : int or list of int, optional
    keep_dim : bool
    name : str, optional

    Returns
    -------
    Variable
    """
    return _reduce("reduce_any", input, dim, keep_dim, name, stop_gradient=True)


def isfinite(x: Variable) -> Variable:
    """Return whether no element of ``x`` is infinite or NaN, as bool [1].

    Parameters
    ----------
    x : Variable

    Returns
    -------
    Variable
    """
    return append("isfinite", "isfinite", {"X": check_variable("x", x)}, stop_gradient=True)


def has_inf(x: Variable) -> Variable:
    """Return whether an element of ``x`` is infinite, as bool [1].

    Parameters
    ----------
    x : Variable

    Returns
    -------
    Variable
    """
    return append("isinf", "isinf", {"X": check_variable("x", x)}, stop_gradient=True)


def has_nan(x: Variable) -> Variable:
    """Return whether an element of ``x`` is NaN, as bool [1].

    Parameters
    ----------
    x : Variable

    Returns
    -------
    Variable
    """
    return append("isnan", "isnan", {"X": check_variable("x", x)}, stop_gradient=True)
