"""Operators that work line by line along one axis: a few steps on each line, which need all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype

from .common import immediate, numpy_style, storer, widener
from .moments_host import BLOCK, Parts, Work
from .threads import each_part

Into = Callable[..., None]
Pure = Callable[..., Any]


def products(xp: Any, a: Any, b: Any, memory: Any) -> Any:
    """Sums of products along axis 1, which stays as 1; ``memory`` may be written."""
    if a.ndim == 2 and hasattr(xp, "vecdot"):  # one pass, where lines are contiguous
        return xp.vecdot(a, b)[:, None]
    xp.multiply(a, b, memory)
    return xp.sum(memory, 1, keepdims=True)


def by_lines(call: Call, context: Context, ins: Sequence[str], outs: Sequence[str], into: Into, pure: Pure) -> Any:
    """Return the kernel of an operator on lines along its attribute ``axis``.

    Parameters
    ----------
    ins, outs : sequence of str
        Slots; the first input has whole lines. A tensor whose dim ``axis`` is 1 has one element a line.
    into : callable
        ``into(xp, *inputs, *outputs)`` writes the outputs; lines lie along axis 1.
    pure : callable
        ``pure(xp, *inputs)`` returns them; for namespaces that do not write, and for lines of no elements.
    """
    xp, dims = context.xp, call.dims(ins[0])
    axis = call.attr("axis") % len(dims)
    before, after = prod(dims[:axis]), prod(dims[axis + 1 :])
    shapes = [
        (before, call.dims(slot)[axis]) + ((after,) if after != 1 else ()) for slot in (*ins, *outs)
    ]  # a matrix where that will do: reductions over its last axis are fast
    wide = compute_dtype(call.dtype(ins[0]))
    half = wide != call.dtype(ins[0])

    def arrays(io: IO) -> list[Any]:
        found = []
        for slot, shape in zip((*ins, *outs), shapes, strict=True):
            array = io.array(slot)
            found.append(array if array.shape == shape else xp.reshape(array, shape))
        return found

    if not numpy_style(context) or (half and not immediate(context)) or not prod(dims):
        widen, store = widener(call.dtype(ins[0]), context), storer(context)

        def run_pure(context: Context, io: IO) -> None:
            given = arrays(io)[: len(ins)]
            results = pure(xp, *map(widen, given))
            for slot, result in zip(outs, results if isinstance(results, tuple) else (results,), strict=True):
                store(io.array(slot), result)

        return run_pure

    if not half and (prod(dims) <= BLOCK or before == 1 or not immediate(context)):

        def run_whole(context: Context, io: IO) -> None:
            into(xp, *arrays(io))

        return run_whole

    shape, kind = shapes[0], getattr(xp, wide)
    split = 2 if before == 1 < after else 0

    def run(context: Context, io: IO) -> None:
        given = arrays(io)
        parts = Parts(shape, split, kind)

        def worker() -> Work:
            readers = [parts.widened(array) for array in given[: len(ins)]]
            writers = [parts.written(array) for array in given[len(ins) :]]

            def work(part: int) -> None:
                pieces = [parts.of(array, part) for array in given]
                read = [widen(piece) for widen, piece in zip(readers, pieces, strict=False)]
                targets = pieces[len(ins) :]
                written = [place(piece) for place, piece in zip(writers, targets, strict=True)]
                into(xp, *read, *written)
                for target, value in zip(targets, written, strict=True):
                    if value is not target:
                        target[...] = value

            return work

        each_part(context, parts.number, worker)

    return run
