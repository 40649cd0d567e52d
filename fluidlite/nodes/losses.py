"""Pick elements along an axis by indices, classification losses, and rows of a table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fluidlite import graph as ng
from fluidlite.base.errors import DtypeError, NodeError, ShapeError
from fluidlite.graph.value import Value, emit
from fluidlite.nodes.activations import SOFTMAX, _axis
from fluidlite.nodes.devices import device
from fluidlite.nodes.leaves import FixedData
from fluidlite.nodes.node import Node
from fluidlite.nodes.node_program import Kind
from fluidlite.nodes.operator_node import OperatorNode, operator_node

_NO_CLASS = -(1 << 31)
"""The ignore_index of softmax_with_cross_entropy: no label is equal to it, so none is ignored."""


def _indices(x: Value, index: Value, axis: int) -> tuple[int, list[int]]:
    if index.dtype not in ("int32", "int64"):
        raise DtypeError(f"indices are {index.dtype}; expected int32 or int64")
    at, dims = _axis(x, axis), list(x.shape)
    reduced_dims = dims[:at] + dims[at + 1 :]
    kept_dims = [*dims[:at], 1, *dims[at + 1 :]]
    if list(index.shape) not in (reduced_dims, kept_dims):
        raise ShapeError(
            f"indices have dims {list(index.shape)}; expected {reduced_dims}: one for each of {dims} along {axis}"
        )
    return at, kept_dims


def _pick(x: Value, index: Value, axis: int) -> Value:
    at, kept_dims = _indices(x, index, axis)
    rank = len(x.shape)
    last = [a for a in range(rank) if a != at] + [at]
    count = math.prod(kept_dims)
    rows = _reshape(x if at == rank - 1 else ng.transpose(x, last), [count, x.shape[at]])
    samples = emit("index_sample", {"X": rows, "Index": _reshape(index, [count, 1])})
    return _reshape(samples, kept_dims)


def _pick_nll(x: Value, index: Value, axis: int) -> Value:
    at, kept_dims = _indices(x, index, axis)
    logits = _reshape(x, [*x.shape, 1]) if len(x.shape) == 1 else x
    label = _reshape(index, kept_dims if len(x.shape) > 1 else [1, 1])
    attrs = {"axis": at, "ignore_index": _NO_CLASS}
    loss = emit("softmax_with_cross_entropy", {"Logits": logits, "Label": label}, attrs, slot="Loss")
    return _reshape(loss, kept_dims)


def _reshape(x: Value, dims: list[int]) -> Value:
    """A value reshaped to dims; the value itself if it has them."""
    return x if list(x.shape) == dims else ng.reshape(x, dims)


def _nl_sigmoid(x: Value, label: Value) -> Value:
    float_label = label if label.dtype == x.dtype else ng.cast(label, x.dtype)
    attrs = {"ignore_index": _NO_CLASS}
    return emit("sigmoid_cross_entropy_with_logits", {"X": x, "Label": ng.stop_gradient(float_label)}, attrs)


PICK = Kind("Pick", _pick)
PICK_SOFTMAX = Kind("PickSoftmax", lambda x, index, axis: _pick(SOFTMAX.build(x, axis=axis), index, axis))
PICK_NEG_LOG_SOFTMAX = Kind("PickNegLogSoftmax", _pick_nll)
PICK_NEG_LOG_SIGMOID = Kind("PickNegLogSigmoid", _nl_sigmoid)
LOOKUP = Kind("Lookup", ng.lookup_table)


def _index_node(function: str, index: Any, x: Node) -> Node:
    """Indices as a node: integers are copied to the place of ``x``."""
    if isinstance(index, Node):
        return index
    array = np.asarray(index)
    if array.dtype.kind not in "iub":
        raise NodeError(f"{function}: the indices are {index!r:.60}; expected ints, or a node of them")
    return FixedData(device(x.dev().known_place()), array.astype(np.int64))


def Pick(x: Node, indices: Any, axis: int = 0) -> OperatorNode:
    """The element of each column at its index: [1, batch] of [classes, batch].

    Parameters
    ----------
    x : Node
    indices : Node or array_like
        int32 or int64, one for each element of the other axes. Indices outside 0 to classes - 1 raise.
    axis : int
    """
    return operator_node(PICK, (x, _index_node("Pick", indices, x)), (("axis", axis),))


def PickSoftmax(x: Node, indices: Any, axis: int = 0) -> OperatorNode:
    """``Pick(Softmax(x, axis), indices, axis)``."""
    return operator_node(PICK_SOFTMAX, (x, _index_node("PickSoftmax", indices, x)), (("axis", axis),))


def PickNegLogSoftmax(x: Node, indices: Any, axis: int = 0) -> OperatorNode:
    """``-log(PickSoftmax(x, indices, axis))``, exact for logits of any size: the cross entropy with a class."""
    return operator_node(PICK_NEG_LOG_SOFTMAX, (x, _index_node("PickNegLogSoftmax", indices, x)), (("axis", axis),))


def PickNegLogSigmoid(x: Node, labels: Any) -> OperatorNode:
    """``-log(sigmoid(x))`` where the label is 1, ``-log(1 - sigmoid(x))`` where it is 0; exact for any ``x``."""
    node = labels if isinstance(labels, Node) else _index_node("PickNegLogSigmoid", labels, x)
    return operator_node(PICK_NEG_LOG_SIGMOID, (x, node))


def Lookup(table: Node, indices: Any) -> OperatorNode:
    """Rows of a table [rows, width] by indices of any dims: [..., width]. Indices outside 0 to rows - 1 raise."""
    return operator_node(LOOKUP, (table, _index_node("Lookup", indices, table)))
