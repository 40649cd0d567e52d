"""Layers that read results back from a search: gather_tree."""

from __future__ import annotations

from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import check_variable
from fluidlite.layers.common import append

__all__ = ["gather_tree"]


def gather_tree(ids: Variable, parents: Variable) -> Variable:
    """Return the whole sequences of a beam search, whose beams change places from step to step.

    Parameters
    ----------
    ids : Variable
        int32 or int64, [steps, batch, beams]: what each beam chose.
    parents : Variable
        As ``ids``: the beam of the step before that each goes on from; one out of range is an OutOfRangeError.

    Returns
    -------
    Variable
        As ``ids``: each beam of the last step, followed back.
    """
    inputs = {"Ids": check_variable("ids", ids), "Parents": check_variable("parents", parents)}
    return append("gather_tree", "gather_tree", inputs, stop_gradient=True)
