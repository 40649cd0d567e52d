"""Computations: parts of a graph as functions, on any place, with state that they share.

``make_transformer().computation(results, *parameters)``; see docs/computations.md.
"""

from fluidlite.transformers.computation import Computation
from fluidlite.transformers.factory import (
    TransformerFactory,
    make_transformer,
    make_transformer_factory,
    set_transformer_factory,
    transformer_choices,
)
from fluidlite.transformers.transformer import Transformer

__all__ = [
    "Computation", "Transformer", "TransformerFactory", "make_transformer", "make_transformer_factory",
    "set_transformer_factory", "transformer_choices",
]  # fmt: skip
