"""Memory layout of arrays: aliasing, writable outputs, contiguous axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np


def strided(x: Any) -> bool:
    """Whether an array is a NumPy array, so that its strides are known."""
    return type(x) is np.ndarray or hasattr(x, "__array_interface__")  # NumPy creates it on request, so it comes last


def writable(out: Any, like: Any, flat: bool = False) -> bool:
    """Whether NumPy functions can write to an output directly, without rounding.

    ``flat``: they write to a reshaped view, so the output must be contiguous.
    """
    return strided(out) and out.dtype == like.dtype and (not flat or out.flags.c_contiguous)


def merges(axes: Iterable[tuple[int, int]]) -> bool:
    """Whether axes, given by (size, stride), can be merged into one without a copy."""
    long_axes = [(size, stride) for size, stride in axes if size != 1]
    return all(a[1] == b[0] * b[1] for a, b in itertools.pairwise(long_axes))


def same_elements(a: Any, b: Any) -> bool:
    """Whether two arrays are the same, or NumPy arrays with the same memory and layout."""
    if a is b or not (strided(a) and strided(b)):
        return a is b
    if a.shape != b.shape or a.strides != b.strides or not np.may_share_memory(a, b):  # the address takes longer
        return False
    return bool(a.__array_interface__["data"] == b.__array_interface__["data"])
