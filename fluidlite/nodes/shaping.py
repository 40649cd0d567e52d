"""Nodes that move elements: concatenate, slice, transpose, reshape and broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Union

from fluidlite import graph as ng
from fluidlite.base.errors import AttributeValueError, NodeError, ShapeError
from fluidlite.graph.value import Value, emit
from fluidlite.nodes.node import Node
from fluidlite.nodes.node_program import Kind
from fluidlite.nodes.operator_node import OperatorNode, operator_node

Count = Union[int, Node]


def _cat(*items: Value, axis: int) -> Value:
    rank = len(items[0].shape)
    if not rank or not -rank <= axis < rank:
        raise ShapeError(f"values of dims {list(items[0].shape)} are joined along axis {axis}, which they do not have")
    return ng.concat(list(items), axis % rank)


def _blocks(*items: Value, rows: tuple[int, ...]) -> Value:
    remaining = iter(items)
    block_rows = [ng.concat([next(remaining) for _ in range(count)], 1) for count in rows]
    return ng.concat(block_rows, 0)


def _rank(x: Value, rank: int) -> Value:
    """Append dims of 1, or merge the last axes."""
    dims = list(x.shape)
    if rank >= len(dims):
        return ng.reshape(x, [*dims, *[1] * (rank - len(dims))])
    return ng.reshape(x, [*dims[: rank - 1], -1])


def _slice(x: Value, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Value:
    dims = x.shape
    if len(offsets) != len(dims) or len(sizes) != len(dims):
        raise ShapeError(f"Slice of dims {list(dims)} has {len(offsets)} offsets and {len(sizes)} sizes")
    for dim, offset, size in zip(dims, offsets, sizes, strict=True):
        if offset < 0 or size < 0 or offset + size > dim:
            raise ShapeError(f"Slice from {list(offsets)} of sizes {list(sizes)} does not lie in dims {list(dims)}")
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    return emit("slice", {"Input": x}, {"axes": list(range(len(dims))), "starts": offsets, "ends": ends})


def _chip(x: Value, offset: int, axis: int) -> Value:
    dims = list(x.shape)
    if not 0 <= axis < len(dims) or not 0 <= offset < dims[axis]:
        raise ShapeError(f"Chip {offset} of axis {axis} does not lie in dims {dims}")
    part = emit("slice", {"Input": x}, {"axes": [axis], "starts": [offset], "ends": [offset + 1]})
    return ng.reshape(part, dims[:axis] + dims[axis + 1 :])


def _permute(x: Value, axes: tuple[int, ...]) -> Value:
    if sorted(axes) != list(range(len(x.shape))):
        raise AttributeValueError(f"axes is {list(axes)}; expected each of 0 to {len(x.shape) - 1} once")
    return ng.transpose(x, axes)


def _row_broadcast(x: Value, count: int) -> Value:
    dims = list(x.shape)
    row = dims if len(dims) == 1 else dims[1:]
    if len(dims) > 1 and dims[0] != 1:
        raise ShapeError(f"RowBroadcast of dims {dims}; expected [1, ...] or [columns]")
    return ng.broadcast(ng.reshape(x, [1, *row]), [count, *row])


def _col_broadcast(x: Value, count: int) -> Value:
    dims = list(x.shape)
    if len(dims) not in (1, 2) or (len(dims) == 2 and dims[1] != 1):
        raise ShapeError(f"ColBroadcast of dims {dims}; expected [rows, 1] or [rows]")
    return ng.broadcast(ng.reshape(x, [dims[0], 1]), [dims[0], count])


CAT = Kind("Cat", _cat)
ROWWISE_CAT = Kind("RowwiseCat", _cat)
BLOCKS = Kind("Stack", _blocks)
STACK = Kind("Stack", lambda *items, axis: ng.stack(list(items), axis))
RESHAPE = Kind("Reshape", ng.reshape)
RANK_VIEW = Kind("RankView", _rank)
SLICE = Kind("Slice", _slice)
CHIP = Kind("Chip", _chip)
PERMUTE = Kind("Permute", _permute, (0,))
ROW_BROADCAST = Kind("RowBroadcast", _row_broadcast)
COL_BROADCAST = Kind("ColBroadcast", _col_broadcast)


def _nodes(function: str, inputs: tuple[Any, ...]) -> tuple[Node, ...]:
    """The nodes of arguments that are nodes, or one sequence of nodes."""
    items = tuple(inputs[0]) if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)) else inputs
    if not items:
        raise NodeError(f"{function} has no inputs; expected one node or more")
    return items


def _ints(name: str, items: Any) -> tuple[int, ...]:
    try:
        return tuple(index(item) for item in items)
    except TypeError:
        raise NodeError(f"{name} is {items!r:.60}; expected a sequence of ints") from None


def _count(function: str, count: Count) -> int:
    if isinstance(count, Node):
        spec = count._spec()
        if spec is None or not spec.dims:
            raise NodeError(f"{function}: the size of {count} is not known; expected a node with dims, or an int")
        return spec.dims[0] if function.startswith("Row") else spec.dims[-1]
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise NodeError(f"{function}: the size is {count!r}; expected an int of 0 or more, or a node")
    return count


def Cat(*inputs: Any) -> OperatorNode:
    """Nodes joined along the first axis, one below the other."""
    return operator_node(CAT, _nodes("Cat", inputs), (("axis", 0),))


def RowwiseCat(*inputs: Any) -> OperatorNode:
    """Nodes joined along the second axis, row by row."""
    return operator_node(ROWWISE_CAT, _nodes("RowwiseCat", inputs), (("axis", 1),))


def Stack(*inputs: Any, axis: int = 0) -> OperatorNode:
    """Nodes of equal dims joined along a new axis; lists of nodes are rows of a block matrix.

    ``Stack(a, b)`` has ``a`` and ``b`` at 0 and 1 of axis 0. ``Stack([[a, b], [c, d]])`` puts ``b`` to the right of
    ``a``, and ``c`` and ``d`` below them.
    """
    items: Any = _nodes("Stack", inputs)
    if all(isinstance(item, (list, tuple)) for item in items):
        rows = tuple(len(item) for item in items)
        return operator_node(BLOCKS, tuple(node for item in items for node in item), (("rows", rows),))
    return operator_node(STACK, items, (("axis", axis),))


def Reshape(x: Node, shape: Sequence[int]) -> OperatorNode:
    """The elements of ``x`` in other dims; one may be -1, the remaining size. The value shares ``x``'s memory."""
    return operator_node(RESHAPE, (x,), (("shape", _ints("shape", shape)),))


def RankView(x: Node, rank: int) -> OperatorNode:
    """``x`` with as many axes as ``rank``: dims of 1 are added at the end, or the last axes become one.

    The value shares ``x``'s memory.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise NodeError(f"RankView: the rank is {rank!r}; expected an int of 1 or more")
    return operator_node(RANK_VIEW, (x,), (("rank", rank),))


def Slice(x: Node, offsets: Sequence[int], sizes: Sequence[int]) -> OperatorNode:
    """The part of ``x`` that starts at an offset on each axis, and has a size on each."""
    return operator_node(SLICE, (x,), (("offsets", _ints("offsets", offsets)), ("sizes", _ints("sizes", sizes))))


def Chip(x: Node, offset: int, axis: int) -> OperatorNode:
    """``x`` at an index of an axis, which is no axis of the result."""
    return operator_node(CHIP, (x,), (("offset", offset), ("axis", axis)))


def Permute(x: Node, axes: Sequence[int]) -> OperatorNode:
    """``x`` with its axes in another order."""
    return operator_node(PERMUTE, (x,), (("axes", _ints("axes", axes)),))


def InPlacePermute(x: Node, axes: Sequence[int]) -> OperatorNode:
    """``Permute(x, axes)``, with a buffer that replaces that of ``x``."""
    return operator_node(PERMUTE, (x,), (("axes", _ints("axes", axes)),), True)


def RowBroadcast(x: Node, count: Count) -> OperatorNode:
    """A row [1, columns] repeated: [count, columns]. ``count`` is an int, or a node that has as many rows."""
    return operator_node(ROW_BROADCAST, (x,), (("count", _count("RowBroadcast", count)),))


def ColBroadcast(x: Node, count: Count) -> OperatorNode:
    """A column [rows, 1] repeated: [rows, count]. ``count`` is an int, or a node that has as many columns."""
    return operator_node(COL_BROADCAST, (x,), (("count", _count("ColBroadcast", count)),))
