"""Losses of regression and of ranking, between distributions, and of pairs."""

from __future__ import annotations

from typing import Any

from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import LayerHelper, check_float, check_variable, refuse
from fluidlite.layers import ops
from fluidlite.layers.common import append
from fluidlite.layers.index import one_hot
from fluidlite.layers.loss import softmax_with_cross_entropy
from fluidlite.layers.nn import matmul
from fluidlite.layers.reduce import reduce_mean, reduce_sum
from fluidlite.layers.shape import reshape
from fluidlite.layers.tensor import cast

__all__ = [
    "dice_loss", "huber_loss", "kldiv_loss", "log_loss", "margin_rank_loss", "mse_loss", "npair_loss", "rank_loss",
    "smooth_l1", "square_error_cost",
]  # fmt: skip


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """Return (input - label)^2, element by element.

    Parameters
    ----------
    input, label : Variable
        Of equal dims and dtype.

    Returns
    -------
    Variable
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

    Parameters
    ----------
    input, label : Variable
        Of equal dims and dtype.

    Returns
    -------
    Variable
    """
    return reduce_mean(square_error_cost(input, label))


def smooth_l1(
    x: Variable,
    y: Variable,
    inside_weight: Variable | None = None,
    outside_weight: Variable | None = None,
    sigma: float | None = None,
) -> Variable:
    """Return the sum of each row's smooth L1 distances: quadratic up to 1 / sigma^2, linear beyond.

    Parameters
    ----------
    x, y : Variable
        [rows, ...], of equal dims and dtype.
    inside_weight, outside_weight : Variable, optional
        As ``x``; the differences are multiplied by the first, the distances by the second. Both or none.
    sigma : float, optional
        Default: 1.

    Returns
    -------
    Variable
        [rows, 1].
    """
    inputs = {"X": check_variable("x", x), "Y": check_variable("y", y)}
    for slot, name, weight in (
        ("InsideWeight", "inside_weight", inside_weight),
        ("OutsideWeight", "outside_weight", outside_weight),
    ):
        if weight is not None:
            inputs[slot] = check_variable(name, weight)
    attrs = {"sigma": 1.0 if sigma is None else check_float("sigma", sigma)}
    return append("smooth_l1_loss", "smooth_l1_loss", inputs, attrs, extra=("Diff",))


def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """Return r^2 / 2 where r = |label - input| is delta or less, else delta (r - delta / 2).

    Parameters
    ----------
    input, label : Variable
        [rows, 1], of one dtype.
    delta : float
        0 or more.

    Returns
    -------
    Variable
        [rows, 1].
    """
    inputs = {"X": check_variable("input", input), "Y": check_variable("label", label)}
    return append("huber_loss", "huber_loss", inputs, {"delta": check_float("delta", delta)}, extra=("Residual",))


def log_loss(input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None) -> Variable:
    """Return -label ln(input + epsilon) - (1 - label) ln(1 - input + epsilon).

    Parameters
    ----------
    input : Variable
        Probabilities of class 1, [rows, 1].
    label : Variable
        0 or 1, as ``input``.
    epsilon : float
    name : str, optional

    Returns
    -------
    Variable
        [rows, 1].
    """
    inputs = {"Predicted": check_variable("input", input), "Labels": check_variable("label", label)}
    attrs = {"epsilon": check_float("epsilon", epsilon)}
    return append("log_loss", "log_loss", inputs, attrs, slot="Loss", name=name)


def kldiv_loss(x: Variable, target: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """Return target (ln(target) - x), 0 where the target is not above 0: the divergence from exp(x).

    Parameters
    ----------
    x : Variable
        Logarithms of probabilities, [rows, ...].
    target : Variable
        Probabilities, as ``x``.
    reduction : str
        ``"none"``: of the dims of ``x``; ``"mean"``, ``"sum"``, ``"batchmean"`` (the sum / rows): [1].
    name : str, optional

    Returns
    -------
    Variable
    """
    inputs = {"X": check_variable("x", x), "Target": check_variable("target", target)}
    return append("kldiv_loss", "kldiv_loss", inputs, {"reduction": reduction}, slot="Loss", name=name)


def rank_loss(label: Variable, left: Variable, right: Variable, name: str | None = None) -> Variable:
    """Return ln(1 + exp(left - right)) - label (left - right), RankNet's loss of pairs.

    Parameters
    ----------
    label : Variable
        1 if left should rank higher, 0 if lower, 0.5 if it does not matter; [rows, 1].
    left, right : Variable
        Scores, as ``label``.
    name : str, optional

    Returns
    -------
    Variable
        [rows, 1].
    """
    inputs = {
        "Label": check_variable("label", label), "Left": check_variable("left", left),
        "Right": check_variable("right", right),
    }  # fmt: skip
    return append("rank_loss", "rank_loss", inputs, name=name)


def margin_rank_loss(
    label: Variable, left: Variable, right: Variable, margin: float = 0.1, name: str | None = None
) -> Variable:
    """Return max(0, margin - label (left - right)).

    Parameters
    ----------
    label : Variable
        1 if left should rank higher, -1 if lower; [rows, 1].
    left, right : Variable
        Scores, as ``label``.
    margin : float
    name : str, optional

    Returns
    -------
    Variable
        [rows, 1].
    """
    inputs = {
        "X1": check_variable("left", left), "X2": check_variable("right", right),
        "Label": check_variable("label", label),
    }  # fmt: skip
    attrs = {"margin": check_float("margin", margin)}
    return append("margin_rank_loss", "margin_rank_loss", inputs, attrs, extra=("Activated",), name=name)


def dice_loss(input: Variable, label: Variable, epsilon: float = 0.00001) -> Variable:
    """Return the mean over the rows of 1 - 2 overlap / (sum of input + sum of label + epsilon), [1].

    Parameters
    ----------
    input : Variable
        Probabilities, [rows, ..., classes].
    label : Variable
        Classes, [rows, ..., 1], integers.
    epsilon : float

    Returns
    -------
    Variable
    """
    check_variable("input", input)
    check_variable("label", label)
    if len(input.shape) < 2 or input.shape[-1] < 1:
        refuse("input", input, "[rows, ..., classes] with a known number of classes")
    chosen = cast(one_hot(label, input.shape[-1]), input.dtype)
    dims = list(range(1, len(input.shape)))
    overlap = reduce_sum(input * chosen, dim=dims)
    both = reduce_sum(input, dim=dims) + reduce_sum(chosen, dim=dims)
    return reduce_mean(1 - overlap * 2 / (both + epsilon))


def npair_loss(anchor: Variable, positive: Variable, labels: Variable, l2_reg: float = 0.002) -> Variable:
    """Return the N-pair loss: the cross entropy of anchors' similarities with the positives, plus an L2 term; [1].

    Parameters
    ----------
    anchor, positive : Variable
        Embeddings, [rows, width].
    labels : Variable
        [rows]; rows of one label are alike.
    l2_reg : float
        A quarter of it weighs the mean squared norms.

    Returns
    -------
    Variable
    """
    check_variable("anchor", anchor)
    check_variable("positive", positive)
    check_variable("labels", labels)
    equal, square = ops.layer("equal"), ops.layer("square")
    alike: Any = cast(equal(reshape(labels, [-1, 1]), reshape(labels, [1, -1])), anchor.dtype)
    alike = alike / reduce_sum(alike, dim=1, keep_dim=True)
    norms = reduce_mean(reduce_sum(square(anchor), dim=1)) + reduce_mean(reduce_sum(square(positive), dim=1))
    similar = matmul(anchor, positive, transpose_x=False, transpose_y=True)
    cost: Any = softmax_with_cross_entropy(similar, alike, soft_label=True)
    loss: Variable = norms * (0.25 * check_float("l2_reg", l2_reg)) + reduce_mean(reduce_sum(alike * cost, dim=0))
    return loss
