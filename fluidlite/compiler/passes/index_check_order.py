"""Which operators may be the first to find an index out of range: what is written after them stays behind them."""

from __future__ import annotations

from collections import defaultdict

from fluidlite.base.errors import FluidError
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, declared
from fluidlite.program import codegen_registry as generators
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD

_GRADIENT = "_grad"


def index_checks(graph: Graph) -> set[int]:
    """By identity: the operators whose kernels look at indices that no operator before has looked at.

    A gradient reads the indices of its operator, which found them in range, if that one is still there.
    """
    found: set[int] = set()
    looked: dict[str, list[set[tuple[str, int]]]] = defaultdict(list)
    for op in graph.ops:
        if not _looks(op):
            continue
        reads = {(slot, id(value)) for slot, values in op.inputs.items() if not slot.endswith(GRAD) for value in values}
        if not any(reads <= other for other in looked[op.type.removesuffix(_GRADIENT)]):
            found.add(id(op))
        makes = {(slot, id(value)) for slot, values in op.outputs.items() for value in values}
        looked[op.type].append(reads | makes)
    return found


def _looks(op: GraphOp) -> bool:
    """Whether a kernel of an operator, or the one that is generated for its expression, checks indices."""
    if any(kernel.indexes for kernel in kernels.of(op.type)):
        return True
    definition = op.definition
    if definition.expression is None:
        return False
    ins = declared(op.inputs)
    if op.looks is None or op.looks[:2] != (ins, op.attrs):
        try:
            looks = generators.checks_indices(Call(definition, ins, {}, op.attrs))
        except FluidError:  # it cannot run, and says so when it is planned
            looks = False
        op.looks = ins, dict(op.attrs), looks
    return op.looks[2]
