"""Matmul rewrites: gradients become matmuls of their own, and transposes are folded into matmuls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any

from fluidlite.base.errors import FluidError
from fluidlite.compiler.ir.graph import Graph, unit_of
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.passes.view_simplify import is_determined, transpose_ends
from fluidlite.compiler.selection.kernel_selection import select_kernel
from fluidlite.program.op_call import Call
from fluidlite.program.operator_arguments import check_attrs
from fluidlite.program.registry import ops
from fluidlite.program.source_location import NOWHERE
from fluidlite.tensor.tensor_spec import Dims, Spec

_GRADIENT_TYPES = ("mul_grad", "matmul_grad")
_TRANSPOSE_TYPES = ("transpose", "transpose2")
_kernel_key = attrgetter("place", "how", "library", "capability")


class SplitProducts(GraphPass):
    """The two gradients of a matmul become one matmul each, if the place computes these with the same library.

    A separate matmul can have an epilogue or accumulate; the operands of the other gradient end earlier; and an update
    runs as soon as its own gradient has been computed.
    """

    phase = "simplify"

    def do_pass(self, graph: Graph) -> None:
        for op in list(graph.ops):
            if op.type in _GRADIENT_TYPES and "op_library" not in op.hints:
                _split(graph, op)


class FoldTransposes(GraphPass):
    """A matmul reads the source of a transpose; the transpose of a matmul becomes a matmul of transposed operands.

    The terms are the same; their order in the sum is the library's for these operands.
    """

    phase = "simplify"

    def do_pass(self, graph: Graph) -> None:
        for op in list(graph.ops):
            if op.type in ("matmul", "mul"):
                _fold_operand_transposes(graph, op)
        for op in list(graph.ops):
            if op.type in _TRANSPOSE_TYPES:
                _fold_result_transpose(graph, op)


# Gradients


def _split(graph: Graph, op: GraphOp) -> None:
    """Replace the used gradients by matmuls, inserted before the gradient operator."""
    used = [(slot, value) for slot, (value,) in op.outputs.items() if value is not None]
    if any(value.state is not None for _, value in used):
        return
    x, y, dout = (op.inputs[slot][0] for slot in ("X", "Y", "Out@GRAD"))
    if x.spec is None or y.spec is None or dout.spec is None:
        return
    tx, ty, alpha = False, False, 1.0
    if op.type == "mul_grad":
        columns = op.attrs["x_num_col_dims"], op.attrs["y_num_col_dims"]
        sizes = _matrix_dims(x.spec, columns[0]), _matrix_dims(y.spec, columns[1]), _matrix_dims(dout.spec, columns[0])
        matrices = True
    else:
        tx, ty, alpha = op.attrs["transpose_X"], op.attrs["transpose_Y"], op.attrs["alpha"]
        rank = len(x.spec.dims), len(y.spec.dims)
        matrices = rank == (2, 2) or (rank[1] == 2 and rank[0] > 2 and not tx)
        if not matrices and not (min(rank) > 2 and x.spec.is_static and x.spec.dims[:-2] == y.spec.dims[:-2]):
            return  # vectors, and sums over batches
        sizes = _matrix_dims(x.spec, rank[0] - 1), _matrix_dims(y.spec, 1), _matrix_dims(dout.spec, rank[0] - 1)
    if matrices and any(size is None or 0 in size for size in sizes):  # a 0 of a reshape is a dim of its operand
        return
    batch = () if matrices else x.spec.dims[:-2]
    if not _has_same_kernels(graph, op, batch, [_transpose_flags(slot, tx, ty) for slot, _ in used]):
        return
    for slot, value in used:
        if value.spec is None or not (graph.is_result(value) or graph.readers(value)):
            continue
        operands = [x, y, dout]
        if matrices:
            operands = [_as_matrix(graph, op, v, size) for v, size in zip(operands, sizes, strict=True)]
        left, right = (operands[k] for k in _OPERANDS[slot, tx if slot == "X@GRAD" else ty])
        attrs = {**_transpose_flags(slot, tx, ty), "alpha": alpha}
        product = graph.insert(op, "matmul", {"X": left, "Y": right}, attrs)
        if product.spec is not None and product.spec.dims != value.spec.dims:
            if not is_determined(value.spec):
                continue
            product = graph.insert(op, "reshape2", {"X": product}, {"shape": list(value.spec.dims)})
        _replace_value(value, product)


_OPERANDS = {("X@GRAD", False): (2, 1), ("X@GRAD", True): (1, 2), ("Y@GRAD", False): (0, 2), ("Y@GRAD", True): (2, 0)}
"""By gradient, and whether its operand was transposed: the indices of the factors in (X, Y, Out@GRAD)."""


def _transpose_flags(slot: str, tx: bool, ty: bool) -> dict[str, bool]:
    """Which factors of a gradient are transposed, for a matmul of X and Y, transposed if ``tx`` and ``ty``."""
    if slot == "X@GRAD":
        first, second = (ty, True) if tx else (False, not ty)
    else:
        first, second = (True, tx) if ty else (not tx, False)
    return {"transpose_X": first, "transpose_Y": second}


def _replace_value(value: GraphValue, replacement: GraphValue) -> None:
    """Let the maker of ``replacement`` make ``value`` instead, which keeps its name."""
    if replacement.spec != value.spec or replacement.op is None or value.op is None:
        return
    for op, old, new in ((value.op, value, None), (replacement.op, replacement, value)):
        for values in op.outputs.values():
            values[:] = [new if each is old else each for each in values]
    value.op = replacement.op  # readers are not changed


def _matrix_dims(spec: Spec, columns: int) -> tuple[int, int] | None:
    """The dims of a tensor as a matrix, -1 for one unknown; None if both are unknown."""
    sides = spec.dims[:columns], spec.dims[columns:]
    rows, width = (-1 if -1 in side else prod(side) for side in sides)
    return None if rows == width == -1 else (rows, width)


def _as_matrix(graph: Graph, op: GraphOp, value: GraphValue, dims: tuple[int, int] | None) -> GraphValue:
    assert value.spec is not None and dims is not None
    if value.spec.dims == dims:
        return value
    return graph.insert(op, "reshape2", {"X": value}, {"shape": list(dims)})


def _has_same_kernels(graph: Graph, op: GraphOp, batch: Dims, flags: Sequence[Mapping[str, bool]]) -> bool:
    """Whether the matmuls run on the place and by the library of the gradient operator."""
    place = unit_of(graph, op).place
    specs = {slot: tuple(_sized(v.spec) for v in values if v.spec is not None) for slot, values in op.inputs.items()}
    if any(len(specs[slot]) != len(values) for slot, values in op.inputs.items()):
        return False
    definition = op.definition
    outs = {slot: (specs[slot.removesuffix("@GRAD")]) for slot, (value,) in op.outputs.items() if value is not None}
    try:
        combined = select_kernel(Call(definition, specs, outs, op.attrs), place, graph.policy)
        parts = [select_kernel(_square_matmul(specs["X"][0].dtype, batch, each), place, graph.policy) for each in flags]
    except FluidError:  # it cannot run here: the planner raises the error
        return False
    if combined.how == "decomposed":
        return all(_kernel_key(part) == _kernel_key(other) for part in parts for other in combined.part_choices)
    return all(_kernel_key(part) == _kernel_key(combined) for part in parts)


def _square_matmul(dtype: str, batch: Dims, flags: Mapping[str, bool]) -> Call:
    """A matmul of square matrices, for kernel selection."""
    square, definition = Spec.of((*batch, 7, 7), dtype), ops.get("matmul")
    attrs, _ = check_attrs(definition, flags, NOWHERE)
    return Call(definition, {"X": (square,), "Y": (square,)}, {"Out": (square,)}, attrs)


def _sized(spec: Spec) -> Spec:
    """A spec with 7 for unknown dims; for kernel selection any number serves."""
    return spec.with_(dims=tuple(7 if dim < 0 else dim for dim in spec.dims), lod=())


# Transposes


def _transpose_source(value: GraphValue) -> GraphValue | None:
    """The value whose last two dims ``value`` swaps; None if it is no such transpose."""
    ends = transpose_ends(value.op) if value.op is not None else None
    if ends is None or ends[1] is not value:
        return None
    rank = len(ends[2])
    return ends[0] if rank > 1 and ends[2] == (*range(rank - 2), rank - 1, rank - 2) else None


def _fold_operand_transposes(graph: Graph, op: GraphOp) -> None:
    """Let a matmul read the sources of transposed operands."""
    sources = {slot: _transpose_source(op.inputs[slot][0]) for slot in ("X", "Y")}
    (out,) = op.outputs["Out"]
    if out is None or not any(sources.values()) or out.state is not None:
        return
    specs = [op.inputs[slot][0].spec for slot in ("X", "Y")]
    ranks = [len(spec.dims) if spec is not None else 0 for spec in specs]
    if 0 in ranks or "op_library" in op.hints or (op.type == "mul" and ranks != [2, 2]):
        return
    if sources["X"] is not None and ranks[0] > 2 and ranks[1] == 2:
        return  # the batch is computed as one large matmul of all rows
    attrs, inputs = dict(_matmul_attrs(op)), {}
    for slot, source in sources.items():
        inputs[slot] = op.inputs[slot][0] if source is None else source
        attrs[f"transpose_{slot}"] = attrs[f"transpose_{slot}"] != (source is not None)
    if not _keeps_kernel(graph, op, attrs):
        return
    product = graph.insert(op, "matmul", inputs, attrs)
    _replace_value(out, product)


def _keeps_kernel(graph: Graph, op: GraphOp, attrs: Mapping[str, Any]) -> bool:
    """Whether the same kernel computes a matmul with the transpose flags ``attrs``."""
    spec, place = op.inputs["X"][0].spec, unit_of(graph, op).place
    assert spec is not None
    flags = [{name: each[name] for name in ("transpose_X", "transpose_Y")} for each in (_matmul_attrs(op), attrs)]
    try:
        before, after = (select_kernel(_square_matmul(spec.dtype, (), each), place, graph.policy) for each in flags)
    except FluidError:  # it cannot run here: the planner raises the error
        return False
    return bool(_kernel_key(before) == _kernel_key(after))


def _matmul_attrs(op: GraphOp) -> Mapping[str, Any]:
    return op.attrs if op.type == "matmul" else {"transpose_X": False, "transpose_Y": False, "alpha": 1.0}


def _fold_result_transpose(graph: Graph, op: GraphOp) -> None:
    """Replace the transpose of a matmul by a matmul of transposed operands."""
    (out,) = op.outputs["Out"]
    inner = _transpose_source(out) if out is not None else None
    if inner is None or out is None or out.state is not None or inner.op is None or inner.op.type != "matmul":
        return
    if graph.is_result(inner) or inner.state is not None or graph.readers(inner) != [op]:
        return
    product = inner.op
    x, y = product.inputs["X"][0], product.inputs["Y"][0]
    if x.spec is None or y.spec is None or len(x.spec.dims) != len(y.spec.dims):
        return
    if "op_library" in product.operator.hints:
        return
    attrs = dict(product.attrs)
    attrs["transpose_X"], attrs["transpose_Y"] = not product.attrs["transpose_Y"], not product.attrs["transpose_X"]
    if not _keeps_kernel(graph, product, attrs):
        return
    transposed = graph.insert(product, "matmul", {"X": y, "Y": x}, attrs)
    _replace_value(out, transposed)
