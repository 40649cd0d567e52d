"""pool2d, pool3d and the maxima with their places, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, pool_axes, pool_planes, register_kernel

from .common import immediate, is_half, widener
from .sliding import BLOCK, Line, Plan, Steps, levels_of


def _store(xp: Any, target: Any, rows: slice, value: Any) -> None:
    target[rows, ...] = value if value.dtype == target.dtype else xp.astype(value, target.dtype)


def _pool(call: Call, context: Context, kind: str) -> Callable[[IO, str, str], None]:
    """Return ``reduce(io, source, target)``: the greatest or the mean of each window."""
    xp, steps, plan = context.xp, Steps(context), Plan(call, context)
    dtype, half = getattr(xp, compute_dtype(call.dtype("X"))), is_half(call.dtype("X"))
    widen = widener(call.dtype("X"), context)
    greatest = kind == "max"
    function, whole = (xp.maximum, xp.max) if greatest else (xp.add, xp.sum)
    kernel = 0 if greatest or call.attr("exclusive") or call.attr("adaptive") else _kernel_size(call)
    count = 1 if greatest else plan.counts(xp, dtype, kernel)
    lowest, voids = _lowest(call.dtype("X")), list(plan.voids()) if greatest else []

    def reduce(io: IO, source: str, target: str) -> None:
        x, out = xp.reshape(io.array(source), plan.x), xp.reshape(io.array(target), plan.out)
        for rows in plan.blocks:
            y = widen(x[rows, ...])
            dims = levels_of(plan, plan.lines, rows.stop - rows.start)
            for line, after in zip(plan.lines, dims[1:], strict=True):
                last = line is plan.lines[-1] and not half
                z = out[rows, ...] if last else xp.empty(after, dtype=dtype)
                steps.slide(y, z, line, function, whole, -float("inf") if greatest else 0.0)
                y = z
            if not greatest and not (isinstance(count, int) and count == 1):
                if plan.lines:
                    steps.into(xp.divide, y, count, y)
                else:
                    y = y / count
            if not plan.lines or half or not steps.out:
                _store(xp, out, rows, y)
        for part in voids:
            out[part] = lowest

    return reduce


def _kernel_size(call: Call) -> int:
    return prod(axis.kernel for axis in pool_axes(call))


_LOWEST = {"float16": -65504.0, "bfloat16": -(2 - 2.0**-7) * 2.0**127, "float32": -(2 - 2.0**-23) * 2.0**127,
           "float64": -(2 - 2.0**-52) * 2.0**1023}  # fmt: skip


def _lowest(dtype: str) -> float:
    """The greatest of no elements, as Fluid has it: the lowest number of the dtype."""
    return _LOWEST[dtype]


def _pool_kernel(call: Call, context: Context) -> Any:
    reduce = _pool(call, context, call.attr("pooling_type"))
    return lambda context, io: reduce(io, "X", "Out")


@register_kernel("pool2d", "array")
def pool2d(call: Call, context: Context) -> Any:
    """Out = the greatest or the mean of each window."""
    return _pool_kernel(call, context)


@register_kernel("pool3d", "array")
def pool3d(call: Call, context: Context) -> Any:
    """Out = the greatest or the mean of each window."""
    return _pool_kernel(call, context)


# Gradients ---------------------------------------------------------------------------------------------------------


def _mean_grad(call: Call, context: Context) -> Any:
    """Each window's gradient, divided by its count, goes to all of its elements."""
    xp, steps, plan = context.xp, Steps(context), Plan(call, context)
    dtype, half = getattr(xp, compute_dtype(call.dtype("X"))), is_half(call.dtype("X"))
    widen = widener(call.dtype("X"), context)
    kernel = 0 if call.attr("exclusive") or call.attr("adaptive") else _kernel_size(call)
    count = plan.counts(xp, dtype, kernel)

    def run(context: Context, io: IO) -> None:
        dout, dx = xp.reshape(io.array("Out@GRAD"), plan.out), xp.reshape(io.array("X@GRAD"), plan.x)
        for rows in plan.blocks:
            y = widen(dout[rows, ...]) / count
            dims = levels_of(plan, plan.lines, rows.stop - rows.start)
            for line, before in zip(plan.lines[::-1], dims[-2::-1], strict=True):
                z = dx[rows, ...] if line is plan.lines[0] and not half else xp.empty(before, dtype=dtype)
                steps.spread(y, z, line)
                y = z
            if not plan.lines or half or not steps.out:
                _store(xp, dx, rows, y)

    return run


def _maxima(steps: Steps, x: Any, order: Sequence[Line], dims: Sequence[tuple[int, ...]]) -> list[Any]:
    """The block before and after each axis of ``order`` is reduced, but for the last: that is Out."""
    levels = [x]
    for line, after in zip(order[:-1], dims[1:-1], strict=True):
        z = steps.xp.empty(after, dtype=x.dtype)
        steps.slide(levels[-1], z, line, steps.xp.maximum, steps.xp.max, -float("inf"))
        levels.append(z)
    return levels if order else []


def _pick(steps: Steps, chosen: Any, left: Any) -> Any:
    """Return ``left`` where chosen, else 0, and take it out of ``left``: multiplied as bits, so infinities may be."""
    xp = steps.xp
    if steps.out:
        bits = left.view(xp.int64 if left.dtype.itemsize == 8 else xp.int32)
        taken = xp.multiply(bits, chosen, dtype=bits.dtype)
        xp.bitwise_xor(bits, taken, out=bits)
        return taken.view(left.dtype)
    taken = xp.where(chosen, left, xp.zeros_like(left))
    left[...] = xp.where(chosen, xp.zeros_like(left), left)
    return taken


class _Wholes:
    """Windows that are looked through each as a whole."""

    def __init__(self, context: Context) -> None:
        self.xp, self.host = context.xp, immediate(context)

    def give(self, level: Any, best: Any, given: Any, target: Any, axis: int) -> None:
        """Write ``given`` into ``target``, which is 0, where along ``axis`` the first greatest of ``level`` is."""
        xp = self.xp
        given = xp.where(best == best, given, xp.zeros_like(given))  # what is no number takes nothing
        place = xp.argmax(level, axis=axis, keepdims=True)
        if self.host:
            xp.put_along_axis(target, place, given, axis)
            return
        dims = tuple(level.shape[axis] if d == axis else 1 for d in range(level.ndim))
        chosen = xp.reshape(xp.arange(level.shape[axis], dtype=place.dtype), dims) == place
        target[...] = xp.where(chosen, given, xp.zeros_like(given))


def _max_grad(call: Call, context: Context) -> Any:
    """Each window's gradient goes to its first greatest element: first along the last axis, then among its rows."""
    xp, steps, plan, whole = context.xp, Steps(context), Plan(call, context), _Wholes(context)
    widen, order = widener(call.dtype("X"), context), plan.lines[::-1]

    def run(context: Context, io: IO) -> None:
        x, out = xp.reshape(io.array("X"), plan.x), xp.reshape(io.array("Out"), plan.out)
        dout, dx = xp.reshape(io.array("Out@GRAD"), plan.out), xp.reshape(io.array("X@GRAD"), plan.x)
        for rows in plan.blocks:
            dims = levels_of(plan, order, rows.stop - rows.start)
            levels = _maxima(steps, widen(x[rows, ...]), order, dims)
            best = widen(out[rows, ...])
            y = xp.asarray(widen(dout[rows, ...]), copy=True)
            for line, before, level in zip(order[::-1], dims[-2::-1], levels[::-1], strict=True):
                z = xp.zeros(before, dtype=y.dtype)
                if line.single is not None:
                    whole.give(level[line.single], best, y, z[line.single], line.axis)
                elif line.tile:
                    tiled, spot = line.tiled(before), (*(slice(None),) * (line.axis + 1), None, ...)
                    parts = xp.reshape(z, tiled)
                    whole.give(xp.reshape(level, tiled), best[spot], y[spot], parts, line.axis + 1)
                    z = xp.reshape(parts, before)
                else:
                    for outs, ins in line.taps:
                        taken = _pick(steps, level[ins] == best[outs], y[outs])
                        steps.into(xp.add, z[ins], taken, z, ins)
                best, y = level, z
            _store(xp, dx, rows, y)

    return run


def _firsts(xp: Any, plan: Plan, x: Any, out: Any) -> Any:
    """Number the first element of each window that equals Out: the last is 1, the first as many as there are; 0: none.

    Bytes are compared and multiplied many at a time, so this costs little beside the comparison.
    """
    found = xp.zeros(out.shape, xp.uint8)
    for number, (outs, ins) in zip(range(len(plan.grid), 0, -1), plan.grid, strict=True):
        equal = (x[ins] == out[outs]).view(xp.uint8)
        xp.multiply(equal, xp.uint8(number), out=equal)
        xp.maximum(found[outs], equal, out=found[outs])
    return found


class Places:
    """From the numbers of :func:`_firsts` to places in a plane of X: where a window begins, and what that adds."""

    def __init__(self, xp: Any, plan: Plan, dtype: Any) -> None:
        self.xp = xp
        weights = [prod(plan.x[i + 2 :]) for i in range(len(plan.axes))]
        starts = xp.zeros(plan.out[1:], dtype)
        for i, (axis, weight) in enumerate(zip(plan.axes, weights, strict=True)):
            dims = tuple(-1 if d == i else 1 for d in range(len(starts.shape)))
            step = axis.stride if axis.outs > 1 else 0  # a single window may be far from the next
            starts += ((xp.arange(axis.outs, dtype=dtype) * step - axis.before) * weight).reshape(dims)
        if plan.tail:
            starts += xp.arange(plan.tail[0], dtype=dtype)
        shifts = [0]
        for outs, ins in plan.grid[::-1]:
            inner = zip(outs[1:], ins[1:], plan.axes, weights, strict=False)
            shifts.append(sum((i.start - o.start * axis.stride + axis.before) * weight for o, i, axis, weight in inner))
        self.starts, self.shifts = starts, xp.asarray(shifts, dtype)

    def of(self, found: Any) -> Any:
        """The places; of a window without a first element, any."""
        return self.xp.take(self.shifts, found) + self.starts


def _max_grad_few(call: Call, context: Context) -> Any:
    """Each window's gradient goes to its first greatest element, which is found among all of its elements."""
    xp, plan, half = context.xp, Plan(call, context), is_half(call.dtype("X"))
    widen, scatter_add = widener(call.dtype("X"), context), context.array.extra("scatter_add")
    places, size = Places(xp, plan, xp.int64), prod(plan.x[1:])
    planes = xp.arange(plan.blocks[0].stop if plan.blocks else 0, dtype=xp.int64) * size
    planes = planes.reshape(-1, *(1 for _ in plan.x[1:]))

    def run(context: Context, io: IO) -> None:
        x, out = io.array("X").reshape(plan.x), io.array("Out").reshape(plan.out)
        dout, dx = io.array("Out@GRAD").reshape(plan.out), io.array("X@GRAD").reshape(plan.x)
        for rows in plan.blocks:
            found, values = _firsts(xp, plan, x[rows], out[rows]), widen(dout[rows])
            index = places.of(found)
            index += planes[: rows.stop - rows.start]
            if not found.all():  # windows in the padding, or of numbers that are none
                index, values = xp.where(found, index, 0), xp.where(found, values, values.dtype.type(0))
            total = xp.empty((rows.stop - rows.start, *plan.x[1:]), xp.float32) if half else dx[rows]
            total.fill(0)
            scatter_add(total.reshape(-1), index.reshape(-1), values.reshape(-1))
            if half:
                _store(xp, dx, rows, total)

    return run


def _pool_grad(call: Call, context: Context) -> Any:
    if call.attr("pooling_type") == "avg":
        return _mean_grad(call, context)
    return (_max_grad_few if Plan(call, context).grid else _max_grad)(call, context)


@register_kernel("pool2d_grad", "array")
def pool2d_grad(call: Call, context: Context) -> Any:
    """The gradient goes to the first greatest element of a window, or to all of them."""
    return _pool_grad(call, context)


@register_kernel("pool3d_grad", "array")
def pool3d_grad(call: Call, context: Context) -> Any:
    """The gradient goes to the first greatest element of a window, or to all of them."""
    return _pool_grad(call, context)


# With places -------------------------------------------------------------------------------------------------------


def _indexed_whole(call: Call, context: Context, plan: Plan) -> Any:
    """Each plane is one window."""
    xp, widen = context.xp, widener(call.dtype("X"), context)

    def run(context: Context, io: IO) -> None:
        x = xp.reshape(io.array("X"), plan.x)
        out = xp.reshape(io.array("Out"), plan.out) if call.has("Out") else None
        mask = xp.reshape(io.array("Mask"), plan.out)
        for rows in plan.blocks:
            value = widen(x[rows, ...])
            most = xp.max(value, axis=1, keepdims=True)
            place = xp.astype(xp.argmax(value, axis=1, keepdims=True), xp.int32)
            mask[rows, ...] = xp.where(most == most, place, xp.full_like(place, -1))
            if out is not None:
                _store(xp, out, rows, most)

    return run


def _indexed_few(call: Call, context: Context, plan: Plan) -> Any:
    """Mask = the place of the first greatest element of each window."""
    xp, reduce = context.xp, _pool(call, context, "max")
    places = Places(xp, plan, xp.int32)

    def run(context: Context, io: IO) -> None:
        reduce(io, "X", "Out")
        x, out, mask = (io.array(s).reshape(d) for s, d in (("X", plan.x), ("Out", plan.out), ("Mask", plan.out)))
        for rows in plan.blocks:
            found = _firsts(xp, plan, x[rows], out[rows])
            mask[rows] = places.of(found)
            if not found.all():
                mask[rows][found == 0] = -1

    return run


def _indexed(call: Call, context: Context) -> Any:
    """Out as pool2d's; Mask by going back through the axes, the last tap first, so that the first one stays."""
    if not call.has("Mask"):
        reduce = _pool(call, context, "max")
        return lambda context, io: reduce(io, "X", "Out")
    xp, steps, plan = context.xp, Steps(context), Plan(call, context)
    dtype = getattr(xp, compute_dtype(call.dtype("X")))
    widen, order = widener(call.dtype("X"), context), plan.lines[::-1]
    lowest, voids = _lowest(call.dtype("X")), list(plan.voids())
    weights = [prod(plan.space[i + 1 :]) for i in range(len(plan.space))]
    if len(plan.axes) == 1 and plan.axes[0].outs == 1:
        return _indexed_whole(call, context, plan)
    if plan.grid and call.has("Out"):
        return _indexed_few(call, context, plan)
    places = xp.zeros((1,) * len(plan.x), dtype=xp.int32)
    for axis, size in enumerate(plan.space):
        dims = tuple(size if i == axis + 1 else 1 for i in range(len(plan.x)))
        places = places + xp.reshape(xp.arange(size, dtype=xp.int32) * weights[axis], dims)

    def run(context: Context, io: IO) -> None:
        x, mask = xp.reshape(io.array("X"), plan.x), xp.reshape(io.array("Mask"), plan.out)
        out = xp.reshape(io.array("Out"), plan.out) if call.has("Out") else None
        for rows in plan.blocks:
            dims = levels_of(plan, order, rows.stop - rows.start)
            level = widen(x[rows, ...])
            where = xp.broadcast_to(places, level.shape)
            for line, after in zip(order, dims[1:], strict=True):
                best = xp.empty(after, dtype=dtype)
                steps.slide(level, best, line, xp.maximum, xp.max, -float("inf"))
                found = xp.full(after, -1, dtype=xp.int32)
                for outs, ins in line.taps[::-1]:
                    chosen = level[ins] == best[outs]
                    if steps.out:
                        xp.copyto(found[outs], where[ins], where=chosen)
                    else:
                        found[outs] = xp.where(chosen, where[ins], found[outs])
                level, where = best, found
            mask[rows, ...] = where
            if out is not None:
                _store(xp, out, rows, level)
        for part in voids:
            if out is not None:
                out[part] = lowest

    return run


@register_kernel("max_pool2d_with_index", "array")
def max_pool2d_with_index(call: Call, context: Context) -> Any:
    """Out = the greatest of each window; Mask = where it is in its plane."""
    return _indexed(call, context)


@register_kernel("max_pool3d_with_index", "array")
def max_pool3d_with_index(call: Call, context: Context) -> Any:
    """Out = the greatest of each window; Mask = where it is in its plane."""
    return _indexed(call, context)


def plane_adder(call: Call, context: Context, planes: int, size: int, count: int) -> Callable[[Any, Any, Any], None]:
    """Return ``add(target, places, values)``: in each plane, values[i] is added at places[i], from zero.

    Places outside the plane are passed over. Planes have ``size`` elements, of which ``count`` are named.
    """
    xp, half = context.xp, is_half(call.dtype("Out@GRAD"))
    scatter_add, host = context.array.extra("scatter_add"), immediate(context)
    step = max(1, BLOCK // max(size, 1)) if host else max(planes, 1)

    def add(target: Any, places: Any, values: Any) -> None:
        places, values = xp.reshape(places, (planes, count)), xp.reshape(values, (planes, count))
        target = xp.reshape(target, (planes, size))
        for at in range(0, planes, step):
            part = slice(at, at + step)
            add_planes(target[part, ...], places[part, ...], values[part, ...])

    def add_planes(target: Any, places: Any, values: Any) -> None:
        values = xp.astype(values, xp.float32) if half else values
        if scatter_add is None:  # the standard leaves a product with the one-hot matrix
            chosen = xp.arange(size, dtype=places.dtype)[None, None, :] == places[:, :, None]
            total = xp.matmul(values[:, None, :], xp.astype(chosen, values.dtype))[:, 0, :]
            target[...] = xp.astype(total, target.dtype)
            return
        inside = (places >= 0) & (places < size)
        index = places + xp.arange(places.shape[0], dtype=xp.int64)[:, None] * size
        if not (host and inside.all()):
            index = xp.where(inside, index, xp.zeros_like(index))
            values = xp.where(inside, values, xp.zeros_like(values))
        total = xp.zeros((target.size,), dtype=xp.float32) if half else xp.reshape(target, (-1,))
        if not half:
            total[...] = 0.0
        scatter_add(total, xp.reshape(index, (-1,)), xp.reshape(values, (-1,)))
        if half:
            target[...] = xp.reshape(xp.astype(total, target.dtype), target.shape)

    return add


def _indexed_grad(call: Call, context: Context) -> Any:
    planes, _ = pool_planes(call)
    axes = pool_axes(call)
    add = plane_adder(call, context, planes, prod(axis.size for axis in axes), prod(axis.outs for axis in axes))
    return lambda context, io: add(io.array("X@GRAD"), io.array("Mask"), io.array("Out@GRAD"))


@register_kernel("max_pool2d_with_index_grad", "array")
def max_pool2d_with_index_grad(call: Call, context: Context) -> Any:
    """The gradient goes where Mask says."""
    return _indexed_grad(call, context)


@register_kernel("max_pool3d_with_index_grad", "array")
def max_pool3d_with_index_grad(call: Call, context: Context) -> Any:
    """The gradient goes where Mask says."""
    return _indexed_grad(call, context)
