"""Creating tensors of sequences (LoD tensors)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.base.arguments import check_int, check_list, refuse_mask
from fluidlite.base.errors import LoDError, ProgramError, TensorError
from fluidlite.platform.place import PlaceLike
from fluidlite.tensor.lod import lod_from_lengths
from fluidlite.tensor.tensor import Tensor

Lengths = Sequence[Sequence[int]]
_RANDOM = "create_random_int_lodtensor"


def create_lod_tensor(data: Any, recursive_seq_lens: Lengths, place: PlaceLike) -> Tensor:
    """Create a LoD tensor.

    Parameters
    ----------
    data : array, Tensor, or list of sequences
        An array holds the concatenated sequences. A list holds one list of numbers (or rows) for each sequence
        of the lowest level; numbers become rows of one element.
    recursive_seq_lens : list of lists
        LENGTHS, coarsest level first: ``[[2, 3]]`` is two sequences, of 2 and of 3 rows.
    place : Place or str

    Raises
    ------
    LoDError
        If the lengths do not cover the rows.
    """
    if isinstance(data, Tensor):
        array = data.numpy()
    elif isinstance(data, list):
        lengths = [len(check_list("a sequence of create_lod_tensor", each, "a list", LoDError)) for each in data]
        if not recursive_seq_lens or list(recursive_seq_lens[-1]) != lengths:
            raise LoDError(
                f"data has sequences of lengths {lengths}, but recursive_seq_lens ends with "
                f"{list(recursive_seq_lens[-1]) if recursive_seq_lens else 'nothing'}"
            )
        rows = [np.asarray(sequence) for sequence in data if len(sequence)]
        try:
            array = np.concatenate(rows, axis=0) if rows else np.zeros(0, np.int64)
        except ValueError as exc:
            raise LoDError(f"create_lod_tensor: the sequences have rows of different dims: {exc}") from None
        if array.ndim == 1:
            array = array.reshape(-1, 1)
    else:
        refuse_mask("data of create_lod_tensor", data, LoDError)
        array = np.asarray(data)
    try:
        lod = lod_from_lengths(recursive_seq_lens, array.shape[0] if array.ndim else None)
    except TensorError as exc:
        raise LoDError(f"create_lod_tensor: {exc}") from None
    return Tensor().set(array, place, [list(level) for level in lod])


def create_random_int_lodtensor(
    recursive_seq_lens: Lengths, base_shape: Sequence[int], place: PlaceLike, low: int, high: int
) -> Tensor:
    """Create a LoD tensor of random int64 numbers from ``low`` to ``high``, both included.

    ``base_shape`` is the dims of one row.
    """
    rows = lod_from_lengths(recursive_seq_lens, None)[-1][-1] if recursive_seq_lens else 0
    first, last = (check_int(f"{name} of {_RANDOM}", value) for name, value in (("low", low), ("high", high)))
    if first > last:
        raise ProgramError(f"low of {_RANDOM} is {low} and high {high}; expected low <= high")
    dims = [
        check_int(f"a dim of base_shape of {_RANDOM}", dim)
        for dim in check_list(f"base_shape of {_RANDOM}", base_shape, "ints")
    ]
    data = np.random.randint(first, last + 1, [rows, *dims], np.int64)
    return create_lod_tensor(data, recursive_seq_lens, place)
