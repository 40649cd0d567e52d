"""sequence_expand, sequence_expand_as and sequence_reverse: repeat and reverse sequences."""

from __future__ import annotations

from itertools import pairwise

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.expr.gradients import infer_by_forward
from fluidlite.operators.inference import Inferred, dims_compatible
from fluidlite.operators.ragged import need_one_level
from fluidlite.operators.sequence_rows import like_x, need_lod, rows_of, sequence_count, spec_with_lod
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Inference

_Y = Slot("Y", metadata_only=True, doc="its LoD alone counts")

# sequence_expand ---------------------------------------------------------------------------------------------------


def _ref(call: Call) -> int:
    level, levels = call.attr("ref_level"), call.spec("Y").lod_level
    if not -1 <= level < levels:
        call.fail_attr("ref_level", f"-1, or a level of the LoD of Y, which has {levels}")
    return int(level % levels)


def _infer_expand(call: Call) -> Inferred:
    x, y = call.spec("X"), need_lod(call, "Y")
    level = _ref(call)
    call.need(x.lod_level <= 1, "X", "at most one level of LoD")
    call.need(x.rank >= 1, "X", "rows of one dim or more")
    count = sequence_count(x) if x.lod_level else x.dims[0]
    if not y.lod or count < 0:
        return {"Out": spec_with_lod((-1, *x.dims[1:]), x, (), x.lod_level)}
    repeats = [b - a for a, b in pairwise(y.lod[level])]
    if len(repeats) != count:  # checked before rows are counted, since a wrong count may be huge
        call.fail("X", f"{len(repeats)} sequences (rows, if X has no LoD): level {level} of the LoD of Y has as many")
    lengths = [b - a for a, b in pairwise(x.lod[0])] if x.lod_level else [1] * count
    offsets = [0]
    for length, times in zip(lengths, repeats, strict=True):
        offsets += [offsets[-1] + length * (k + 1) for k in range(times)]
    return {"Out": spec_with_lod((offsets[-1], *x.dims[1:]), x, (tuple(offsets),) if x.lod_level else (), x.lod_level)}


def _source_rows(x: e.Tensor, y: e.Tensor, ref_level: int, rows: e.Numeric) -> e.Tensor:
    """For each row of Out, the row of X that it repeats."""
    times = e.segment_sizes(e.offsets(y, ref_level))
    begins = e.offsets(x) if e.lod_level(x) else e.iota((times.dims[0] + 1,), 0)
    lengths = e.segment_sizes(begins)
    if not e.lod_level(x):
        lengths = e.full((times.dims[0],), 1, "int64")
    starts = e.pad(e.scan("sum", times * lengths, 0), (1,), (0,))
    segment = e.segment_of(starts, rows)
    step = e.iota((rows,), 0) - e.take(starts, segment, 0, "clamp")
    return e.take(begins, segment, 0, "clamp") + step % e.maximum(e.take(lengths, segment, 0, "clamp"), 1)


@operator(
    "sequence_expand",
    Differentiation(
        stop_gradient={"Y": "its LoD alone counts"},
        reads=(),
        doc="X@GRAD = the sum of Out@GRAD over the copies of a row",
    ),
    Inference(_infer_expand),
    inputs=(Slot("X", doc="with one level of LoD; or without, and then its rows are repeated"), _Y),
    attrs=(Attr("ref_level", "int", -1, doc="the level of the LoD of Y that gives the repetitions; -1: the last"),),
    dtypes={"X": (*ALL_FLOATS, *INTS)},
    source="Fluid sequence_expand_op.h",
    doc="Out = sequence i of X (row i, if X has no LoD) as often as sequence i of Y at ref_level is long",
)
def sequence_expand(x: e.Tensor, y: e.Tensor, *, ref_level: int) -> e.Tensor:
    """Gather rows by the LoDs of X and Y."""
    rows = e.results("Out")[0][0]
    return e.take(x, _source_rows(x, y, ref_level, rows), 0, "clamp")


# sequence_expand_as ------------------------------------------------------------------------------------------------


def _infer_expand_as(call: Call) -> Inferred:
    x, y = call.spec("X"), need_one_level(call, "Y")
    call.need(x.rank >= 1, "X", "rows of one dim or more")
    if not y.lod:
        return {"Out": spec_with_lod((-1, *x.dims[1:]), x, (), 1)}
    count = len(y.lod[0]) - 1
    call.need(dims_compatible(x.dims[0], count), "X", f"{count} rows: Y has as many sequences")
    return {"Out": spec_with_lod((y.lod[0][-1], *x.dims[1:]), x, y.lod, 1)}


@operator(
    "sequence_expand_as",
    Differentiation(stop_gradient={"Y": "its LoD alone counts"}),
    Inference(_infer_expand_as),
    inputs=(Slot("X", doc="A row for each sequence of Y"), _Y),
    dtypes={"X": (*ALL_FLOATS, *INTS)},
    source="Fluid sequence_expand_as_op.h",
    doc="Out = row i of X as often as sequence i of Y is long; with the LoD of Y",
)
def sequence_expand_as(x: e.Tensor, y: e.Tensor) -> e.Tensor:
    """Gather the row of X whose sequence in Y has the row of Out."""
    return e.take(x, e.segment_of(e.offsets(y), e.results("Out")[0][0]), 0, "clamp")


@gradient(
    sequence_expand_as,
    Inference(infer_by_forward(_infer_expand_as)),
    metadata=("X", "Y"),
    doc="X@GRAD[i] = the sum of Out@GRAD over sequence i",
)
def sequence_expand_as_grad(x: e.Tensor, y: e.Tensor, dout: e.Tensor) -> e.Tensor:
    """Hand-written: the copies of a row are consecutive, so that a segment sum suffices."""
    return e.reshape(e.segment("sum", dout, e.offsets(y)), x.dims)


# sequence_reverse --------------------------------------------------------------------------------------------------


def _reverse_rows(x: e.Tensor, like: e.Tensor) -> e.Tensor:
    rows = rows_of(like)
    return e.take(x, rows.begin + (rows.end - 1) - rows.row, 0, "clamp")


@operator(
    "sequence_reverse",
    inputs={"X": "with LoD"},
    outputs=("Y",),
    dtypes={"X": (*ALL_FLOATS, *INTS)},
    source="Fluid sequence_reverse_op.h",
    doc="Y = the rows of each sequence of X, the last first",
)
def sequence_reverse(x: e.Tensor) -> e.Tensor:
    """Reverse the sequences of the last LoD level."""
    return _reverse_rows(x, x)


@gradient(sequence_reverse, Inference(infer_by_forward(like_x)), metadata=("X",), doc="X@GRAD = Y@GRAD, reversed again")
def sequence_reverse_grad(x: e.Tensor, dy: e.Tensor) -> e.Tensor:
    """Hand-written: it gathers, and needs no sums."""
    return _reverse_rows(e.wide(dy), x)
