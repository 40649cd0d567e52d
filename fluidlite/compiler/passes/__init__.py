"""Passes, which rewrite a graph before it is planned; one for each module; see docs/passes.md."""

from fluidlite.base.exports import export as _export
from fluidlite.compiler.passes.arithmetic import SimplifyArithmetic as SimplifyArithmetic
from fluidlite.compiler.passes.base import (
    Add as Add,
    Divide as Divide,
    GraphPass as GraphPass,
    Multiply as Multiply,
    OpType as OpType,
    PeepholeGraphPass as PeepholeGraphPass,
    Power as Power,
    Subtract as Subtract,
    Visitor as Visitor,
    visit as visit,
)
from fluidlite.compiler.passes.constant_folding import FoldConstants as FoldConstants
from fluidlite.compiler.passes.copy_elimination import EliminateCopies as EliminateCopies
from fluidlite.compiler.passes.cse import CommonSubexpressions as CommonSubexpressions
from fluidlite.compiler.passes.dce import DeadCode as DeadCode
from fluidlite.compiler.passes.epilogue import FuseEpilogues as FuseEpilogues
from fluidlite.compiler.passes.fuse import FuseElementwise as FuseElementwise
from fluidlite.compiler.passes.layout import AssignLayouts as AssignLayouts
from fluidlite.compiler.passes.matmul_rewrites import FoldTransposes as FoldTransposes, SplitProducts as SplitProducts
from fluidlite.compiler.passes.pass_list import PassList as PassList, default_passes as default_passes
from fluidlite.compiler.passes.schedule import ScheduleUpdates as ScheduleUpdates
from fluidlite.compiler.passes.simple import SimplePrune as SimplePrune
from fluidlite.compiler.passes.view_simplify import SimplifyShapes as SimplifyShapes

_export(__name__)
