"""pixel_shuffle, space_to_depth, shuffle_channel and temporal_shift, with gradients."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel, shifted_channels, shuffle_of


def _shuffle(call: Call, context: Context) -> Any:
    """A transpose between views."""
    xp, shuffle = context.xp, shuffle_of(call)
    dims = tuple(shuffle.dims[axis] for axis in shuffle.axes)

    def run(context: Context, io: IO) -> None:
        seen = xp.permute_dims(xp.reshape(io.array(shuffle.source), shuffle.dims), shuffle.axes)
        xp.reshape(io.array(shuffle.target), dims)[...] = seen

    return run


pixel_shuffle = register_kernel("pixel_shuffle", "array")(_shuffle)
pixel_shuffle_grad = register_kernel("pixel_shuffle_grad", "array")(_shuffle)
space_to_depth = register_kernel("space_to_depth", "array")(_shuffle)
space_to_depth_grad = register_kernel("space_to_depth_grad", "array")(_shuffle)
shuffle_channel = register_kernel("shuffle_channel", "array")(_shuffle)
shuffle_channel_grad = register_kernel("shuffle_channel_grad", "array")(_shuffle)


def _shift(call: Call, source: str, target: str, back: bool) -> Any:
    images, channels, *space = call.dims(source)
    steps = call.attr("seg_num")
    dims = (images // steps, steps, channels, *space)
    first, second = shifted_channels(call, source)
    later, earlier = slice(0, first), slice(first, second)
    if back:
        later, earlier = earlier, later

    def run(context: Context, io: IO) -> None:
        xp = context.xp
        x, out = xp.reshape(io.array(source), dims), xp.reshape(io.array(target), dims)
        out[:, 1:, later, ...] = x[:, :-1, later, ...]
        out[:, :1, later, ...] = 0.0
        out[:, :-1, earlier, ...] = x[:, 1:, earlier, ...]
        out[:, -1:, earlier, ...] = 0.0
        out[:, :, second:, ...] = x[:, :, second:, ...]

    return run


@register_kernel("temporal_shift", "array")
def temporal_shift(call: Call, context: Context) -> Any:
    """The first channels come a step later, the next ones a step earlier."""
    return _shift(call, "X", "Out", back=False)


@register_kernel("temporal_shift_grad", "array")
def temporal_shift_grad(call: Call, context: Context) -> Any:
    """The same channels move back."""
    return _shift(call, "Out@GRAD", "X@GRAD", back=True)
