"""Row indices of the units of a LoD level, and gathers of these rows.

A unit is a sequence of a level, or a row if there is no level. Permutations are computed on the host from LoD and
tables; the rows are gathered on the place of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.compiler.frame import Frame
from fluidlite.control_flow.bodies import copy_of, zeros
from fluidlite.control_flow.operator_calls import run_operator
from fluidlite.program.operator import Operator
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Lod

Indices = np.ndarray[Any, np.dtype[np.int64]]


def unit_count(lod: Lod, rows: int) -> int:
    """The number of units: sequences of the first level, or rows."""
    return len(lod[0]) - 1 if lod else rows


def take_units(lod: Lod, units: Sequence[int] | Indices) -> tuple[Indices, Lod]:
    """The row indices of units, in the order of ``units``, and the LoD of these rows."""
    current = np.asarray(units, np.int64)
    levels: list[tuple[int, ...]] = []
    for level in lod:
        offsets = np.asarray(level, np.int64)
        begin, sizes = offsets[current], offsets[current + 1] - offsets[current]
        ends = np.cumsum(sizes, dtype=np.int64)
        levels.append((0, *ends.tolist()))
        current = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begin - (ends - sizes), sizes)
    return current, tuple(levels)


def inverse(order: Indices) -> Indices:
    """The inverse permutation."""
    permutation = np.empty_like(order)
    permutation[order] = np.arange(len(order))
    return permutation


def gather_rows(frame: Frame, op: Operator, tensor: Tensor, rows: Indices, lod: Lod = ()) -> Tensor:
    """Rows of a tensor by index, with a LoD."""
    context, spec = frame.context, tensor._required_spec()
    if not len(rows):
        gathered = zeros(spec.with_(dims=(0, *spec.dims[1:]), lod=()), context)
    elif len(rows) == spec.dims[0] and (rows == np.arange(len(rows))).all():
        gathered = copy_of(tensor, context)
    else:
        index = Tensor().set(rows, frame.place)
        (gathered,) = run_operator(frame, op, "gather", {"X": [tensor], "Index": [index]})
    gathered.spec, gathered._array = gathered._required_spec().with_(lod=lod), None
    return gathered
