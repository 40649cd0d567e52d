"""sequence_pad, sequence_unpad and sequence_mask: convert LoD tensors to padded sequences and back."""

from __future__ import annotations

from itertools import accumulate, pairwise

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL, ALL_FLOATS, INTS
from fluidlite.expr.calls import infer
from fluidlite.expr.declare import gradient, operator
from fluidlite.expr.gradients import infer_by_forward
from fluidlite.geometry.numbers import number_of
from fluidlite.operators.inference import Inferred, dims_compatible
from fluidlite.operators.sequence_rows import SegmentRows, need_lod, need_sequences, rows_of, spec_with_lod, starts_of
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot, as_tensor
from fluidlite.program.operator_options import Differentiation, Inference
from fluidlite.tensor.tensor_spec import Spec

# sequence_pad ------------------------------------------------------------------------------------------------------


def _infer_pad(call: Call) -> Inferred:
    need_lod(call, "X")
    return {slot: spec.with_(lod=()) for slot, spec in infer(call).items() if isinstance(spec, Spec)}


@operator(
    "sequence_pad",
    Differentiation(no_gradient={"PadValue": "as in Fluid: the padding is not part of the sequences"}),
    Inference(_infer_pad),
    inputs=(
        Slot("X", doc="with LoD"),
        Slot("PadValue", doc="the padding: one number, or one step of X"),
    ),
    outputs=("Out", "Length"),
    attrs=(Attr("padded_length", "int", -1, minimum=-1, doc="steps of Out; -1: as many as the longest sequence has"),),
    dtypes={"X": (*ALL_FLOATS, *INTS)},
    source="Fluid sequence_pad_op.h",
    doc="Out[i] = the rows of sequence i, and PadValue behind them; Length[i] = the number of rows",
)
def sequence_pad(x: e.Tensor, pad_value: e.Tensor, *, padded_length: int) -> tuple[e.Tensor, e.Tensor]:
    """Pad the sequences of the last LoD level."""
    need_sequences(x, "X")
    e.same_dtype(pad_value, x)
    starts = e.offsets(x)
    count, steps = starts.dims[0] - 1, e.longest(x)
    if padded_length >= 0:
        expected = "the length of the longest sequence of X, or more"
        e.need_attr(steps <= padded_length, "padded_length", expected)
        steps = e.number(padded_length)
    value = e.wide(pad_value)
    numbers, expected = e.product(pad_value.dims), "one number, or the dims of a row of X"
    if pad_value.rank != x.rank - 1 or numbers == 1:
        e.need(numbers == 1, "PadValue", expected)
        value = e.reshape(value, (1,) * (x.rank + 1))
    else:
        if not e.all_agree(pad_value.dims, x.dims[1:]):
            e.fail("PadValue", expected)
        value = e.reshape(value, (1, 1, *x.dims[1:]))
    lengths = e.segment_sizes(starts)
    step = e.iota((count, steps), 1)
    at = e.where(
        step < e.reshape(lengths, (count, 1)), step + e.reshape(e.slice_axis(starts, 0, 0, count), (count, 1)), -1
    )
    rows = e.take(e.wide(x), at, 0, "zero")
    inside = e.reshape(at >= 0, (count, steps, *(1,) * (x.rank - 1)))
    return e.where(inside, rows, value), lengths


def _padded_specs(call: Call) -> dict[str, Spec]:
    x, steps = need_lod(call, "X"), call.attr("padded_length")
    if not x.lod:
        return {"Out": Spec.of((-1, steps, *x.dims[1:]), x.dtype)}
    lengths = [end - begin for begin, end in pairwise(x.lod[-1])]
    return {"Out": Spec.of((len(lengths), max(lengths, default=0) if steps < 0 else steps, *x.dims[1:]), x.dtype)}


@gradient(sequence_pad, Inference(infer_by_forward(_padded_specs)), metadata=("X",), doc="X@GRAD = rows of Out@GRAD")
def sequence_pad_grad(x: e.Tensor, dout: e.Tensor) -> e.Tensor:
    """Hand-written: the derived gradient reads PadValue."""
    rows = rows_of(x)
    flat = e.reshape(e.wide(dout), (dout.dims[0] * dout.dims[1], *dout.dims[2:]))
    return e.take(flat, rows.segment * dout.dims[1] + (rows.row - rows.begin), 0, "clamp")


# sequence_unpad ----------------------------------------------------------------------------------------------------


def _infer_unpad(call: Call) -> Inferred:
    x, length = call.spec("X"), call.dims("Length")
    call.need(x.rank >= 2, "X", "[sequences, steps, ...]")
    call.need(len(length) in (1, 2) and all(dims_compatible(d, 1) for d in length[1:]), "Length", "[sequences]")
    call.need(dims_compatible(length[0], x.dims[0]), "Length", f"{x.dims[0]} numbers: X has as many sequences")
    lengths = call.value("Length")
    if lengths is None:
        return {"Out": spec_with_lod((-1, *x.dims[2:]), x, (), 1)}
    if not all(n >= 0 and (x.dims[1] < 0 or n <= x.dims[1]) for n in lengths):
        call.fail("Length", f"numbers from 0 to {x.dims[1]}, the steps of X", got=list(lengths))
    offsets = (0, *accumulate(map(int, lengths)))
    return {"Out": spec_with_lod((offsets[-1], *x.dims[2:]), x, (offsets,), 1)}


def _source_rows(x: e.Tensor, length: e.Tensor, rows: e.Numeric) -> e.Tensor:
    """For each row of Out, its row in the flattened steps of X."""
    segments = SegmentRows(starts_of(length), rows)
    return segments.segment * x.dims[1] + (segments.row - segments.begin)


@operator(
    "sequence_unpad",
    Differentiation(
        stop_gradient={"Length": "it only gives the ends of sequences"},
        reads=(),
        doc="X@GRAD = Out@GRAD, and 0 behind sequences",
    ),
    Inference(_infer_unpad),
    inputs=(
        Slot("X", doc="[sequences, steps, ...]"),
        Slot("Length", value=True, table=True, doc="the steps of each sequence"),
    ),
    dtypes={"X": (*ALL_FLOATS, *INTS), "Length": INTS},
    source="Fluid sequence_unpad_op.h",
    doc="Out = the first Length[i] steps of X[i], one behind the other, as sequences",
)
def sequence_unpad(x: e.Tensor, length: e.Tensor) -> e.Tensor:
    """Gather rows by Length, whose values also give the LoD of Out."""
    flat = e.reshape(x, (x.dims[0] * x.dims[1], *x.dims[2:]))
    return e.take(flat, _source_rows(x, length, e.results("Out")[0][0]), 0, "clamp")


# sequence_mask -----------------------------------------------------------------------------------------------------


def _infer_mask(call: Call) -> Inferred:
    x, length = call.spec("X"), number_of(call, "maxlen")
    call.need(x.rank >= 1, "X", "lengths, of one dim or more")
    if length is None:
        length = -1
    elif length < 0:
        call.fail_attr("maxlen", "a number of 0 or more, or MaxLenTensor", do="use layers.sequence_mask")
    return {"Y": Spec.of((*x.dims, length), call.attr("out_dtype"))}


@operator(
    "sequence_mask",
    Inference(_infer_mask),
    inputs={"X": "int32 or int64: lengths"},
    outputs=("Y",),
    attrs=(
        Attr("maxlen", "int", -1, minimum=-1, doc="the last dim of Y", tensors=(as_tensor("MaxLenTensor"),)),
        Attr("out_dtype", "dtype", "int64", choices=ALL, doc="dtype of Y"),
    ),
    dtypes={"X": INTS},
    source="Fluid sequence_mask_op.h",
    doc="Y[..., j] = 1 where j < X[...], else 0",
)
def sequence_mask(x: e.Tensor, *, out_dtype: str) -> e.Tensor:
    """Compare step indices along a new last dim with the lengths."""
    dims = e.results("Y")[0]
    step = e.iota(dims, x.rank)
    return e.cast(step < e.cast(e.unsqueeze(x, x.rank), "int64"), out_dtype)
