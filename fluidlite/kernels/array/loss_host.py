"""softmax_with_cross_entropy in host memory: large problems, along any axis, in blocks that threads share."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context

from .common import is_half, widener
from .labels import Labels
from .threads import each_part

BLOCK = 65536
"""Elements of a block: it and its exponentials stay in a core's second-level cache."""

Block = tuple[slice, slice]


def parts_of(dims: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Return dims as (outer, size of the axis, inner)."""
    axis %= len(dims)
    return prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])


class Blocks:
    """Whole rows of classes of [outer, classes, inner], in blocks of outer and inner.

    Parameters
    ----------
    dims : (outer, classes, inner)
    """

    def __init__(self, dims: tuple[int, int, int]) -> None:
        self.outer, self.classes, self.inner = dims
        columns = min(max(self.inner, 1), max(1, BLOCK // self.classes))
        rows = max(1, BLOCK // max(self.classes * self.inner, 1))
        self.all = [
            (slice(i, min(i + rows, self.outer)), slice(j, min(j + columns, self.inner)))
            for i in range(0, self.outer, rows)
            for j in range(0, self.inner, columns)
        ]

    def scores(self, array: Any) -> Any:
        """View an array as [outer, classes, inner]."""
        return array.reshape(self.outer, self.classes, self.inner)

    def rows(self, array: Any) -> Any:
        """View one number a row as [outer, inner]."""
        return array.reshape(self.outer, self.inner)

    def of(self, array: Any, block: Block) -> Any:
        """The block of an array of scores: [rows, classes, columns], or a matrix if inner is 1."""
        return array[block[0], :, 0] if self.inner == 1 else array[block[0], :, block[1]]

    def of_rows(self, array: Any, block: Block) -> Any:
        """The block of one number a row."""
        return array[block[0], 0] if self.inner == 1 else array[block]

    def chosen(self, xp: Any, labels: Any) -> tuple[Any, ...]:
        """The index that picks a block's labelled classes of its scores."""
        if self.inner == 1:
            return xp.arange(labels.shape[0]), labels
        return xp.arange(labels.shape[0])[:, None], labels, xp.arange(labels.shape[1])


def loss_on_host(call: Call, context: Context) -> Any:
    """Softmax = exp(Logits - max) / total; Loss = log(total) - (Logits - max)[label]."""
    xp, blocks = context.xp, Blocks(parts_of(call.dims("Logits"), call.attr("axis")))
    widen, half = widener(call.dtype("Logits"), context), is_half(call.dtype("Logits"))
    rows = blocks.outer * blocks.inner
    labels_of = None if call.attr("soft_label") else Labels(call, rows, blocks.classes)

    def run(context: Context, io: IO) -> None:
        logits = blocks.scores(io.array("Logits"))
        softmax = blocks.scores(io.array("Softmax")) if io.has("Softmax") else None
        loss = blocks.rows(io.array("Loss")) if io.has("Loss") else None
        labels = ignored = targets = None
        if labels_of is None:
            targets = blocks.scores(io.array("Label"))
        else:
            found, ignored = labels_of.read(context, io)
            labels = blocks.rows(found)
            ignored = None if ignored is None else blocks.rows(ignored)

        def work(part: int) -> None:
            block = blocks.all[part]
            x = widen(blocks.of(logits, block))
            kept = blocks.of(softmax, block) if softmax is not None else None
            e = xp.empty_like(x) if kept is None or half else kept
            xp.subtract(x, xp.maximum.reduce(x, 1, None, None, True), e)
            cost: Any = None
            mass: Any = 1
            if targets is not None:
                target = widen(blocks.of(targets, block))
                mass, cost = xp.add.reduce(target, 1), xp.add.reduce(target * e, 1)
            else:
                here = blocks.of_rows(labels, block)
                cost = e[blocks.chosen(xp, here)]
            xp.exp(e, e)
            total = xp.add.reduce(e, 1, None, None, True)
            if kept is not None:
                xp.divide(e, total, e)
                if half:
                    kept[...] = e
            if loss is not None:
                value = xp.log(total[:, 0]) * mass - cost
                if ignored is not None:
                    value[blocks.of_rows(ignored, block)] = 0
                blocks.of_rows(loss, block)[...] = value

        each_part(context, len(blocks.all), _same(work))

    return run


def loss_grad_on_host(call: Call, context: Context) -> Any:
    """Logits@GRAD = (Softmax - label) * Loss@GRAD; 0 in ignored rows."""
    xp, blocks = context.xp, Blocks(parts_of(call.dims("Softmax"), call.attr("axis")))
    widen, half = widener(call.dtype("Softmax"), context), is_half(call.dtype("Softmax"))
    rows = blocks.outer * blocks.inner
    labels_of = None if call.attr("soft_label") else Labels(call, rows, blocks.classes)

    def run(context: Context, io: IO) -> None:
        softmax, grad = (blocks.scores(io.array(slot)) for slot in ("Softmax", "Logits@GRAD"))
        dloss = widen(blocks.rows(io.array("Loss@GRAD")))
        labels = targets = None
        if labels_of is None:
            targets = blocks.scores(io.array("Label"))
        else:
            found, ignored = labels_of.read(context, io)
            labels = blocks.rows(found)
            if ignored is not None:
                dloss = xp.where(blocks.rows(ignored), xp.zeros_like(dloss), dloss)

        def work(part: int) -> None:
            block = blocks.all[part]
            y, kept, scale = widen(blocks.of(softmax, block)), blocks.of(grad, block), blocks.of_rows(dloss, block)
            value = xp.empty_like(y) if half else kept
            if targets is not None:
                xp.subtract(y, widen(blocks.of(targets, block)), value)
                xp.multiply(value, scale[:, None], value)
            else:
                xp.multiply(y, scale[:, None], value)
                value[blocks.chosen(xp, blocks.of_rows(labels, block))] -= scale  # one place a row: none repeats
            if half:
                kept[...] = value

        each_part(context, len(blocks.all), _same(work))

    return run


def _same(work: Callable[[int], None]) -> Callable[[], Callable[[int], None]]:
    """A worker of every thread: it has no memory of its own."""
    return lambda: work
