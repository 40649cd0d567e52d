"""sequence_pool and sequence_softmax: reduce each sequence to a row; softmax over each sequence."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.calls import infer
from fluidlite.expr.declare import gradient, operator
from fluidlite.expr.gradients import infer_by_forward
from fluidlite.operators.inference import Inferred, all_dims_compatible
from fluidlite.operators.sequence_rows import like_x, need_lod, need_sequences, per_row, row_per_sequence, rows_of
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Inference
from fluidlite.tensor.tensor_spec import Spec

TYPES = ("AVERAGE", "SUM", "SQRT", "LAST", "FIRST", "MAX")


def _infer_pool(call: Call) -> Inferred:
    """One row for each sequence of the last level; Out has the LoD levels above it."""
    x = need_lod(call, "X")
    specs = {}
    for slot, spec in infer(call).items():
        assert isinstance(spec, Spec)
        specs[slot] = spec.with_(lod=x.lod[:-1], lod_level=x.lod_level - 1)
    return specs


@operator(
    "sequence_pool",
    Inference(_infer_pool),
    inputs={"X": "floating, with LoD"},
    outputs=(
        "Out",
        Slot(
            "MaxIndex",
            intermediate=True,
            content="of MAX, the row of X that each element of Out is "
            "from, int32; -1 of an empty sequence, and of other types",
        ),
    ),
    attrs=(
        Attr("pooltype", "str", "AVERAGE", choices=TYPES, doc="how the rows of a sequence are reduced"),
        Attr("pad_value", "float", 0.0, doc="the result of an empty sequence"),
        Attr("is_test", "bool", False, doc="MaxIndex is computed where it is requested: of no effect"),
    ),
    dtypes={"X": ALL_FLOATS},
    source="Fluid sequence_pool_op.h",
    doc="Out[i] = the average, sum, sum / sqrt(length), last, first or largest of the rows of sequence i",
)
def sequence_pool(x: e.Tensor, *, pooltype: str, pad_value: e.Number) -> tuple[e.Tensor, e.Tensor]:
    """Reduce the sequences of the last LoD level."""
    need_sequences(x, "X")
    starts, count = e.offsets(x), e.offsets(x).dims[0] - 1
    sizes, values = per_row(e.segment_sizes(starts), x), e.wide(x)
    index = e.full((count, *x.dims[1:]), -1, "int32")
    if pooltype in ("FIRST", "LAST"):
        at = e.slice_axis(starts, 0, 0 if pooltype == "FIRST" else 1, count)
        # mode "zero": the index of an empty sequence may be out of range
        out = e.take(values, at if pooltype == "FIRST" else at - 1, 0, "zero")
    elif pooltype == "MAX":
        out = e.segment("max", values, starts)
        rows = rows_of(x)
        top = e.take(out, rows.segment, 0, "clamp")
        is_top = e.logical_or(e.equal(values, top), e.isnan(values))
        row = e.broadcast(per_row(rows.row, x), x.dims)
        first = e.segment("min", e.where(is_top, row, x.dims[0]), starts)
        index = e.cast(e.where(sizes > 0, first, -1), "int32")
    else:
        out = e.segment("sum", values, starts)
        if pooltype != "SUM":
            length = e.cast(e.maximum(sizes, 1), out.dtype)
            out = out / (length if pooltype == "AVERAGE" else e.sqrt(length))
    return e.where(sizes > 0, out, pad_value), index


@gradient(
    sequence_pool,
    Inference(infer_by_forward(row_per_sequence)),
    metadata=("X",),
    doc="X@GRAD = Out@GRAD of the row's sequence, where the row was chosen, or divided as Out was",
)
def sequence_pool_grad(x: e.Tensor, max_index: e.Tensor, dout: e.Tensor, *, pooltype: str) -> e.Tensor:
    """Hand-written: MAX reads MaxIndex, and no type reads X."""
    rows = rows_of(x)
    dout_rows = e.take(e.wide(dout), rows.segment, 0, "clamp")
    if pooltype == "SUM":
        return dout_rows
    if pooltype in ("AVERAGE", "SQRT"):
        length = e.cast(per_row(rows.end - rows.begin, x), dout_rows.dtype)
        return dout_rows / (length if pooltype == "AVERAGE" else e.sqrt(length))
    if pooltype == "MAX":
        chosen = e.equal(e.cast(e.take(max_index, rows.segment, 0, "clamp"), "int64"), per_row(rows.row, x))
    else:
        chosen = per_row(e.equal(rows.row, rows.begin if pooltype == "FIRST" else rows.end - 1), x)
    return e.where(chosen, dout_rows, 0)


@operator(
    "sequence_softmax",
    inputs={"X": "floating, [rows, 1] or [rows], with LoD"},
    dtypes={"X": ALL_FLOATS},
    source="Fluid sequence_softmax_op.h",
    doc="Out = softmax of the numbers of each sequence",
)
def sequence_softmax(x: e.Tensor) -> e.Tensor:
    """Subtract the maximum first, as softmax does."""
    rows = rows_of(x)
    for d in x.dims[1:]:
        e.need(d == 1, "X", "a number a row, as [rows, 1]")
    values = e.wide(x)
    powers = e.exp(values - e.take(e.segment("max", values, rows.starts), rows.segment, 0, "clamp"))
    return powers / e.take(e.segment("sum", powers, rows.starts), rows.segment, 0, "clamp")


def _infer_softmax_grad(call: Call) -> Inferred:
    call.need(all_dims_compatible(call.dims("Out"), call.dims("X")), "Out", f"{list(call.dims('X'))}, the dims of X")
    return infer_by_forward(like_x)(call)


@gradient(
    sequence_softmax,
    Inference(_infer_softmax_grad),
    metadata=("X",),
    doc="X@GRAD = Out (Out@GRAD - the sum of Out Out@GRAD over the sequence)",
)
def sequence_softmax_grad(x: e.Tensor, out: e.Tensor, dout: e.Tensor) -> e.Tensor:
    """Hand-written: the derived gradient reads both X and Out."""
    rows = rows_of(x)
    weighed = e.wide(out) * e.wide(dout)
    return weighed - e.wide(out) * e.take(e.segment("sum", weighed, rows.starts), rows.segment, 0, "clamp")
