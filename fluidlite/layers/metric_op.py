"""Metrics that the program computes."""

from __future__ import annotations

from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import LayerHelper, check_variable
from fluidlite.layers.nn import topk

__all__ = ["accuracy"]


def accuracy(
    input: Variable, label: Variable, k: int = 1, correct: Variable | None = None, total: Variable | None = None
) -> Variable:
    """Return the share of rows whose label is among the ``k`` highest scores.

    Parameters
    ----------
    input : Variable
        Scores, [rows, classes].
    label : Variable
        Classes, [rows, 1], integers.
    k : int
    correct, total : Variable, optional
        Get the number of right rows and of all rows, int32 [1].
    """
    check_variable("input", input)
    check_variable("label", label)
    values, indices = topk(input, k)
    helper = LayerHelper("accuracy")
    result = helper.create_variable_for_type_inference("float32", stop_gradient=True)
    outputs = {
        "Accuracy": result,
        "Correct": correct or helper.create_variable_for_type_inference("int32", stop_gradient=True),
        "Total": total or helper.create_variable_for_type_inference("int32", stop_gradient=True),
    }
    helper.append_op("accuracy", {"Out": values, "Indices": indices, "Label": label}, outputs)
    return result
