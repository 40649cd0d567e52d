"""Computations: parts of a graph as functions, on any place, with shared state.

``make_transformer().computation(results, *parameters)``; see docs/computations.md.
"""

from fluidlite.base.exports import export as _export
from fluidlite.compiler.computation import Computation as Computation
from fluidlite.compiler.factory import (
    TransformerFactory as TransformerFactory,
    codegen_choices as codegen_choices,
    make_transformer as make_transformer,
    make_transformer_factory as make_transformer_factory,
    set_transformer_factory as set_transformer_factory,
    transformer_choices as transformer_choices,
)
from fluidlite.compiler.ir.graph import Graph as Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp as GraphOp, GraphValue as GraphValue
from fluidlite.compiler.memory.memory_plan import MemoryPlan as MemoryPlan
from fluidlite.compiler.memory.storage import DeviceBufferStorage as DeviceBufferStorage, DeviceTensor as DeviceTensor
from fluidlite.compiler.passes import (
    Add as Add,
    CommonSubexpressions as CommonSubexpressions,
    DeadCode as DeadCode,
    Divide as Divide,
    EliminateCopies as EliminateCopies,
    FoldConstants as FoldConstants,
    FuseElementwise as FuseElementwise,
    GraphPass as GraphPass,
    Multiply as Multiply,
    OpType as OpType,
    PassList as PassList,
    PeepholeGraphPass as PeepholeGraphPass,
    Power as Power,
    ScheduleUpdates as ScheduleUpdates,
    SimplePrune as SimplePrune,
    SimplifyArithmetic as SimplifyArithmetic,
    SimplifyShapes as SimplifyShapes,
    Subtract as Subtract,
    default_passes as default_passes,
    visit as visit,
)
from fluidlite.compiler.transformer import Transformer as Transformer

_export(__name__)
