"""auc: the area under the receiver operating characteristic, computed from a histogram of scores.

StatPos and StatNeg count the positives and negatives in each of ``num_thresholds + 1`` buckets. With ``slide_steps``
they hold the counts of the last ``slide_steps`` batches. Their dims select one of two layouts: one row for each batch,
the newest last (Fluid 1.1), or a ring buffer of batches, their sum and the number of batches (Fluid 1.5 and later).
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
        Attr("num_thresholds", "int", 8191, minimum=1, doc="number of buckets of scores below 1"),
        Attr("slide_steps", "int", 1, minimum=0, doc="number of last batches that count; 0: all batches"),
    ),
    dtypes={"Predict": ALL_FLOATS, "Label": INTS, "StatPos": ("int64",), "StatNeg": ("int64",)},
    doc="StatPosOut, StatNegOut = StatPos, StatNeg plus the rows with and without Label in each bucket of the score, "
    "Predict's last column; AUC = the fraction of pairs of both kinds in order, 0 without pairs. A score outside "
    "0 to 1 is an OutOfRangeError of its bucket",
    source="Fluid auc_op.cc",
)
def auc(
    predict: e.Tensor, label: e.Tensor, stat_pos: e.Tensor, stat_neg: e.Tensor, *, num_thresholds: int, slide_steps: int
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Each negative is ranked below the positives of higher buckets and half of the positives of its own bucket."""
    buckets = num_thresholds + 1
    _check_operands(predict, label, (stat_pos, stat_neg), buckets, slide_steps)
    rows = predict.dims[0]
    score = e.reshape(e.slice_axis(predict, 1, predict.dims[1] - 1, 1), (rows,))
    inside = e.logical_and(score >= 0, score <= 1)
    bucket = e.checked(e.cast(e.where(inside, score * num_thresholds, -1), "int64"), buckets)
    positive = e.cast(e.reshape(label, (rows,)) != 0, "int64")
    (pos, all_pos), (neg, all_neg) = (
        _next_state(stat, e.add_at(kind, bucket, 0, buckets), buckets, slide_steps)
        for stat, kind in ((stat_pos, positive), (stat_neg, 1 - positive))
    )
    positives, negatives = e.cast(all_pos, "float64"), e.cast(all_neg, "float64")
    area = e.reduce_sum(negatives * (e.scan("sum", positives, 0, reverse=True) - 0.5 * positives), 0, keep=True)
    negative_count, positive_count = e.reduce_sum(negatives, 0, keep=True), e.reduce_sum(positives, 0, keep=True)
    # Counts that the user gives may be negative, so that a sum may be below 0.
    has_both_kinds = e.logical_and(negative_count > 0, positive_count > 0)
    return e.where(has_both_kinds, area / e.maximum(negative_count * positive_count, 1), 0.0), pos, neg


def _check_operands(
    predict: e.Tensor, label: e.Tensor, stats: tuple[e.Tensor, e.Tensor], buckets: int, steps: int
) -> None:
    if predict.rank != 2 or not any(e.agree(predict.dims[1], width) for width in (1, 2)):
        e.fail("Predict", "[rows, 1] or [rows, 2]: two classes")
    column = (predict.dims[0], e.number(1))
    if not any(e.all_agree(label.dims, dims) for dims in (column[:1], column)):
        e.fail("Label", f"{e.describe_dims(column)}, 0 or 1 for each row of Predict")
    sizes = (steps * buckets, (steps + 1) * buckets + 1) if steps else (buckets,)
    for stat in stats:
        if not any(e.agree(e.product(stat.dims), size) for size in sizes):
            e.fail(e.slot(stat), f"{' or '.join(map(str, sizes))} counts: {buckets} buckets, slide_steps {steps}")
    if not e.all_agree(stats[1].dims, stats[0].dims):
        e.fail("StatNeg", "dims as StatPos")


def _next_state(stat: e.Tensor, counts: e.Tensor, buckets: int, steps: int) -> tuple[e.Tensor, e.Tensor]:
    """Return the next state, and the counts of which the area is computed."""
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
