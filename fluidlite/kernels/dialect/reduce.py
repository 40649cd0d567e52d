"""mean, reduce_sum, _mean, _max, _min, _prod with gradients, reduce_all, reduce_any, and sum of several tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, Span, compute_dtype, register_kernel

from .reducing import reducer
from .source import Buffer, build, ctype, dealt, decode, load, part, store
from .strided import collapsed, filler, mover, steps_of

_MOST = 24
"""How many tensors one kernel adds: OpenCL promises 1024 bytes of arguments."""


def _axes(call: Call) -> tuple[int, ...]:
    rank = len(call.dims("X"))
    if call.attr("reduce_all"):
        return tuple(range(rank))
    return tuple(sorted({axis % rank for axis in call.attr("dim")}))


def scratch(io: IO) -> Span | None:
    """The workspace as a span, if there is one."""
    return io.workspace.span() if io.workspace is not None else None


def _reduce(call: Call, context: Context, how: str, axes: tuple[int, ...], count: int) -> Any:
    made = reducer(context, how, call.dtype("X"), call.dtype("Out"), call.dims("X"), axes, count)

    def run(context: Context, io: IO) -> None:
        made.run(context, io.span("X"), io.span("Out"), scratch(io))

    run.workspace = made.workspace  # type: ignore[attr-defined]
    return run


def _mean(call: Call, context: Context, axes: tuple[int, ...]) -> Any:
    dims = call.dims("X")
    count = prod(dims[axis] for axis in axes)
    if count:
        return _reduce(call, context, "sum", axes, count)
    fill, size = filler(context, call.dtype("Out"), float("nan")), prod(call.dims("Out"))
    return lambda context, io: fill(context, io.span("Out"), size)


def _spread(call: Call, context: Context, axes: tuple[int, ...], count: int) -> Any:
    """X@GRAD = Out@GRAD / count, broadcast over the axes."""
    dims, dtype = call.dims("X"), call.dtype("Out@GRAD")
    steps = _broadcast(dims, axes)
    move = mover(context, dtype, dtype, dims, steps, steps_of(dims), 1.0 / count if count > 1 else None)

    def run(context: Context, io: IO) -> None:
        move(context, io.span("Out@GRAD"), io.span("X@GRAD"))

    return run


def _broadcast(dims: tuple[int, ...], axes: tuple[int, ...]) -> list[int]:
    """Steps of the result of a reduction along the dims of what was reduced."""
    kept = steps_of([1 if axis in axes else size for axis, size in enumerate(dims)])
    return [0 if axis in axes else step for axis, step in enumerate(kept)]


@register_kernel("mean", "dialect")
def mean(call: Call, context: Context) -> Any:
    """Out[0] = the mean of X."""
    return _mean(call, context, tuple(range(len(call.dims("X")))))


@register_kernel("mean_grad", "dialect")
def mean_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD / size of X."""
    return _spread(call, context, tuple(range(len(call.dims("X")))), prod(call.dims("X")))


@register_kernel("reduce_sum", "dialect")
def reduce_sum(call: Call, context: Context) -> Any:
    """Sum over ``dim``; of nothing it is 0."""
    return _reduce(call, context, "sum", _axes(call), 0)


@register_kernel("reduce_mean", "dialect")
def reduce_mean(call: Call, context: Context) -> Any:
    """Mean over ``dim``; of nothing it is NaN."""
    return _mean(call, context, _axes(call))


@register_kernel("reduce_max", "dialect")
def reduce_max(call: Call, context: Context) -> Any:
    """Greatest over ``dim``."""
    return _reduce(call, context, "max", _axes(call), 0)


@register_kernel("reduce_min", "dialect")
def reduce_min(call: Call, context: Context) -> Any:
    """Least over ``dim``."""
    return _reduce(call, context, "min", _axes(call), 0)


@register_kernel("reduce_prod", "dialect")
def reduce_prod(call: Call, context: Context) -> Any:
    """Product over ``dim``; of nothing it is 1."""
    return _reduce(call, context, "prod", _axes(call), 0)


def _truth(call: Call, context: Context, how: str, empty: int) -> Any:
    if prod(call.dims("X")[axis] for axis in _axes(call)):
        return _reduce(call, context, how, _axes(call), 0)
    fill, size = filler(context, call.dtype("Out"), empty), prod(call.dims("Out"))
    return lambda context, io: fill(context, io.span("Out"), size)


@register_kernel("reduce_all", "dialect")
def reduce_all(call: Call, context: Context) -> Any:
    """Whether all over ``dim`` are true; of nothing they are."""
    return _truth(call, context, "min", 1)


@register_kernel("reduce_any", "dialect")
def reduce_any(call: Call, context: Context) -> Any:
    """Whether one over ``dim`` is true; of nothing none is."""
    return _truth(call, context, "max", 0)


@register_kernel("reduce_sum_grad", "dialect")
def reduce_sum_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD, broadcast."""
    return _spread(call, context, _axes(call), 1)


@register_kernel("reduce_mean_grad", "dialect")
def reduce_mean_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD / count, broadcast."""
    axes = _axes(call)
    return _spread(call, context, axes, prod(call.dims("X")[axis] for axis in axes))


_CHOSEN = """
  index_t at = 0;
  const index_t row = gid / inner, from = gid * run, j0 = (gid - row * inner) * run * step;
  $decode
  at += j0;
  for (index_t j = 0; j < run; ++j) {
    const $T y = $x, best = $out;
    $store
  }
"""


def _chosen(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD where X equals Out, else 0."""
    dtype = call.dtype("X")
    value = f"y == best ? {load(dtype, 'dout[at + j * step]')} : ({ctype(context, compute_dtype(dtype))})0"
    words = {"out": load(dtype, "out[at + j * step]"), "store": store(context, dtype, "dx[from + j]", value)}
    spread = _spreader(call, context, f"reduce_chosen_{dtype}", [Buffer("out", dtype)], _CHOSEN, words)
    return lambda context, io: spread(context, io, [io.span("Out")])


def _spreader(
    call: Call, context: Context, entry: str, reduced: list[Buffer], text: str, words: dict[str, str]
) -> Callable[[Context, IO, list[Span]], None]:
    """Return the launch of a text that makes X@GRAD of X, results of its reduction, and Out@GRAD."""
    dims, dtype = call.dims("X"), call.dtype("X")
    axes = collapsed(dims, _broadcast(dims, _axes(call)), steps_of(dims))
    outer, (run_size, step, _) = axes[:-1], axes[-1]
    decoded = decode("row", [(f"n{d}", (("at", f"s{d}"),)) for d in range(len(outer))]) if outer else ""
    kernel = build(
        context, entry, [Buffer("x", dtype), *reduced, Buffer("dout", dtype), Buffer("dx", dtype, True)],
        ["inner", "run", "step", *(f"{word}{d}" for d in range(len(outer)) for word in ("n", "s"))], text,
        {"T": ctype(context, compute_dtype(dtype)), "x": load(dtype, "x[from + j]"), "decode": decoded, **words},
    )  # fmt: skip
    # a run of the last axis an item; a long one is cut where that leaves no rest
    parts = next((p for p in (64, 16, 4) if run_size >= 1024 and run_size % p == 0), 1)
    numbers = (parts, run_size // parts, step, *(number for axis in outer for number in axis[:2]))
    items = prod(axis[0] for axis in outer) * parts

    def launch(context: Context, io: IO, results: list[Span]) -> None:
        spans = (io.span("X"), *results, io.span("Out@GRAD"), io.span("X@GRAD"))
        kernel(context, items, spans, numbers, dealt(items))

    return launch


@register_kernel("reduce_max_grad", "dialect")
def reduce_max_grad(call: Call, context: Context) -> Any:
    """Each element equal to the greatest gets the whole gradient."""
    return _chosen(call, context)


@register_kernel("reduce_min_grad", "dialect")
def reduce_min_grad(call: Call, context: Context) -> Any:
    """Each element equal to the least gets the whole gradient."""
    return _chosen(call, context)


_FACTORS = """
  index_t at = 0;
  const index_t row = gid / inner, from = gid * run, j0 = (gid - row * inner) * run * step;
  $decode
  at += j0;
  for (index_t j = 0; j < run; ++j) {
    const $T y = $x, others = factors[at + j * step], found = zeros[at + j * step];
    const $T product = y == 0 ? (found == 1 ? others : 0) : (found == 0 ? others / y : 0);
    $store
  }
"""


@register_kernel("reduce_prod_grad", "dialect")
def reduce_prod_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD times the product of the other elements: of those that are not 0, and by how many are."""
    dims, dtype, axes = call.dims("X"), call.dtype("X"), _axes(call)
    wide = compute_dtype(dtype)
    parts = [reducer(context, how, dtype, wide, dims, axes) for how in ("factors", "zeros")]
    # first the two results, each aligned, then what the reducers themselves need
    room = -(-prod(call.dims("Out")) * ITEMSIZE[wide] // 256) * 256
    spread = _spreader(
        call, context, f"reduce_factors_{dtype}", [Buffer("factors", wide), Buffer("zeros", wide)], _FACTORS,
        {"store": store(context, dtype, "dx[from + j]", f"product * {load(dtype, 'dout[at + j * step]')}")},
    )  # fmt: skip

    def run(context: Context, io: IO) -> None:
        assert io.workspace is not None
        scratch = io.workspace.span()
        results = [part(scratch, 0), part(scratch, room)]
        for made, result in zip(parts, results, strict=True):
            made.run(context, io.span("X"), result, part(scratch, 2 * room))
        spread(context, io, results)

    run.workspace = 2 * room + max(made.workspace for made in parts)  # type: ignore[attr-defined]
    return run


@register_kernel("sum", "dialect", inplace=True)
def sum_(call: Call, context: Context) -> Any:
    """Out = X[0] + X[1] + ... in that order, rounded once."""
    count, dtype, size = call.count("X"), call.dtype("X"), prod(call.dims("Out"))
    wide = compute_dtype(dtype)
    starts = [0, *range(_MOST, count, _MOST - 1)]
    passes = []
    for start, end in zip(starts, [*starts[1:], count], strict=True):
        result = dtype if end == count else wide
        passes.append((start, end, _adder(context, end - start, wide if start else "", dtype, result)))

    def run(context: Context, io: IO) -> None:
        out = io.span("Out")
        partial = scratch(io) or out
        for start, end, kernel in passes:
            spans = [partial] if start else []
            spans += [io.span("X", i) for i in range(start, end)]
            spans.append(out if end == count else partial)
            kernel(context, size, spans, ())

    run.workspace = size * ITEMSIZE[wide] if len(passes) > 1 else 0  # type: ignore[attr-defined]
    return run


def _adder(context: Context, count: int, partial: str, dtype: str, out: str) -> Any:
    """Return the kernel that adds a partial sum (of dtype ``partial``, unless empty) and ``count`` tensors."""
    buffers = [Buffer("partial", partial)] if partial else []
    buffers += [Buffer(f"x{i}", dtype) for i in range(count)]
    terms = " + ".join(load(buffer.dtype, f"{buffer.name}[gid]") for buffer in buffers)
    return build(
        context, f"sum_{len(buffers)}_{dtype}_{out}", [*buffers, Buffer("out", out, True)], [],
        "  " + store(context, out, "out[gid]", terms), aliased=True,
    )  # fmt: skip
