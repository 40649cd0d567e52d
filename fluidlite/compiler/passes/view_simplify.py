"""Transposes of transposes, and views of views: reshape, squeeze, unsqueeze, flatten.

Their gradients are transposes and reshapes too, and are written as such: they then need nothing of the forward one.
"""

from __future__ import annotations

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.tensor.tensor_spec import Spec

_TRANSPOSES = {
    "transpose": ("X", "Out"),
    "transpose2": ("X", "Out"),
    "transpose_grad": ("Out@GRAD", "X@GRAD"),
    "transpose2_grad": ("Out@GRAD", "X@GRAD"),
}
"""The slots that such an operator reads and writes; the gradient is a transpose in the inverse order."""


class SimplifyShapes(GraphPass):
    """Each transpose and view reads what stands before the others; one that changes nothing goes."""

    def do_pass(self, graph: Graph) -> None:
        """Go through the operators once, in order: what a chain begins with is known by then."""
        for op in list(graph.ops):
            if op.type in _TRANSPOSES:
                _transpose(graph, op)
            elif _viewed(op) is not None:
                _view(graph, op)


def _replace(graph: Graph, old: GraphValue, new: GraphValue) -> None:
    if old.state is None and old.spec == new.spec:
        graph.replace(old, new)


# Transposes


def _ends(op: GraphOp) -> tuple[GraphValue, GraphValue, tuple[int, ...]] | None:
    """What a transpose reads and makes, and the dim of the former that each dim of the latter is."""
    if op.type not in _TRANSPOSES:
        return None
    given, made = _TRANSPOSES[op.type]
    out = op.output(made)
    axis: tuple[int, ...] = op.attrs["axis"]
    if out is None or sorted(axis) != list(range(len(axis))):
        return None
    inverse = op.type.endswith("_grad")
    return op.inputs[given][0], out, tuple(map(axis.index, range(len(axis)))) if inverse else axis


def _transpose(graph: Graph, op: GraphOp) -> None:
    ends = _ends(op)
    if ends is None:
        return
    source, out, axis = ends
    inner = _ends(source.op) if source.op is not None else None
    if inner is not None and inner[1] is not source:
        inner = None
    if inner is not None:
        source, axis = inner[0], tuple(inner[2][i] for i in axis)
    if axis == tuple(range(len(axis))):
        _replace(graph, out, source)
    elif (inner is not None or op.type.endswith("_grad")) and _read(graph, out):
        _replace(graph, out, graph.insert(op, "transpose2", {"X": source}, {"axis": axis}))


# Views


def _viewed(op: GraphOp) -> tuple[GraphValue, GraphValue] | None:
    """What a view reads and makes."""
    view = op.definition.view
    if view is None or view[0] not in op.outputs or view[1] not in op.inputs:
        return None
    source, out = op.inputs[view[1]][0], op.outputs[view[0]][0]
    if op.type in ("squeeze", "squeeze2") and not op.attrs["axes"] and (source.spec is None or not source.spec.known):
        return None  # a dim that is not known yet goes too if it is 1
    if op.definition.unmoved:
        return None  # it refuses an input that lies elsewhere
    if any(slot.value and op.inputs.get(slot.name) for slot in op.definition.inputs):
        return None  # numbers of a tensor say the dims; the operator may have to refuse them
    return (source, out) if out is not None else None


def _view(graph: Graph, op: GraphOp) -> None:
    ends = _viewed(op)
    if ends is None or ends[1].spec is None:
        return
    source, out = ends
    inner = _viewed(source.op) if source.op is not None else None
    first = inner[0] if inner is not None and inner[1] is source else source
    if out.spec is None or not says_all(out.spec):
        return
    if first.spec == out.spec:
        _replace(graph, out, first)
    elif (first is not source or op.type.endswith("_grad")) and _read(graph, out) and _can_be_reshaped(first, out.spec):
        _replace(graph, out, graph.insert(op, "reshape2", {"X": first}, {"shape": list(out.spec.dims)}))


def _can_be_reshaped(source: GraphValue, spec: Spec) -> bool:
    """Whether reshape2 can name the dims: 0 in its shape means the source's own dim there."""
    given = source.spec.dims if source.spec is not None else ()
    return all(n != 0 or given[k : k + 1] == (0,) for k, n in enumerate(spec.dims))


def says_all(spec: Spec) -> bool:
    """Whether dims, of which one may be unknown, say all that the number of elements leaves open."""
    return spec.known or (spec.dims.count(-1) == 1 and 0 not in spec.dims)


def _read(graph: Graph, value: GraphValue) -> bool:
    return graph.is_result(value) or bool(graph.readers(value))
