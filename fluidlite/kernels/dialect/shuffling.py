"""pixel_shuffle, space_to_depth, shuffle_channel and temporal_shift, with gradients."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, register_kernel, shifted_channels, shuffle_of

from .source import MOVED, Buffer, build, dealt
from .strided import mover, steps_of


def _shuffle(call: Call, context: Context) -> Any:
    """A transpose between views."""
    shuffle, dtype = shuffle_of(call), call.dtype(call.op.inputs[0].name)
    steps, dims = steps_of(shuffle.dims), [shuffle.dims[axis] for axis in shuffle.axes]
    move = mover(context, dtype, dtype, dims, [steps[axis] for axis in shuffle.axes], steps_of(dims))
    return lambda context, io: move(context, io.span(shuffle.source), io.span(shuffle.target))


pixel_shuffle = register_kernel("pixel_shuffle", "dialect")(_shuffle)
pixel_shuffle_grad = register_kernel("pixel_shuffle_grad", "dialect")(_shuffle)
space_to_depth = register_kernel("space_to_depth", "dialect")(_shuffle)
space_to_depth_grad = register_kernel("space_to_depth_grad", "dialect")(_shuffle)
shuffle_channel = register_kernel("shuffle_channel", "dialect")(_shuffle)
shuffle_channel_grad = register_kernel("shuffle_channel_grad", "dialect")(_shuffle)

# A plane an item.
_SHIFT = """
  const index_t image = gid / channels, channel = gid - image * channels, step = image % steps;
  const index_t move = channel < first ? -forth : channel < second ? forth : 0;
  const int inside = step + move >= 0 && step + move < steps;
  const index_t to = gid * size, from = (gid + move * channels) * size;
  for (index_t i = 0; i < size; ++i) out[to + i] = inside ? x[from + i] : 0;
"""


def _shift(call: Call, context: Context, source: str, target: str, forth: int) -> Any:
    images, channels, *space = call.dims(source)
    moved = MOVED[ITEMSIZE[call.dtype(source)]]
    kernel = build(
        context, f"temporal_shift_{moved}", [Buffer("x", moved), Buffer("out", moved, True)],
        ["channels", "steps", "first", "second", "size", "forth"], _SHIFT,
    )  # fmt: skip
    numbers = (channels, call.attr("seg_num"), *shifted_channels(call, source), prod(space), forth)
    items = images * channels

    def run(context: Context, io: IO) -> None:
        kernel(context, items, (io.span(source), io.span(target)), numbers, dealt(items))

    return run


@register_kernel("temporal_shift", "dialect")
def temporal_shift(call: Call, context: Context) -> Any:
    """The first channels come a step later, the next ones a step earlier."""
    return _shift(call, context, "X", "Out", 1)


@register_kernel("temporal_shift_grad", "dialect")
def temporal_shift_grad(call: Call, context: Context) -> Any:
    """The same channels move back."""
    return _shift(call, context, "Out@GRAD", "X@GRAD", -1)
