"""Scatter operators and gather_nd: scatter, scatter_nd_add, gather_nd."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL, ALL_FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.index import entries
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Differentiation, Execution, Inference

NUMBERS = (*ALL_FLOATS, *INTS)

# scatter -----------------------------------------------------------------------------------------------------------


def _with_zero_rows(x: e.Tensor, rows: e.Tensor) -> e.Tensor:
    """Set some rows of a tensor to 0."""
    zeros = e.full((rows.dims[0], *x.dims[1:]), 0, "int32" if x.dtype in INTS else "float32")
    return e.set_at(x, e.cast(zeros, x.dtype), rows)


@operator(
    "scatter",
    Inference(kernel_dtype="X"),
    inputs={"X": "[rows, ...]", "Ids": "integers, [count] or [count, 1]", "Updates": "[count, ...]: the rows"},
    dtypes={"X": NUMBERS, "Ids": INTS},
    source="Fluid scatter_op.cc",
    attrs=(
        Attr(
            "overwrite",
            "bool",
            True,
            doc="rows are replaced, by the last of several; False: they are set to the sum",
        ),
    ),
    doc="Out = X with Out[Ids[i]] = Updates[i], of equal Ids the last; overwrite=False: the sum of those of equal Ids; "
    "an id out of range is an OutOfRangeError",
)
def scatter(x: e.Tensor, ids: e.Tensor, updates: e.Tensor, *, overwrite: bool) -> e.Tensor:
    """Replace rows; or set them to sums."""
    if not x.rank:
        e.fail("X", "rank 1 or more")
    ids = entries(ids)
    update_dims = (ids.dims[0], *x.dims[1:])
    if not e.all_agree(updates.dims, update_dims):
        e.fail("Updates", f"{e.describe_dims(update_dims)}: a row of X for each of Ids")
    e.same_dtype(updates, x)
    e.need(e.lowest(x.dims[0], 1) + 1 > e.lowest(ids.dims[0], 1), "Ids", "no entries, since X has no rows")
    rows, values = e.checked(ids, x.dims[0]), e.reshape(updates, update_dims)
    return e.set_at(x, values, rows) if overwrite else e.add_at(values, rows, 0, x.dims[0], _with_zero_rows(x, rows))


@gradient(
    scatter,
    writes=("X", "Updates"),
    metadata=("Updates",),
    doc="X@GRAD = Out@GRAD, 0 in the rows of Ids; Updates@GRAD[i] = Out@GRAD[Ids[i]], 0 where a later one overwrote "
    "it; takes 4 bytes of temporary memory a row of X, also where only Updates@GRAD is requested",
)
def scatter_grad(ids: e.Tensor, updates: e.Tensor, dout: e.Tensor, *, overwrite: bool) -> tuple[e.Tensor, e.Tensor]:
    """Hand-written: Fluid's gradient does not read X, whose dims are those of Out@GRAD."""
    rows = e.checked(entries(ids), dout.dims[0])
    dupdates = e.take(dout, rows)
    if overwrite:
        last = e.reshape(e.stays(rows, dout.dims[0]), (rows.dims[0], *(1,) * (dout.rank - 1)))
        dupdates = e.where(last, dupdates, 0)
    return _with_zero_rows(dout, rows), dupdates


# gather_nd ---------------------------------------------------------------------------------------------------------


def _index_depth(x: e.Tensor, index: e.Tensor, rank: int, of: str) -> int | None:
    """The number of dims of X that an entry of Index selects; None if it is unknown."""
    if index.rank < rank:
        e.fail("Index", f"[..., depth]{of}")
    last = e.static_value(index.dims[-1])
    if last is not None and last > x.rank:
        e.fail("Index", f"at most {x.rank} as its last dim: an index for each dim of X")
    return next((depth for depth in range(x.rank + 1) if index.dims[-1] == depth), None)


def _flat_index(x: e.Tensor, index: e.Tensor, depth: int) -> tuple[e.Tensor, e.Tensor]:
    """X with its indexed dims flattened to one, and the flat indices."""
    lead, total = index.dims[:-1], e.product(x.dims[:depth])
    flat = e.full(lead, 0, "int64")
    for axis in range(depth):
        column = e.reshape(e.slice_axis(index, -1, axis, 1), lead)
        axis_index = e.cast(e.checked(column, x.dims[axis]), "int64")
        flat = flat * x.dims[axis] + axis_index if axis else axis_index
    return e.reshape(x, (total, *x.dims[depth:])), e.checked(flat, total)


def _gather_nd(x: e.Tensor, index: e.Tensor) -> e.Tensor:
    """Take slices by the flat index of the indexed dims."""
    depth = _index_depth(x, index, 1, "")
    if depth is None:
        e.fail("Index", "a known last dim: the rank of Out depends on it")
    return e.take(*_flat_index(x, index, depth))


operator(
    "gather_nd",
    Differentiation(reads=("Index",), doc="X@GRAD = 0; X@GRAD[Index[i, 0], Index[i, 1], ...] += Out@GRAD[i]"),
    Inference(kernel_dtype="X"),
    Execution(memory="where arrays compute, the place of each row that is read, and a dim of Index: 16 bytes a row"),
    dtypes={"X": ALL, "Index": INTS},
    source="Fluid gather_nd_op.cc",
    doc="Out[i] = X[Index[i, 0], Index[i, 1], ...]; an index out of range is an OutOfRangeError",
)(_gather_nd)


# scatter_nd_add ----------------------------------------------------------------------------------------------------


@operator(
    "scatter_nd_add",
    Inference(kernel_dtype="X"),
    inputs={
        "Index": "integers, [..., depth] of rank 2 or more: an index for each of the first ``depth`` dims of X",
        "Updates": "[..., the other dims of X]; values at equal indices add up",
    },
    dtypes={"X": NUMBERS, "Index": INTS},
    source="Fluid scatter_nd_add_op.cc",
    doc="Out = X; Out[Index[i, 0], Index[i, 1], ...] += Updates[i], in this order; "
    "an index out of range is an OutOfRangeError",
)
def scatter_nd_add(x: e.Tensor, index: e.Tensor, updates: e.Tensor) -> e.Tensor:
    """Add slices at the flat index of the indexed dims."""
    depth = _index_depth(x, index, 2, " of rank 2 or more")
    e.same_dtype(updates, x)
    if depth is None:
        return x  # Out has its dims; the values are computed once the depth is known
    update_dims = (*index.dims[:-1], *x.dims[depth:])
    if not e.all_agree(updates.dims, update_dims):
        e.fail("Updates", f"{e.describe_dims(update_dims)}: a part of X for each entry of Index")
    count, places = e.product(index.dims[:-1]), e.product(x.dims[:depth])
    expected = f"no entries, since X ({e.describe(x)}) has none of what they name"
    e.need(e.lowest(places, 1) + 1 > e.lowest(count, 1), "Index", expected)
    table, rows = _flat_index(x, index, depth)
    return e.reshape(e.add_at(e.reshape(updates, update_dims), rows, 0, places, table), x.dims)


@gradient(
    scatter_nd_add,
    writes=("X", "Updates"),
    metadata=("Updates",),
    doc="X@GRAD = Out@GRAD; Updates@GRAD[i] = Out@GRAD[Index[i, 0], Index[i, 1], ...]",
)
def scatter_nd_add_grad(index: e.Tensor, updates: e.Tensor, dout: e.Tensor) -> tuple[e.Tensor, e.Tensor]:
    """Hand-written: Fluid's gradient does not read X, whose dims are those of Out@GRAD."""
    depth = _index_depth(dout, index, 2, " of rank 2 or more")
    if depth is None:
        return dout, e.full(updates.dims, 0, "float32")  # for their dims
    return dout, e.call("gather_nd", {"X": dout, "Index": index})["Out"]
