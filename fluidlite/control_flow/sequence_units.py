"""Rows of sequences by what they belong to: which rows units of a LoD level have, in which order; and their gather.

A unit is a sequence of a level, or a row where there is no level. Permutations are computed on the host, from LoD and
tables that lie there; the rows themselves are gathered on the place of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.compiler.frame import Frame
from fluidlite.control_flow.bodies import copied, zeros
from fluidlite.control_flow.operator_calls import run_operator
from fluidlite.program.operator import Operator
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Lod

Indices = np.ndarray[Any, np.dtype[np.int64]]


def unit_count(lod: Lod, rows: int) -> int:
    """The number of units: sequences of the first level, or rows."""
    return len(lod[0]) - 1 if lod else rows


def take_units(lod: Lod, units: Sequence[int] | Indices) -> tuple[Indices, Lod]:
    """The rows of some units, in their order, and the LoD that these rows have."""
    current = np.asarray(units, np.int64)
    found: list[tuple[int, ...]] = []
    for level in lod:
        offsets = np.asarray(level, np.int64)
        begin, sizes = offsets[current], offsets[current + 1] - offsets[current]
        ends = np.cumsum(sizes, dtype=np.int64)
        found.append((0, *ends.tolist()))
        current = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begin - (ends - sizes), sizes)
    return current, tuple(found)


def inverse(order: Indices) -> Indices:
    """The permutation that takes another back."""
    found = np.empty_like(order)
    found[order] = np.arange(len(order))
    return found


def gather_rows(frame: Frame, op: Operator, tensor: Tensor, rows: Indices, lod: Lod = ()) -> Tensor:
    """Rows of a tensor, in another order."""
    context, spec = frame.context, tensor._known()
    if not len(rows):
        made = zeros(spec.with_(dims=(0, *spec.dims[1:]), lod=()), context)
    elif len(rows) == spec.dims[0] and (rows == np.arange(len(rows))).all():
        made = copied(tensor, context)
    else:
        index = Tensor().set(rows, frame.place)
        (made,) = run_operator(frame, op, "gather", {"X": [tensor], "Index": [index]})
    made.spec, made._array = made._known().with_(lod=lod), None
    return made
