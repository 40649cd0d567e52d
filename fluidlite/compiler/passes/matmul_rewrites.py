"""Products of matrices: gradients as products of their own, and transposes that a product can read or write itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any

from fluidlite.base.errors import FluidError
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.passes.view_simplify import says_all
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_selection import choose
from fluidlite.platform.device_registry import devices
from fluidlite.program.op_call import Call
from fluidlite.program.operator_arguments import check_attrs
from fluidlite.program.registry import ops
from fluidlite.program.source_location import NOWHERE
from fluidlite.tensor.tensor_spec import Dims, Spec

GRADIENTS = ("mul_grad", "matmul_grad")
_SWAPS = ("transpose", "transpose2")
_WHO = attrgetter("place", "how", "library", "capability")


class SplitProducts(GraphPass):
    """The gradients of a product become a product each, where the place computes those with the same library.

    A product alone may take over what is done to its result, or add to what is there; it frees what the other
    gradient reads; and an update runs as soon as its own gradient is there.
    """

    phase = "simplify"

    def do_pass(self, graph: Graph) -> None:
        found = [op for op in graph.ops if op.type in GRADIENTS]
        known: dict[Any, bool] = {}
        for op in found:
            if "op_library" not in op.hints:
                _split(graph, op, known)


class FoldTransposes(GraphPass):
    """A product reads a transposed matrix as it was; the transpose of a product is a product of transposes.

    The terms are the same, and added in the order that the library takes for these operands.
    """

    phase = "simplify"

    def do_pass(self, graph: Graph) -> None:
        for op in list(graph.ops):
            if op.type in ("matmul", "mul"):
                _read_untransposed(graph, op)
        for op in list(graph.ops):
            if op.type in _SWAPS:
                _product_of_transposes(graph, op)


# Gradients


def _split(graph: Graph, op: GraphOp, known: dict[Any, bool]) -> None:
    """Replace the gradients that are wanted by products in front of them."""
    wanted = [(slot, value) for slot, (value,) in op.outputs.items() if value is not None]
    if any(value.state is not None for _, value in wanted):
        return
    x, y, dout = (op.inputs[slot][0] for slot in ("X", "Y", "Out@GRAD"))
    if x.spec is None or y.spec is None or dout.spec is None:
        return
    tx, ty, alpha = False, False, 1.0
    if op.type == "mul_grad":
        columns = op.attrs["x_num_col_dims"], op.attrs["y_num_col_dims"]
        sizes = _flat(x.spec, columns[0]), _flat(y.spec, columns[1]), _flat(dout.spec, columns[0])
        matrices = True
    else:
        tx, ty, alpha = op.attrs["transpose_X"], op.attrs["transpose_Y"], op.attrs["alpha"]
        rank = len(x.spec.dims), len(y.spec.dims)
        matrices = rank == (2, 2) or (rank[1] == 2 and rank[0] > 2 and not tx)
        if not matrices and not (min(rank) > 2 and x.spec.known and x.spec.dims[:-2] == y.spec.dims[:-2]):
            return  # vectors, and batches that are summed
        sizes = _flat(x.spec, rank[0] - 1), _flat(y.spec, 1), _flat(dout.spec, rank[0] - 1)
    if matrices and None in sizes:
        return
    batch = () if matrices else x.spec.dims[:-2]
    slots = tuple(slot for slot, _ in wanted)
    key = op.type, x.spec, y.spec, dout.spec, batch, slots, tuple(op.attrs.items()), _device(op)
    if key not in known:
        known[key] = _alike(graph, op, batch, [_flags(slot, tx, ty) for slot in slots])
    if not known[key]:
        return
    for slot, value in wanted:
        if value.spec is None or not (graph.is_result(value) or graph.readers(value)):
            continue
        given = [x, y, dout]
        if matrices:
            given = [_viewed(graph, op, v, size) for v, size in zip(given, sizes, strict=True)]
        left, right = (given[k] for k in _OPERANDS[slot, tx if slot == "X@GRAD" else ty])
        made = graph.insert(op, "matmul", {"X": left, "Y": right}, {**_flags(slot, tx, ty), "alpha": alpha})
        if made.spec is not None and made.spec.dims != value.spec.dims:
            if not says_all(value.spec):
                continue
            made = graph.insert(op, "reshape2", {"X": made}, {"shape": list(value.spec.dims)})
        _take_over(value, made)


_OPERANDS = {("X@GRAD", False): (2, 1), ("X@GRAD", True): (1, 2), ("Y@GRAD", False): (0, 2), ("Y@GRAD", True): (2, 0)}
"""By gradient, and whether that operand was transposed: which of X, Y and Out@GRAD are multiplied."""


def _flags(slot: str, tx: bool, ty: bool) -> dict[str, bool]:
    """Which operands of a gradient enter transposed, of a product of ``op(X)`` and ``op(Y)``."""
    if slot == "X@GRAD":
        first, second = (ty, True) if tx else (False, not ty)
    else:
        first, second = (True, tx) if ty else (not tx, False)
    return {"transpose_X": first, "transpose_Y": second}


def _take_over(value: GraphValue, replacement: GraphValue) -> None:
    """Let what makes one value make another in its place, which keeps its name."""
    if replacement.spec != value.spec or replacement.op is None or value.op is None:
        return
    for op, old, new in ((value.op, value, None), (replacement.op, replacement, value)):
        for values in op.outputs.values():
            values[:] = [new if each is old else each for each in values]
    value.op = replacement.op  # who reads what stays as it was


def _flat(spec: Spec, columns: int) -> tuple[int, int] | None:
    """The dims of a tensor as a matrix; None if both are unknown."""
    sides = spec.dims[:columns], spec.dims[columns:]
    rows, width = (-1 if -1 in side else prod(side) for side in sides)
    return None if rows == width == -1 else (rows, width)


def _viewed(graph: Graph, op: GraphOp, value: GraphValue, dims: tuple[int, int] | None) -> GraphValue:
    assert value.spec is not None and dims is not None
    if value.spec.dims == dims:
        return value
    return graph.insert(op, "reshape2", {"X": value}, {"shape": list(dims)})


def _alike(graph: Graph, op: GraphOp, batch: Dims, flags: Sequence[Mapping[str, bool]]) -> bool:
    """Whether products alone are computed where, and by what, the gradients would be."""
    place = devices.unit(_device(op) or graph.place).place
    specs = {slot: tuple(_some(v.spec) for v in values if v.spec is not None) for slot, values in op.inputs.items()}
    if any(len(specs[slot]) != len(values) for slot, values in op.inputs.items()):
        return False
    definition = op.definition
    outs = {slot: (specs[slot.removesuffix("@GRAD")]) for slot, (value,) in op.outputs.items() if value is not None}
    try:
        whole = choose(Call(definition, specs, outs, op.attrs), place, graph.policy)
        parts = [choose(_square(specs["X"][0].dtype, batch, each), place, graph.policy) for each in flags]
    except FluidError:  # it cannot run here at all, and says so when it is planned
        return False
    if whole.how == "decomposed":
        return all(_same(part, other) for part in parts for other in whole.part_choices)
    return all(_same(part, whole) for part in parts)


def _square(dtype: str, batch: Dims, flags: Mapping[str, bool]) -> Call:
    """A product of square matrices, to ask which kernel computes such."""
    square, definition = Spec.of((*batch, 7, 7), dtype), ops.get("matmul")
    attrs, _ = check_attrs(definition, flags, NOWHERE)
    return Call(definition, {"X": (square,), "Y": (square,)}, {"Out": (square,)}, attrs)


def _device(op: GraphOp) -> str | None:
    return op.hints.get("op_device")


def _same(one: Choice, other: Choice) -> bool:
    return _WHO(one) == _WHO(other)


def _some(spec: Spec) -> Spec:
    """A spec with 7 for dims that are not known: any number serves to ask which kernel takes it."""
    return spec.with_(dims=tuple(7 if dim < 0 else dim for dim in spec.dims), lod=())


# Transposes


def _swapped(value: GraphValue) -> GraphValue | None:
    """What a value is the transpose of, in its last two dims; None if it is none."""
    op = value.op
    if op is None or op.type not in _SWAPS or op.output("Out") is not value:
        return None
    axis = op.attrs["axis"]
    rank = len(axis)
    if rank < 2 or tuple(axis) != (*range(rank - 2), rank - 1, rank - 2):
        return None
    return op.inputs["X"][0]


def _read_untransposed(graph: Graph, op: GraphOp) -> None:
    sources = {slot: _swapped(op.inputs[slot][0]) for slot in ("X", "Y")}
    (out,) = op.outputs["Out"]
    if out is None or not any(sources.values()) or out.state is not None:
        return
    specs = [op.inputs[slot][0].spec for slot in ("X", "Y")]
    ranks = [len(spec.dims) if spec is not None else 0 for spec in specs]
    if 0 in ranks or "op_library" in op.hints or (op.type == "mul" and ranks != [2, 2]):
        return
    if sources["X"] is not None and ranks[0] > 2 and ranks[1] == 2:
        return  # a batch whose matrices are read one after the other joins its rows: one large product
    attrs, given = dict(_plain(op)), {}
    for slot, source in sources.items():
        given[slot] = op.inputs[slot][0] if source is None else source
        attrs[f"transpose_{slot}"] = attrs[f"transpose_{slot}"] != (source is not None)
    if not _read_alike(graph, op, attrs):
        return
    made = graph.insert(op, "matmul", given, attrs)
    _take_over(out, made)


def _read_alike(graph: Graph, op: GraphOp, attrs: Mapping[str, Any]) -> bool:
    """Whether the kernel that computes a product takes its operands transposed, too."""
    spec, place = op.inputs["X"][0].spec, devices.unit(_device(op) or graph.place).place
    assert spec is not None
    flags = [{name: each[name] for name in ("transpose_X", "transpose_Y")} for each in (_plain(op), attrs)]
    try:
        before, after = (choose(_square(spec.dtype, (), each), place, graph.policy) for each in flags)
    except FluidError:  # it cannot run here at all, and says so when it is planned
        return False
    return _same(before, after)


def _plain(op: GraphOp) -> Mapping[str, Any]:
    return op.attrs if op.type == "matmul" else {"transpose_X": False, "transpose_Y": False, "alpha": 1.0}


def _product_of_transposes(graph: Graph, op: GraphOp) -> None:
    (out,) = op.outputs["Out"]
    inner = _swapped(out) if out is not None else None
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
    if not _read_alike(graph, product, attrs):
        return
    made = graph.insert(product, "matmul", {"X": y, "Y": x}, attrs)
    _take_over(out, made)
