"""View simplification: chains of transposes, and chains of views (reshape, squeeze, unsqueeze, flatten).

Their gradients are rewritten as transposes and reshapes, which do not depend on the forward operator.
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
"""The input and the output slot of each type; a gradient is the inverse transpose."""


class SimplifyShapes(GraphPass):
    """Each transpose or view reads the source of its chain; those without effect are removed."""

    def do_pass(self, graph: Graph) -> None:
        """Process the operators once, in order, so that the source of a chain is known."""
        for op in list(graph.ops):
            if op.type in _TRANSPOSES:
                _transpose(graph, op)
            elif _view_ends(op) is not None:
                _view(graph, op)


def _replace(graph: Graph, old: GraphValue, new: GraphValue) -> None:
    if old.state is None and old.spec == new.spec:
        graph.replace(old, new)


# Transposes


def transpose_ends(op: GraphOp) -> tuple[GraphValue, GraphValue, tuple[int, ...]] | None:
    """The source and the result of a transpose, and its permutation; None for other operators."""
    if op.type not in _TRANSPOSES:
        return None
    in_slot, out_slot = _TRANSPOSES[op.type]
    out = op.output(out_slot)
    axis: tuple[int, ...] = op.attrs["axis"]
    if out is None or sorted(axis) != list(range(len(axis))):
        return None
    inverse = op.type.endswith("_grad")
    return op.inputs[in_slot][0], out, tuple(map(axis.index, range(len(axis)))) if inverse else axis


def _transpose(graph: Graph, op: GraphOp) -> None:
    ends = transpose_ends(op)
    if ends is None:
        return
    source, out, axis = ends
    inner = transpose_ends(source.op) if source.op is not None else None
    if inner is not None and inner[1] is not source:
        inner = None
    if inner is not None:
        source, axis = inner[0], tuple(inner[2][i] for i in axis)
    if axis == tuple(range(len(axis))):
        _replace(graph, out, source)
    elif (inner is not None or op.type.endswith("_grad")) and _is_read(graph, out):
        _replace(graph, out, graph.insert(op, "transpose2", {"X": source}, {"axis": axis}))


# Views


def _view_ends(op: GraphOp) -> tuple[GraphValue, GraphValue] | None:
    """The source and the result of a view that may be simplified; None for other operators."""
    view = op.definition.view
    if view is None or view[0] not in op.outputs or view[1] not in op.inputs:
        return None
    source, out = op.inputs[view[1]][0], op.outputs[view[0]][0]
    if (
        op.type in ("squeeze", "squeeze2")
        and not op.attrs["axes"]
        and (source.spec is None or not source.spec.is_static)
    ):
        return None  # an unknown dim is removed too if it is 1
    if op.definition.unmoved:
        return None  # it refuses an input on another place
    if any(slot.value and op.inputs.get(slot.name) for slot in op.definition.inputs):
        return None  # the dims are numbers of a tensor, which the operator checks
    return (source, out) if out is not None else None


def _view(graph: Graph, op: GraphOp) -> None:
    ends = _view_ends(op)
    if ends is None or ends[1].spec is None:
        return
    source, out = ends
    inner = _view_ends(source.op) if source.op is not None else None
    first = inner[0] if inner is not None and inner[1] is source else source
    if out.spec is None or not is_determined(out.spec):
        return
    if first.spec == out.spec:
        _replace(graph, out, first)
    elif (first is not source or op.type.endswith("_grad")) and _is_read(graph, out) and _can_reshape(first, out.spec):
        _replace(graph, out, graph.insert(op, "reshape2", {"X": first}, {"shape": list(out.spec.dims)}))


def _can_reshape(source: GraphValue, spec: Spec) -> bool:
    """Whether reshape2 can express the dims: a 0 in its shape copies the dim of the source."""
    source_dims = source.spec.dims if source.spec is not None else ()
    return all(n != 0 or source_dims[k : k + 1] == (0,) for k, n in enumerate(spec.dims))


def is_determined(spec: Spec) -> bool:
    """Whether dims follow from the number of elements: at most one is unknown."""
    return spec.is_static or (spec.dims.count(-1) == 1 and 0 not in spec.dims)


def _is_read(graph: Graph, value: GraphValue) -> bool:
    return graph.is_result(value) or bool(graph.readers(value))
