"""sequence_concat, sequence_slice and sequence_scatter: concatenate, slice and scatter-add sequences."""

from __future__ import annotations

from itertools import accumulate, pairwise

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.expr.gradients import infer_by_forward
from fluidlite.operators.inference import Inferred, all_dims_compatible, dims_compatible
from fluidlite.operators.ragged import need_each, need_one_level, need_scalar_rows
from fluidlite.operators.sequence_rows import (
    SegmentRows,
    like_x,
    need_lod,
    need_sequences,
    rows_of,
    sequence_count,
    spec_with_lod,
    starts_of,
)
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Slot
from fluidlite.program.operator_options import Differentiation, Inference
from fluidlite.tensor.tensor_spec import Spec

# sequence_concat ---------------------------------------------------------------------------------------------------


def _infer_concat(call: Call) -> Inferred:
    specs = [need_lod(call, "X", i) for i in range(call.count("X"))]
    first = specs[0]
    for spec in specs:
        call.need(spec.lod_level == 1, "X", "one level of LoD in each")
        call.need(all_dims_compatible(spec.dims[1:], first.dims[1:]), "X", "rows of the same dims in each")
        if spec.dtype != first.dtype:
            call.fail_dtype("X", "of one dtype in each")
        if spec.lod and first.lod and len(spec.lod[0]) != len(first.lod[0]):
            call.fail("X", "as many sequences in each")
    if not all(spec.lod for spec in specs):
        return {"Out": spec_with_lod((-1, *first.dims[1:]), first, (), 1)}
    offsets = tuple(sum(ends) for ends in zip(*(spec.lod[0] for spec in specs), strict=True))
    return {"Out": spec_with_lod((offsets[-1], *first.dims[1:]), first, (offsets,), 1)}


def _output_rows(xs: tuple[e.Tensor, ...]) -> list[e.Tensor]:
    """For each row of each input, the row of Out that it becomes."""
    starts = [e.offsets(x) for x in xs]
    positions = []
    for k, x in enumerate(xs):
        rows = rows_of(x)
        target_rows = rows.row
        for other, other_starts in enumerate(starts):
            if other != k:  # earlier inputs include this sequence, later ones do not
                target_rows = target_rows + e.take(other_starts, rows.segment + (1 if other < k else 0), 0, "clamp")
        positions.append(target_rows)
    return positions


@operator(
    "sequence_concat",
    Inference(_infer_concat),
    inputs=(Slot("X", duplicable=True, doc="with one level of LoD, and as many sequences in each"),),
    dtypes={"X": (*ALL_FLOATS, *INTS)},
    source="Fluid sequence_concat_op.h",
    doc="Out = sequence i of each X, one behind the other, as sequence i",
)
def sequence_concat(x: tuple[e.Tensor, ...]) -> e.Tensor:
    """Gather rows by the inverse of their output positions."""
    for operand in x:
        need_sequences(operand, "X")
    joined = e.concat(x, 0)
    row = e.iota((joined.dims[0],), 0)
    return e.take(joined, e.set_at(row, row, e.concat(_output_rows(x), 0)), 0, "clamp")


@gradient(
    sequence_concat,
    metadata=("X",),
    doc="X@GRAD = the rows of Out@GRAD that X became",
)
def sequence_concat_grad(x: tuple[e.Tensor, ...], dout: e.Tensor) -> tuple[tuple[e.Tensor, ...], ...]:
    """Hand-written: it gathers rows instead of adding them."""
    first, *rest = x
    e.need_dims(dout, (sum((operand.dims[0] for operand in rest), first.dims[0]), *first.dims[1:]), "Out@GRAD", "Out")
    return (tuple(e.take(e.wide(dout), at, 0, "clamp") for at in _output_rows(x)),)


# sequence_slice ----------------------------------------------------------------------------------------------------


def _infer_slice(call: Call) -> Inferred:
    x = need_one_level(call, "X")
    for slot in ("Offset", "Length"):
        need_each(call, slot, sequence_count(x), "a number for each sequence of X")
    begins, lengths = call.value("Offset"), call.value("Length")
    if begins is None or lengths is None or not x.lod:
        return {"Out": spec_with_lod((-1, *x.dims[1:]), x, (), 1)}
    sizes = [b - a for a, b in pairwise(x.lod[0])]
    for begin, length, size in zip(begins, lengths, sizes, strict=True):
        if begin < 0 or begin > size:
            call.fail("Offset", f"numbers from 0 to the lengths of the sequences, {sizes}", got=list(begins))
        if length < 0 or begin + length > size:
            call.fail("Length", f"numbers that end within the sequences, {sizes}", got=list(lengths))
    offsets = (0, *accumulate(map(int, lengths)))
    return {"Out": spec_with_lod((offsets[-1], *x.dims[1:]), x, (offsets,), 1)}


def _source_rows(x: e.Tensor, offset: e.Tensor, length: e.Tensor, rows: e.Numeric) -> e.Tensor:
    """For each row of Out, the row of X that it copies."""
    need_sequences(x, "X")
    segments = SegmentRows(starts_of(length), rows)
    begins = e.slice_axis(e.offsets(x), 0, 0, offset.dims[0]) + offset
    return e.take(begins, segments.segment, 0, "clamp") + (segments.row - segments.begin)


@operator(
    "sequence_slice",
    Differentiation(
        stop_gradient={"Offset": "it only selects rows", "Length": "it only selects rows"},
        reads=(),
        doc="X@GRAD = Out@GRAD, 0 in rows outside the slices",
    ),
    Inference(_infer_slice),
    inputs=(
        Slot("X", doc="with one level of LoD"),
        *(
            Slot(name, value=True, table=True, doc="[sequences, 1]; the slice is within the sequence")
            for name in ("Offset", "Length")
        ),
    ),
    dtypes={"X": (*ALL_FLOATS, *INTS), "Offset": INTS, "Length": INTS},
    source="Fluid sequence_slice_op.h",
    doc="Out = of sequence i of X, Length[i] rows from row Offset[i] on",
)
def sequence_slice(x: e.Tensor, offset: e.Tensor, length: e.Tensor) -> e.Tensor:
    """Gather rows by Offset and Length, whose values also give the LoD of Out."""
    return e.take(x, _source_rows(x, offset, length, e.results("Out")[0][0]), 0, "clamp")


# sequence_scatter --------------------------------------------------------------------------------------------------


def _infer_scatter(call: Call) -> Inferred:
    x, ids, updates = call.spec("X"), need_scalar_rows(call, "Ids"), need_scalar_rows(call, "Updates")
    call.need(x.rank == 2, "X", "[sequences, width]")
    if x.dtype != updates.dtype:
        call.fail_dtype("Updates", f"{x.dtype}, the dtype of X")
    if ids.lod and updates.lod and ids.lod != updates.lod:
        call.fail("Updates", f"the LoD of Ids, {ids.lod}")
    call.need(
        dims_compatible(x.dims[0], sequence_count(ids)), "X", f"{sequence_count(ids)} rows: Ids has as many sequences"
    )
    return {"Out": Spec.of(x.dims, x.dtype, lod=x.lod, lod_level=x.lod_level)}


def _flat(ids: e.Tensor, width: e.Number) -> e.Tensor:
    rows = rows_of(ids, "Ids")
    return rows.segment * width + e.checked(e.cast(e.reshape(ids, (ids.dims[0],)), "int64"), width)


@operator(
    "sequence_scatter",
    Inference(_infer_scatter),
    inputs=(
        Slot("X", doc="[sequences, width]"),
        Slot("Ids", doc="int32 or int64, [rows, 1], with one level of LoD; one out of range is an OutOfRangeError"),
        Slot("Updates", doc="as X in dtype, with the LoD of Ids"),
    ),
    dtypes={"X": (*ALL_FLOATS, *INTS), "Ids": INTS},
    source="Fluid sequence_scatter_op.h",
    doc="Out = X; the numbers of sequence i of Updates are added to row i at Ids",
)
def sequence_scatter(x: e.Tensor, ids: e.Tensor, updates: e.Tensor) -> e.Tensor:
    """An id out of the row is an error."""
    size = x.dims[0] * x.dims[1]
    values = e.reshape(e.wide(updates), (updates.dims[0],))
    return e.reshape(e.add_at(values, _flat(ids, x.dims[1]), 0, size, e.reshape(e.wide(x), (size,))), x.dims)


@gradient(
    sequence_scatter,
    Inference(infer_by_forward(like_x)),
    writes=("X", "Updates"),
    metadata=("X", "Updates"),
    doc="X@GRAD = Out@GRAD; Updates@GRAD = Out@GRAD at Ids",
)
def sequence_scatter_grad(x: e.Tensor, ids: e.Tensor, updates: e.Tensor, dout: e.Tensor) -> tuple[e.Tensor, e.Tensor]:
    """Hand-written: it gathers rows."""
    flat = e.reshape(e.wide(dout), (dout.dims[0] * dout.dims[1],))
    return e.reshape(e.wide(dout), x.dims), e.reshape(e.take(flat, _flat(ids, dout.dims[1]), 0, "clamp"), updates.dims)
