"""Losses."""

from __future__ import annotations

from typing import Any

from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import LayerHelper, check_int, check_variable, refuse
from fluidlite.layers.common import append

__all__ = [
    "crf_decoding", "cross_entropy", "linear_chain_crf", "softmax_with_cross_entropy", "square_error_cost",
]  # fmt: skip


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """Return (input - label)^2, element by element."""
    inputs = {"X": check_variable("input", input), "Y": check_variable("label", label)}
    helper = LayerHelper("square_error_cost")
    difference = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op("elementwise_sub", inputs, {"Out": difference})
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op("square", {"X": difference}, {"Out": out})
    return out


def cross_entropy(input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100) -> Variable:
    """Return -log(input[label]) for each row.

    Parameters
    ----------
    input : Variable
        Probabilities, [..., classes], as ``softmax`` makes them.
    label : Variable
        Classes, [..., 1], integers; with ``soft_label`` probabilities, [..., classes].
    soft_label : bool
    ignore_index : int
        Rows of this class cost 0.
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
        Scores, [..., classes].
    label : Variable
        Classes, [..., 1], integers; with ``soft_label`` probabilities, [..., classes].
    soft_label : bool
    ignore_index : int
        Rows of this class cost 0.
    numeric_stable_mode : bool
        Taken for Fluid's sake; the stable formula is always used.
    return_softmax : bool
        Return (loss, softmax).
    axis : int
        Only the last.
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
