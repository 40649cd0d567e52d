"""A benchmark case: an operator, inputs of three sizes, and what one would write with NumPy and PyTorch."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SIZES = {"small": 1024, "middle": 65_536, "large": 4_194_304}
"""About as many elements each; cases of costly operators have a share of them."""


class Lazy:
    """A module that is imported when first used: NumPy's contender runs where PyTorch is not, and the reverse."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


torch: Any = Lazy("torch")
functional: Any = Lazy("torch.nn.functional")


class Numbers:
    """Random arrays, the same in every process that names the same seed."""

    def __init__(self, seed: str) -> None:
        self.random = np.random.default_rng(zlib.crc32(seed.encode()))

    def uniform(self, low: float, high: float, *dims: int) -> Array:
        """Uniform numbers in [low, high)."""
        return self.random.random(dims, np.float32) * np.float32(high - low) + np.float32(low)

    def normal(self, *dims: int) -> Array:
        """Normal numbers."""
        return self.random.standard_normal(dims, np.float32)

    def positive(self, *dims: int) -> Array:
        """Uniform numbers from 0.1 to 1.1."""
        return self.uniform(0.1, 1.1, *dims)

    def one(self, value: float) -> Array:
        """One number as [1]."""
        return np.asarray([value], np.float32)

    def ints(self, high: int, *dims: int, dtype: str = "int64") -> Array:
        """Integers in [0, high)."""
        return self.random.integers(0, high, dims).astype(dtype)

    def bools(self, *dims: int) -> Array:
        """Truth values."""
        return self.random.random(dims, np.float32) < 0.5

    def distinct(self, *dims: int) -> Array:
        """Numbers without ties."""
        return self.random.permutation(int(np.prod(dims))).astype(np.float32).reshape(dims) / np.float32(256)

    def classes(self, rows: int, columns: int) -> Array:
        """Rows of probabilities."""
        found = self.positive(rows, columns)
        found /= found.sum(1, keepdims=True)
        return found


Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One operator on one kind of inputs.

    Attributes
    ----------
    type : str
    make : callable
        ``make(numbers, size)``: the inputs, slot by slot, of about ``size`` elements.
    numpy : callable or None
        The same with NumPy: takes the arrays in the order of ``make`` and gives the ``outputs``. What updates in place
        does so. None where nobody would write it in a few lines: the definition's reference checks the result.
    torch : callable or None
        The same with PyTorch; None where it has no such operator, nor a line or two of them.
    attrs : mapping, or callable of the size
    grads : tuple of str
        Inputs whose gradients are measured, as another row.
    outputs : tuple of str
        The outputs that are compared, in order; gradients start from those that ``through`` names.
    counts : mapping of slot to number of variables
        Of duplicable outputs.
    through : tuple of str
        Default: the first output.
    name : str
        Beside the type, where a type has several cases.
    share : float
        Part of the large size that it takes.
    check : str
        "values"; "moments" of random numbers: mean and deviation; "dims" where only these are defined.
    tolerance : float
    lod : mapping of slot to LoD, or callable of the size
    without : tuple of str
        Outputs that are not asked for.
    """

    type: str
    make: Callable[[Numbers, int], Inputs]
    numpy: Callable[..., Any] | None = None
    torch: Callable[..., Any] | None = None
    attrs: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] = field(default_factory=dict)
    grads: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("Out",)
    counts: Mapping[str, int] = field(default_factory=dict)
    through: tuple[str, ...] = ()
    name: str = ""
    share: float = 1.0
    check: str = "values"
    tolerance: float = 2e-3
    lod: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Type and name."""
        return f"{self.type} {self.name}".strip()

    def elements(self, size: str) -> int:
        """Elements at a size."""
        return max(int(SIZES[size] * self.share), 1024) if size != "small" else SIZES[size]

    def inputs(self, size: str) -> dict[str, Any]:
        """The inputs: arrays, or lists of them."""
        return dict(self.make(Numbers(f"{self.label} {size}"), self.elements(size)))

    def attributes(self, size: str) -> dict[str, Any]:
        """The attributes."""
        return dict(self.attrs(self.elements(size)) if callable(self.attrs) else self.attrs)

    def offsets(self, size: str) -> dict[str, Any]:
        """The LoD of inputs."""
        return dict(self.lod(self.elements(size)) if callable(self.lod) else self.lod)

    def starting(self) -> tuple[str, ...]:
        """Outputs that gradients start from."""
        return self.through or self.outputs[:1]

    def flow(self, size: str, results: Sequence[Array]) -> list[Array]:
        """The gradients of the outputs that gradients start from."""
        numbers = Numbers(f"{self.label} {size} gradient")
        flowing = results[: sum(self.counts.get(slot, 1) for slot in self.starting())]
        return [np.asarray(numbers.uniform(0.5, 1.5, *result.shape), result.dtype) for result in flowing]


def arrays(inputs: Inputs) -> list[Array]:
    """The arrays of all slots in order."""
    return [array for value in inputs.values() for array in (value if isinstance(value, list) else [value])]


def listed(results: Any) -> list[Any]:
    """What a contender gave, as a list."""
    return list(results) if isinstance(results, (tuple, list)) else [results]


def side(size: int) -> int:
    """Rows, and columns, of a square matrix of about that size."""
    return isqrt(size)


def image(size: int) -> tuple[int, int, int, int]:
    """Dims [n, c, h, w] of a batch of images of that size."""
    if size <= 1024:
        return 1, 4, 16, 16
    if size <= 65_536:
        return 4, 16, 32, 32
    channels, width = 32, 64
    return max(size // (channels * width * width), 1), channels, width, width


def volume(size: int) -> tuple[int, int, int, int, int]:
    """Dims [n, c, d, h, w] of a batch of volumes of that size."""
    if size <= 1024:
        return 1, 4, 4, 8, 8
    if size <= 65_536:
        return 2, 8, 16, 16, 16
    channels, depth, width = 16, 16, 32
    return max(size // (channels * depth * width * width), 1), channels, depth, width, width


def unary(
    type: str,
    numpy: Callable[..., Any] | None,
    torch: Callable[..., Any] | None = None,
    low: float = -2,
    high: float = 2,
    grad: bool = True,
    **more: Any,
) -> Case:
    """Return the case of an operator X -> Out on a square matrix."""

    def make(numbers: Numbers, size: int) -> Inputs:
        return {"X": numbers.uniform(low, high, side(size), side(size))}

    return Case(type, make, numpy, torch, grads=("X",) if grad else (), **more)


def square(*slots: str, low: float = -2, high: float = 2) -> Callable[[Numbers, int], Inputs]:
    """Return what makes a square matrix for each slot."""

    def make(numbers: Numbers, size: int) -> Inputs:
        return {slot: numbers.uniform(low, high, side(size), side(size)) for slot in slots}

    return make


def other(case: Case, **changed: Any) -> Case:
    """Return a case that differs."""
    return replace(case, **changed)
