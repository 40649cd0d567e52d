"""Resampling to another size: nearest_interp, linear_interp, bilinear_interp, trilinear_interp, bicubic_interp."""

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
        doc="above 0: the spatial dims of Out are those of X times scale, rounded down",
        tensors=(as_tensor("Scale"),),
    ),
    Attr(
        "interp_method",
        "str",
        "bilinear",
        choices=tuple(m for methods in METHODS.values() for m in methods),
        doc="the method; the operator's name does not select it",
    ),
    Attr("align_corners", "bool", True, doc="the first and last elements along an axis stay at the ends"),
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
_MAX_SIZE = 2**31
"""Upper limit (exclusive) of a spatial dim that a scale gives."""

# Sizes --------------------------------------------------------------------------------------------------------------


def _sizes(
    spatial: Sequence[e.Number],
    attrs: Sequence[int],
    scale: e.Number,
    tensors: Sequence[e.Numbers],
    out_size: e.Numbers | None,
) -> list[e.Number]:
    """The spatial dims of Out."""
    if tensors:
        if any(len(tensor) != 1 for tensor in tensors):
            e.fail("SizeTensor", "tensors of one number each")
        if len(tensors) != len(spatial):
            e.fail("SizeTensor", f"{len(spatial)} tensors, a size each")
        return [tensor[0] for tensor in tensors]
    if out_size is not None:
        if out_size.dims != (len(spatial),):
            e.fail("OutSize", f"[{len(spatial)}], a size each")
        return list(out_size)
    if not scale > 0:
        return [e.number(size) for size in attrs]
    for n in spatial:
        fits = e.highest(n, 1) * scale < _MAX_SIZE
        e.need_attr(fits, "scale", "a number that makes images of fewer rows and columns")
    return [e.whole(e.single(e.single(n) * e.single(scale))) for n in spatial]


# Taps ---------------------------------------------------------------------------------------------------------------

Tap = tuple[e.Tensor, e.Tensor]
"""For each output element: the index of an input element and its weight, float64."""


def _nearest(n: e.Number, m: e.Number, corners: bool) -> e.Tensor:
    """The input element of each output element; computed in float32 as in Fluid, since rounding decides."""
    position = e.cast(e.cast(e.iota((m,), 0), "float32") * _ratio(n, m, corners), "float64")
    return e.cast(e.floor(position + 0.5 if corners else position), "int64")


def _ratio(n: e.Number, m: e.Number, corners: bool) -> e.Number:
    """The distance of output elements in units of input elements; 0 for a single output element."""
    return (n - 1) / e.highest(m - 1, 1) * e.lowest(m - 1, 1) if corners else n / m * e.lowest(m - 1, 1)


def _taps(method: str, n: e.Number, m: e.Number, corners: bool, centres: bool) -> list[Tap]:
    """The neighbours of each output element, beginning with the one at or before its position."""
    index, ratio = e.cast(e.iota((m,), 0), "float64"), _ratio(n, m, corners)
    if method == "bicubic":
        position = index * ratio if corners else (index + 0.5) * ratio - 0.5
        left = e.floor(position)
        t, base = position - left, e.cast(left, "int64")
        inner = [(base, _inner_weight(t)), (base + 1, _inner_weight(1 - t))]
        return [*inner, (base - 1, _outer_weight(t + 1)), (base + 2, _outer_weight(2 - t))]
    position = e.maximum((index + 0.5) * ratio - 0.5, 0) if centres and not corners else index * ratio
    left = e.minimum(e.floor(position), n - 1)
    t, base = position - left, e.cast(left, "int64")
    return [(base, 1 - t), (base + 1, t)]


_KEYS_A = -0.75
"""The parameter a of Keys' cubic convolution, as in Fluid."""


def _inner_weight(d: e.Tensor) -> e.Tensor:
    return ((_KEYS_A + 2) * d - (_KEYS_A + 3)) * d * d + 1


def _outer_weight(d: e.Tensor) -> e.Tensor:
    return ((_KEYS_A * d - 5 * _KEYS_A) * d + 8 * _KEYS_A) * d - 4 * _KEYS_A


def _weighted_sums(x: e.Tensor, axis: int, taps: Sequence[Tap]) -> e.Tensor:
    """Weighted sums of neighbours; one of weight 0 adds nothing, even if it is infinite."""
    weights = e.cast(e.stack([weight for _, weight in taps], 1), x.dtype)
    indices = e.where(weights == 0, -1, e.clamped(e.stack([index for index, _ in taps], 1), x.dims[axis]))
    names = "abcde"[: x.rank]
    front, trailing = names[:axis], names[axis + 1 :]
    return e.contract(e.take(x, indices, axis, "zero"), weights, f"{front}mk{trailing},mk->{front}m{trailing}")


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
    """Resample one axis after the other, from the last to the first."""
    if x.rank not in METHODS:
        e.fail("X", "rank 3 (a line), 4 (an image) or 5 (a volume)")
    if interp_method not in METHODS[x.rank]:
        e.fail_attr("interp_method", f"one of {', '.join(METHODS[x.rank])} for X of rank {x.rank}")
    first = 1 if data_layout == "NHWC" else 2
    spatial = x.dims[first : first + x.rank - 2]
    for n in spatial:
        e.need(n >= 1, "X", "spatial dims of 1 or more")
    names = SIZES[-len(spatial) :]
    attrs = (out_d, out_h, out_w)[-len(spatial) :]
    sizes = _sizes(spatial, attrs, scale, size_tensor, out_size)
    is_nearest = interp_method == "nearest"
    result = x if is_nearest else e.cast(x, "float64" if x.dtype == "float64" else "float32")
    for i in reversed(range(len(spatial))):
        n, m, axis = spatial[i], sizes[i], first + i
        expected = "1 or more, or a scale or a tensor that gives it; dim {0} would come out"
        e.need_attr(e.lowest(m, n) >= 1, names[i], expected, m)
        if is_nearest:
            result = e.take(result, _nearest(n, m, align_corners), axis, "clamp")
        else:
            result = _weighted_sums(result, axis, _taps(interp_method, n, m, align_corners, align_mode == 0))
    return result if x.dtype in ALL_FLOATS else e.cast(result, x.dtype)


for _name in ("bilinear", "nearest", "bicubic", "linear", "trilinear"):
    operator(
        f"{_name}_interp",
        Differentiation(
            reads=(),
            stop_gradient={"Scale": "it only sets the size of Out"},
            doc="X@GRAD = the weighted sum of Out@GRAD over the elements that read one of X",
            memory="in loops, the sums of Out@GRAD along one dim after the other: as much as Out@GRAD at most",
        ),
        inputs=("X", *_SLOTS),
        attrs=_ATTRS,
        dtypes={"X": (*ALL_FLOATS, "uint8"), **_VALUES},
        doc="Out = X resampled to other spatial dims by interp_method: nearest, (bi, tri)linear or bicubic",
        source="Fluid interpolate_op.cc",
    )(_interpolated)
