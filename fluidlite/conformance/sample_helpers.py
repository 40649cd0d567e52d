"""Deterministic arrays for the operators' samples, and references that are one NumPy function."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite.conformance.samples import Reference, Sample
from fluidlite.tensor.tensor_spec import Lod

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Any]
Attrs = Mapping[str, Any]
Lods = Mapping[str, Lod]
Outputs = dict[str, Any]
"""Arguments and results of references, by slot; attributes by name."""

WIDE = ("float32", "float64")
EVERY = ("float32", "float64", "float16", "bfloat16")
NUMBERS = (*EVERY, "int64")
COPIED = (*NUMBERS, "bool")
"""``dtypes`` of the samples of operators that copy elements."""
MIXED = ("mixed",)
"""``dtypes`` of a sample whose inputs differ in dtype: they are not cast."""


def rand(*dims: int, low: float = -1.0, high: float = 1.0, seed: int = 0, dtype: str = "float32") -> Array:
    """Uniform numbers in [low, high)."""
    return np.asarray(np.random.default_rng(seed).uniform(low, high, dims), dtype)


def pair(x: Sequence[int], y: Sequence[int]) -> dict[str, Array]:
    """X and Y of these dims, uniform numbers in [-1, 1)."""
    return {"X": rand(*x), "Y": rand(*y, seed=1)}


def ints(*dims: int, low: int = 0, high: int = 10, seed: int = 0, dtype: str = "int64") -> Array:
    """Uniform integers in [low, high)."""
    return np.asarray(np.random.default_rng(seed).integers(low, high, dims), dtype)


def bools(*dims: int, seed: int = 0) -> Array:
    """Random truth values."""
    return np.asarray(np.random.default_rng(seed).integers(0, 2, dims), "bool")


def distinct(*dims: int, seed: int = 0, dtype: str = "float32") -> Array:
    """Numbers with differences of at least 0.25, so that maxima and orders have no ties."""
    size = int(np.prod(dims))
    steps = np.random.default_rng(seed).permutation(size) - size // 2
    return np.asarray(steps.reshape(dims) * 0.25, dtype)


def away_from(array: Array, *points: float, gap: float = 0.05) -> Array:
    """Move numbers away from kinks, so that finite differences do not cross one."""
    out = array.copy()
    for point in points:
        is_near = np.abs(out - point) < gap
        out[is_near] = point + np.where(out[is_near] >= point, 2 * gap, -2 * gap)
    return out


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), for moderate x."""
    return 1 / (1 + np.exp(-x))


def unary_samples(
    low: float = -2.0,
    high: float = 2.0,
    avoid: Sequence[float] = (),
    attrs: Iterable[Mapping[str, Any]] = ({},),
) -> Callable[[], list[Sample]]:
    """Return samples of an operator on one tensor: usual dims with each of ``attrs``, then edge cases."""

    def samples() -> list[Sample]:
        def x(*dims: int) -> dict[str, Array]:
            return {"X": away_from(rand(*dims, low=low, high=high, seed=1 + len(dims)), *avoid)}

        result = [Sample(x(5, 7), values, ("X",), name=f"attrs{i}", dtypes=EVERY) for i, values in enumerate(attrs)]
        attributes = result[0].attrs
        result += [
            Sample(x(1), attributes, ("X",), name="one"),
            Sample(x(), attributes, ("X",), name="rank0"),
            Sample(x(0, 3), attributes, name="empty", dtypes=EVERY),
            Sample(x(2, 3, 4, 1), attributes, ("X",), name="rank4", dtypes=WIDE),
            *(Sample(x(size), attributes, name=f"tail{size}") for size in (127, 4133)),
            Sample({"X": np.asarray([np.nan, np.inf, -0.0, 0.0, 1.0], "float32")}, attributes, name="nan_inf_zeros"),
        ]
        return result

    return samples


def point(function: Callable[..., Any]) -> Reference:
    """Return the reference of an operator X -> Out as ``function(x, <attributes it names>)``."""
    parameters = [] if isinstance(function, np.ufunc) else list(inspect.signature(function).parameters)[1:]

    def reference(inputs: Inputs, attrs: Attrs) -> Outputs:
        return {"Out": function(inputs["X"], **{name: attrs[name] for name in parameters})}

    return reference


def aligned(x: Array, y: Array, axis: int = -1) -> Array:
    """Return Y with dims that NumPy broadcasts against X as Fluid does with ``axis``."""
    if x.ndim == y.ndim or (y.size == 1 and y.ndim <= 1):
        return y
    if axis != -1:
        while y.ndim and y.shape[-1] == 1:
            y = y[..., 0]
    start = x.ndim - y.ndim if axis == -1 else axis
    return y.reshape(y.shape + (1,) * (x.ndim - start - y.ndim))


def pairwise(function: Callable[..., Any]) -> Reference:
    """Return the reference of an operator X, Y -> Out with Fluid's broadcasting."""

    def reference(inputs: Inputs, attrs: Attrs) -> Outputs:
        x, y, axis = inputs["X"], inputs["Y"], attrs.get("axis", -1)
        if y.ndim > x.ndim:
            x = aligned(y, x, axis)
        else:
            y = aligned(x, y, axis)
        return {"Out": np.asarray(function(x, y))}

    return reference


def sequences(x: Array, lengths: Array | None, lod: Lod) -> list[list[int]]:
    """Return the numbers of each sequence: padded rows cut to ``lengths``, or rows of the last LoD level."""
    rows = x.reshape(len(x), -1).tolist()
    if lengths is None:
        return [[n for row in rows[a:b] for n in row] for a, b in itertools.pairwise(lod[-1])]
    counts = lengths.reshape(-1).tolist()
    if not all(0 <= n <= len(row) for row, n in zip(rows, counts, strict=True)):
        raise ValueError("a length is out of range")
    return [row[:n] for row, n in zip(rows, counts, strict=True)]


def stated(inputs: Inputs, attrs: Attrs, attr: str, *slots: str) -> Sequence[int]:
    """Return numbers from the first slot that is given, else from the attribute."""
    for slot in slots:
        if slot in inputs:
            tensor = inputs[slot]
            return [int(np.reshape(n, -1)[0]) for n in tensor] if isinstance(tensor, list) else [int(n) for n in tensor]
    numbers: Sequence[int] = attrs[attr]
    return numbers
