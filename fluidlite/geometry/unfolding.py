"""Images read as sequences of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fluidlite.program.op_call import Call


_LARGE = 2**31
"""No image has so many rows or columns."""


class ImageRun(NamedTuple):
    """Images one behind the other that give sequences of one length.

    ``first``, ``images``: the first image, and how many.
    ``height``, ``width``: windows of each image, row by row.
    ``row``: the row of Out at which the first image's windows begin.
    """

    first: int
    images: int
    height: int
    width: int
    row: int


def _two(call: Call, name: str) -> tuple[int, int]:
    """Return an attribute that has a number of 1 or more for rows and for columns."""
    given = call.attr(name)
    if len(given) != 2 or min(given) < 1:
        call.fail_attr(name, "2 numbers of 1 or more, one for each spatial dim")
    return given[0], given[1]


def image_runs(call: Call) -> list[ImageRun] | None:
    """Return the windows of im2sequence, equal images in a row together; None where dims or Y are not known."""
    x, kernel, strides = call.dims("X"), _two(call, "kernels"), _two(call, "strides")
    pads = call.attr("paddings")
    if len(pads) != 4 or any(p < 0 for p in pads):
        call.fail_attr("paddings", "4 numbers of 0 or more: above, left, below, right")
    sizes = [(x[2], x[3])] * max(x[0], 0)
    if call.has("Y") and x[0] != 1:
        step = _two(call, "out_stride")
        values = call.value("Y")
        if values is None or x[0] < 0:
            return None
        if not all(0 <= value < _LARGE for value in values):  # so NaN is none
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
