"""mean, reduce_sum, _mean, _max, _min, _prod with gradients, reduce_all, reduce_any, and sum of several tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate, is_half, numpy_style, storer, widener

Run = Callable[[Context, IO], None]
_SUM, _PRODUCT = ("sum", "add"), ("prod", "multiply")
"""The standard's function, and NumPy's ufunc that reduces alike."""


def _axes(call: Call, slot: str = "X") -> tuple[int, ...]:
    """The reduced axes of ``slot``, ascending."""
    rank = len(call.dims(slot))
    if call.attr("reduce_all"):
        return tuple(range(rank))
    return tuple(sorted({axis % rank for axis in call.attr("dim")})) if rank else ()


def _kept(call: Call) -> tuple[int, ...]:
    """Dims of X with 1 for the reduced axes: those of Out, ready to broadcast."""
    return _kept_dims(call.dims("X"), _axes(call))


def _kept_dims(dims: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if axis in axes else size for axis, size in enumerate(dims))


def _total(call: Call, context: Context, axes: tuple[int, ...], count: int, names: tuple[str, str] = _SUM) -> Run:
    """Sum (or as ``names`` says) over axes, divided by ``count`` (0: not divided)."""
    xp, store, kept = context.xp, storer(context), _kept_dims(call.dims("X"), axes)
    dtype = "float32" if is_half(call.dtype("X")) else call.dtype("Out")
    if numpy_style(context) and not is_half(call.dtype("X")):
        name, ufunc = names  # np.sum costs a microsecond more than its ufunc
        total = getattr(xp, ufunc).reduce if immediate(context) else getattr(xp, name)

        def run_into(context: Context, io: IO) -> None:
            out = io.array("Out")
            total(io.array("X"), axes, out.dtype, out.reshape(kept), True)
            if count:
                xp.divide(out, count, out)

        return run_into

    function = getattr(xp, names[0])

    def run(context: Context, io: IO) -> None:
        value = function(io.array("X"), axis=axes, dtype=getattr(xp, dtype))
        store(io.array("Out"), value / count if count else value)

    return run


def _empty_mean(call: Call, context: Context) -> Run:
    """The mean of nothing is not a number."""

    def run(context: Context, io: IO) -> None:
        io.array("Out")[...] = float("nan")

    return run


def _spread(call: Call, context: Context, kept: tuple[int, ...], count: int) -> Run:
    """X@GRAD = Out@GRAD / count everywhere."""
    xp, widen, store = context.xp, widener(call.dtype("Out@GRAD"), context), storer(context)
    dims = call.dims("X@GRAD")

    def run(context: Context, io: IO) -> None:
        value = xp.reshape(widen(io.array("Out@GRAD")), kept)
        if count > 1:
            value = value / count
        store(io.array("X@GRAD"), xp.broadcast_to(value, dims))

    return run


@register_kernel("mean", "array")
def mean(call: Call, context: Context) -> Any:
    """Out[0] = the mean of X."""
    dims = call.dims("X")
    size = prod(dims)
    if not size:
        return _empty_mean(call, context)
    if immediate(context) and not is_half(call.dtype("X")):
        add = context.xp.add.reduce

        def run(context: Context, io: IO) -> None:
            io.array("Out")[0] = add(io.array("X"), None) / size

        return run
    return _total(call, context, tuple(range(len(dims))), size)


@register_kernel("mean_grad", "array")
def mean_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD / size of X."""
    size = prod(call.dims("X"))
    if immediate(context):

        def run(context: Context, io: IO) -> None:
            io.array("X@GRAD").fill(io.array("Out@GRAD").item() / size)

        return run
    return _spread(call, context, (1,) * len(call.dims("X")), size)


@register_kernel("reduce_sum", "array")
def reduce_sum(call: Call, context: Context) -> Any:
    """Sum over ``dim``; of nothing it is 0."""
    return _total(call, context, _axes(call), 0)


@register_kernel("reduce_mean", "array")
def reduce_mean(call: Call, context: Context) -> Any:
    """Mean over ``dim``."""
    axes, dims = _axes(call), call.dims("X")
    count = prod(dims[axis] for axis in axes)
    return _total(call, context, axes, count) if count else _empty_mean(call, context)


@register_kernel("reduce_prod", "array")
def reduce_prod(call: Call, context: Context) -> Any:
    """Product over ``dim``; of nothing it is 1."""
    return _total(call, context, _axes(call), 0, _PRODUCT)


def _truth(call: Call, context: Context, name: str) -> Run:
    axes, xp, kept = _axes(call), context.xp, _kept(call)
    function, fast = getattr(xp, name), numpy_style(context)

    def run(context: Context, io: IO) -> None:
        out = io.array("Out")
        if fast:
            function(io.array("X"), axes, out.reshape(kept), True)
        else:
            out[...] = xp.reshape(function(io.array("X"), axis=axes), out.shape)

    return run


@register_kernel("reduce_all", "array", vendor=True)
def reduce_all(call: Call, context: Context) -> Any:
    """Whether all over ``dim`` are true; of nothing they are."""
    return _truth(call, context, "all")


@register_kernel("reduce_any", "array", vendor=True)
def reduce_any(call: Call, context: Context) -> Any:
    """Whether one over ``dim`` is true; of nothing none is."""
    return _truth(call, context, "any")


def _extreme(call: Call, context: Context, function: str, ufunc: str) -> Run:
    """Greatest or least over axes; the definition refuses a reduced axis without elements."""
    xp, axes = context.xp, _axes(call)
    if numpy_style(context):
        kept = _kept_dims(call.dims("X"), axes)
        reduce = getattr(xp, ufunc).reduce if immediate(context) else None
        general = getattr(xp, function)

        def run_into(context: Context, io: IO) -> None:
            out = io.array("Out").reshape(kept)
            if reduce is not None:
                reduce(io.array("X"), axes, None, out, True)
            else:
                general(io.array("X"), axes, out, True)

        return run_into

    store, extreme = storer(context), getattr(xp, function)

    def run(context: Context, io: IO) -> None:
        store(io.array("Out"), extreme(io.array("X"), axis=axes))

    return run


@register_kernel("reduce_max", "array")
def reduce_max(call: Call, context: Context) -> Any:
    """Greatest over ``dim``."""
    return _extreme(call, context, "max", "maximum")


@register_kernel("reduce_min", "array")
def reduce_min(call: Call, context: Context) -> Any:
    """Least over ``dim``."""
    return _extreme(call, context, "min", "minimum")


@register_kernel("reduce_sum_grad", "array")
def reduce_sum_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD, broadcast."""
    return _spread(call, context, _kept(call), 1)


@register_kernel("reduce_mean_grad", "array")
def reduce_mean_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD / count, broadcast."""
    dims = call.dims("X")
    return _spread(call, context, _kept(call), prod(dims[axis] for axis in _axes(call)))


def _extreme_grad(call: Call, context: Context) -> Run:
    xp, kept, store = context.xp, _kept(call), storer(context)

    def run_host(context: Context, io: IO) -> None:
        x, out, dout, dx = io.array("X"), io.array("Out").reshape(kept), io.array("Out@GRAD"), io.array("X@GRAD")
        dx[...] = 0
        xp.copyto(dx, dout.reshape(kept), where=x == out)

    def run(context: Context, io: IO) -> None:
        dout = xp.reshape(io.array("Out@GRAD"), kept)
        chosen = io.array("X") == xp.reshape(io.array("Out"), kept)
        store(io.array("X@GRAD"), xp.where(chosen, dout, xp.zeros_like(dout)))

    return run_host if immediate(context) else run


@register_kernel("reduce_max_grad", "array")
def reduce_max_grad(call: Call, context: Context) -> Any:
    """Each element equal to the greatest gets the whole gradient."""
    return _extreme_grad(call, context)


@register_kernel("reduce_min_grad", "array")
def reduce_min_grad(call: Call, context: Context) -> Any:
    """Each element equal to the least gets the whole gradient."""
    return _extreme_grad(call, context)


@register_kernel("reduce_prod_grad", "array")
def reduce_prod_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD times the product of the other elements: Out / X, unless there is a zero among them."""
    xp, axes, kept, store = context.xp, _axes(call), _kept(call), storer(context)
    widen, fast = widener(call.dtype("X"), context), immediate(context) and not is_half(call.dtype("X"))
    kind = getattr(xp, "float32" if is_half(call.dtype("X")) else call.dtype("X"))

    def run(context: Context, io: IO) -> None:
        x, dout = widen(io.array("X")), xp.reshape(widen(io.array("Out@GRAD")), kept)
        if fast:
            out = io.array("Out")
            if out.all():
                xp.divide(out.reshape(kept) * dout, x, io.array("X@GRAD"))
                return
        zero = x == 0
        ones = xp.where(zero, xp.ones_like(x), x)
        zeros = xp.sum(xp.astype(zero, xp.int64), axis=axes, keepdims=True)
        product = dout * xp.prod(ones, axis=axes, keepdims=True, dtype=kind)
        nothing = xp.zeros_like(product)
        only, none = xp.where(zeros == 1, product, nothing), xp.where(zeros == 0, product, nothing)
        store(io.array("X@GRAD"), xp.where(zero, only, none / ones))

    return run


@register_kernel("sum", "array", inplace=True)
def sum_(call: Call, context: Context) -> Any:
    """Out = X[0] + X[1] + ... in that order."""
    xp, count = context.xp, call.count("X")
    if numpy_style(context) and count > 1 and not is_half(call.dtype("X")):
        add = xp.add

        def run_into(context: Context, io: IO) -> None:
            out = io.array("Out")
            add(io.array("X"), io.array("X", 1), out)
            for i in range(2, count):
                add(out, io.array("X", i), out)

        return run_into

    widen, store = widener(call.dtype("X"), context), storer(context)

    def run(context: Context, io: IO) -> None:
        value = widen(io.array("X"))
        for i in range(1, count):
            value = value + widen(io.array("X", i))
        store(io.array("Out"), value)

    return run
