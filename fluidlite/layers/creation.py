"""Layers that make tensors of numbers: ranges, matrices, random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.framework.variable import Variable
from fluidlite.framework.vartype import dtype_of
from fluidlite.layer_helper import check_float, check_int, check_ints, check_variable
from fluidlite.layers.common import append
from fluidlite.layers.numbers import numbers
from fluidlite.layers.tensor import assign, cast, fill_constant

__all__ = [
    "diag", "eye", "gaussian_random", "gaussian_random_batch_size_like", "linspace", "range", "uniform_random",
    "uniform_random_batch_size_like",
]  # fmt: skip

# Patterns ----------------------------------------------------------------------------------------------------------


def _number(argument: str, value: Any, dtype: Any) -> Variable:
    """A number as a Variable of a dtype."""
    if not isinstance(value, Variable):
        return fill_constant([1], dtype, value if isinstance(value, int) else check_float(argument, value))
    return value if value.dtype == dtype_of(dtype) else cast(value, dtype)


def range(start: Any, end: Any, step: Any, dtype: Any, name: str | None = None) -> Variable:
    """Return start, start + step, ... up to ``end``, which is left out.

    Parameters
    ----------
    start, end, step : number or Variable
        A Variable holds one number, [1].
    dtype : str
        float32, float64, int32 or int64.
    name : str, optional

    Returns
    -------
    Variable

    Raises
    ------
    ShapeError
        If the step is 0 or leads away from ``end``.
    """
    inputs = {name: _number(name.lower(), n, dtype) for name, n in (("Start", start), ("End", end), ("Step", step))}
    return append("range", "range", inputs, name=name, stop_gradient=True)


def linspace(start: Any, stop: Any, num: Any, dtype: Any = None, name: str | None = None) -> Variable:
    """Return ``num`` numbers from ``start`` to ``stop``, evenly spaced.

    Parameters
    ----------
    start, stop, num : number or Variable
        A Variable holds one number, [1].
    dtype : str, optional
        float32 (the default) or float64.
    name : str, optional

    Returns
    -------
    Variable
        [num].
    """
    kind = dtype_of("float32" if dtype is None else dtype)
    inputs = {
        "Start": _number("start", start, kind), "Stop": _number("stop", stop, kind),
        "Num": _number("num", num, "int32"),
    }  # fmt: skip
    return append("linspace", "linspace", inputs, {"dtype": kind}, name=name, stop_gradient=True)


def eye(
    num_rows: int,
    num_columns: int | None = None,
    batch_shape: Sequence[int] | None = None,
    dtype: Any = "float32",
    name: str | None = None,
) -> Variable:
    """Return a matrix with 1 on the diagonal, else 0.

    Parameters
    ----------
    num_rows : int
    num_columns : int, optional
        Default: ``num_rows``.
    batch_shape : sequence of int, optional
        Dims before those of the matrix, which is repeated.
    dtype : str
    name : str, optional

    Returns
    -------
    Variable
        [*batch_shape, num_rows, num_columns].
    """
    rows = check_int("num_rows", num_rows, minimum=0)
    columns = rows if num_columns is None else check_int("num_columns", num_columns, minimum=0)
    attrs = {"num_rows": rows, "num_columns": columns, "dtype": dtype_of(dtype)}
    out = append("eye", "eye", {}, attrs, name=name, stop_gradient=True)
    if batch_shape is not None:
        batch = check_ints("batch_shape", batch_shape)
        whole = [1] * len(batch) + [rows, columns]
        out = append("eye", "reshape2", {"X": out}, {"shape": whole}, extra=("XShape",), stop_gradient=True)
        out = append("eye", "expand", {"X": out}, {"expand_times": [*batch, 1, 1]}, stop_gradient=True)
    return out


def diag(diagonal: Variable | np.ndarray[Any, Any]) -> Variable:
    """Return a matrix with the given diagonal, [size], else 0.

    Parameters
    ----------
    diagonal : Variable or array

    Returns
    -------
    Variable
        [size, size].
    """
    given = assign(diagonal) if isinstance(diagonal, np.ndarray) else check_variable("diagonal", diagonal)
    return append("diag", "diag", {"Diagonal": given}, stop_gradient=True)


# Random numbers ----------------------------------------------------------------------------------------------------


def _shaped(layer: str, shape: Any, attrs: dict[str, Any], name: str | None) -> Variable:
    given = numbers("shape", shape, "ShapeTensor", "ShapeTensorList")
    return append(layer, layer, given.inputs, {"shape": given.attr, **attrs}, name=name, stop_gradient=True)


def uniform_random(
    shape: Any, dtype: Any = "float32", min: float = -1.0, max: float = 1.0, seed: int = 0, name: str | None = None
) -> Variable:
    """Return random numbers, uniform in [min, max).

    Parameters
    ----------
    shape : sequence of int or Variable, or Variable
        Dims; a Variable holds one of them, or all.
    dtype : str
        A floating-point type.
    min, max : float
    seed : int
        0: the program's; otherwise the same numbers at every run.
    name : str, optional

    Returns
    -------
    Variable
    """
    attrs = {
        "dtype": dtype_of(dtype), "min": check_float("min", min), "max": check_float("max", max),
        "seed": check_int("seed", seed),
    }  # fmt: skip
    return _shaped("uniform_random", shape, attrs, name)


def gaussian_random(
    shape: Any,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Any = "float32",
    name: str | None = None,
) -> Variable:
    """Return normal random numbers. See :func:`uniform_random`.

    Parameters
    ----------
    shape : sequence of int or Variable, or Variable
    mean, std : float
        Mean and standard deviation.
    seed : int
        0: the program's.
    dtype : str
    name : str, optional

    Returns
    -------
    Variable
    """
    attrs = {
        "dtype": dtype_of(dtype), "mean": check_float("mean", mean), "std": check_float("std", std),
        "seed": check_int("seed", seed),
    }  # fmt: skip
    return _shaped("gaussian_random", shape, attrs, name)


def _like(
    type: str, input: Variable, shape: Sequence[int], input_dim_idx: int, output_dim_idx: int, attrs: dict[str, Any]
) -> Variable:
    attrs = {
        "shape": check_ints("shape", shape), "input_dim_idx": check_int("input_dim_idx", input_dim_idx),
        "output_dim_idx": check_int("output_dim_idx", output_dim_idx), **attrs,
    }  # fmt: skip
    return append(type, type, {"Input": check_variable("input", input)}, attrs, stop_gradient=True)


def uniform_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: Any = "float32",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
) -> Variable:
    """Return uniform random numbers of dims ``shape``, of which one is a dim of ``input``.

    Parameters
    ----------
    input : Variable
        Only its dims are read.
    shape : sequence of int
    dtype : str
    input_dim_idx, output_dim_idx : int
        Dim ``output_dim_idx`` of the result is dim ``input_dim_idx`` of ``input``.
    min, max, seed
        See :func:`uniform_random`.

    Returns
    -------
    Variable
    """
    attrs = {
        "dtype": dtype_of(dtype), "min": check_float("min", min), "max": check_float("max", max),
        "seed": check_int("seed", seed),
    }  # fmt: skip
    return _like("uniform_random_batch_size_like", input, shape, input_dim_idx, output_dim_idx, attrs)


def gaussian_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Any = "float32",
) -> Variable:
    """Return normal random numbers of dims ``shape``. See :func:`uniform_random_batch_size_like`.

    Parameters
    ----------
    input : Variable
        Only its dims are read.
    shape : sequence of int
    input_dim_idx, output_dim_idx : int
    mean, std : float
        Mean and standard deviation.
    seed : int
        0: the program's.
    dtype : str

    Returns
    -------
    Variable
    """
    attrs = {
        "dtype": dtype_of(dtype), "mean": check_float("mean", mean), "std": check_float("std", std),
        "seed": check_int("seed", seed),
    }  # fmt: skip
    return _like("gaussian_random_batch_size_like", input, shape, input_dim_idx, output_dim_idx, attrs)
