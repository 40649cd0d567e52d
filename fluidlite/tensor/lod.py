"""LoD: nested sequences as offsets (Fluid's ``set_lod``) and as lengths (``set_recursive_sequence_lengths``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

from fluidlite.base.arguments import exact_ints
from fluidlite.base.errors import TensorError
from fluidlite.tensor.tensor_spec import Lod


def _levels(levels: Any, what: str) -> list[list[int]]:
    try:
        return list(map(exact_ints, levels))
    except (TypeError, ValueError, OverflowError):
        raise TensorError(
            f"{what} is {levels!r}; expected a list of levels, each a list of ints, such as [[0, 2, 5]]"
        ) from None


def lod_from_offsets(levels: Any, rows: int | None = None) -> Lod:
    """Check offsets, coarsest level first, and return them as a Lod.

    Raises TensorError if a level does not start with 0, falls, or does not cover the next level (the last one: the
    rows).
    """
    clean = _levels(levels, "lod")
    for number, level in enumerate(clean):
        if not level or level[0] != 0 or any(a > b for a, b in pairwise(level)):
            raise TensorError(
                f"lod level {number} is {level}; offsets start with 0 and never fall"
                + ("\n  These look like lengths: use set_recursive_sequence_lengths" if level and level[0] != 0 else "")
            )
    _check_cover(clean, rows)
    return tuple(tuple(level) for level in clean)


def lod_from_lengths(levels: Any, rows: int | None = None) -> Lod:
    """Check lengths, coarsest level first, and return them as a Lod of offsets.

    Raises TensorError if a length is negative, or a level does not cover the next one (the last one: the rows).
    """
    clean = _levels(levels, "recursive_sequence_lengths")
    for number, level in enumerate(clean):
        if any(n < 0 for n in level):
            raise TensorError(f"recursive_sequence_lengths level {number} is {level}; lengths are 0 or more")
    offsets = [[0, *accumulate(level)] for level in clean]
    try:
        _check_cover(offsets, rows)
    except TensorError as exc:
        hint = ""
        if any(len(v) > 1 and v[0] == 0 and all(a <= b for a, b in pairwise(v)) for v in clean):
            hint = "\n  A level starts with 0 and rises: these look like offsets; use set_lod"
        raise TensorError(f"{exc}{hint}") from None
    return tuple(tuple(level) for level in offsets)


def _check_cover(offsets: Sequence[Sequence[int]], rows: int | None) -> None:
    for number, (level, inner) in enumerate(pairwise(offsets)):
        if level[-1] != len(inner) - 1:
            raise TensorError(
                f"lod level {number} covers {level[-1]} sequences, but level {number + 1} has {len(inner) - 1}"
            )
    if rows is not None and offsets and offsets[-1][-1] != rows:
        raise TensorError(f"the last lod level covers {offsets[-1][-1]} rows, but the tensor has {rows}")


def lengths_of(lod: Lod) -> list[list[int]]:
    """The lengths of sequences, from their offsets."""
    return [[b - a for a, b in pairwise(level)] for level in lod]


def concatenated_lod(lods: Iterable[Lod]) -> Lod:
    """The offsets of the concatenation of sequences with these LoDs; all have the same number of levels."""
    levels = zip(*map(lengths_of, lods), strict=True)
    return tuple((0, *accumulate(chain.from_iterable(lengths))) for lengths in levels)
