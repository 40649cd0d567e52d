"""Row indexing: gather, lookup_table and lookup_table_v2, one_hot and one_hot_v2."""

from __future__ import annotations

import numpy as np

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL, ALL_FLOATS, INTS
from fluidlite.expr.declare import operator
from fluidlite.program.opdef import Attr, as_tensor
from fluidlite.program.operator_options import Differentiation, Inference

# gather ------------------------------------------------------------------------------------------------------------


def entries(index: e.Tensor) -> e.Tensor:
    """Flatten an index of [rows] or [rows, 1] to [rows]."""
    if index.rank != 1 and not (index.rank == 2 and e.agree(index.dims[1], 1)):
        e.fail(e.slot(index), "[rows] or [rows, 1]")
    return e.reshape(index, index.dims[:1])


@operator(
    "gather",
    Differentiation(
        reads=("Index",), doc="X@GRAD = 0; X@GRAD[Index[i]] += Out@GRAD[i]; half types add up in a float32 copy"
    ),
    inputs={
        "X": "[rows, ...]",
        "Index": "integers, [count] or [count, 1]; one out of range is an OutOfRangeError at run time",
    },
    dtypes={"X": ALL, "Index": INTS},
    source="Fluid gather_op.cc",
    attrs=(
        Attr(
            "overwrite",
            "bool",
            True,
            doc="accepted for Fluid programs: gradients of a row that is gathered twice always add up",
        ),
    ),
    doc="Out[i] = X[Index[i]]; an index outside 0 <= i < rows is an OutOfRangeError",
)
def gather(x: e.Tensor, index: e.Tensor) -> e.Tensor:
    """Take rows by index."""
    if not x.rank:
        e.fail("X", "rank 1 or more")
    return e.take(x, entries(index))


# lookup_table ------------------------------------------------------------------------------------------------------

_TABLE_ATTRS = (
    Attr("padding_idx", "int", -1, doc="rows of this id are zeros and get no gradient; -1: none"),
    Attr("is_sparse", "bool", False, doc="optimisers get the gradient of W by rows"),
    Attr("is_distributed", "bool", False, doc="accepted for Fluid programs; of no effect"),
    Attr("remote_prefetch", "bool", False, doc="accepted for Fluid programs; of no effect"),
)
NO_PADDING = -1
"""The padding_idx of tables without a padding id."""


def _lookup_rows(w: e.Tensor, ids: e.Tensor, padding: int) -> e.Tensor:
    """Rows of W; an id that equals the padding id is not checked."""
    if not ids.rank:
        e.fail("Ids", "rank 1 or more")
    limits = np.iinfo(ids.dtype)
    if padding == NO_PADDING or not limits.min <= padding <= limits.max:
        return e.take(w, ids)
    padded = ids == padding
    rows = e.checked(e.where(padded, 0, ids), w.dims[0])
    return e.take(w, e.where(padded, -1, rows), mode="zero")


def _lookup(type: str, column: bool) -> None:
    def lookup(w: e.Tensor, ids: e.Tensor, *, padding_idx: int) -> e.Tensor:
        if w.rank != 2:
            e.fail("W", "[vocabulary, width]")
        if not column:
            return _lookup_rows(w, ids, padding_idx)
        if ids.rank < 2 or not e.agree(ids.dims[-1], 1):
            e.fail("Ids", "[..., 1]", "reshape the ids, or feed them as [rows, 1]")
        return _lookup_rows(w, e.reshape(ids, ids.dims[:-1]), padding_idx)

    operator(
        type,
        Differentiation(
            reads=("Ids",),
            doc="W@GRAD = 0; W@GRAD[Ids[i]] += Out@GRAD[i] where Ids[i] is not padding_idx",
            memory="where arrays compute, Out@GRAD in the order of Ids, up to twice; half types add up in a float32 "
            "copy",
        ),
        Inference(kernel_dtype="W"),
        attrs=_TABLE_ATTRS,
        dtypes={"W": ALL_FLOATS, "Ids": INTS},
        source=f"Fluid {type}_op.cc",
        doc=f"Out[...] = W[Ids[...]]{'' if column else ', Ids being [...] and not [..., 1]'}; "
        "an id outside 0 <= id < vocabulary is an OutOfRangeError",
    )(lookup)


_lookup("lookup_table", True)
_lookup("lookup_table_v2", False)

# one_hot -----------------------------------------------------------------------------------------------------------


def _one_hot(type: str, column: bool) -> None:
    def one_hot(x: e.Tensor, *, depth: e.Numeric, dtype: str, allow_out_of_range: bool) -> e.Tensor:
        if column and (x.rank < 2 or not e.agree(x.dims[-1], 1)):
            e.fail("X", "[..., 1]")
        if not x.rank:
            e.fail("X", "rank 1 or more")
        index, count = e.reshape(x, x.dims[:-1]) if column else x, e.number(depth)
        e.need_attr(count >= 1, "depth", "1 or more: the number of classes")
        index = e.unsqueeze(index if allow_out_of_range else e.checked(index, count), index.rank)
        return e.cast(e.put(e.full(index.dims, 1, dtype if dtype in _PUT_DTYPES else "int32"), index, -1, count), dtype)

    operator(
        type,
        Inference(kernel_dtype="X"),
        attrs=(
            Attr("depth", "int", -1, doc="number of classes", tensors=(as_tensor("depth_tensor"),)),
            Attr("dtype", "dtype", "float32", doc="dtype of Out"),
            Attr("allow_out_of_range", "bool", False, doc="a class out of range gives zeros instead of an error"),
        ),
        dtypes={"X": INTS},
        source=f"Fluid {type}_op.cc",
        doc=f"Out[..., j] = (X[...{', 0' if column else ''}] == j); a class outside 0 <= j < depth is an "
        "OutOfRangeError",
    )(one_hot)


_PUT_DTYPES = ("int32", "int64", "float32", "float64")
"""Dtypes of ``e.put``; other dtypes are put as int32 and cast."""

_one_hot("one_hot", True)
_one_hot("one_hot_v2", False)
