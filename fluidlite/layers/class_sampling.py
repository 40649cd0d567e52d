"""Losses for many classes that sample or split them: hsigmoid, nce, sampled_softmax_with_cross_entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.base.dtypes import FLOATS
from fluidlite.base.errors import AttributeValueError, DtypeError
from fluidlite.layer_helper import LayerHelper, check_float, check_int, check_variable, refuse
from fluidlite.layers.common import append
from fluidlite.layers.declare import Bias, Weight, also, layer
from fluidlite.layers.loss import softmax_with_cross_entropy
from fluidlite.layers.nn import scale
from fluidlite.layers.slicing_padding import slice as slice_of
from fluidlite.layers.tensor import assign, sums
from fluidlite.program.variable import Variable


def _width(argument: str, rows: Variable) -> int:
    if check_variable(argument, rows).dtype not in FLOATS:
        refuse(argument, rows, f"one of {', '.join(FLOATS)}", error=DtypeError)
    if len(rows.shape) != 2 or rows.shape[1] < 1:
        refuse(argument, rows, "[rows, width] with a known width")
    return rows.shape[1]


@layer("hierarchical_sigmoid", {"is_custom": ""}, called="hierarchical_sigmoid")
def hsigmoid(
    input: Variable,
    label: Variable,
    num_classes: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
    path_table: Variable | None = None,
    path_code: Variable | None = None,
    is_custom: bool = False,
    is_sparse: bool = False,
) -> Variable:
    """Return the cost of each row's class in a binary tree of classes, with a sigmoid at each inner node.

    label: int32 or int64, [rows, 1]; one that is no class is an OutOfRangeError
    param_attr, bias_attr: Of the weights of the nodes, [num_classes - 1, width], or [num_classes, width] of a custom
        tree, and of the bias; False: no bias
    is_custom: The tree is defined by ``path_table`` and ``path_code``
    Returns: [rows, 1]. As in Fluid a path that is shorter than the longest adds ln 2 for each missing node.

    >>> hsigmoid(data("input", [2, 4]), data("label", [2, 1], "int64"), 3).shape
    (2, 1)
    """
    for argument, value in (("path_table", path_table), ("path_code", path_code)):
        if is_custom:
            check_variable(argument, value)
        elif value is not None:
            refuse(argument, value, "None, unless is_custom is true")
    nodes = num_classes if is_custom else num_classes - 1
    return also(W=Weight([nodes, _width("input", input)]), Bias=Bias([nodes, 1]))


def _distribution(values: Any, classes: int, dtype: str) -> np.ndarray[Any, Any]:
    """The probability of each class, normalised to the sum 1."""
    try:
        probabilities = np.asarray([check_float("custom_dist", v) for v in values], np.float64)
    except TypeError:
        refuse("custom_dist", values, f"{classes} numbers: a probability for each class")
    if len(probabilities) != classes or not (probabilities >= 0).all() or not 0 < probabilities.sum() < np.inf:
        refuse(
            "custom_dist",
            values,
            f"{classes} numbers, none of them negative: a probability for each class",
            error=AttributeValueError,
        )
    return np.asarray(probabilities / probabilities.sum(), dtype)


def nce(
    input: Variable,
    label: Variable,
    num_total_classes: int,
    sample_weight: Variable | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: Sequence[float] | None = None,
    seed: int = 0,
    is_sparse: bool = False,
) -> Variable:
    """Return each row's cost by noise-contrastive estimation: its class against classes sampled in each run.

    input: float32 or float64, [rows, width]
    label: int32 or int64, [rows, true classes]; one that is no class is an OutOfRangeError
    sample_weight: [rows, 1], of the dtype of ``input``: the weight of each cost
    param_attr, bias_attr: Of the weights, [num_total_classes, width], and the bias, [num_total_classes, 1]; False: no
        bias
    num_neg_samples: Sampled classes for each row; None: 10
    sampler: ``"uniform"``, ``"log_uniform"`` (class k with probability ln((k + 2) / (k + 1)) / ln(num_total_classes +
        1)) or ``"custom_dist"``
    custom_dist: Of ``"custom_dist"``: the probability of each class; they are divided by their sum
    seed: 0: the program's seed
    is_sparse: Taken for Fluid's sake: gradients are dense
    Returns: [rows, 1]; divided by 1 + num_neg_samples
    """
    width, classes = _width("input", input), check_int("num_total_classes", num_total_classes, 1)
    count = 10 if num_neg_samples is None else check_int("num_neg_samples", num_neg_samples, 1)
    if (sampler == "custom_dist") != (custom_dist is not None):
        refuse("custom_dist", custom_dist, "probabilities if sampler is custom_dist, and None if it is not")
    dist = None if custom_dist is None else _distribution(custom_dist, classes, input.dtype)
    helper = LayerHelper("nce", name=name, param_attr=param_attr, bias_attr=bias_attr)
    weight_attr: Any = helper.param_attr
    attr: Any = helper.bias_attr
    weight = helper.create_parameter(weight_attr, [classes, width], input.dtype)
    inputs = {"Input": input, "Label": check_variable("label", label), "Weight": weight}
    if bias_attr is not False:
        inputs["Bias"] = helper.create_parameter(attr, [classes, 1], input.dtype, is_bias=True)
    if sample_weight is not None:
        inputs["SampleWeight"] = check_variable("sample_weight", sample_weight)
    draw_inputs = {"Like": input}
    if dist is not None:
        draw_inputs["Probs"] = inputs["CustomDistProbs"] = assign(dist)
        draw_inputs["Probs"].stop_gradient = True
    attrs = {"num_total_classes": classes, "sampler": sampler}
    draw_attrs = {**attrs, "num": count, "seed": seed}
    inputs["Samples"] = append("sample_classes", draw_inputs, draw_attrs, stop_gradient=True)
    return scale(append("nce", inputs, attrs, slot="Cost"), 1 / (count + 1))


def sampled_softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    num_samples: int,
    num_true: int = 1,
    remove_accidental_hits: bool = True,
    use_customized_samples: bool = False,
    customized_samples: Variable | None = None,
    customized_probabilities: Variable | None = None,
    seed: int = 0,
) -> Variable:
    """Return the cross entropy of a softmax over the true classes and drawn ones, instead of over all.

    logits: float32 or float64, [rows, classes]
    label: int32 or int64, [rows, num_true]; one that is no class is an OutOfRangeError
    num_samples: How many different classes are drawn, log-uniformly, the same for all rows
    remove_accidental_hits: A drawn class that is a true one of the row does not count
    use_customized_samples: Use the given classes instead of sampled ones
    customized_samples, customized_probabilities: Those classes, int32 or int64, [rows, num_true + num_samples], the
        true ones first, and the probability of each, of the dtype of ``logits``
    seed: 0: the program's seed
    Returns: [rows, 1]; divided by ``num_true``
    """
    classes = _width("logits", logits)
    count, true_count = check_int("num_samples", num_samples, 1), check_int("num_true", num_true, 1)
    if len(check_variable("label", label).shape) != 2 or label.shape[1] not in (-1, true_count):
        refuse("label", label, f"[rows, {true_count}]: num_true classes of each row")
    customized = (customized_samples, customized_probabilities)
    if bool(use_customized_samples) != any(each is not None for each in customized):
        refuse(
            "use_customized_samples",
            use_customized_samples,
            "True if customized_samples and customized_probabilities are given, and False if they are not",
        )
    helper = LayerHelper("sample_logits")
    samples, probabilities = customized
    if use_customized_samples:
        for name, value in (("customized_samples", samples), ("customized_probabilities", probabilities)):
            variable = check_variable(name, value)
            if len(variable.shape) != 2 or variable.shape[1] not in (-1, true_count + count):
                refuse(name, variable, f"[rows, {true_count + count}]: num_true true classes, and num_samples others")
    else:
        samples, probabilities = (helper.create_variable_for_type_inference(stop_gradient=True) for _ in range(2))
        attrs = {
            "num_samples": count,
            "num_classes": classes,
            "dtype": logits.dtype,
            "seed": check_int("seed", seed),
        }
        outputs = {"Samples": samples, "Probabilities": probabilities}
        helper.append_op("sample_negatives", {"Labels": label}, outputs, attrs)
    scores = helper.create_variable_for_type_inference()
    columns = helper.create_variable_for_type_inference(stop_gradient=True)
    inputs = {"Logits": logits, "Labels": label, "Samples": samples, "Probabilities": probabilities}
    attrs = {"remove_accidental_hits": bool(remove_accidental_hits)}
    helper.append_op("sample_logits", inputs, {"SampledLogits": scores, "SampledLabels": columns}, attrs)
    label_columns = [slice_of(columns, axes=[1], starts=[i], ends=[i + 1]) for i in range(true_count)]
    costs = [softmax_with_cross_entropy(scores, column) for column in label_columns]
    return scale(sums(costs) if true_count > 1 else costs[0], 1 / true_count)
