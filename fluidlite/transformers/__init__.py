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
from fluidlite.transformers.passes import (
    Add,
    CommonSubexpressions,
    Divide,
    GraphPass,
    Multiply,
    OpType,
    PeepholeGraphPass,
    Power,
    SimplePrune,
    Subtract,
    visit,
)
from fluidlite.transformers.transformer import Transformer
from fluidlite.transformers.values import Graph, GraphOp, GraphValue

__all__ = [
    "Add", "CommonSubexpressions", "Computation", "Divide", "Graph", "GraphOp", "GraphPass", "GraphValue", "Multiply",
    "OpType", "PeepholeGraphPass", "Power", "SimplePrune", "Subtract", "Transformer", "TransformerFactory",
    "make_transformer", "make_transformer_factory", "set_transformer_factory", "transformer_choices", "visit",
]  # fmt: skip
