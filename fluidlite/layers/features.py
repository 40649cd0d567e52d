"""Layers for features of advertisements and images: continuous_value_model and similarity_focus."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.layers.declare import layer
from fluidlite.program.variable import Variable


@layer("cvm", called="cvm")
def continuous_value_model(input: Variable, cvm: Variable, use_cvm: bool = True) -> Variable:
    """Take the logarithms of the counts of shows and clicks in front of each row, or leave them out.

    Returns: As ``input``, or two features narrower

    >>> continuous_value_model(data("input", [2, 4]), data("cvm", [2, 2])).shape
    (2, 4)
    """


@layer("similarity_focus", stop_gradient=True)
def similarity_focus(input: Variable, axis: int, indexes: Sequence[int], name: str | None = None) -> Variable:
    """Return a mask of the places where some planes of ``input`` have their maxima.

    input: float32 or float64, [batch, a, b, c]
    Returns: As ``input``

    >>> similarity_focus(data("input", [2, 4, 8, 8]), 1, [0]).shape
    (2, 4, 8, 8)
    """
