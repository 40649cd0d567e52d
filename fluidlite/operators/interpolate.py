"""Images and volumes of another size: nearest_interp, bilinear_interp and their like for lines, volumes and cubics."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import operator
from fluidlite.program.opdef import Attr, Slot, as_tensor
from fluidlite.program.operator_options import Differentiation

SIZES = ("out_d", "out_h", "out_w")
METHODS = {3: ("linear",), 4: ("bilinear", "nearest", "bicubic"), 5: ("trilinear",)}
"""The methods for each rank of X."""

_ATTRS = (
    Attr("data_layout", "str", "NCHW", choices=("NCHW", "NHWC", "AnyLayout"), doc="NHWC: channels come last"),
    *(
        Attr(name, "int", 0, doc=f"{what} of Out, unless a scale or a tensor gives it")
        for name, what in zip(SIZES, ("depth", "height", "width"), strict=True)
    ),
    Attr(
        "scale",
        "float",
        0.0,
        doc="above 0: Out is so many times as large as X, rounded down",
        tensors=(as_tensor("Scale"),),
    ),
    Attr(
        "interp_method",
        "str",
        "bilinear",
        choices=tuple(m for methods in METHODS.values() for m in methods),
        doc="how: by this, and not by the operator's name",
    ),
    Attr("align_corners", "bool", True, doc="the first and last elements of a line keep their places"),
    Attr(
        "align_mode",
        "int",
        1,
        choices=(0, 1),
        doc="0: without align_corners, (bi, tri)linear interpolation measures from the elements' centres",
    ),
)
_SLOTS = (
    Slot("OutSize", dispensable=True, value=True, doc="the sizes, [spatial dims]; they win over attributes and Scale"),
    Slot("SizeTensor", duplicable=True, dispensable=True, value=True, doc="the sizes, [1] each; they win over all"),
)
_VALUES = {"OutSize": INTS, "SizeTensor": INTS}
_LARGE = 2**31
"""No image has so many rows or columns."""

# Sizes --------------------------------------------------------------------------------------------------------------


def _sizes(
    space: Sequence[e.Number],
    attrs: Sequence[int],
    scale: e.Number,
    tensors: Sequence[e.Numbers],
    out_size: e.Numbers | None,
) -> list[e.Number]:
    """The spatial dims of Out."""
    if tensors:
        if any(len(each) != 1 for each in tensors):
            e.fail("SizeTensor", "tensors of one number each")
        if len(tensors) != len(space):
            e.fail("SizeTensor", f"{len(space)} tensors, a size each")
        return [each[0] for each in tensors]
    if out_size is not None:
        if out_size.dims != (len(space),):
            e.fail("OutSize", f"[{len(space)}], a size each")
        return list(out_size)
    if not scale > 0:
        return [e.number(size) for size in attrs]
    for n in space:
        fewer = e.highest(n, 1) * scale < _LARGE
        e.need_attr(fewer, "scale", "a number that makes images of fewer rows and columns")
    return [e.whole(e.single(e.single(n) * e.single(scale))) for n in space]


# Lines --------------------------------------------------------------------------------------------------------------

Tap = tuple[e.Tensor, e.Tensor]
"""Of each new element: one that it is made of, and its weight, float64."""


def _nearest(n: e.Number, m: e.Number, corners: bool) -> e.Tensor:
    """The element that each new one is; in float32, as Fluid does: which is taken depends on the rounding."""
    where = e.cast(e.cast(e.iota((m,), 0), "float32") * _ratio(n, m, corners), "float64")
    return e.cast(e.floor(where + 0.5 if corners else where), "int64")


def _ratio(n: e.Number, m: e.Number, corners: bool) -> e.Number:
    """The distance of two new elements, in old ones; 0 where there is one alone."""
    return (n - 1) / e.highest(m - 1, 1) * e.lowest(m - 1, 1) if corners else n / m * e.lowest(m - 1, 1)


def _taps(method: str, n: e.Number, m: e.Number, corners: bool, centres: bool) -> list[Tap]:
    """The neighbours of each new element, the nearest in front of it first."""
    o, ratio = e.cast(e.iota((m,), 0), "float64"), _ratio(n, m, corners)
    if method == "bicubic":
        where = o * ratio if corners else (o + 0.5) * ratio - 0.5
        first = e.floor(where)
        t, at = where - first, e.cast(first, "int64")
        return [(at, _near(t)), (at + 1, _near(1 - t)), (at - 1, _far(t + 1)), (at + 2, _far(2 - t))]
    where = e.maximum((o + 0.5) * ratio - 0.5, 0) if centres and not corners else o * ratio
    first = e.minimum(e.floor(where), n - 1)
    t, at = where - first, e.cast(first, "int64")
    return [(at, 1 - t), (at + 1, t)]


_A = -0.75
"""The parameter of Keys' convolution."""


def _near(d: e.Tensor) -> e.Tensor:
    return ((_A + 2) * d - (_A + 3)) * d * d + 1


def _far(d: e.Tensor) -> e.Tensor:
    return ((_A * d - 5 * _A) * d + 8 * _A) * d - 4 * _A


def _mixed(x: e.Tensor, axis: int, taps: Sequence[Tap]) -> e.Tensor:
    """The sums of neighbours; one of weight 0 adds nothing, even if it is infinite."""
    weights = e.cast(e.stack([weight for _, weight in taps], 1), x.dtype)
    at = e.where(weights == 0, -1, e.clamped(e.stack([each for each, _ in taps], 1), x.dims[axis]))
    names = "abcde"[: x.rank]
    front, behind = names[:axis], names[axis + 1 :]
    return e.contract(e.take(x, at, axis, "zero"), weights, f"{front}mk{behind},mk->{front}m{behind}")


# Operators ----------------------------------------------------------------------------------------------------------


def _interpolated(
    x: e.Tensor,
    out_size: e.Numbers | None,
    size_tensor: Sequence[e.Numbers],
    *,
    data_layout: str,
    out_d: int,
    out_h: int,
    out_w: int,
    scale: e.Number,
    interp_method: str,
    align_corners: bool,
    align_mode: int,
) -> e.Tensor:
    """One axis after the other, the last first."""
    if x.rank not in METHODS:
        e.fail("X", "rank 3 (a line), 4 (an image) or 5 (a volume)")
    if interp_method not in METHODS[x.rank]:
        e.fail_attr("interp_method", f"one of {', '.join(METHODS[x.rank])} for X of rank {x.rank}")
    first = 1 if data_layout == "NHWC" else 2
    space = x.dims[first : first + x.rank - 2]
    for n in space:
        e.need(n >= 1, "X", "spatial dims of 1 or more")
    named = SIZES[-len(space) :]
    attrs = (out_d, out_h, out_w)[-len(space) :]
    sizes = _sizes(space, attrs, scale, size_tensor, out_size)
    exact = interp_method == "nearest"
    made = x if exact else e.cast(x, "float64" if x.dtype == "float64" else "float32")
    for i in reversed(range(len(space))):
        n, m, axis = space[i], sizes[i], first + i
        expected = "1 or more, or a scale or a tensor that gives it; dim {0} would come out"
        e.need_attr(e.lowest(m, n) >= 1, named[i], expected, m)
        if exact:
            made = e.take(made, _nearest(n, m, align_corners), axis, "clamp")
        else:
            made = _mixed(made, axis, _taps(interp_method, n, m, align_corners, align_mode == 0))
    return made if x.dtype in ALL_FLOATS else e.cast(made, x.dtype)


for _name in ("bilinear", "nearest", "bicubic", "linear", "trilinear"):
    operator(
        f"{_name}_interp",
        Differentiation(
            reads=(),
            stop_gradient={"Scale": "it only says how large Out is"},
            doc="X@GRAD = the sum of Out@GRAD over the elements that one was taken for, with their weights",
            memory="in loops, the sums of Out@GRAD along one dim after the other: as much as Out@GRAD at most",
        ),
        inputs=("X", *_SLOTS),
        attrs=_ATTRS,
        dtypes={"X": (*ALL_FLOATS, "uint8"), **_VALUES},
        doc="Out = X resampled to other spatial dims by interp_method: nearest, (bi, tri)linear or bicubic",
        source="Fluid interpolate_op.cc",
    )(_interpolated)
