"""Metrics of classifiers: accuracy, mean_iou, precision_recall; auc is in auc.py."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, FLOATS, INTS
from fluidlite.expr.declare import operator
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Aliasing, Differentiation, Execution, Inference, Lowering

# accuracy ----------------------------------------------------------------------------------------------------------


@operator(
    "accuracy",
    Inference(kernel_dtype="Indices"),
    Execution(memory="where arrays compute, whether each of Indices is the label: a byte an index"),
    inputs=(
        Slot("Out", metadata_only=True, doc="the scores that top_k found"),
        "Indices",
        Slot("Label", doc="classes, [rows, 1], integers"),
    ),
    outputs=("Accuracy", Slot("Correct", dispensable=True), Slot("Total", dispensable=True)),
    dtypes={"Out": ALL_FLOATS, "Indices": INTS, "Label": INTS},
    doc="Correct = rows whose Label is among Indices, Total = rows, Accuracy = Correct / Total (0 if no rows)",
    source="Fluid accuracy_op.cc",
)
def accuracy(out: e.Tensor, indices: e.Tensor, label: e.Tensor) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """A row is correct if one of its indices is its label."""
    if indices.rank != 2:
        e.fail("Indices", "[rows, k], as top_k makes them")
    if not e.all_agree(out.dims, indices.dims):
        e.fail("Out", f"{e.describe_dims(indices.dims)}, as Indices")
    if label.rank != 2 or not e.agree(label.dims[1], 1):
        e.fail("Label", "[rows, 1]")
    column = (indices.dims[0], e.number(1))
    if not e.agree(label.dims[0], column[0]):
        e.fail("Label", f"{e.describe_dims(column)}, a class for each row of Indices")
    hit = e.reduce_any(indices == e.reshape(label, column), 1)
    correct = e.reshape(e.reduce_sum(e.cast(hit, "int32")), (1,))
    share = e.cast(correct, "float32") / e.highest(indices.dims[0], 1)
    return share, correct, e.full((1,), indices.dims[0], "int32")


# mean_iou ----------------------------------------------------------------------------------------------------------


@operator(
    "mean_iou",
    Differentiation(stop_gradient={"OutMeanIou": "a metric counts: its derivative is 0 almost everywhere"}),
    Execution(memory="where arrays compute, whether each element is right: 8 bytes an element"),
    Lowering(stored={"OutWrong": "int32", "OutCorrect": "int32"}),
    inputs=(
        Slot("Predictions", doc="the class of each element"),
        Slot("Labels", doc="the right class of each element"),
        Slot("InWrongs", duplicable=True, dispensable=True, doc="earlier counts, which are added"),
        Slot("InCorrects", duplicable=True, dispensable=True, doc="earlier counts, which are added"),
        Slot("InMeanIou", duplicable=True, dispensable=True, doc="numbers that are added to OutMeanIou"),
    ),
    outputs=("OutMeanIou", "OutWrong", "OutCorrect"),
    attrs=(Attr("num_classes", "int", minimum=1, doc="how many classes"),),
    dtypes={
        "Predictions": INTS,
        "Labels": INTS,
        "InWrongs": ("int32",),
        "InCorrects": ("int32",),
        "InMeanIou": ("float32",),
    },
    doc="OutCorrect[c], OutWrong[c] = right and wrong predictions of or for class c; OutMeanIou = the mean of "
    "OutCorrect / (OutCorrect + OutWrong) over the classes that occur, 0 if none does",
    source="Fluid mean_iou_op.cc",
)
def mean_iou(
    predictions: e.Tensor,
    labels: e.Tensor,
    in_wrongs: Sequence[e.Tensor],
    in_corrects: Sequence[e.Tensor],
    in_mean_iou: Sequence[e.Tensor],
    *,
    num_classes: int,
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """A wrong element counts for both its predicted class and its true class."""
    e.same_dtype(labels, predictions)
    if not e.all_agree(predictions.dims, labels.dims):
        e.fail("Labels", f"{e.describe_dims(predictions.dims)}, the dims of Predictions")
    for slot, earlier, size in (
        ("InWrongs", in_wrongs, num_classes),
        ("InCorrects", in_corrects, num_classes),
        ("InMeanIou", in_mean_iou, 1),
    ):
        if not all(e.all_agree(counts.dims, (e.number(size),)) for counts in earlier):
            e.fail(slot, f"tensors of dims [{size}]")
    elements = e.product(predictions.dims)
    predicted, label = (e.checked(e.reshape(x, (elements,)), num_classes) for x in (predictions, labels))
    is_right, ones = e.cast(predicted == label, "int64"), e.full((elements,), 1, "int64")
    correct = e.add_at(is_right, predicted, 0, num_classes)
    wrong = e.add_at(ones, predicted, 0, num_classes) + e.add_at(ones, label, 0, num_classes) - 2 * correct
    for more in in_corrects:
        correct = correct + e.reshape(more, (num_classes,))
    for more in in_wrongs:
        wrong = wrong + e.reshape(more, (num_classes,))
    occurs = correct + wrong > 0
    share = e.cast(correct, "float32") / e.cast(e.where(occurs, correct + wrong, 1), "float32")
    mean = e.reduce_sum(share, 0, keep=True) / e.maximum(e.reduce_sum(e.cast(occurs, "float32"), 0, keep=True), 1)
    for more in in_mean_iou:
        mean = mean + e.reshape(more, (1,))
    return mean, wrong, correct


# precision_recall --------------------------------------------------------------------------------------------------

_OUTPUTS = ("BatchMetrics", "AccumMetrics", "AccumStatesInfo")


@operator(
    "precision_recall",
    Differentiation(stop_gradient=dict.fromkeys(_OUTPUTS, "a metric is no part of a loss")),
    Inference(kernel_dtype="MaxProbs"),
    Aliasing(may={"AccumStatesInfo": "StatesInfo"}),
    Execution(
        memory="where arrays compute, whether each row is right, and its weight if it is, and if not: up to 32 bytes "
        "a row"
    ),
    inputs=(
        Slot("MaxProbs", metadata_only=True, doc="the scores that top_k found"),
        Slot("Indices", doc="the predicted class of each row, as top_k gives it"),
        Slot("Labels", doc="the right class of each row"),
        Slot("Weights", dispensable=True, doc="how much each row counts; default: 1"),
        Slot("StatesInfo", dispensable=True, doc="AccumStatesInfo of earlier batches, which is added"),
    ),
    outputs=_OUTPUTS,
    attrs=(Attr("class_number", "int", minimum=1, doc="how many classes"),),
    dtypes={"MaxProbs": FLOATS, "Indices": INTS, "Labels": INTS, "Weights": FLOATS, "StatesInfo": FLOATS},
    doc="AccumStatesInfo[c] = true positives, false positives, true and false negatives of class c; BatchMetrics and "
    "AccumMetrics = precision, recall, F1 as means over the classes, then of the sums over them",
    source="Fluid precision_recall_op.cc",
)
def precision_recall(
    max_probs: e.Tensor,
    indices: e.Tensor,
    labels: e.Tensor,
    weights: e.Tensor | None,
    states_info: e.Tensor | None,
    *,
    class_number: int,
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Count true and false positives and negatives of each class."""
    if max_probs.rank != 2 or not e.agree(max_probs.dims[1], 1):
        e.fail("MaxProbs", "[rows, 1], as top_k with k=1 makes")
    for operand in (indices, labels, weights):
        if operand is not None and not e.all_agree(operand.dims, max_probs.dims):
            e.fail(e.slot(operand), f"{e.describe_dims(max_probs.dims)}, the dims of MaxProbs")
    for operand in (weights, states_info):
        if operand is not None:
            e.same_dtype(operand, max_probs)
    states_dims = (e.number(class_number), e.number(4))
    if states_info is not None and not e.all_agree(states_info.dims, states_dims):
        e.fail("StatesInfo", f"[{class_number}, 4], a row for a class")
    rows = indices.dims[:1]
    predicted, label = (e.checked(e.reshape(x, rows), class_number) for x in (indices, labels))
    weight = e.full(rows, 1, max_probs.dtype) if weights is None else e.reshape(weights, rows)
    hit = predicted == label
    hits, misses = e.where(hit, weight, 0), e.where(hit, 0, weight)
    tp, fp = (e.add_at(x, predicted, 0, class_number) for x in (hits, misses))
    fn = e.add_at(misses, label, 0, class_number)
    states = e.stack([tp, fp, e.reduce_sum(weight) - (tp + fp + fn), fn], 1)
    total = states if states_info is None else states + e.reshape(states_info, states_dims)
    return _scores(states), _scores(total), total


def _scores(states: e.Tensor) -> e.Tensor:
    """Precision, recall and F1 as means over the classes, then of the sums over the classes."""
    tp, fp, fn = (e.slice_axis(states, 1, k, 1) for k in (0, 1, 3))
    sums = [e.reduce_sum(x, 0, keep=True) for x in (tp, fp, fn)]
    means = [e.reduce_mean(_rate(tp, wrong), 0, keep=True) for wrong in (fp, fn)]
    six = [*_all_three(*means), *_all_three(_rate(sums[0], sums[1]), _rate(sums[0], sums[2]))]
    return e.cast(e.reshape(e.concat(six, 0), (6,)), "float64")


def _rate(hits: e.Tensor, misses: e.Tensor) -> e.Tensor:
    """Return hits / (hits + misses), or 1 if both are 0."""
    is_counted = e.logical_or(hits > 0, misses > 0)
    return e.where(is_counted, hits / e.where(is_counted, hits + misses, 1), 1)


def _all_three(precision: e.Tensor, recall: e.Tensor) -> list[e.Tensor]:
    is_counted = e.logical_or(precision > 0, recall > 0)
    total = e.where(is_counted, precision + recall, 1)
    return [precision, recall, e.where(is_counted, 2 * precision * recall / total, 0)]
