"""Layers that create tensors: ranges, matrices, random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.layer_helper import check_float, check_int, check_ints, check_variable
from fluidlite.layers.common import append
from fluidlite.layers.declare import also, layer
from fluidlite.layers.shape import reshape
from fluidlite.layers.slicing_padding import expand
from fluidlite.layers.tensor import assign, cast, fill_constant
from fluidlite.program.variable import Variable
from fluidlite.tensor.var_type import dtype_of

# Patterns ----------------------------------------------------------------------------------------------------------


def _number(argument: str, value: Any, dtype: Any) -> Variable:
    if not isinstance(value, Variable):
        return fill_constant([1], dtype, value if isinstance(value, int) else check_float(argument, value))
    return value if value.dtype == dtype_of(dtype) else cast(value, dtype)


@layer("range", dict.fromkeys(("start", "end", "step", "dtype"), ""), stop_gradient=True)
def range(start: Any, end: Any, step: Any, dtype: Any, name: str | None = None) -> Variable:
    """Return start, start + step, ... up to ``end``, which is left out.

    start, end, step: A Variable holds one number, [1]
    dtype: float32, float64, int32 or int64
    Raises: If the step is 0 or leads away from ``end``

    >>> range(data("start", [1]), 2, data("step", [1]), "float32").shape
    (-1,)
    """
    first, last = _number("start", start, dtype), _number("end", end, dtype)
    return also(Start=first, End=last, Step=_number("step", step, dtype))


@layer("linspace", dict.fromkeys(("start", "stop", "num", "dtype"), ""), stop_gradient=True)
def linspace(start: Any, stop: Any, num: Any, dtype: Any = None, name: str | None = None) -> Variable:
    """Return ``num`` numbers from ``start`` to ``stop``, evenly spaced.

    start, stop, num: A Variable holds one number, [1]
    dtype: float32 (the default) or float64
    Returns: [num]

    >>> linspace(1, 0.5, 4).shape
    (-1,)
    """
    kind = dtype_of("float32" if dtype is None else dtype)
    first, last = _number("start", start, kind), _number("stop", stop, kind)
    return also(Start=first, Stop=last, Num=_number("num", num, "int32"), dtype=kind)


def eye(
    num_rows: int,
    num_columns: int | None = None,
    batch_shape: Sequence[int] | None = None,
    dtype: Any = "float32",
    name: str | None = None,
) -> Variable:
    """Return a matrix with 1 on the diagonal, else 0.

    num_columns: Default: ``num_rows``
    batch_shape: Dims before those of the matrix, which is repeated
    Returns: [*batch_shape, num_rows, num_columns]
    """
    rows = check_int("num_rows", num_rows, minimum=0)
    columns = rows if num_columns is None else check_int("num_columns", num_columns, minimum=0)
    attrs = {"num_rows": rows, "num_columns": columns, "dtype": dtype_of(dtype)}
    out = append("eye", {}, attrs, name=name, stop_gradient=True)
    if batch_shape is not None:
        batch = check_ints("batch_shape", batch_shape)
        out = expand(reshape(out, [1] * len(batch) + [rows, columns]), [*batch, 1, 1])
        out.stop_gradient = True
    return out


@layer("diag", {"diagonal": ""}, stop_gradient=True)
def diag(diagonal: Variable | np.ndarray[Any, Any]) -> Variable:
    """Return a matrix with the given diagonal, [size], else 0.

    Returns: [size, size]

    >>> diag(data("diagonal", [2], "int64")).shape
    (2, 2)
    """
    diagonal_variable = assign(diagonal) if isinstance(diagonal, np.ndarray) else check_variable("diagonal", diagonal)
    return also(Diagonal=diagonal_variable)


# Random numbers ----------------------------------------------------------------------------------------------------


@layer("uniform_random", stop_gradient=True)
def uniform_random(
    shape: Any, dtype: Any = "float32", min: float = -1.0, max: float = 1.0, seed: int = 0, name: str | None = None
) -> Variable:
    """Return random numbers, uniform in [min, max).

    shape: Dims; a Variable holds one of them, or all
    dtype: A floating-point type

    >>> uniform_random([1, 1, 1, 1]).shape
    (1, 1, 1, 1)
    """


@layer("gaussian_random", stop_gradient=True)
def gaussian_random(
    shape: Any,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Any = "float32",
    name: str | None = None,
) -> Variable:
    """Return normal random numbers. See :func:`uniform_random`.

    >>> gaussian_random([2, 2]).shape
    (2, 2)
    """


@layer("uniform_random_batch_size_like", stop_gradient=True)
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

    input: Only its dims are read
    min, max: See :func:`uniform_random`

    >>> uniform_random_batch_size_like(data("input", [2, 4, 8, 8]), [1, 1, 1, 1]).shape
    (2, 1, 1, 1)
    """


@layer("gaussian_random_batch_size_like", stop_gradient=True)
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

    input: Only its dims are read

    >>> gaussian_random_batch_size_like(data("input", [1]), 4).shape
    (1,)
    """
