"""Losses of classifiers; those of regression and ranking are in ``loss_regression``."""

from __future__ import annotations

from typing import Any

from fluidlite.base.errors import AttributeValueError
from fluidlite.framework.variable import Variable
from fluidlite.initializer import Constant
from fluidlite.layer_helper import LayerHelper, check_float, check_int, check_variable, refuse
from fluidlite.layers.common import append

__all__ = [
    "bpr_loss", "center_loss", "crf_decoding", "cross_entropy", "label_smooth", "linear_chain_crf",
    "sigmoid_cross_entropy_with_logits", "softmax_with_cross_entropy", "teacher_student_sigmoid_loss",
]  # fmt: skip


def cross_entropy(input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100) -> Variable:
    """Return -log(input[label]) for each row.

    Parameters
    ----------
    input : Variable
        Probabilities, [..., classes], as ``softmax`` makes them.
    label : Variable
        Classes, [..., 1] or without the last dim, integers; with ``soft_label`` probabilities, [..., classes].
    soft_label : bool
    ignore_index : int
        Rows of this class cost 0.

    Returns
    -------
    Variable
        [..., 1], or of the dims of ``label`` if that lacks the last.
    """
    inputs = {"X": check_variable("input", input), "Label": check_variable("label", label)}
    attrs = {"soft_label": soft_label, "ignore_index": check_int("ignore_index", ignore_index)}
    return append("cross_entropy", "cross_entropy", inputs, attrs, slot="Y")


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Variable | tuple[Variable, Variable]:
    """Return the cross entropy of softmax(logits) for each row; exact where ``softmax`` first would lose digits.

    Parameters
    ----------
    logits : Variable
        Scores, [..., classes, ...].
    label : Variable
        Classes, [..., 1, ...], integers; with ``soft_label`` probabilities, [..., classes, ...].
    soft_label : bool
    ignore_index : int
        Rows of this class cost 0.
    numeric_stable_mode : bool
        Taken for Fluid's sake; the stable formula is always used.
    return_softmax : bool
        Return (loss, softmax).
    axis : int
        Along which the classes lie.

    Returns
    -------
    Variable
        [..., 1, ...]; with ``return_softmax`` two of them.
    """
    inputs = {"Logits": check_variable("logits", logits), "Label": check_variable("label", label)}
    helper = LayerHelper("softmax_with_cross_entropy")
    softmax = helper.create_variable_for_type_inference(logits.dtype)
    loss = helper.create_variable_for_type_inference(logits.dtype)
    attrs = {
        "soft_label": soft_label, "ignore_index": check_int("ignore_index", ignore_index),
        "numeric_stable_mode": numeric_stable_mode, "axis": check_int("axis", axis),
    }  # fmt: skip
    helper.append_op("softmax_with_cross_entropy", inputs, {"Softmax": softmax, "Loss": loss}, attrs)
    return (loss, softmax) if return_softmax else loss


def sigmoid_cross_entropy_with_logits(
    x: Variable, label: Variable, ignore_index: int = -100, name: str | None = None, normalize: bool = False
) -> Variable:
    """Return ln(1 + exp(x)) - x label, the cross entropy of sigmoid(x) with the label, element by element.

    Parameters
    ----------
    x : Variable
        Scores.
    label : Variable
        Probabilities, of the dims and dtype of ``x``.
    ignore_index : int
        Elements of this label cost 0.
    name : str, optional
        Of the result.
    normalize : bool
        Divide by the number of elements that are not ignored.

    Returns
    -------
    Variable
        Dims of ``x``.
    """
    inputs = {"X": check_variable("x", x), "Label": check_variable("label", label)}
    helper = LayerHelper("sigmoid_cross_entropy_with_logits", name=name)
    out = helper.create_variable_for_type_inference() if name is None else helper.create_variable(name=name)
    attrs = {"ignore_index": check_int("ignore_index", ignore_index), "normalize": normalize}
    helper.append_op("sigmoid_cross_entropy_with_logits", inputs, {"Out": out}, attrs)
    return out


def teacher_student_sigmoid_loss(
    input: Variable, label: Variable, soft_max_up_bound: float = 15.0, soft_max_lower_bound: float = -15.0
) -> Variable:
    """Return the sigmoid cross entropy with a click, plus that with a teacher's value if there is one.

    Parameters
    ----------
    input : Variable
        Scores, [rows, 1].
    label : Variable
        -2: no click; -1: a click; else the click (0 or 1) plus the teacher's value; [rows, 1], dtype of ``input``.
    soft_max_up_bound, soft_max_lower_bound : float
        Scores that are not between them get no gradient.

    Returns
    -------
    Variable
        [rows, 1].
    """
    inputs = {"X": check_variable("input", input), "Label": check_variable("label", label)}
    attrs = {
        "soft_max_up_bound": check_float("soft_max_up_bound", soft_max_up_bound),
        "soft_max_lower_bound": check_float("soft_max_lower_bound", soft_max_lower_bound),
    }
    return append("teacher_student_sigmoid_loss", "teacher_student_sigmoid_loss", inputs, attrs, slot="Y")


def bpr_loss(input: Variable, label: Variable, name: str | None = None) -> Variable:
    """Return the mean of ln(1 + exp(input[j] - input[label])) over the classes j that are not the label.

    Parameters
    ----------
    input : Variable
        Scores, [..., classes], 2 classes or more.
    label : Variable
        The wanted classes, [..., 1], integers.
    name : str, optional

    Returns
    -------
    Variable
        [..., 1].
    """
    inputs = {"X": check_variable("input", input), "Label": check_variable("label", label)}
    return append("bpr_loss", "bpr_loss", inputs, slot="Y", name=name)


def center_loss(
    input: Variable, label: Variable, num_classes: int, alpha: Any, param_attr: Any, update_center: bool = True
) -> Variable:
    """Return half the squared distance of each row from its class's center; the centers move towards their rows.

    Parameters
    ----------
    input : Variable
        Features, [rows, width].
    label : Variable
        Classes, [rows, 1], integers.
    num_classes : int
    alpha : float or Variable
        The rate at which centers move; a Variable is [1], of the dtype of ``input``.
    param_attr : ParamAttr or Initializer
        Of the centers, [num_classes, width], which are no optimiser's matter.
    update_center : bool
        Whether they move.

    Returns
    -------
    Variable
        [rows, 1].
    """
    check_variable("input", input)
    check_variable("label", label)
    helper = LayerHelper("center_loss", param_attr=param_attr)
    num_classes = check_int("num_classes", num_classes, minimum=1)
    if len(input.shape) != 2 or input.shape[1] < 1:
        refuse("input", input, "[rows, width] with a known width")
    attr = helper.param_attr
    if isinstance(attr, list):
        refuse("param_attr", param_attr, "one ParamAttr: the loss has one table of centers")
    centers = helper.create_parameter(attr, [num_classes, input.shape[1]], input.dtype)
    centers.stop_gradient = True
    if isinstance(alpha, Variable):
        rate = alpha
    else:
        rate = helper.create_global_variable(persistable=True, shape=[1], dtype=input.dtype, stop_gradient=True)
        helper.set_variable_initializer(rate, Constant(check_float("alpha", alpha)))
    loss = helper.create_variable_for_type_inference()
    difference = helper.create_variable_for_type_inference(stop_gradient=True)
    helper.append_op(
        "center_loss",
        {"X": input, "Label": label, "Centers": centers, "CenterUpdateRate": rate},
        {"SampleCenterDiff": difference, "Loss": loss, "CentersOut": centers},
        {"cluster_num": num_classes, "need_update": update_center},
    )
    return loss


def label_smooth(
    label: Variable,
    prior_dist: Variable | None = None,
    epsilon: float = 0.1,
    dtype: Any = "float32",
    name: str | None = None,
) -> Variable:
    """Return (1 - epsilon) label + epsilon prior_dist.

    Parameters
    ----------
    label : Variable
        Probabilities or one-hot classes, [..., classes]. It gets no gradient.
    prior_dist : Variable, optional
        A probability for each class, [1, classes]; default: 1 / classes.
    epsilon : float
        From 0 to 1.
    dtype : str
        Taken for Fluid's sake; the result has the dtype of ``label``.
    name : str, optional

    Returns
    -------
    Variable
    """
    inputs = {"X": check_variable("label", label)}
    if prior_dist is not None:
        inputs["PriorDist"] = check_variable("prior_dist", prior_dist)
    if not 0 <= check_float("epsilon", epsilon) <= 1:
        refuse("epsilon", epsilon, "a number from 0 to 1", error=AttributeValueError)
    label.stop_gradient = True
    return append("label_smooth", "label_smooth", inputs, {"epsilon": float(epsilon)}, name=name)


def linear_chain_crf(input: Variable, label: Variable, param_attr: Any = None) -> Variable:
    """Return the negative log-likelihood of each sequence's labels under a linear-chain CRF.

    Parameters
    ----------
    input : Variable
        Emission scores, [rows, tags], sequences by LoD.
    label : Variable
        Tags, [rows, 1], int64.
    param_attr : ParamAttr, optional
        Of the transition weights, [tags + 2, tags]: start, stop, then from tag to tag. ``crf_decoding`` finds
        them by their name.

    Returns
    -------
    Variable
        [sequences, 1].
    """
    check_variable("input", input)
    check_variable("label", label)
    helper = LayerHelper("linear_chain_crf", param_attr=param_attr)
    if len(input.shape) != 2 or input.shape[1] < 1:
        refuse("input", input, "[rows, tags] with a known number of tags")
    attr = helper.param_attr
    if isinstance(attr, list):
        refuse("param_attr", param_attr, "one ParamAttr")
    tags = input.shape[1]
    transition = helper.create_parameter(attr, [tags + 2, tags], input.dtype)
    outputs = {
        slot: helper.create_variable_for_type_inference(input.dtype)
        for slot in ("Alpha", "EmissionExps", "TransitionExps", "LogLikelihood")
    }
    helper.append_op("linear_chain_crf", {"Emission": input, "Transition": transition, "Label": label}, outputs)
    return outputs["LogLikelihood"]


def crf_decoding(input: Variable, param_attr: Any, label: Variable | None = None) -> Variable:
    """Return the likeliest tag of each row, [rows, 1] int64; with ``label``, 1 where it is right, else 0.

    Parameters
    ----------
    input : Variable
        Emission scores, [rows, tags], sequences by LoD.
    param_attr : ParamAttr or str
        Its name is that of ``linear_chain_crf``'s transition weights.
    label : Variable, optional

    Returns
    -------
    Variable
    """
    helper = LayerHelper("crf_decoding", param_attr=param_attr)
    attr = helper.param_attr
    name = getattr(attr, "name", None)
    if name is None:
        refuse("param_attr", param_attr, "the name of linear_chain_crf's weights, or a ParamAttr that has it")
    inputs = {"Emission": check_variable("input", input), "Transition": helper.get_parameter(name)}
    if label is not None:
        inputs["Label"] = check_variable("label", label)
    path = helper.create_variable_for_type_inference("int64", stop_gradient=True)
    helper.append_op("crf_decoding", inputs, {"ViterbiPath": path})
    return path
