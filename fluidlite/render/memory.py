"""What lies where in the memory of arrays: which may be written by others, and which axes are one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np


def strided(x: Any) -> bool:
    """Whether an array is NumPy's, whose strides say where its elements lie."""
    return type(x) is np.ndarray or hasattr(x, "__array_interface__")  # which NumPy makes when it is asked for


def writable(out: Any, like: Any, flat: bool = False) -> bool:
    """Whether functions of the namespace may write an output themselves: it is NumPy's, and not rounded.

    ``flat``: under other dims, which a part of a larger output cannot have.
    """
    return strided(out) and out.dtype == like.dtype and (not flat or out.flags.c_contiguous)


def merges(axes: Iterable[tuple[int, int]]) -> bool:
    """Whether axes, told by (size, stride), are one axis in memory."""
    some = [(size, stride) for size, stride in axes if size != 1]
    return all(a[1] == b[0] * b[1] for a, b in itertools.pairwise(some))


def same_elements(a: Any, b: Any) -> bool:
    """Whether two arrays are NumPy's, and the same elements in the same order."""
    if a is b or not (strided(a) and strided(b)):
        return a is b
    if a.shape != b.shape or a.strides != b.strides or not np.may_share_memory(a, b):  # the address takes longer
        return False
    return bool(a.__array_interface__["data"] == b.__array_interface__["data"])
