"""sequence_concat, sequence_slice and sequence_scatter: sequences joined, cut, and added into rows."""

from __future__ import annotations

from itertools import accumulate, pairwise

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.expr.gradients import infer_by_forward
from fluidlite.operators.inference import Inferred, agree, all_agree
from fluidlite.operators.ragged import need_each, need_number_a_row, need_one_level
from fluidlite.operators.sequence_rows import (
    Rows,
    as_x,
    count,
    need_lod,
    need_sequences,
    rows_of,
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
        call.need(all_agree(spec.dims[1:], first.dims[1:]), "X", "rows of the same dims in each")
        if spec.dtype != first.dtype:
            call.fail_dtype("X", "of one dtype in each")
        if spec.lod and first.lod and len(spec.lod[0]) != len(first.lod[0]):
            call.fail("X", "as many sequences in each")
    if not all(spec.lod for spec in specs):
        return {"Out": spec_with_lod((-1, *first.dims[1:]), first, (), 1)}
    offsets = tuple(sum(ends) for ends in zip(*(spec.lod[0] for spec in specs), strict=True))
    return {"Out": spec_with_lod((offsets[-1], *first.dims[1:]), first, (offsets,), 1)}


def _places(xs: tuple[e.Tensor, ...]) -> list[e.Tensor]:
    """For each row of each input, the row of Out that it becomes."""
    starts = [e.offsets(x) for x in xs]
    found = []
    for k, x in enumerate(xs):
        rows = rows_of(x)
        before = rows.row
        for other, at in enumerate(starts):
            if other != k:  # inputs in front have ended with this sequence, those behind have not begun it
                before = before + e.take(at, rows.of + (1 if other < k else 0), 0, "clamp")
        found.append(before)
    return found


@operator(
    "sequence_concat",
    Inference(_infer_concat),
    inputs=(Slot("X", duplicable=True, doc="with one level of LoD, and as many sequences in each"),),
    dtypes={"X": (*ALL_FLOATS, *INTS)},
    source="Fluid sequence_concat_op.h",
    doc="Out = sequence i of each X, one behind the other, as sequence i",
)
def sequence_concat(x: tuple[e.Tensor, ...]) -> e.Tensor:
    """Rows are put where they belong."""
    for each in x:
        need_sequences(each, "X")
    whole = e.concat(x, 0)
    row = e.iota((whole.dims[0],), 0)
    return e.take(whole, e.set_at(row, row, e.concat(_places(x), 0)), 0, "clamp")


@gradient(
    sequence_concat,
    metadata=("X",),
    doc="X@GRAD = the rows of Out@GRAD that X became",
)
def sequence_concat_grad(x: tuple[e.Tensor, ...], dout: e.Tensor) -> tuple[tuple[e.Tensor, ...], ...]:
    """Written: rows are taken, none is added."""
    first, *rest = x
    e.need_dims(dout, (sum((each.dims[0] for each in rest), first.dims[0]), *first.dims[1:]), "Out@GRAD", "Out")
    return (tuple(e.take(e.wide(dout), at, 0, "clamp") for at in _places(x)),)


# sequence_slice ----------------------------------------------------------------------------------------------------


def _infer_slice(call: Call) -> Inferred:
    x = need_one_level(call, "X")
    for slot in ("Offset", "Length"):
        need_each(call, slot, count(x), "a number for each sequence of X")
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


def _cut(x: e.Tensor, offset: e.Tensor, length: e.Tensor, rows: e.Numeric) -> e.Tensor:
    """For each row of Out, the row of X that it is."""
    need_sequences(x, "X")
    found = Rows(starts_of(length), rows)
    begins = e.slice_axis(e.offsets(x), 0, 0, offset.dims[0]) + offset
    return e.take(begins, found.of, 0, "clamp") + (found.row - found.begin)


@operator(
    "sequence_slice",
    Differentiation(
        stop_gradient={"Offset": "it only says what is taken", "Length": "it only says what is taken"},
        reads=(),
        doc="X@GRAD = Out@GRAD, 0 of rows that were left out",
    ),
    Inference(_infer_slice),
    inputs=(
        Slot("X", doc="with one level of LoD"),
        *(
            Slot(name, value=True, table=True, doc="[sequences, 1]; what is taken lies within the sequence")
            for name in ("Offset", "Length")
        ),
    ),
    dtypes={"X": (*ALL_FLOATS, *INTS), "Offset": INTS, "Length": INTS},
    source="Fluid sequence_slice_op.h",
    doc="Out = of sequence i of X, Length[i] rows from row Offset[i] on",
)
def sequence_slice(x: e.Tensor, offset: e.Tensor, length: e.Tensor) -> e.Tensor:
    """Offset and Length are the LoD of Out."""
    return e.take(x, _cut(x, offset, length, e.results("Out")[0][0]), 0, "clamp")


# sequence_scatter --------------------------------------------------------------------------------------------------


def _infer_scatter(call: Call) -> Inferred:
    x, ids, updates = call.spec("X"), need_number_a_row(call, "Ids"), need_number_a_row(call, "Updates")
    call.need(x.rank == 2, "X", "[sequences, width]")
    if x.dtype != updates.dtype:
        call.fail_dtype("Updates", f"{x.dtype}, the dtype of X")
    if ids.lod and updates.lod and ids.lod != updates.lod:
        call.fail("Updates", f"the LoD of Ids, {ids.lod}")
    call.need(agree(x.dims[0], count(ids)), "X", f"{count(ids)} rows: Ids has as many sequences")
    return {"Out": Spec.of(x.dims, x.dtype, lod=x.lod, lod_level=x.lod_level)}


def _flat(ids: e.Tensor, width: e.Number) -> e.Tensor:
    rows = rows_of(ids, "Ids")
    return rows.of * width + e.checked(e.cast(e.reshape(ids, (ids.dims[0],)), "int64"), width)


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
    doc="Out = X, and in row i each number of sequence i of Updates added where Ids says",
)
def sequence_scatter(x: e.Tensor, ids: e.Tensor, updates: e.Tensor) -> e.Tensor:
    """An id out of the row is an error."""
    size = x.dims[0] * x.dims[1]
    given = e.reshape(e.wide(updates), (updates.dims[0],))
    return e.reshape(e.add_at(given, _flat(ids, x.dims[1]), 0, size, e.reshape(e.wide(x), (size,))), x.dims)


@gradient(
    sequence_scatter,
    Inference(infer_by_forward(as_x)),
    writes=("X", "Updates"),
    metadata=("X", "Updates"),
    doc="X@GRAD = Out@GRAD; Updates@GRAD = Out@GRAD where Ids says",
)
def sequence_scatter_grad(x: e.Tensor, ids: e.Tensor, updates: e.Tensor, dout: e.Tensor) -> tuple[e.Tensor, e.Tensor]:
    """Written: rows are taken."""
    flat = e.reshape(e.wide(dout), (dout.dims[0] * dout.dims[1],))
    return e.reshape(e.wide(dout), x.dims), e.reshape(e.take(flat, _flat(ids, dout.dims[1]), 0, "clamp"), updates.dims)
