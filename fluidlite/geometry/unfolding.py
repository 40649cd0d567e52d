"""Geometry of im2sequence: images as sequences of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fluidlite.program.op_call import Call


_MAX_SIZE = 2**31
"""Rows or columns of an image; larger sizes are errors."""


class ImageRun(NamedTuple):
    """Consecutive images with equally many windows.

    ``first``, ``images``: the first image, and the number of images.
    ``height``, ``width``: rows and columns of windows of each image.
    ``row``: the row of Out with the first window of the first image.
    """

    first: int
    images: int
    height: int
    width: int
    row: int


def _pair(call: Call, name: str) -> tuple[int, int]:
    """Return an attribute with a positive number for rows and one for columns."""
    pair = call.attr(name)
    if len(pair) != 2 or min(pair) < 1:
        call.fail_attr(name, "2 numbers of 1 or more, one for each spatial dim")
    return pair[0], pair[1]


def image_runs(call: Call) -> list[ImageRun] | None:
    """Return the windows of im2sequence by runs of equal images; None if dims or Y are unknown."""
    x, kernel, strides = call.dims("X"), _pair(call, "kernels"), _pair(call, "strides")
    pads = call.attr("paddings")
    if len(pads) != 4 or any(p < 0 for p in pads):
        call.fail_attr("paddings", "4 numbers of 0 or more: above, left, below, right")
    sizes = [(x[2], x[3])] * max(x[0], 0)
    if call.has("Y") and x[0] != 1:
        step = _pair(call, "out_stride")
        values = call.value("Y")
        if values is None or x[0] < 0:
            return None
        if not all(0 <= value < _MAX_SIZE for value in values):  # NaN fails, too
            call.fail("Y", "sizes of images", values)
        pairs = zip(values[::2], values[1::2], strict=True)
        sizes = [(-(-int(h) // step[0]), -(-int(w) // step[1])) for h, w in pairs]
    elif min(x[2:]) < 0:
        return None
    runs: list[ImageRun] = []
    for image, size in enumerate(sizes):
        height, width = (
            (n + pads[i] + pads[i + 2] - kernel[i]) // strides[i] + 1 if n + pads[i] + pads[i + 2] >= kernel[i] else 0
            for i, n in enumerate(size)
        )
        if not height * width:
            call.fail_attr("kernels", f"windows that fit in image {image}, {list(size)}, with its paddings")
        if runs and runs[-1][2:4] == (height, width):
            runs[-1] = runs[-1]._replace(images=runs[-1].images + 1)
        else:
            last = runs[-1] if runs else ImageRun(0, 0, 0, 0, 0)
            runs.append(ImageRun(image, 1, height, width, last.row + last.images * last.height * last.width))
    return None if x[0] < 0 else runs
