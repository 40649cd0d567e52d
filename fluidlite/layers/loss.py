"""Losses of classifiers; those of regression and ranking are in ``loss_regression``."""

from __future__ import annotations

from typing import Any, Literal, overload

from fluidlite.initializer import Constant
from fluidlite.layer_helper import LayerHelper, check_float, refuse
from fluidlite.layers.common import layers_getattr
from fluidlite.layers.declare import Returned, Unused, Weight, also, layer
from fluidlite.param_attr import ParamAttr
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable

_EPSILON = Attr("epsilon", "float", minimum=0, maximum=1, doc="the weight of the prior")


@layer("cross_entropy")
def cross_entropy(input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100) -> Variable:
    """Return -log(input[label]) for each row.

    Returns: [..., 1], or of the dims of ``label`` if that lacks the last

    >>> cross_entropy(data("input", [2, 4]), data("label", [2, 1], "int64")).shape
    (2, 1)
    """


@overload
def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = ...,
    ignore_index: int = ...,
    numeric_stable_mode: bool = ...,
    return_softmax: Literal[False] = ...,
    axis: int = ...,
) -> Variable: ...


@overload
def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = ...,
    ignore_index: int = ...,
    numeric_stable_mode: bool = ...,
    *,
    return_softmax: Literal[True],
    axis: int = ...,
) -> tuple[Variable, Variable]: ...


@layer("softmax_with_cross_entropy", {"return_softmax": Returned("Softmax")}, returns="Loss", extra=("Softmax",))
def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Variable | tuple[Variable, Variable]:
    """Return the cross entropy of softmax(logits) for each row, more exact than ``softmax`` and ``cross_entropy``.

    return_softmax: Return (loss, softmax)
    Returns: [..., 1, ...]; with ``return_softmax`` two of them

    >>> softmax_with_cross_entropy(data("logits", [2, 4]), data("label", [2, 1], "int64")).shape
    (2, 1)
    """


@layer("sigmoid_cross_entropy_with_logits")
def sigmoid_cross_entropy_with_logits(
    x: Variable, label: Variable, ignore_index: int = -100, name: str | None = None, normalize: bool = False
) -> Variable:
    """Return ln(1 + exp(x)) - x label, the cross entropy of sigmoid(x) with the label, element by element.

    Returns: Dims of ``x``

    >>> sigmoid_cross_entropy_with_logits(data("x", [2, 4, 8, 8]), data("label", [2, 4, 8, 8])).shape
    (2, 4, 8, 8)
    """
    if name is None:
        return also()
    return also(Out=LayerHelper("sigmoid_cross_entropy_with_logits", name=name).create_variable(name=name))


@layer("teacher_student_sigmoid_loss")
def teacher_student_sigmoid_loss(
    input: Variable, label: Variable, soft_max_up_bound: float = 15.0, soft_max_lower_bound: float = -15.0
) -> Variable:
    """Return the sigmoid cross entropy with a click, plus that with a teacher's value if there is one.

    input: Scores, [rows, 1]
    label: -2: no click; -1: a click; else the click (0 or 1) plus the teacher's value; [rows, 1], dtype of ``input``
    Returns: [rows, 1]

    >>> teacher_student_sigmoid_loss(data("input", [2, 4, 8, 8]), data("label", [2, 4, 8, 8])).shape
    (2, 4, 8, 8)
    """


@layer("bpr_loss")
def bpr_loss(input: Variable, label: Variable, name: str | None = None) -> Variable:
    """Return the mean of ln(1 + exp(input[j] - input[label])) over the classes j that are not the label.

    Returns: [..., 1]

    >>> bpr_loss(data("input", [2, 4]), data("label", [2, 1], "int64")).shape
    (2, 1)
    """


@layer("center_loss", {"num_classes": "cluster_num", "alpha": "", "update_center": "need_update"}, returns="Loss")
def center_loss(
    input: Variable, label: Variable, num_classes: int, alpha: Any, param_attr: Any, update_center: bool = True
) -> Variable:
    """Return half the squared distance of each row from its class's center; the centers move towards their rows.

    alpha: The rate at which centers move; a Variable is [1], of the dtype of ``input``
    param_attr: Of the centers, [num_classes, width], which no optimiser updates
    Returns: [rows, 1]

    >>> center_loss(data("input", [2, 4]), data("label", [2, 1], "int64"), 4, 0.5, None).shape
    (2, 1)
    """
    if len(input.shape) != 2 or input.shape[1] < 1:
        refuse("input", input, "[rows, width] with a known width")
    rate = alpha
    if not isinstance(alpha, Variable):
        helper = LayerHelper("center_loss", name="center_loss")
        rate = helper.create_global_variable(persistable=True, shape=[1], dtype=input.dtype, stop_gradient=True)
        helper.set_variable_initializer(rate, Constant(check_float("alpha", alpha)))
    centers = Weight([num_classes, input.shape[1]], stop_gradient=True)
    return also(Centers=centers, CenterUpdateRate=rate, CentersOut="Centers")


@layer("label_smooth", {"label": "X", "epsilon": _EPSILON, "dtype": Unused("the result has the dtype of ``label``")})
def label_smooth(
    label: Variable,
    prior_dist: Variable | None = None,
    epsilon: float = 0.1,
    dtype: Any = "float32",
    name: str | None = None,
) -> Variable:
    """Return (1 - epsilon) label + epsilon prior_dist.

    prior_dist: A probability for each class, [1, classes]; default: 1 / classes

    >>> label_smooth(data("label", [2, 4, 8, 8])).shape
    (2, 4, 8, 8)
    """
    label.stop_gradient = True
    return also(epsilon=epsilon)


@layer("linear_chain_crf", {"input": "Emission"})
def linear_chain_crf(
    input: Variable, label: Variable, param_attr: Any = None, length: Variable | None = None
) -> Variable:
    """Return the negative log-likelihood of each sequence's labels under a linear-chain CRF.

    param_attr: Of the transition weights, [tags + 2, tags]: start, stop, then from tag to tag. ``crf_decoding`` gets
        them by name.
    Returns: [sequences, 1]

    >>> linear_chain_crf(data("input", [-1, 4], lod_level=1), data("label", [-1, 1], "int64", lod_level=1)).shape
    (-1, 1)
    """
    form = "[rows, tags]" if length is None else "[batch, longest, tags]"
    if len(input.shape) != (2 if length is None else 3) or input.shape[-1] < 1:
        refuse("input", input, f"{form} with a known number of tags")
    return also(Transition=Weight([input.shape[-1] + 2, input.shape[-1]]))


@layer("crf_decoding", {"input": "Emission"}, stop_gradient=True)
def crf_decoding(
    input: Variable, param_attr: Any, label: Variable | None = None, length: Variable | None = None
) -> Variable:
    """Return the likeliest tag of each row, [rows, 1] int64; with ``label``, 1 where it is right, else 0.

    param_attr: Its name is that of ``linear_chain_crf``'s transition weights
    Returns: For padded sequences [batch, longest], with 0 after their ends

    >>> emission = data("emission", [-1, 5], lod_level=1)
    >>> cost = linear_chain_crf(emission, data("label", [-1, 1], "int64", 1), "crf_weights")
    >>> crf_decoding(emission, "crf_weights").shape
    (-1, 1)
    """
    weights_name = getattr(ParamAttr.to_attr(param_attr), "name", None)
    if weights_name is None:
        refuse("param_attr", param_attr, "the name of linear_chain_crf's weights, or a ParamAttr that has it")
    return also(Transition=LayerHelper("crf_decoding", name="crf_decoding").get_parameter(weights_name))


__getattr__ = layers_getattr(__name__)  # Fluid's path of layers that other modules declare
