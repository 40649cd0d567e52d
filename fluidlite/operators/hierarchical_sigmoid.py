"""hierarchical_sigmoid: classes are leaves of a binary tree; the cost sums over the branches on the path to a leaf."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.operands import column
from fluidlite.program.opdef import Attr, Slot


def _complete_tree_path(label: e.Tensor, num_classes: int) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Nodes, branches and the mask of a label's path in the complete tree: node n has the children 2 n and 2 n + 1.

    The leaf of a class is num_classes + class; node n has row n - 1 of W. A path is stored from its last branch.
    """
    width = (num_classes - 1).bit_length()
    classes = e.checked(e.cast(e.reshape(label, (label.dims[0], 1)), "int64"), num_classes)
    at = classes + num_classes
    nodes, turns = [], []
    for _ in range(width):
        turns.append(e.mod(at, 2))
        at = e.floordiv(at, 2)
        nodes.append(at)
    node = e.concat(nodes, 1)
    return e.maximum(node - 1, 0), e.concat(turns, 1), node >= 1


def _custom_path(
    table: e.Tensor, code: e.Tensor, rows: e.Number, weights: e.Number
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Nodes, branches and the mask of the user's paths, which end at the first negative node."""
    for slot, x in (("PathTable", table), ("PathCode", code)):
        if x.rank != 2:
            e.fail(slot, "[rows, longest]: the way of each row")
        e.need(x.dims[0] == rows, slot, "[{0}, longest], a way for each row of X", numbers=(rows,))
    e.need(
        code.dims[1] == table.dims[1],
        "PathCode",
        "[rows, {0}], a turn for each node of PathTable",
        numbers=(table.dims[1],),
    )
    node = e.cast(table, "int64")
    mask = e.equal(e.scan("sum", e.where(node < 0, e.full(node.dims, 1, "int64"), 0), 1), 0)
    return e.checked(e.where(mask, node, 0), weights), e.checked(e.where(mask, e.cast(code, "int64"), 0), 2), mask


def _paths(
    x: e.Tensor, w: e.Tensor, label: e.Tensor, table: e.Tensor | None, code: e.Tensor | None, num_classes: int
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    if table is None or code is None:
        return _complete_tree_path(label, num_classes)
    return _custom_path(table, code, x.dims[0], w.dims[0])


@operator(
    "hierarchical_sigmoid",
    inputs=(
        Slot("X", doc="features, [rows, width]"),
        Slot("W", doc="the weights of each node, [nodes, width]"),
        Slot("Label", doc="classes, [rows, 1]"),
        Slot("PathTable", dispensable=True, doc="of one's own tree: each row's nodes, [rows, longest]; -1: no more"),
        Slot("PathCode", dispensable=True, doc="the turns at these nodes, 0 or 1"),
        Slot("Bias", dispensable=True, doc="of each node, [nodes, 1]"),
    ),
    outputs=(
        "Out",
        Slot("PreOut", intermediate=True, content="the score of each turn to 1, [rows, longest]; 0 behind the last"),
    ),
    attrs=(
        Attr("num_classes", "int", 2, minimum=2, doc="leaves of the complete tree; W has the nodes of one's own"),
        Attr("is_sparse", "bool", False, doc="gradients are dense in either case: of no effect"),
    ),
    dtypes={"X": FLOATS, "W": FLOATS, "Label": INTS, "PathTable": INTS, "PathCode": INTS, "Bias": FLOATS},
    doc="Out = the sum over the turns t at nodes n on the way to Label of ln(1 + exp(s)) - t s, s = X W[n] + Bias[n]; "
    "as in Fluid, a way that is shorter than the longest adds ln 2 for each turn that it lacks",
    source="Morin and Bengio, Hierarchical Probabilistic Neural Network Language Model (2005); Fluid "
    "hierarchical_sigmoid_op.h, whose scores are cut to [-40, 40]; here they are not",
)
def hierarchical_sigmoid(
    x: e.Tensor,
    w: e.Tensor,
    label: e.Tensor,
    path_table: e.Tensor | None,
    path_code: e.Tensor | None,
    bias: e.Tensor | None,
    *,
    num_classes: int,
) -> tuple[e.Tensor, e.Tensor]:
    """Gather a row of W for each node of the path."""
    if x.rank != 2:
        e.fail("X", "[rows, width]")
    if w.rank != 2:
        e.fail("W", "[nodes, width]")
    e.need(w.dims[1] == x.dims[1], "W", "[nodes, {0}], a weight for each column of X", numbers=(x.dims[1],))
    e.same_dtype(w, x)
    label = column(label, x.dims[0], "a class for each row of X")
    if (path_table is None) != (path_code is None):
        slot = "PathCode" if path_table is None else "PathTable"
        e.fail(slot, "PathTable and PathCode together, or neither")
    if path_table is None:
        e.need(w.dims[0] >= num_classes - 1, "W", f"{num_classes - 1} rows or more, one less than num_classes")
    node, turn, mask = _paths(x, w, label, path_table, path_code, num_classes)
    scores = e.reduce_sum(e.take(w, node, 0) * e.unsqueeze(x, 1), 2)
    if bias is not None:
        e.same_dtype(bias, x)
        scores = scores + e.take(column(bias, w.dims[0], "one for each row of W"), node, 0)
    scores = e.where(mask, scores, 0)
    margins = e.where(e.equal(turn, 1), -scores, scores)  # a difference would be NaN for infinite scores
    costs = e.maximum(margins, 0) + e.log1p(e.exp(-e.abs_(margins)))
    return e.reduce_sum(costs, 1, keep=True), scores


@gradient(
    hierarchical_sigmoid,
    writes=("X", "W", "Bias"),
    doc="D = Out@GRAD (sigmoid(PreOut) - turn) at the turns of the path; X@GRAD = sum of D W[node], W@GRAD[node] and "
    "Bias@GRAD[node] sum up D X and D",
)
def hierarchical_sigmoid_grad(
    x: e.Tensor,
    w: e.Tensor,
    label: e.Tensor,
    path_table: e.Tensor | None,
    path_code: e.Tensor | None,
    bias: e.Tensor | None,
    pre_out: e.Tensor,
    dout: e.Tensor,
    *,
    num_classes: int,
) -> tuple[e.Tensor, e.Tensor, e.Tensor | tuple[()]]:
    """Hand-written: the derived gradient of softplus as a max and a log1p is wrong at a score of 0."""
    if dout.rank != 2:
        e.fail("Out@GRAD", "[rows, 1]")
    e.need(dout.dims[0] == x.dims[0], "Out@GRAD", "[{0}, 1], a row for each of X", numbers=(x.dims[0],))
    e.need(dout.dims[1] == 1, "Out@GRAD", "[rows, 1]")
    e.same_dtype(dout, x)
    node, turn, mask = _paths(x, w, label, path_table, path_code, num_classes)
    dscores = e.where(mask, e.wide(dout) * (e.sigmoid(pre_out) - e.cast(turn, e.wide(pre_out).dtype)), 0)
    count = node.dims[0] * node.dims[1]
    rows, at = e.unsqueeze(dscores, 2), e.reshape(node, (count,))
    dx = e.reduce_sum(rows * e.take(w, node, 0), 1)
    dw = e.add_at(e.reshape(rows * e.unsqueeze(x, 1), (count, x.dims[1])), at, 0, w.dims[0])
    if bias is None:
        return dx, dw, ()  # no Bias, no gradient
    return dx, dw, e.reshape(e.add_at(e.reshape(dscores, (count,)), at, 0, w.dims[0]), bias.dims)
