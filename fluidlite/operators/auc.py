"""auc: the area under the receiver operating characteristic, of counts of scores in buckets.

StatPos and StatNeg count the positives and negatives of each bucket, ``num_thresholds + 1`` of them. With
``slide_steps`` they hold the last so many batches, in one of two layouts, which their dims tell apart: a row a batch,
the newest last (Fluid 1.1), or a ring of batches, then their sum, then how many batches there were (Fluid 1.5 on).
"""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import operator
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Aliasing, Differentiation, Execution, Inference


@operator(
    "auc",
    Differentiation(stop_gradient={"Predict": "the score only chooses a bucket"}),
    Inference(kernel_dtype="Predict"),
    Aliasing(may={"StatPosOut": "StatPos", "StatNegOut": "StatNeg"}),
    Execution(memory="where arrays compute, the bucket and the kind of each row: up to 32 bytes a row"),
    outputs=("AUC", "StatPosOut", "StatNegOut"),
    attrs=(
        Attr("curve", "str", "ROC", choices=("ROC", "PR"), doc="as in Fluid both give the area under ROC"),
        Attr("num_thresholds", "int", 8191, minimum=1, doc="scores lie in so many buckets, and 1 in one more"),
        Attr("slide_steps", "int", 1, minimum=0, doc="the area is of the last so many batches; 0: of all"),
    ),
    dtypes={"Predict": ALL_FLOATS, "Label": INTS, "StatPos": ("int64",), "StatNeg": ("int64",)},
    doc="StatPosOut, StatNegOut = StatPos, StatNeg plus the rows with and without Label in each bucket of the score, "
    "Predict's last column; AUC = the part of pairs of both kinds that lie in order, 0 without pairs. A score outside "
    "0 to 1 is an OutOfRangeError of its bucket",
    source="Fluid auc_op.cc",
)
def auc(
    predict: e.Tensor, label: e.Tensor, stat_pos: e.Tensor, stat_neg: e.Tensor, *, num_thresholds: int, slide_steps: int
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """From the highest bucket down: each negative lies behind the positives above it, and half of those beside it."""
    buckets = num_thresholds + 1
    _check(predict, label, (stat_pos, stat_neg), buckets, slide_steps)
    rows = predict.dims[0]
    score = e.reshape(e.slice_axis(predict, 1, predict.dims[1] - 1, 1), (rows,))
    inside = e.logical_and(score >= 0, score <= 1)
    bucket = e.checked(e.cast(e.where(inside, score * num_thresholds, -1), "int64"), buckets)
    positive = e.cast(e.reshape(label, (rows,)) != 0, "int64")
    (pos, all_pos), (neg, all_neg) = (
        _slid(stat, e.add_at(kind, bucket, 0, buckets), buckets, slide_steps)
        for stat, kind in ((stat_pos, positive), (stat_neg, 1 - positive))
    )
    right, wrong = e.cast(all_pos, "float64"), e.cast(all_neg, "float64")
    area = e.reduce_sum(wrong * (e.scan("sum", right, 0, reverse=True) - 0.5 * right), 0, keep=True)
    wrongs, rights = e.reduce_sum(wrong, 0, keep=True), e.reduce_sum(right, 0, keep=True)
    some = e.logical_and(wrongs > 0, rights > 0)  # counts that no batches make may sum to less than none
    return e.where(some, area / e.maximum(wrongs * rights, 1), 0.0), pos, neg


def _check(predict: e.Tensor, label: e.Tensor, stats: tuple[e.Tensor, e.Tensor], buckets: int, steps: int) -> None:
    if predict.rank != 2 or not any(e.agree(predict.dims[1], width) for width in (1, 2)):
        e.fail("Predict", "[rows, 1] or [rows, 2]: two classes")
    column = (predict.dims[0], e.number(1))
    if not any(e.all_agree(label.dims, dims) for dims in (column[:1], column)):
        e.fail("Label", f"{e.shown_dims(column)}, 0 or 1 for each row of Predict")
    sizes = (steps * buckets, (steps + 1) * buckets + 1) if steps else (buckets,)
    for stat in stats:
        if not any(e.agree(e.product(stat.dims), size) for size in sizes):
            e.fail(e.slot(stat), f"{' or '.join(map(str, sizes))} counts: {buckets} buckets, slide_steps {steps}")
    if not e.all_agree(stats[1].dims, stats[0].dims):
        e.fail("StatNeg", "dims as StatPos")


def _slid(stat: e.Tensor, counts: e.Tensor, buckets: int, steps: int) -> tuple[e.Tensor, e.Tensor]:
    """Return the next state, and the counts that the area is of."""
    flat = e.reshape(stat, (e.product(stat.dims),))
    if not steps:
        state = e.reshape(flat, (buckets,)) + counts
        return e.reshape(state, stat.dims), state
    if flat.dims[0] == steps * buckets:
        state = e.concat([e.slice_axis(flat, 0, buckets, (steps - 1) * buckets), counts], 0)
        return e.reshape(state, stat.dims), e.reduce_sum(e.reshape(state, (steps, buckets)), 0)
    ring = e.reshape(e.slice_axis(flat, 0, 0, steps * buckets), (steps, buckets))
    total = e.slice_axis(flat, 0, steps * buckets, buckets)
    times = e.slice_axis(flat, 0, (steps + 1) * buckets, 1)
    oldest = e.iota((steps, 1), 0) == times % steps
    total = total + counts - e.reduce_sum(e.where(oldest, ring, 0), 0)
    ring = e.where(oldest, counts, ring)
    state = e.concat([e.reshape(ring, (steps * buckets,)), total, times + 1], 0)
    return e.reshape(state, stat.dims), total
