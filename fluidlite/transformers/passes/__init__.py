"""Passes: what changes a graph before it runs, one a file; see docs/passes.md."""

from fluidlite.transformers.passes.arithmetic import SimplifyArithmetic
from fluidlite.transformers.passes.base import (
    Add,
    Divide,
    GraphPass,
    Multiply,
    OpType,
    PeepholeGraphPass,
    Power,
    Subtract,
    Visitor,
    visit,
)
from fluidlite.transformers.passes.common import CommonSubexpressions
from fluidlite.transformers.passes.copies import EliminateCopies
from fluidlite.transformers.passes.epilogue import FuseEpilogues
from fluidlite.transformers.passes.fold import FoldConstants
from fluidlite.transformers.passes.fuse import FuseElementwise
from fluidlite.transformers.passes.layout import AssignLayouts
from fluidlite.transformers.passes.pass_list import PassList, default_passes
from fluidlite.transformers.passes.products import FoldTransposes, SplitProducts
from fluidlite.transformers.passes.prune import DeadCode
from fluidlite.transformers.passes.schedule import ScheduleUpdates
from fluidlite.transformers.passes.shaping import SimplifyShapes
from fluidlite.transformers.passes.simple import SimplePrune

__all__ = [
    "Add", "AssignLayouts", "CommonSubexpressions", "DeadCode", "Divide", "EliminateCopies", "FoldConstants",
    "FoldTransposes", "FuseElementwise", "FuseEpilogues", "GraphPass", "Multiply", "OpType", "PassList",
    "PeepholeGraphPass", "Power", "ScheduleUpdates", "SimplePrune", "SimplifyArithmetic", "SimplifyShapes",
    "SplitProducts", "Subtract", "Visitor", "default_passes", "visit",
]  # fmt: skip
