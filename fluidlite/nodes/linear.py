"""Matrix products and convolutions. Matrices multiply columns: the batch axes follow the first axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from fluidlite import graph as ng
from fluidlite.base.errors import NodeError, ShapeError
from fluidlite.graph.value import Value, emit
from fluidlite.nodes.node import Node
from fluidlite.nodes.node_program import Kind
from fluidlite.nodes.operator_node import OperatorNode, binary, operator_node, unary
from fluidlite.nodes.shaping import _ints, _permute

Size = Union[int, Sequence[int]]


def _prod(a: Value, b: Value) -> Value:
    if len(a.shape) != 2 or not b.shape:
        raise ShapeError(f"a product of dims {list(a.shape)} and {list(b.shape)}; expected [m, n] and [n, ...]")
    columns = b if len(b.shape) > 1 else ng.reshape(b, [-1, 1])
    out = emit("mul", {"X": a, "Y": columns}, {"x_num_col_dims": 1, "y_num_col_dims": 1})
    return out if len(b.shape) > 1 else ng.reshape(out, [a.shape[0]])


def _affine(*items: Value) -> Value:
    *factors, bias = items
    total = _prod(factors[0], factors[1])
    for at in range(2, len(factors), 2):
        total = ng.add(total, _prod(factors[at], factors[at + 1]))
    rows = total.shape[0]
    if bias.shape not in ((rows,), (rows, 1)):
        raise ShapeError(f"the bias has dims {list(bias.shape)}; expected [{rows}], a number for each row")
    column = bias if len(bias.shape) == 1 else ng.reshape(bias, [rows])
    return emit("elementwise_add", {"X": total, "Y": column}, {"axis": 0})


def _batch_prod(a: Value, b: Value) -> Value:
    if len(a.shape) < 3 or len(b.shape) != len(a.shape):
        raise ShapeError(
            f"batched product of dims {list(a.shape)} and {list(b.shape)}; expected [batch..., m, n] twice"
        )
    return ng.matmul(a, b)


def _transpose(x: Value) -> Value:
    if len(x.shape) < 2:
        raise ShapeError(f"transpose of dims {list(x.shape)}; expected two or more")
    rank = len(x.shape)
    return _permute(x, (*range(rank - 2), rank - 1, rank - 2))


def _conv1d(x: Value, w: Value, stride: int, padding: int) -> Value:
    if len(x.shape) != 3 or len(w.shape) != 3:
        raise ShapeError(
            f"Conv1d of dims {list(x.shape)} and {list(w.shape)}; expected [rows, channels, length] and "
            "[filters, channels, width]"
        )
    image_result = ng.convolution(ng.expand_dims(x, 2), ng.expand_dims(w, 2), [1, stride], [0, padding])
    return ng.squeeze(image_result, 2)


AFFINE = Kind("Affine", _affine)
CONV1D = Kind("Conv1d", _conv1d)
CONV2D = Kind("Conv2d", ng.convolution)
MAX_POOL = Kind("MaxPool", ng.pooling)


def _pair(name: str, size: Size) -> tuple[int, int]:
    items = (size, size) if isinstance(size, int) else _ints(name, size)
    if len(items) != 2:
        raise NodeError(f"{name} is {size!r}; expected an int, or two")
    return items[0], items[1]


Prod = binary(Kind("Prod", _prod), "The product of a matrix [m, n] with columns [n, ...]: [m, ...].")


def Affine(*inputs: Node) -> OperatorNode:
    """``Affine(W, x, b)`` is ``W x + b``, and ``Affine(W, x, U, h, b)`` is ``W x + U h + b``.

    Parameters
    ----------
    *inputs : Node
        Pairs of a matrix [m, n] and columns [n, ...], then the bias, [m]: it is added to each column.
    """
    if len(inputs) < 3 or len(inputs) % 2 == 0:
        raise NodeError(f"Affine got {len(inputs)} nodes; expected pairs of a matrix and columns, then a bias")
    return operator_node(AFFINE, inputs)


BatchedProd = binary(
    Kind("BatchedProd", _batch_prod), "Products of matrices [batch..., m, n] and [batch..., n, k], as ``numpy.matmul``."
)
Transpose = unary(Kind("Transpose", _transpose), "``x`` with its last two axes exchanged.")


def Conv1d(x: Node, filters: Node, stride: int = 1, padding: int = 0) -> OperatorNode:
    """The convolution of [rows, channels, length] with [filters, channels, width]."""
    return operator_node(CONV1D, (x, filters), (("stride", stride), ("padding", padding)))


def Conv2d(x: Node, filters: Node, stride: Size = 1, padding: Size = 0) -> OperatorNode:
    """The convolution of [images, channels, height, width] with [filters, channels, height, width]."""
    attrs = (("strides", _pair("stride", stride)), ("padding", _pair("padding", padding)))
    return operator_node(CONV2D, (x, filters), attrs)


def MaxPool(x: Node, size: Size, stride: Size | None = None, padding: Size = 0) -> OperatorNode:
    """The maximum of each window of [images, channels, height, width]; the default stride is the size."""
    sizes = _pair("size", size)
    strides = sizes if stride is None else _pair("stride", stride)
    attrs = (("size", sizes), ("strides", strides), ("padding", _pair("padding", padding)))
    return operator_node(MAX_POOL, (x,), attrs)
