"""Concatenate and split tensors by copies of rows, so that a new number of tensors needs no compilation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fluidlite.base.errors import ShapeError
from fluidlite.compiler.frame import Frame
from fluidlite.control_flow.bodies import empty
from fluidlite.control_flow.operator_calls import run_operator
from fluidlite.platform.context import Context
from fluidlite.program.operator import Operator
from fluidlite.tensor import transfer
from fluidlite.tensor.tensor import Tensor

MAX_OPERANDS = 8
"""Operands of one concat or split, which a place may compile anew for each number of operands."""


def rows_of(tensor: Tensor, begin: int, end: int) -> Tensor:
    """A view of a range of rows, without LoD."""
    spec = tensor._required_spec()
    row = spec.with_(dims=(1, *spec.dims[1:]), lod=())
    part = spec.with_(dims=(end - begin, *spec.dims[1:]), lod=())
    return Tensor.of(part, tensor.place, tensor.allocation, tensor.byte_offset + begin * row.nbytes)  # type: ignore[arg-type]


def reshape_view(tensor: Tensor, dims: Sequence[int]) -> Tensor:
    """A view of the same elements with other dims."""
    spec = tensor._required_spec().with_(dims=tuple(dims), lod=())
    return Tensor.of(spec, tensor.place, tensor.allocation, tensor.byte_offset)  # type: ignore[arg-type]


def copy_rows(tensor: Tensor, begin: int, end: int, context: Context) -> Tensor:
    if begin == end or not tensor._required_spec().size:
        return empty(rows_of(tensor, begin, end)._required_spec(), context)
    return transfer.transfer(rows_of(tensor, begin, end), context)


def join_rows(tensors: Sequence[Tensor], context: Context) -> Tensor:
    """Concatenate tensors along the first axis; their other dims are equal."""
    spec = tensors[0]._required_spec()
    count = sum(tensor.dims[0] for tensor in tensors)
    joined, at = empty(spec.with_(dims=(count, *spec.dims[1:]), lod=()), context), 0
    for tensor in tensors:
        if tensor._required_spec().size:
            transfer.transfer(tensor, context, into=rows_of(joined, at, at + tensor.dims[0]))
        at += tensor.dims[0]
    return joined


def join(frame: Frame, op: Operator, tensors: Sequence[Tensor], axis: int, stacked: bool) -> Tensor:
    """Concatenate tensors along an axis, or stack them along a new one; ShapeError if their dims do not match."""
    context, dims = frame.context, tensors[0].dims
    rank = len(dims) + stacked
    axis %= rank
    has_equal_dims = all(tensor.dims == dims for tensor in tensors)
    other_dims = {tensor.dims[:axis] + tensor.dims[axis + 1 :] for tensor in tensors}
    if (stacked and not has_equal_dims) or len(other_dims) > 1:
        dims_texts = ", ".join(str(list(tensor.dims)) for tensor in tensors[:8])
        raise ShapeError(f"its elements do not fit one tensor: they have dims {dims_texts}; expected equal ones")
    if not stacked and not axis:
        return join_rows(tensors, context)
    if not has_equal_dims:
        return _concat(frame, op, tensors, axis)
    joined = join_rows([reshape_view(tensor, (1, *dims)) for tensor in tensors], context)
    if axis:
        order = (*range(1, axis + 1), 0, *range(axis + 1, len(dims) + 1))
        (joined,) = run_operator(frame, op, "transpose2", {"X": [joined]}, {"axis": order})
    if stacked:
        return joined
    return reshape_view(joined, (*dims[:axis], len(tensors) * dims[axis], *dims[axis + 1 :]))


def _concat(frame: Frame, op: Operator, tensors: Sequence[Tensor], axis: int) -> Tensor:
    while len(tensors) > 1:
        groups = [tensors[i : i + MAX_OPERANDS] for i in range(0, len(tensors), MAX_OPERANDS)]
        tensors = [
            run_operator(frame, op, "concat", {"X": group}, {"axis": axis})[0] if len(group) > 1 else group[0]
            for group in groups
        ]
    return tensors[0]


def split(frame: Frame, op: Operator, tensor: Tensor, sizes: Sequence[int], axis: int, stacked: bool) -> list[Tensor]:
    """The inverse of :func:`join`; ``sizes`` are the sizes of the parts along the axis."""
    context, dims = frame.context, tensor.dims
    axis %= len(dims)
    if not stacked and axis and len(set(sizes)) > 1:
        return _sections(frame, op, tensor, sizes, axis)
    if axis:
        if not stacked:
            tensor = reshape_view(tensor, (*dims[:axis], len(sizes), sizes[0], *dims[axis + 1 :]))
        rank = len(tensor.dims)
        order = (axis, *(i for i in range(rank) if i != axis))
        (tensor,) = run_operator(frame, op, "transpose2", {"X": [tensor]}, {"axis": order})
    elif not stacked:
        bounds = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        return [copy_rows(tensor, begin, end, context) for begin, end in pairwise(bounds)]
    parts = [copy_rows(tensor, i, i + 1, context) for i in range(len(sizes))]
    return [reshape_view(part, tensor.dims[1:]) for part in parts]


def _sections(frame: Frame, op: Operator, tensor: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
    if len(sizes) == 1:
        return [tensor]
    size = max(1, -(-len(sizes) // MAX_OPERANDS))
    groups = [sizes[i : i + size] for i in range(0, len(sizes), size)]
    sections = tuple(sum(group) for group in groups)
    parts = run_operator(frame, op, "split", {"X": [tensor]}, {"axis": axis, "sections": sections}, count=len(groups))
    return [each for part, group in zip(parts, groups, strict=True) for each in _sections(frame, op, part, group, axis)]
