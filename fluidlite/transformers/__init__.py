"""Computations: parts of a graph as functions, on any place, with state that they share.

``make_transformer().computation(results, *parameters)``; see docs/computations.md.
"""

from fluidlite.transformers.computation import Computation
from fluidlite.transformers.factory import (
    TransformerFactory,
    codegen_choices,
    make_transformer,
    make_transformer_factory,
    set_transformer_factory,
    transformer_choices,
)
from fluidlite.transformers.memory_plan import MemoryPlan
from fluidlite.transformers.passes import (
    Add,
    CommonSubexpressions,
    DeadCode,
    Divide,
    EliminateCopies,
    FoldConstants,
    FuseElementwise,
    GraphPass,
    Multiply,
    OpType,
    PassList,
    PeepholeGraphPass,
    Power,
    ScheduleUpdates,
    SimplePrune,
    SimplifyArithmetic,
    SimplifyShapes,
    Subtract,
    default_passes,
    visit,
)
from fluidlite.transformers.storage import DeviceBufferStorage, DeviceTensor
from fluidlite.transformers.transformer import Transformer
from fluidlite.transformers.values import Graph, GraphOp, GraphValue

__all__ = [
    "Add", "CommonSubexpressions", "Computation", "DeadCode", "DeviceBufferStorage", "DeviceTensor", "Divide",
    "EliminateCopies", "FoldConstants", "FuseElementwise", "Graph", "GraphOp", "GraphPass", "GraphValue", "MemoryPlan",
    "Multiply", "OpType", "PassList", "PeepholeGraphPass", "Power", "ScheduleUpdates", "SimplePrune",
    "SimplifyArithmetic", "SimplifyShapes", "Subtract", "Transformer", "TransformerFactory", "codegen_choices",
    "default_passes", "make_transformer", "make_transformer_factory", "set_transformer_factory",
    "transformer_choices", "visit",
]  # fmt: skip
