"""Sparse rows (Fluid's SelectedRows): the gradient of a lookup by rows, merging equal rows, writing rows in place."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import operator
from fluidlite.operators.inference import Inferred, same_dtype, spec_like
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Aliasing, Differentiation, Inference
from fluidlite.program.registry import register_op

_DENSE = "layers.embedding(is_sparse=False): rows of gradients have no gradients"
_HEIGHT = Attr("height", "int", doc="number of rows of the table")

# lookup_table_rows_grad --------------------------------------------------------------------------------------------


@operator(
    "lookup_table_rows_grad",
    Differentiation(no_gradient={"OutGrad": _DENSE}),
    Inference(kernel_dtype="OutGrad"),
    attrs=(Attr("padding_idx", "int", -1, doc="rows of this id get 0; -1: none"), _HEIGHT),
    outputs=("Rows", "Values"),
    dtypes={"Ids": INTS, "OutGrad": ALL_FLOATS},
    source="Fluid lookup_table_op.h",
    doc="W@GRAD of a lookup by rows: Rows[i] = Ids[i]; Values[i] = OutGrad[i], 0 where Ids[i] is padding_idx",
)
def lookup_table_rows_grad(
    ids: e.Tensor, out_grad: e.Tensor, *, padding_idx: int, height: int
) -> tuple[e.Tensor, e.Tensor]:
    """The forward lookup has checked all ids except the padding id."""
    count = e.product(ids.dims)
    rows = e.cast(e.reshape(ids, (count,)), "int64")
    values = e.reshape(out_grad, (count, out_grad.dims[-1]))
    if padding_idx == -1:
        return rows, values
    padded = rows == padding_idx
    within = e.where(padded, min(max(padding_idx, 0), height - 1), rows)
    return within, e.where(e.reshape(padded, (count, 1)), 0, values)


def _need_rows(values: e.Tensor, numbers: e.Tensor, slot: str) -> None:
    if numbers.rank != 1:
        e.fail(slot, "[count], a number for each row of Values")
    if values.rank != 2:
        e.fail("Values", "[count, width]")
    e.need(
        values.dims[0] == numbers.dims[0], "Values", "[{0}, 'width']: a row for each number", numbers=(numbers.dims[0],)
    )


# sum_rows, dense_rows ----------------------------------------------------------------------------------------------


@operator(
    "sum_rows",
    Differentiation(no_gradient={"Values": _DENSE}),
    Inference(kernel_dtype="Values"),
    inputs=("Values", "Index", Slot("Rows", metadata_only=True, doc="Out has as many rows as this has elements")),
    dtypes={"Values": ALL_FLOATS, "Index": INTS, "Rows": INTS},
    source="Fluid merge_selected_rows_op.cc",
    doc="Out = 0, [rows, width]; Out[Index[i]] += Values[i]",
)
def sum_rows(values: e.Tensor, index: e.Tensor, rows: e.Tensor) -> e.Tensor:
    """Add rows of equal index."""
    _need_rows(values, index, "Index")
    if rows.rank != 1:
        e.fail("Rows", "[rows], different numbers")
    return e.add_at(values, e.checked(index, rows.dims[0]), 0, rows.dims[0])


@operator(
    "dense_rows",
    Differentiation(no_gradient={"Values": _DENSE}),
    Inference(kernel_dtype="Values"),
    attrs=(_HEIGHT,),
    dtypes={"Values": ALL_FLOATS, "Rows": INTS},
    source="Fluid selected_rows_functor.cc",
    doc="Out = 0, [height, width]; Out[Rows[i]] += Values[i]",
)
def dense_rows(rows: e.Tensor, values: e.Tensor, *, height: int) -> e.Tensor:
    """The dense tensor of sparse rows."""
    _need_rows(values, rows, "Rows")
    if height < 1:
        e.fail_attr("height", "1 or more: the number of rows of the table")
    return e.add_at(values, e.checked(rows, height), 0, height)


# row_positions, rows_at --------------------------------------------------------------------------------------------


@operator(
    "row_positions",
    attrs=(_HEIGHT,),
    dtypes={"Rows": INTS},
    source="Fluid selected_rows_functor.cc",
    doc="Out = -1, [height]; Out[Rows[i]] = i, the last of several; a row out of range is an OutOfRangeError",
)
def row_positions(rows: e.Tensor, *, height: int) -> e.Tensor:
    """For each row of the dense tensor, the index of its values."""
    if rows.rank != 1:
        e.fail("Rows", "[count], numbers of rows")
    if height < 1:
        e.fail_attr("height", "1 or more: the number of rows of the table")
    absent = e.full((height,), -1, "int64")
    return e.set_at(absent, e.iota(rows.dims, 0), e.checked(rows, height), 0)


@operator(
    "rows_at",
    Differentiation(no_gradient={"Values": _DENSE}),
    Inference(kernel_dtype="Values"),
    inputs=("Positions", "Values"),
    dtypes={"Values": ALL_FLOATS, "Positions": INTS},
    source="Fluid selected_rows_functor.cc",
    doc="Out[i] = Values[Positions[i]], and 0 where that is -1",
)
def rows_at(positions: e.Tensor, values: e.Tensor) -> e.Tensor:
    """The dense tensor as a gather of unique rows, so that it can be fused with its consumer."""
    if positions.rank != 1:
        e.fail("Positions", "[height]")
    if values.rank != 2:
        e.fail("Values", "[count, width]")
    return e.take(values, positions, 0, "zero")


# set_rows ----------------------------------------------------------------------------------------------------------


def _infer_set_rows(call: Call) -> Inferred:
    x, rows, values = call.spec("X"), call.dims("Rows"), call.dims("Values")
    call.need(x.rank >= 1, "X", "rank 1 or more")
    call.need(len(rows) == 1, "Rows", "rank 1")
    value_dims = (rows[0], *x.dims[1:])
    agree = len(values) == x.rank and all(a == b or -1 in (a, b) for a, b in zip(values, value_dims, strict=True))
    call.need(agree, "Values", f"{list(value_dims)}: a row of X for each of Rows")
    same_dtype(call, "Values", "X")
    return {"Out": spec_like(x)}


register_op(
    "set_rows",
    Differentiation(no_gradient={"X": "scatter has a gradient", "Values": "scatter has a gradient"}),
    Inference(_infer_set_rows),
    Aliasing(must={"Out": "X"}),
    inputs=("X", "Rows", "Values"),
    outputs=("Out",),
    dtypes={"X": ALL_FLOATS, "Rows": ("int64",), "Values": ALL_FLOATS},
    doc="Out is X in place; Out[Rows[i]] = Values[i]. Rows are different; other rows are not touched; a row "
    "out of range is an OutOfRangeError",
    source="Fluid selected_rows_functor.cc",
)
