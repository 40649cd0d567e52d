"""Layers for features of advertisements and images: continuous_value_model and similarity_focus."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.base.errors import AttributeValueError
from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import check_int, check_ints, check_variable, refuse
from fluidlite.layers.common import append

__all__ = ["continuous_value_model", "similarity_focus"]


def continuous_value_model(input: Variable, cvm: Variable, use_cvm: bool = True) -> Variable:
    """Take the logarithms of the counts of shows and clicks in front of each row, or leave them out.

    Parameters
    ----------
    input : Variable
        float32 or float64, [rows, features]: the first two features are how often a row was shown and clicked.
    cvm : Variable
        [rows, 2]: becomes the gradient of those two.
    use_cvm : bool
        Whether the two stay: as ln(show + 1) and ln(click + 1) - ln(show + 1).

    Returns
    -------
    Variable
        As ``input``, or two features narrower.
    """
    inputs = {"X": check_variable("input", input), "CVM": check_variable("cvm", cvm)}
    return append("cvm", "cvm", inputs, {"use_cvm": bool(use_cvm)}, slot="Y")


def similarity_focus(input: Variable, axis: int, indexes: Sequence[int], name: str | None = None) -> Variable:
    """Return a mask of the places where some planes of ``input`` are greatest.

    Parameters
    ----------
    input : Variable
        float32 or float64, [batch, a, b, c].
    axis : int
        1, 2 or 3: the dim that ``indexes`` count.
    indexes : list of int
        Planes. In each the greatest cell is chosen, then the greatest in rows and columns that have none yet, and so
        on; the mask is 1 at what any plane chooses, all along ``axis``.
    name : str, optional

    Returns
    -------
    Variable
        As ``input``.
    """
    if check_int("axis", axis) not in (1, 2, 3):
        refuse("axis", axis, "1, 2 or 3", error=AttributeValueError)
    attrs = {"axis": axis, "indexes": check_ints("indexes", indexes)}
    inputs = {"X": check_variable("input", input)}
    return append("similarity_focus", "similarity_focus", inputs, attrs, name=name, stop_gradient=True)
