"""Indexing along an axis: index_select, index_sample; and shard_index, which maps indices to a shard."""

from __future__ import annotations

import numpy as np

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import operator
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Differentiation, Execution

NUMBERS = (*ALL_FLOATS, *INTS)
_DTYPES = {"X": NUMBERS, "Index": INTS}


@operator(
    "index_select",
    Differentiation(reads=("Index",), doc="X@GRAD = 0; X@GRAD[..., Index[i], ...] += Out@GRAD[..., i, ...]"),
    dtypes=_DTYPES,
    source="Fluid index_select_op.cc",
    attrs=(Attr("dim", "int", 0, doc="the axis of X that Index counts along; negative ones count from the end"),),
    doc="Out[..., i, ...] = X[..., Index[i], ...] along the axis dim; an index out of range is an OutOfRangeError",
)
def index_select(x: e.Tensor, index: e.Tensor, *, dim: int) -> e.Tensor:
    """Take slices along an axis by index."""
    if not x.rank:
        e.fail("X", "rank 1 or more")
    if index.rank != 1:
        e.fail("Index", "[count]")
    return e.take(x, index, e.axis("dim", dim, x))


@operator(
    "index_sample",
    Differentiation(reads=("Index",), doc="X@GRAD = 0; X@GRAD[i, Index[i, j]] += Out@GRAD[i, j]"),
    Execution(memory="where arrays compute, the place of each element in all of X: 8 bytes an element"),
    dtypes=_DTYPES,
    source="Fluid index_sample_op.cc",
    doc="Out[i, j] = X[i, Index[i, j]]; an index out of range is an OutOfRangeError",
)
def index_sample(x: e.Tensor, index: e.Tensor) -> e.Tensor:
    """Pick elements of each row by index."""
    if x.rank != 2:
        e.fail("X", "[rows, columns]")
    if index.rank != 2 or not e.agree(index.dims[0], x.dims[0]):
        e.fail("Index", f"[{e.describe_dims(x.dims)[0]}, samples]: a row for each of X")
    return e.pick(x, e.reshape(index, (x.dims[0], index.dims[1])), 1)


@operator(
    "shard_index",
    inputs={"X": "integers, [..., 1], from 0 to index_num - 1"},
    dtypes={"X": INTS},
    source="Fluid shard_index_op.cc",
    attrs=(
        Attr("index_num", "int", minimum=1, doc="number of all indices"),
        Attr("nshards", "int", minimum=1, doc="number of shards; each has a block of consecutive indices"),
        Attr("shard_id", "int", minimum=0, doc="the requested shard"),
        Attr("ignore_value", "int", -1, doc="replaces indices of other shards"),
    ),
    doc="Out = X - shard_id * s where that shard has X (s = ceil(index_num / nshards) indices each), else "
    "ignore_value; an index outside 0 <= X < index_num is an OutOfRangeError",
)
def shard_index(x: e.Tensor, *, index_num: int, nshards: int, shard_id: int, ignore_value: int) -> e.Tensor:
    """Subtract the first index of the shard."""
    if x.rank < 2 or not e.agree(x.dims[-1], 1):
        e.fail("X", "[..., 1]")
    if shard_id >= nshards:
        e.fail_attr("shard_id", f"less than nshards, {nshards}")
    limits = np.iinfo(x.dtype)
    if not limits.min <= ignore_value <= limits.max:
        expected = f"a number from {limits.min} to {limits.max}, for it becomes one of {x.dtype}"
        e.fail_attr("ignore_value", expected, "cast the tensor to a wider dtype, or ask for one")
    shard_size = -(-index_num // nshards)
    local_index = e.cast(e.checked(x, index_num), "int64") - shard_size * shard_id
    return e.cast(
        e.where(e.logical_and(local_index >= 0, local_index < shard_size), local_index, ignore_value), x.dtype
    )
