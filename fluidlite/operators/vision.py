"""im2sequence: an image as a sequence of windows; row_conv: lookahead convolution of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.expr.gradients import infer_by_forward
from fluidlite.operators.inference import Inferred, dims_compatible
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.tensor.tensor_spec import Spec

_MAX_SEQUENCES = 1 << 18
"""Maximum number of images of im2sequence: each becomes a sequence of the LoD."""
_MAX_SIZE = 2**31
"""Rows or columns of an image; larger sizes are errors."""
Ints = tuple[int, ...]

# im2sequence -------------------------------------------------------------------------------------------------------

_UNFOLD_ATTRS = (
    Attr("kernels", "ints", doc="height and width of a window"),
    Attr("strides", "ints", (1, 1), doc="distance between two windows"),
    Attr("paddings", "ints", (0, 0, 0, 0), doc="padding above, left, below and right"),
    Attr("out_stride", "ints", (1, 1), doc="how much smaller X is than the sizes in Y"),
)


def _infer_unfold(call: Call) -> Inferred:
    """Metadata of Out: one sequence for each image. The number of rows is unknown while Y's values are."""
    x = call.spec("X")
    call.need(x.rank == 4, "X", "[images, channels, height, width]")
    if call.has("Y"):
        y = call.dims("Y")
        call.need(
            len(y) == 2 and dims_compatible(y[0], x.dims[0]) and dims_compatible(y[1], 2),
            "Y",
            f"{[x.dims[0], 2]}, sizes of X",
        )
    call.need(x.dims[0] <= _MAX_SEQUENCES, "X", f"at most {_MAX_SEQUENCES:,} images: each is a sequence of Out")
    counts = _window_counts(call)
    columns = -1 if x.dims[1] < 0 else x.dims[1] * prod(call.attr("kernels"))
    if counts is None:
        return {"Out": Spec.of((-1, columns), x.dtype, lod_level=1)}
    offsets = (0, *accumulate(counts))
    return {"Out": Spec.of((offsets[-1], columns), x.dtype, lod=(offsets,))}


def _pair(call: Call, name: str) -> tuple[int, int]:
    """Return an attribute with a positive number for rows and one for columns."""
    pair = call.attr(name)
    if len(pair) != 2 or min(pair) < 1:
        call.fail_attr(name, "2 numbers of 1 or more, one for each spatial dim")
    return pair[0], pair[1]


def _window_counts(call: Call) -> list[int] | None:
    """Return the number of windows of each image; None if dims or Y are unknown."""
    x, kernel, strides = call.dims("X"), _pair(call, "kernels"), _pair(call, "strides")
    pads = call.attr("paddings")
    if len(pads) != 4 or any(p < 0 for p in pads):
        call.fail_attr("paddings", "4 numbers of 0 or more: above, left, below, right")
    sizes = [(x[2], x[3])] * max(x[0], 0)
    if call.has("Y") and x[0] != 1:
        step = _pair(call, "out_stride")
        values = call.value("Y")
        if values is None or x[0] < 0:
            return None
        if not all(0 <= value < _MAX_SIZE for value in values):  # NaN fails, too
            call.fail("Y", "sizes of images", values)
        pairs = zip(values[::2], values[1::2], strict=True)
        sizes = [(-(-int(h) // step[0]), -(-int(w) // step[1])) for h, w in pairs]
    elif min(x[2:]) < 0:
        return None
    counts = []
    for image, size in enumerate(sizes):
        axes = zip(size, kernel, strides, pads[:2], pads[2:], strict=True)
        count = prod(max((n + before + after - taps) // step + 1, 0) for n, taps, step, before, after in axes)
        if not count:
            call.fail_attr("kernels", f"windows that fit in image {image}, {list(size)}, with its paddings")
        counts.append(count)
    return None if x[0] < 0 else counts


class _ImageWindows(NamedTuple):
    """The windows of consecutive images of one size; ``counts``: rows and columns of windows in each image.

    ``stops``: height and width that the windows cover, from the padding above and left on.
    """

    first: e.Numeric
    images: e.Numeric
    counts: tuple[e.Number, e.Number]
    stops: tuple[e.Number, e.Number]

    @property
    def rows(self) -> e.Number:
        """Rows of Out."""
        return self.counts[0] * self.counts[1] * self.images


def _image_windows(
    x: e.Tensor, y: Sequence[e.Number] | None, kernels: Ints, strides: Ints, paddings: Ints, out_stride: Ints
) -> list[_ImageWindows]:
    """Groups of consecutive images of equal size; Y, truncated to integers, gives the sizes of several images."""
    has_sizes = y is not None and len(y) > 2
    sizes = [(x.dims[2], x.dims[3])]
    if y is not None and has_sizes:
        ends = [-(-e.whole(n) // out_stride[k % 2]) for k, n in enumerate(y)]
        sizes = list(zip(ends[::2], ends[1::2], strict=True))
    groups: list[_ImageWindows] = []
    for image, size in enumerate(sizes):
        counts, stops = [], []
        for n, taps, step, before, after in zip(size, kernels, strides, paddings[:2], paddings[2:], strict=True):
            counts.append(e.highest(e.window_count(n + (before + after), taps, step), 1))  # at least one window
            stops.append((counts[-1] - 1) * step + taps)
        last = groups[-1] if groups else None
        if last is not None and e.all_agree(last.counts, counts):
            groups[-1] = last._replace(images=last.images + 1)
        else:
            images = 1 if has_sizes else x.dims[0]
            groups.append(_ImageWindows(image, images, (counts[0], counts[1]), (stops[0], stops[1])))
    return groups


@operator(
    "im2sequence",
    Differentiation(stop_gradient={"Y": "it only gives the sizes of the images"}),
    Inference(_infer_unfold),
    inputs=(
        Slot("X", doc="images, [images, channels, height, width]"),
        Slot(
            "Y",
            dispensable=True,
            value=True,
            doc="heights and widths of the images, [images, 2], of "
            "which the fractions are truncated; they are used if there are several images",
        ),
    ),
    attrs=_UNFOLD_ATTRS,
    dtypes={"X": ALL_FLOATS, "Y": (*FLOATS, *INTS)},
    doc="Out = a row for each window of each image, [channels, height, width] flat; one sequence an image",
    source="Fluid im2sequence_op.cc",
)
def im2sequence(
    x: e.Tensor, y: Sequence[e.Number] | None, *, kernels: Ints, strides: Ints, paddings: Ints, out_stride: Ints
) -> e.Tensor:
    """Move channels last, so that windows are read contiguously; pad or crop images to the extent of their windows."""
    (up, left), parts = paddings[:2], []
    for group in _image_windows(x, y, kernels, strides, paddings, out_stride):
        image = e.transpose(e.slice_axis(x, 0, group.first, group.images), (0, 2, 3, 1))
        trailing = (group.stops[0] - up - x.dims[2], group.stops[1] - left - x.dims[3])
        image = e.pad(image, (0, up, left, 0), (0, *trailing, 0))
        image = e.window(e.window(image, 2, kernels[1], strides[1]), 1, kernels[0], strides[0])
        rows = e.transpose(image, (0, 1, 3, 5, 2, 4))
        parts.append(e.reshape(rows, (group.rows, x.dims[1] * prod(kernels))))
    return e.concat(parts, 0)


@gradient(
    im2sequence,
    Execution(memory="in loops, the sums over the columns of the windows: as much as X for each row of a window"),
    Inference(infer_by_forward(_infer_unfold)),
    metadata=("X",),
    doc="X@GRAD = the sum of Out@GRAD over the windows in which an element lies",
)
def im2sequence_grad(
    x: e.Tensor,
    y: Sequence[e.Number] | None,
    dout: e.Tensor,
    *,
    kernels: Ints,
    strides: Ints,
    paddings: Ints,
    out_stride: Ints,
) -> e.Tensor:
    """Hand-written: for images of different sizes the derived gradient adds one tensor of the dims of X for each."""
    (up, left), (height, width), parts = paddings[:2], x.dims[2:], []
    at = e.number(0)
    for group in _image_windows(x, y, kernels, strides, paddings, out_stride):
        rows = e.slice_axis(dout, 0, at, group.rows)
        at = at + group.rows
        image = e.transpose(e.reshape(rows, (group.images, *group.counts, x.dims[1], *kernels)), (0, 1, 4, 2, 5, 3))
        image = e.unwindow(image, 3, group.stops[1], strides[1])
        image = e.transpose(e.unwindow(image, 1, group.stops[0], strides[0]), (0, 3, 1, 2))
        trailing = (height + up - group.stops[0], width + left - group.stops[1])
        parts.append(e.pad(image, (0, 0, -up, -left), (0, 0, *trailing)))
    return e.concat(parts, 0)


# row_conv ----------------------------------------------------------------------------------------------------------


def _check_rows(x: e.Tensor, filter_: e.Tensor) -> None:
    if x.rank not in (2, 3):
        e.fail("X", "[rows, width] with LoD, or [batch, steps, width]")
    if x.rank == 2 and not e.lod_level(x):
        e.fail("X", "a LoD tensor: its sequences", do="declare the data with lod_level=1, or use [batch, steps, width]")
    width = x.dims[-1]
    expected = "['context', {0}]: as wide as X, and of one row or more"
    if filter_.rank != 2:
        e.fail("Filter", expected.format(e.describe_dims((width,))[0]))
    e.need(filter_.dims[1] == width, "Filter", expected, numbers=(width,))
    e.need(filter_.dims[0] >= 1, "Filter", expected, numbers=(width,))
    e.same_dtype(filter_, x)


class _StepLines:
    """Sequences as [batch, steps, width]; those of a LoD tensor are one batch row, separated by zeros.

    A window of ``reach`` steps that begins or ends in a sequence then reads no step of another one.
    """

    def __init__(self, x: e.Tensor, reach: e.Number) -> None:
        self.reach, self.steps = reach, x.dims[-2]
        self.places: tuple[e.Tensor, e.Tensor] | None = None
        starts = e.offsets(x) if x.rank == 2 else None
        if starts is None or starts.dims[0] == 2:  # one sequence needs no zeros
            return
        count, gap, rows = starts.dims[0] - 1, reach - 1, x.dims[0]
        self.steps = rows + count * gap
        steps, begins = e.iota((self.steps,), 0), starts + e.iota((count + 1,), 0) * gap
        of = e.segment_of(begins, self.steps)
        row, end = steps - of * gap, e.take(starts, of + 1, 0, "clamp")
        step = e.iota((rows,), 0) + e.segment_of(starts, rows) * gap
        self.places = e.where(row < end, row, -1), step

    def spread(self, x: e.Tensor, before: e.Numeric, after: e.Numeric) -> e.Tensor:
        """The batch rows of sequences, zero-padded in front and behind."""
        x = e.wide(x)
        if self.places is None:
            return e.pad(x if x.rank == 3 else e.unsqueeze(x, 0), (0, before, 0), (0, after, 0))
        return e.unsqueeze(e.take(x, e.pad(self.places[0], (before,), (after,), -1), 0, "zero"), 0)

    def windows(self, lines: e.Tensor) -> e.Tensor:
        """The windows that begin at each step, [batch, steps, reach, width]; padding in front counts as steps."""
        return e.slice_axis(e.window(lines, 1, self.reach), 1, 0, self.steps)

    def gather_steps(self, lines: e.Tensor, dims: Sequence[e.Number]) -> e.Tensor:
        """The steps in the layout of the operand, without separating zeros."""
        if self.places is None:
            return e.reshape(lines, dims)
        return e.take(e.squeeze(lines, 0), self.places[1], 0, "clamp")


@operator(
    "row_conv",
    Execution(memory="where arrays compute, X with zeros behind each sequence, and the result of these"),
    inputs={"X": "[rows, width] with LoD, or [batch, steps, width]; floating, of known width"},
    dtypes={"X": ALL_FLOATS, "Filter": ALL_FLOATS},
    source="Fluid row_conv_op.cc",
    doc="Out[t] = the sum over w of Filter[w] X[t + w], as far as the sequence reaches",
)
def row_conv(x: e.Tensor, filter_: e.Tensor) -> e.Tensor:
    """Contract the window from each step on with the filter."""
    _check_rows(x, filter_)
    ahead = filter_.dims[0]
    sequences = _StepLines(x, ahead)
    windows = sequences.windows(sequences.spread(x, 0, ahead))  # padded by one more: a window fits without steps, too
    return sequences.gather_steps(e.contract(windows, e.wide(filter_), "ntwd,wd->ntd"), x.dims)


@gradient(
    row_conv,
    Execution(memory="as row_conv, of X and of Out@GRAD"),
    writes=("X", "Filter"),
    doc="X@GRAD[t] = the sum over w of Filter[w] Out@GRAD[t - w]; "
    "Filter@GRAD[w] = the sum over t of X[t + w] Out@GRAD[t]",
)
def row_conv_grad(x: e.Tensor, filter_: e.Tensor, dout: e.Tensor) -> tuple[e.Tensor, e.Tensor]:
    """Hand-written: the derived gradient scatter-adds the gradients of windows; gathering windows is faster."""
    _check_rows(x, filter_)
    e.same_sizes(dout, x.dims, "the dims of Out")
    ahead = filter_.dims[0]
    sequences = _StepLines(x, ahead)
    windows, dout_lines = sequences.windows(sequences.spread(x, 0, ahead)), sequences.spread(dout, ahead - 1, 1)
    dx = e.contract(sequences.windows(dout_lines), e.flip(e.wide(filter_), 0), "ntwd,wd->ntd")
    dout_steps = e.slice_axis(dout_lines, 1, ahead - 1, sequences.steps)
    return sequences.gather_steps(dx, x.dims), e.contract(windows, dout_steps, "ntwd,ntd->wd")
