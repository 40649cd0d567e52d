"""Padding: pad, pad2d, pad_constant_like."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL, is_float
from fluidlite.expr.calls import infer
from fluidlite.expr.declare import gradient, operator
from fluidlite.expr.gradients import infer_gradient
from fluidlite.geometry.numbers import numbers_of
from fluidlite.operators.inference import Inferred, grad_like, number_fits, spec_like
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, Attr, Infer, Slot, as_tensor
from fluidlite.program.operator_options import Differentiation, Inference

_VALUE = Attr("pad_value", "float", 0.0, static=True, doc="the padding value; it is converted to the dtype")
Size = e.Number | int


def _infer_pad(slot: str) -> Infer:
    """Check that the dtype can hold the padding value."""

    def infer_checked(call: Call) -> Inferred:
        number_fits(call, "pad_value", call.dtype(slot))
        return infer(call)

    return infer_checked


def _padded(x: e.Tensor, low: Sequence[Size], high: Sequence[Size], value: float) -> e.Tensor:
    """Pad with a number, which is truncated for integers."""
    return e.pad(x, low, high, value if is_float(x.dtype) else bool(value) if x.dtype == "bool" else int(value))


# pad ---------------------------------------------------------------------------------------------------------------


@operator(
    "pad",
    Differentiation(reads=(), doc="X@GRAD = Out@GRAD without the padding"),
    Inference(_infer_pad("X")),
    attrs=[Attr("paddings", "ints", minimum=0, doc="padding in front of and behind each dim, in turn"), _VALUE],
    dtypes={"X": ALL},
    doc="Out = X with pad_value around it",
    source="Fluid pad_op.cc",
)
def pad(x: e.Tensor, *, paddings: tuple[int, ...], pad_value: float) -> e.Tensor:
    """Pad each dim by two numbers."""
    if len(paddings) != 2 * x.rank:
        e.fail_attr("paddings", f"{2 * x.rank} numbers, two for each dim of X ({e.describe(x)})")
    return _padded(x, paddings[::2], paddings[1::2], pad_value)


# pad_constant_like -------------------------------------------------------------------------------------------------


@operator(
    "pad_constant_like",
    Inference(_infer_pad("Y"), kernel_dtype="Y"),
    inputs=[
        Slot("X", metadata_only=True, doc="its dims are those of Out"),
        Slot("Y", doc="of one rank and dtype; no dim of Y is larger than that of X"),
    ],
    attrs=[_VALUE],
    dtypes={"Y": ALL},
    doc="Out = Y with pad_value behind it, up to the dims of X",
    source="Fluid pad_constant_like_op.cc",
)
def pad_constant_like(x: e.Tensor, y: e.Tensor, *, pad_value: float) -> e.Tensor:
    """Pad Y at the end of each dim to the dims of X."""
    if x.rank != y.rank:
        e.fail("Y", f"rank {x.rank}, as X ({e.describe(x)})")
    for i, (n, d) in enumerate(zip(x.dims, y.dims, strict=True)):
        e.need(d <= n, "Y", f"{{0}} elements or fewer in dim {i}, as X ({{X}}) has", numbers=(n,))
    return _padded(y, [0] * y.rank, [n - d for n, d in zip(x.dims, y.dims, strict=True)], pad_value)


@gradient(pad_constant_like, writes=("Y",), metadata=("Y",), doc="Y@GRAD = Out@GRAD without the padding")
def pad_constant_like_grad(y: e.Tensor, dout: e.Tensor) -> e.Tensor:
    """Hand-written: the derived gradient reads X for its dims."""
    if dout.rank != y.rank:
        e.fail("Out@GRAD", f"rank {y.rank}, as Y ({e.describe(y)})")
    for i, (n, d) in enumerate(zip(dout.dims, y.dims, strict=True)):
        e.need(d <= n, "Out@GRAD", f"{{0}} elements or more in dim {i}, as Y has", numbers=(d,))
    return e.slices(dout, [0] * y.rank, y.dims)


# pad2d -------------------------------------------------------------------------------------------------------------


def _infer_pad2d(call: Call) -> Inferred:
    """The padded dims are unknown while the number of paddings is."""
    if numbers_of(call, "paddings") is None and call.spec("X").rank == 4:
        number_fits(call, "pad_value", call.dtype("X"))
        first = 2 if call.attr("data_format") == "NCHW" else 1
        dims = [-1 if i in (first, first + 1) else d for i, d in enumerate(call.dims("X"))]
        return {"Out": spec_like(call.spec("X"), dims)}
    return _infer_pad("X")(call)


def _infer_pad2d_grad(call: Call) -> Inferred:
    is_known = numbers_of(call, "paddings") is not None
    return infer_gradient(GRAD)(call) if is_known else grad_like("X")(call)


def _borders(x: e.Tensor, paddings: Sequence[Size], mode: str, data_format: str) -> list[tuple[int, Size, Size]]:
    """For rows and columns: the axis, and the padding in front of it and behind it."""
    if x.rank != 4:
        e.fail("X", "rank 4, a batch of images")
    if len(paddings) != 4:
        e.fail_attr("paddings", "4 numbers: above, below, left, right")
    first, borders = 2 if data_format == "NCHW" else 1, []
    for axis, (before, after) in ((first, paddings[:2]), (first + 1, paddings[2:])):
        for size in (before, after):
            e.need(e.highest(0, -size) == 0, "Paddings", "numbers of 0 or more")
        n, largest = x.dims[axis], e.highest(before, after)
        if mode == "reflect":  # no padding, or enough elements to mirror
            expected = f"more than {{0}} elements in dim {axis}, to be mirrored in the padding"
            e.need(e.lowest(largest, e.highest(largest - n + 1, 0)) == 0, "X", expected, numbers=(largest,))
        if mode == "edge":
            expected = f"1 element or more in dim {axis}, to be repeated in the padding"
            e.need(e.lowest(largest, e.highest(1 - n, 0)) == 0, "X", expected)
        borders.append((axis, before, after))
    return borders


def _with_border(x: e.Tensor, borders: Sequence[tuple[int, Size, Size]], mode: str) -> e.Tensor:
    """Pad by reflection or by the edge: gather the rows, then concatenate columns on both sides."""
    (axis, before, after), (last, *sides) = borders
    n = x.dims[axis]
    at = e.iota((n + before + after,), 0) - before
    if mode == "reflect":
        at = (n - 1) - e.abs_((n - 1) - e.abs_(at))
    x = e.take(x, at, axis, "clamp")
    n, parts = x.dims[last], [x]
    for in_front, size, edge, mirrored in ((True, sides[0], 0, sides[0]), (False, sides[1], n - 1, n - 2)):
        if isinstance(size, int) and size == 0:
            continue
        if mode == "edge":
            line = e.slice_axis(x, last, edge, 1)
            side = e.broadcast(line, [size if i == last else d for i, d in enumerate(x.dims)])
        else:
            side = e.slice_axis(x, last, mirrored, size, -1)
        parts = [side, *parts] if in_front else [*parts, side]
    return e.concat(parts, last)


_ATTRS = (
    Attr(
        "paddings",
        "ints",
        minimum=0,
        doc="rows above, rows below, columns left, columns right; unless Paddings is",
        tensors=(as_tensor("Paddings"),),
    ),
    Attr(
        "mode",
        "str",
        "constant",
        choices=("constant", "reflect", "edge"),
        doc="the padding: pad_value; the image mirrored at its border; its border repeated",
    ),
    _VALUE,
    Attr("data_format", "str", "NCHW", choices=("NCHW", "NHWC"), doc="where the rows and columns of X are"),
)


@operator(
    "pad2d",
    Inference(_infer_pad2d),
    inputs=[Slot("X", doc="[batch, channels, height, width], or with the channels last")],
    attrs=_ATTRS,
    dtypes={"X": ALL},
    doc="Out = each image of X with a border around it",
    source="Fluid pad2d_op.cc",
)
def pad2d(x: e.Tensor, *, paddings: Sequence[Size], mode: str, pad_value: float, data_format: str) -> e.Tensor:
    """Pad rows and columns."""
    borders = _borders(x, paddings, mode, data_format)
    if mode != "constant":
        return _with_border(x, borders, mode)
    low, high = ([dict((axis, pair[side]) for axis, *pair in borders).get(i, 0) for i in range(4)] for side in (0, 1))
    return _padded(x, low, high, pad_value)


@gradient(
    pad2d,
    Inference(_infer_pad2d_grad),
    metadata=("X",),
    doc="X@GRAD = the sum of Out@GRAD over all copies of each element of X",
)
def pad2d_grad(x: e.Tensor, dout: e.Tensor, *, paddings: Sequence[Size], mode: str, data_format: str) -> e.Tensor:
    """Hand-written: the derived gradient adds nine parts of the size of X; this one adds two for each axis."""
    borders = _borders(x, paddings, mode, data_format)
    added = {axis: before + after for axis, before, after in borders}
    e.need_dims(dout, [d + added.get(k, 0) for k, d in enumerate(x.dims)], "Out@GRAD", "Out")
    for axis, before, after in borders:
        n = x.dims[axis]
        total = e.slice_axis(dout, axis, before, n)
        sides = ((0, before, 0, 1), (before + n, after, n - 1, n - 1 - after)) if mode != "constant" else ()
        for start, size, edge, mirrored in sides:
            if isinstance(size, int) and size == 0:
                continue
            side = e.slice_axis(dout, axis, start, size)
            at = edge if mode == "edge" else mirrored
            side = e.reduce_sum(side, axis, keep=True) if mode == "edge" else e.flip(side, axis)
            low = [at if i == axis else 0 for i in range(4)]
            high = [n - at - side.dims[axis] if i == axis else 0 for i in range(4)]
            total = total + e.pad(side, low, high)
        dout = total
    return dout
