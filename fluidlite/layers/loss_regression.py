"""Losses of regression and ranking, of distributions, and of pairs."""

from __future__ import annotations

from typing import Any

from fluidlite.layer_helper import LayerHelper, check_float, check_variable, refuse
from fluidlite.layers import ops
from fluidlite.layers.declare import layer
from fluidlite.layers.index import one_hot
from fluidlite.layers.loss import softmax_with_cross_entropy
from fluidlite.layers.nn import matmul
from fluidlite.layers.reduce import reduce_mean, reduce_sum
from fluidlite.layers.shape import reshape
from fluidlite.layers.tensor import cast
from fluidlite.program.variable import Variable


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """Return (input - label)^2, element by element.

    input, label: Of equal dims and dtype
    """
    inputs = {"X": check_variable("input", input), "Y": check_variable("label", label)}
    helper = LayerHelper("square_error_cost")
    difference = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op("elementwise_sub", inputs, {"Out": difference})
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op("square", {"X": difference}, {"Out": out})
    return out


def mse_loss(input: Variable, label: Variable) -> Variable:
    """Return the mean of (input - label)^2, [1].

    input, label: Of equal dims and dtype
    """
    return reduce_mean(square_error_cost(input, label))


@layer("smooth_l1_loss", called="smooth_l1_loss")
def smooth_l1(
    x: Variable,
    y: Variable,
    inside_weight: Variable | None = None,
    outside_weight: Variable | None = None,
    sigma: float | None = None,
) -> Variable:
    """Return the sum of each row's smooth L1 distances: quadratic up to 1 / sigma^2, linear beyond.

    Returns: [rows, 1]

    >>> smooth_l1(data("x", [2, 4]), data("y", [2, 4])).shape
    (2, 1)
    """


@layer("huber_loss", {"input": "X", "label": "Y"})
def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """Return r^2 / 2 where r = |label - input| is delta or less, else delta (r - delta / 2).

    input, label: [rows, 1], of one dtype
    Returns: [rows, 1]

    >>> huber_loss(data("input", [2, 4, 8, 8]), data("label", [2, 4, 8, 8]), 2).shape
    (2, 4, 8, 8)
    """


@layer("log_loss", {"input": "Predicted", "label": "Labels"})
def log_loss(input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None) -> Variable:
    """Return -label ln(input + epsilon) - (1 - label) ln(1 - input + epsilon).

    input: Probabilities of class 1, [rows, 1]
    label: 0 or 1, as ``input``
    Returns: [rows, 1]

    >>> log_loss(data("input", [2, 4, 8, 8]), data("label", [2, 4, 8, 8])).shape
    (2, 4, 8, 8)
    """


@layer("kldiv_loss")
def kldiv_loss(x: Variable, target: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """Return target (ln(target) - x), 0 where the target is not above 0: the divergence from exp(x).

    reduction: ``"none"``: of the dims of ``x``; ``"mean"``, ``"sum"``, ``"batchmean"`` (the sum / rows): [1]

    >>> kldiv_loss(data("x", [2, 3, 4]), data("target", [2, 3, 4])).shape
    (1,)
    """


@layer("rank_loss")
def rank_loss(label: Variable, left: Variable, right: Variable, name: str | None = None) -> Variable:
    """Return ln(1 + exp(left - right)) - label (left - right), RankNet's loss of pairs.

    label: 1 if left should rank higher, 0 if lower, 0.5 if it does not matter; [rows, 1]
    left, right: Scores, as ``label``
    Returns: [rows, 1]

    >>> rank_loss(data("label", [2, 1]), data("left", [2, 1]), data("right", [2, 1])).shape
    (2, 1)
    """


@layer("margin_rank_loss", {"left": "X1", "right": "X2"})
def margin_rank_loss(
    label: Variable, left: Variable, right: Variable, margin: float = 0.1, name: str | None = None
) -> Variable:
    """Return max(0, margin - label (left - right)).

    label: 1 if left should rank higher, -1 if lower; [rows, 1]
    left, right: Scores, as ``label``
    Returns: [rows, 1]

    >>> margin_rank_loss(data("label", [2, 1]), data("left", [2, 1]), data("right", [2, 1])).shape
    (2, 1)
    """


def dice_loss(input: Variable, label: Variable, epsilon: float = 0.00001) -> Variable:
    """Return the mean over the rows of 1 - 2 overlap / (sum of input + sum of label + epsilon), [1].

    input: Probabilities, [rows, ..., classes]
    label: Classes, [rows, ..., 1], integers
    """
    check_variable("input", input)
    check_variable("label", label)
    if len(input.shape) < 2 or input.shape[-1] < 1:
        refuse("input", input, "[rows, ..., classes] with a known number of classes")
    one_hot_labels = cast(one_hot(label, input.shape[-1]), input.dtype)
    dims = list(range(1, len(input.shape)))
    overlap = reduce_sum(input * one_hot_labels, dim=dims)
    total = reduce_sum(input, dim=dims) + reduce_sum(one_hot_labels, dim=dims)
    return reduce_mean(1 - overlap * 2 / (total + epsilon))


def npair_loss(anchor: Variable, positive: Variable, labels: Variable, l2_reg: float = 0.002) -> Variable:
    """Return the N-pair loss: the cross entropy of anchors' similarities with the positives, plus an L2 term; [1].

    anchor, positive: Embeddings, [rows, width]
    labels: [rows]; rows of equal labels are similar
    l2_reg: A quarter of it weighs the mean squared norms
    """
    check_variable("anchor", anchor)
    check_variable("positive", positive)
    check_variable("labels", labels)
    equal, square = ops.layer("equal"), ops.layer("square")
    same_label: Any = cast(equal(reshape(labels, [-1, 1]), reshape(labels, [1, -1])), anchor.dtype)
    same_label = same_label / reduce_sum(same_label, dim=1, keep_dim=True)
    norms = reduce_mean(reduce_sum(square(anchor), dim=1)) + reduce_mean(reduce_sum(square(positive), dim=1))
    similarities = matmul(anchor, positive, transpose_x=False, transpose_y=True)
    cost: Any = softmax_with_cross_entropy(similarities, same_label, soft_label=True)
    loss: Variable = norms * (0.25 * check_float("l2_reg", l2_reg)) + reduce_mean(reduce_sum(same_label * cost, dim=0))
    return loss
