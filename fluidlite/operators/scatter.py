"""Writing at indices: scatter, scatter_nd_add, and gather_nd, which reads where they write."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL, ALL_FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.index import entries
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Differentiation, Execution, Inference

NUMBERS = (*ALL_FLOATS, *INTS)

# scatter -----------------------------------------------------------------------------------------------------------


def _without(x: e.Tensor, rows: e.Tensor) -> e.Tensor:
    """A tensor with 0 in some rows."""
    none = e.full((rows.dims[0], *x.dims[1:]), 0, "int32" if x.dtype in INTS else "float32")
    return e.set_at(x, e.cast(none, x.dtype), rows)


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
            doc="rows are replaced, of several the last counts; False: they are set to the sum",
        ),
    ),
    doc="Out = X with Out[Ids[i]] = Updates[i], of equal Ids the last; overwrite=False: the sum of those of equal Ids; "
    "an id out of range is an OutOfRangeError",
)
def scatter(x: e.Tensor, ids: e.Tensor, updates: e.Tensor, *, overwrite: bool) -> e.Tensor:
    """Rows replaced."""
    if not x.rank:
        e.fail("X", "rank 1 or more")
    ids = entries(ids)
    wanted = (ids.dims[0], *x.dims[1:])
    if not e.all_agree(updates.dims, wanted):
        e.fail("Updates", f"{e.shown_dims(wanted)}: a row of X for each of Ids")
    e.same_dtype(updates, x)
    e.need(e.lowest(x.dims[0], 1) + 1 > e.lowest(ids.dims[0], 1), "Ids", "no entries, since X has no rows")
    rows, given = e.checked(ids, x.dims[0]), e.reshape(updates, wanted)
    return e.set_at(x, given, rows) if overwrite else e.add_at(given, rows, 0, x.dims[0], _without(x, rows))


@gradient(
    scatter,
    writes=("X", "Updates"),
    metadata=("Updates",),
    doc="X@GRAD = Out@GRAD, 0 in the rows of Ids; Updates@GRAD[i] = Out@GRAD[Ids[i]], 0 where a later one overwrote "
    "it; takes 4 bytes of temporary memory a row of X, also where only Updates@GRAD is wanted",
)
def scatter_grad(ids: e.Tensor, updates: e.Tensor, dout: e.Tensor, *, overwrite: bool) -> tuple[e.Tensor, e.Tensor]:
    """Written: Fluid's does not read X, whose dims are those of Out@GRAD."""
    rows = e.checked(entries(ids), dout.dims[0])
    dupdates = e.take(dout, rows)
    if overwrite:
        last = e.reshape(e.stays(rows, dout.dims[0]), (rows.dims[0], *(1,) * (dout.rank - 1)))
        dupdates = e.where(last, dupdates, 0)
    return _without(dout, rows), dupdates


# gather_nd ---------------------------------------------------------------------------------------------------------


def _depth(x: e.Tensor, index: e.Tensor, rank: int, of: str) -> int | None:
    """How many dims of X an entry of Index names; None if that is not known yet."""
    if index.rank < rank:
        e.fail("Index", f"[..., depth]{of}")
    last = e.known(index.dims[-1])
    if last is not None and last > x.rank:
        e.fail("Index", f"at most {x.rank} as its last dim: an index for each dim of X")
    return next((depth for depth in range(x.rank + 1) if index.dims[-1] == depth), None)


def _parts(x: e.Tensor, index: e.Tensor, depth: int) -> tuple[e.Tensor, e.Tensor]:
    """X with the dims that Index names as one, and the entries of Index along that."""
    lead, total = index.dims[:-1], e.product(x.dims[:depth])
    flat = e.full(lead, 0, "int64")
    for axis in range(depth):
        column = e.reshape(e.slice_axis(index, -1, axis, 1), lead)
        one = e.cast(e.checked(column, x.dims[axis]), "int64")
        flat = flat * x.dims[axis] + one if axis else one
    return e.reshape(x, (total, *x.dims[depth:])), e.checked(flat, total)


def _read(x: e.Tensor, index: e.Tensor) -> e.Tensor:
    """Parts by the flat index of the dims that are named."""
    depth = _depth(x, index, 1, "")
    if depth is None:
        e.fail("Index", "a known last dim: the rank of Out depends on it")
    return e.take(*_parts(x, index, depth))


operator(
    "gather_nd",
    Differentiation(reads=("Index",), doc="X@GRAD = 0; X@GRAD[Index[i, 0], Index[i, 1], ...] += Out@GRAD[i]"),
    Inference(kernel_dtype="X"),
    Execution(memory="where arrays compute, the place of each row that is read, and a dim of Index: 16 bytes a row"),
    dtypes={"X": ALL, "Index": INTS},
    source="Fluid gather_nd_op.cc",
    doc="Out[i] = X[Index[i, 0], Index[i, 1], ...]; an index out of range is an OutOfRangeError",
)(_read)


# scatter_nd_add ----------------------------------------------------------------------------------------------------


@operator(
    "scatter_nd_add",
    Inference(kernel_dtype="X"),
    inputs={
        "Index": "integers, [..., depth] of rank 2 or more: an index for each of the first ``depth`` dims of X",
        "Updates": "[..., the other dims of ref]; what meets at one place adds up",
    },
    dtypes={"X": NUMBERS, "Index": INTS},
    source="Fluid scatter_nd_add_op.cc",
    doc="Out = X; Out[Index[i, 0], Index[i, 1], ...] += Updates[i], in this order; "
    "an index out of range is an OutOfRangeError",
)
def scatter_nd_add(x: e.Tensor, index: e.Tensor, updates: e.Tensor) -> e.Tensor:
    """Parts added at the flat index of the dims that are named."""
    depth = _depth(x, index, 2, " of rank 2 or more")
    e.same_dtype(updates, x)
    if depth is None:
        return x  # whose dims Out has, whatever Index names; it is computed once that is known
    wanted = (*index.dims[:-1], *x.dims[depth:])
    if not e.all_agree(updates.dims, wanted):
        e.fail("Updates", f"{e.shown_dims(wanted)}: a part of X for each entry of Index")
    count, places = e.product(index.dims[:-1]), e.product(x.dims[:depth])
    none = f"no entries, since X ({e.shown(x)}) has none of what they name"
    e.need(e.lowest(places, 1) + 1 > e.lowest(count, 1), "Index", none)
    table, rows = _parts(x, index, depth)
    return e.reshape(e.add_at(e.reshape(updates, wanted), rows, 0, places, table), x.dims)


@gradient(
    scatter_nd_add,
    writes=("X", "Updates"),
    metadata=("Updates",),
    doc="X@GRAD = Out@GRAD; Updates@GRAD[i] = Out@GRAD[Index[i, 0], Index[i, 1], ...]",
)
def scatter_nd_add_grad(index: e.Tensor, updates: e.Tensor, dout: e.Tensor) -> tuple[e.Tensor, e.Tensor]:
    """Written: Fluid's does not read X, whose dims are those of Out@GRAD."""
    depth = _depth(dout, index, 2, " of rank 2 or more")
    if depth is None:
        return dout, e.full(updates.dims, 0, "float32")  # for their dims
    return dout, e.call("gather_nd", {"X": dout, "Index": index})["Out"]
