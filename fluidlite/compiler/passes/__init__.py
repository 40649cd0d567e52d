"""Passes: what changes a graph before it runs, one a file; see docs/passes.md."""

from fluidlite.compiler.passes.arithmetic import SimplifyArithmetic
from fluidlite.compiler.passes.base import (
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
from fluidlite.compiler.passes.constant_folding import FoldConstants
from fluidlite.compiler.passes.copy_elimination import EliminateCopies
from fluidlite.compiler.passes.cse import CommonSubexpressions
from fluidlite.compiler.passes.dce import DeadCode
from fluidlite.compiler.passes.epilogue import FuseEpilogues
from fluidlite.compiler.passes.fuse import FuseElementwise
from fluidlite.compiler.passes.layout import AssignLayouts
from fluidlite.compiler.passes.matmul_rewrites import FoldTransposes, SplitProducts
from fluidlite.compiler.passes.pass_list import PassList, default_passes
from fluidlite.compiler.passes.schedule import ScheduleUpdates
from fluidlite.compiler.passes.simple import SimplePrune
from fluidlite.compiler.passes.view_simplify import SimplifyShapes

__all__ = [
    "Add",
    "AssignLayouts",
    "CommonSubexpressions",
    "DeadCode",
    "Divide",
    "EliminateCopies",
    "FoldConstants",
    "FoldTransposes",
    "FuseElementwise",
    "FuseEpilogues",
    "GraphPass",
    "Multiply",
    "OpType",
    "PassList",
    "PeepholeGraphPass",
    "Power",
    "ScheduleUpdates",
    "SimplePrune",
    "SimplifyArithmetic",
    "SimplifyShapes",
    "SplitProducts",
    "Subtract",
    "Visitor",
    "default_passes",
    "visit",
]
