"""Rows of a feed split to members, and fetched rows of members behind each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np

from fluidlite.base.errors import FeedError, FetchError
from fluidlite.tensor.lod import lengths_of, lod_from_lengths
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray


def split(name: str, value: Any, count: int) -> list[Any]:
    """What each of ``count`` members is fed of a value: equally many rows or, where it has LoD, sequences."""
    lod = value.lod() if isinstance(value, Tensor) else []
    if isinstance(value, Tensor):
        value = value.numpy()  # a queue of the members would have to wait for the one that it lies on
    try:
        value = np.asarray(value)
    except ValueError as exc:
        raise FeedError(f"feed {name!r} is no array: {exc}") from None
    rows = len(lod[0]) - 1 if lod else value.shape[0] if value.ndim else 0
    if rows < count:
        raise FeedError(f"feed {name!r} has {rows} {'sequences' if lod else 'rows'} for {count} places; each needs one")
    bounds = [rows * i // count for i in range(count + 1)]
    return [_part(value, lod, begin, end) for begin, end in pairwise(bounds)]


def _part(value: np.ndarray[Any, Any], lod: Sequence[Sequence[int]], begin: int, end: int) -> Any:
    """Some rows, or some sequences of the first level with all that they hold."""
    levels = []
    for offsets in lod:
        levels.append([at - offsets[begin] for at in offsets[begin : end + 1]])
        begin, end = offsets[begin], offsets[end]
    part = value[begin:end]
    return Tensor().set(part, None, levels) if levels else part


def joined(name: str, parts: Sequence[Any]) -> Any:
    """What members fetched, behind each other; of tensors a tensor, with the sequences of all.

    Raises FetchError: they are tensor arrays, or have different numbers of LoD levels.
    """
    if isinstance(parts[0], (list, TensorArray)):
        raise FetchError(
            f"variable {name!r} is a tensor array, whose elements on {len(parts)} places are not joined"
            "\n  Do: fetch layers.tensor_array_to_tensor of it"
        )
    found = np.concatenate([np.atleast_1d(np.asarray(part)) for part in parts])
    if not isinstance(parts[0], Tensor):
        return found
    levels = {len(part.lod()) for part in parts}
    if len(levels) > 1:
        raise FetchError(f"variable {name!r} has {sorted(levels)} LoD levels on different places; expected one number")
    lods = zip(*(lengths_of(part.lod()) for part in parts), strict=True)
    lengths: list[list[int]] = [[*chain.from_iterable(level)] for level in lods]
    return Tensor().set(found, None, lod_from_lengths(lengths))
