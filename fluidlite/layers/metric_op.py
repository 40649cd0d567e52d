"""Metrics computed by operators: accuracy, auc, mean_iou."""

from __future__ import annotations

from fluidlite.initializer import Constant
from fluidlite.layer_helper import LayerHelper, check_int, check_variable
from fluidlite.layers.declare import also, layer
from fluidlite.layers.index import topk
from fluidlite.program.variable import Variable


@layer(
    "accuracy",
    {"input": "", "k": "", "correct": "Correct", "total": "Total"},
    extra=("Correct", "Total"),
    stop_gradient=True,
)
def accuracy(
    input: Variable, label: Variable, k: int = 1, correct: Variable | None = None, total: Variable | None = None
) -> Variable:
    """Return the fraction of rows whose label is among the ``k`` highest scores.

    input: Scores, [rows, classes]
    correct, total: Set to the number of correct rows and of all rows, int32 [1]
    Returns: float32 [1]

    >>> accuracy(data("input", [2, 4]), data("label", [2, 1], "int64")).shape
    (1,)
    """
    values, indices = topk(input, k)
    return also(Out=values, Indices=indices)


def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 2**12 - 1,
    topk: int = 1,
    slide_steps: int = 1,
) -> tuple[Variable, Variable, list[Variable]]:
    """Return the area under the receiver operating characteristic, of all batches and of the last ones.

    input: Probabilities of class 1 in the last column, [rows, 2] or [rows, 1]
    label: 0 or not, [rows, 1], integers
    curve: ``"ROC"``; as in Fluid, ``"PR"`` gives the same area
    num_thresholds: The number of buckets of scores; their width bounds the error
    topk: Taken for Fluid's sake
    slide_steps: The number of last batches
    Returns: The area of all batches, that of the last ones (float64 [1]), and the persistable counts that they are of:
        positives and negatives of the last batches, then of all
    """
    inputs = {"Predict": check_variable("input", input), "Label": check_variable("label", label)}
    helper = LayerHelper("auc")
    buckets = check_int("num_thresholds", num_thresholds, minimum=1) + 1
    steps = check_int("slide_steps", slide_steps, minimum=0)
    areas = [helper.create_variable_for_type_inference("float64", stop_gradient=True) for _ in range(2)]
    states = []
    for rows in (max(steps, 1), max(steps, 1), 1, 1):
        state = helper.create_global_variable(
            persistable=True, dtype="int64", shape=[rows, buckets], stop_gradient=True
        )
        helper.set_variable_initializer(state, Constant(0.0))
        states.append(state)
    for area, (pos, neg), slides in ((areas[1], states[:2], steps), (areas[0], states[2:], 0)):
        helper.append_op(
            "auc",
            {**inputs, "StatPos": pos, "StatNeg": neg},
            {"AUC": area, "StatPosOut": pos, "StatNegOut": neg},
            {"curve": curve, "num_thresholds": buckets - 1, "slide_steps": slides},
        )
    return areas[0], areas[1], states


@layer("mean_iou", {"input": "Predictions", "label": "Labels"}, stop_gradient=True)
def mean_iou(input: Variable, label: Variable, num_classes: int) -> tuple[Variable, Variable, Variable]:
    """Return the mean over the classes of intersection / union, and each class's wrong and right predictions.

    Returns: The mean, float32 [1]; wrong and right ones, int32 [num_classes]

    >>> [each.shape for each in mean_iou(data("input", [2, 1], "int64"), data("label", [2, 1], "int64"), 1)]
    [(1,), (1,), (1,)]
    """
