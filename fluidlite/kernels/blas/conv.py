"""Convolutions, transposed convolutions and their gradients by cblas, on an image unrolled along its width only.

A column contains the elements that one row of the filter reads; every row of the filter reads the same columns at
another offset. The windows are the sum of one GEMM for each row. So an image is copied once for each tap along the
width, not once for each tap as by im2col. Small images are joined, so that a GEMM has enough columns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import Convolution, CorrelationAxis, Kernel, convolutions_of, fused_refusal, unknown_dims
from fluidlite.plugin import IO, Call, Context, register_kernel

from .cblas import FLOATS, PLAIN, ROW_MAJOR, TRANSPOSED, Routine, cblas_routine, unsuitable

MAX_UNROLLED_BYTES = 8 << 20
"""Maximum bytes of an unrolled part of an image; a row of windows of one image may take more."""
MAX_JOINED_COLUMNS = 4096
"""Columns of a GEMM up to which images are joined: wider products are no faster."""
MIN_CHANNELS = 8
"""Minimum channels and filters of a group; with fewer, GEMMs take longer than kernels in the kernel language."""
_UNIT_LINE = CorrelationAxis(1, 0, 1, 0, 1, 1, 1, 0, 1)  # a missing dim: one window of one tap

Array = Any
Step = Callable[[Context, IO], None]


def _supports(call: Call) -> str | None:
    reason = unsuitable(str(call.key_dtype)) or fused_refusal(call)
    if reason is not None or unknown_dims(call):
        return reason
    count = min(min(conv.channels, conv.filters) for conv in convolutions_of(call))
    text = f"a group has {count} channels or filters; from {MIN_CHANNELS} on products pay"
    return text if count < MIN_CHANNELS else None


class _Gemm:
    """``c = op(a) @ op(b)`` or ``c += op(a) @ op(b)`` of row-major matrices at addresses.

    ``a_row``, ``c_row``: strides of rows, in elements; the caller passes that of ``b`` with its address.
    ``transposed``: whether each of ``a`` and ``b`` is transposed.
    """

    def __init__(
        self, routine: Routine, m: int, n: int, k: int, a_row: int, c_row: int, transposed: tuple[bool, bool]
    ) -> None:
        integer, number = routine.integer, routine.number
        self._call = routine.releasing
        self._head = (
            ctypes.c_int(ROW_MAJOR),
            ctypes.c_int(TRANSPOSED if transposed[0] else PLAIN),
            ctypes.c_int(TRANSPOSED if transposed[1] else PLAIN),
            integer(m),
            integer(n),
            integer(k),
            number(1.0),
        )
        self._a_row, self._c_row, self._integer = integer(a_row), integer(c_row), integer
        self._betas = number(0.0), number(1.0)

    def __call__(self, a: int, b: int, b_row: int, c: int, add: bool) -> None:
        address, rows = ctypes.c_void_p, self._integer(b_row)
        self._call(*self._head, address(a), self._a_row, address(b), rows, self._betas[add], address(c), self._c_row)


class _Unroll:
    """An image [images, channels, depth, height, width] unrolled for the lines of a correlation.

    ``dims``: groups, and channels of each.
    """

    def __init__(self, lines: Sequence[CorrelationAxis], sizes: Sequence[int], dims: tuple[int, int]) -> None:
        self.lines = (_UNIT_LINE,) * (3 - len(lines)) + tuple(lines)
        self.sizes = (1,) * (3 - len(sizes)) + tuple(sizes)
        self.dims = dims
        d, h, w = self.lines
        self.counts = d.count, h.count, w.count
        offsets = [h.offset(t) for t in range(h.taps)]
        self.phases = min(h.stride, max(offsets) + 1)
        self.extra = max(offsets) // h.stride
        self.starts = [(at % h.stride, at // h.stride) for at in offsets]
        inside = h.least >= 0 and h.least + max(offsets) + h.count <= self.sizes[1]
        self.in_place = inside and h.stride == w.taps == w.stride == 1 and w.start == 0 and w.count == self.sizes[2]

    def parts(self, images: int, itemsize: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first image, end, first row, end) of parts whose columns take at most a constant number of bytes."""
        _, rows, width = self.counts
        row_nbytes = prod(self.dims) * self.lines[2].taps * self.phases * width * itemsize
        max_rows = max(1, MAX_UNROLLED_BYTES // row_nbytes - self.extra)
        if max_rows < rows:
            for n in range(images):
                for row in range(0, rows, max_rows):
                    yield n, n + 1, row, min(rows, row + max_rows)
            return
        joined = max(1, MAX_JOINED_COLUMNS // (rows * width))
        count = max(1, min(joined, MAX_UNROLLED_BYTES // (row_nbytes * (rows + self.extra))))
        for n in range(0, images, count):
            yield n, min(images, n + count), 0, rows

    def columns(self, x: Array, part: tuple[int, int, int, int], in_place: bool) -> Iterator[tuple[int, ...]]:
        """Yield the GEMM operands of a part of an image [images, channels, depth, height, width].

        Each is (slice of the windows, tap of the depth, tap of the height, address of the columns, their row stride).
        The address is valid until the generator resumes. ``in_place``: the part is one image with its channels first,
        which may be read without a copy.
        """
        first, end, low, high = part
        size, width = x.itemsize, self.counts[2]
        for d, readers in self.slices():
            if in_place and self.in_place:
                row_step, columns_of_row = prod(self.sizes), width
                start = x[first, :, d, self.lines[1].least + low :].ctypes.data
                phase_step = 0
            else:
                columns = self.unroll(x[first:end, :, d], low, high)
                row_step, start, columns_of_row = columns.strides[2] // size, columns.ctypes.data, (end - first) * width
                phase_step = columns.strides[3]
            for o, t in readers:
                for s, (phase, row) in enumerate(self.starts):
                    yield o, t, s, start + phase * phase_step + row * columns_of_row * size, row_step

    def slices(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield each depth slice that windows read, with the (window, tap) pairs that read it."""
        line = self.lines[0]
        readers: dict[int, list[tuple[int, int]]] = {}
        for o in range(line.count):
            for t in range(line.taps):
                at = line.start + line.stride * o + line.reach * t
                if 0 <= at < self.sizes[0]:
                    readers.setdefault(at, []).append((o, t))
        yield from sorted(readers.items())

    def unroll(self, x: Array, low: int, high: int) -> Array:
        """Return [groups, width taps, channels, phases, rows, images, width] of [images, channels, height, width]."""
        _, h, w = self.lines
        rows = high - low + self.extra
        groups, channels = self.dims
        columns = np.empty((groups, w.taps, channels, self.phases, rows, x.shape[0], w.count), x.dtype)
        x = x.reshape(x.shape[0], groups, channels, *x.shape[2:]).transpose(1, 2, 3, 0, 4)
        for phase in range(self.phases):
            at = h.least + phase + h.stride * low
            first = min(rows, max(0, -(at // h.stride)))
            end = max(first, min(rows, (self.sizes[1] - 1 - at) // h.stride + 1))
            columns[:, :, :, phase, :first] = 0
            columns[:, :, :, phase, end:] = 0
            if first == end:
                continue
            start = at + h.stride * first
            read = x[:, :, start : start + h.stride * (end - first - 1) + 1 : h.stride]
            for t in range(w.taps):
                target = columns[:, t, :, phase, first:end]
                left, right = w.inside(t, self.sizes[2])
                if left:
                    target[..., :left] = 0
                if right < w.count:
                    target[..., right:] = 0
                if left < right:
                    start = w.start + w.reach * t + w.stride * left
                    target[..., left:right] = read[..., start : start + w.stride * (right - left - 1) + 1 : w.stride]
        return columns


def _as_3d(array: Array, dims: tuple[int, ...], last: bool) -> Array:
    """Return an image of ``dims`` as [images, channels, depth, height, width], without a copy."""
    array = array.reshape(dims)
    if last:
        array = np.moveaxis(array, -1, 1)
    return array if array.ndim == 5 else array[:, :, None]


def convolve(call: Call, context: Context) -> Any:
    """Return the kernel that runs the computations of a call one after the other."""
    steps: list[Step] = []
    for conv in (each.flattened() for each in convolutions_of(call)):
        routine = cblas_routine(call.dtype(conv.out))
        assert routine is not None  # _supports checked it
        if conv.kind == "filter":
            steps.append(_filter_step(conv, routine))
        else:
            steps += [_correlation(conv, lines, routine) for lines in conv.correlations()]

    def run(context: Context, io: IO) -> None:
        for step in steps:
            step(context, io)

    return run


def _correlation(conv: Convolution, lines: tuple[CorrelationAxis, ...], routine: Routine) -> Step:
    """Return the step that computes the windows, or the part of an image that ``lines`` reach."""
    grouped = (conv.groups, conv.filters, conv.channels, *(1,) * (3 - len(lines)), *conv.shape.kernel)
    forward, groups = conv.kind == "windows", conv.groups
    source, inner, m, sizes, _ = conv.sides()
    lines = (_UNIT_LINE,) * (3 - len(lines)) + lines
    dims, out_dims = (conv.image_dims(), conv.windows_dims())[:: 1 if forward else -1]
    if not all(line.taps for line in lines):
        empty = tuple(_outputs(line, 0, line.count) for line in lines)

        def clear(context: Context, io: IO) -> None:
            _as_3d(io.array(conv.out), out_dims, conv.last)[(..., *empty)] = 0

        return clear
    unroll = _Unroll(lines, sizes, (groups, inner))
    taps = tuple(slice(line.tap, None, line.tap_step) for line in lines)
    depth, height, width = unroll.counts
    k = inner * lines[2].taps
    plain = not conv.last and all(line.step == 1 for line in lines)

    def run(context: Context, io: IO) -> None:
        x, out = _as_3d(io.array(source), dims, conv.last), _as_3d(io.array(conv.out), out_dims, conv.last)
        w = io.array(conv.filter).reshape(grouped)[(..., *taps)]
        packed = np.ascontiguousarray(w.transpose(3, 4, 0, *((1, 5, 2) if forward else (5, 1, 2))))  # channels last
        size = x.itemsize
        for part in unroll.parts(conv.images, size):
            first, end, low, high = part
            columns = (high - low) * (end - first) * width
            in_place = plain and end - first == 1
            if in_place:
                target, c_row, c_slice = out[first, :, :, low:high], depth * height * width, height * width
            else:
                target = np.empty((groups * m, depth, high - low, end - first, width), x.dtype)
                c_row, c_slice = depth * columns, columns
            base, written = target.ctypes.data, [False] * depth
            gemm = _Gemm(routine, m, columns, k, k if forward else m, c_row, (not forward, False))
            for o, t, s, at, b_row in unroll.columns(x, part, in_place):
                weights, to = packed[t, s].ctypes.data, base + o * c_slice * size
                for g in range(groups):
                    b, c = at + g * k * b_row * size, to + g * m * c_row * size
                    gemm(weights + g * m * k * size, b, b_row, c, written[o])
                written[o] = True
            for o in range(depth):
                if not written[o]:
                    target[:, o] = 0
            if not in_place:
                slices = (_outputs(lines[0], 0, depth), _outputs(lines[1], low, high), _outputs(lines[2], 0, width))
                out[(slice(first, end), slice(None), *slices)] = target.transpose(3, 0, 1, 2, 4)

    return run


def _outputs(line: CorrelationAxis, low: int, high: int) -> slice:
    """Return the slice of the outputs [low, high) of a line."""
    return slice(line.first + line.step * low, line.first + line.step * (high - 1) + 1, line.step)


def _filter_step(conv: Convolution, routine: Routine) -> Step:
    """Return the step that computes the gradient of a filter: a sum over images and rows, in a fixed order."""
    groups, m, inner = conv.groups, conv.filters, conv.channels
    unroll = _Unroll(conv.lines(), conv.sizes, (groups, inner))
    depth, height, width = unroll.counts
    d_taps, h_taps, w_taps = (line.taps for line in unroll.lines)
    n = inner * w_taps

    def run(context: Context, io: IO) -> None:
        x = _as_3d(io.array(conv.image), conv.image_dims(), conv.last)
        y, out = _as_3d(io.array(conv.windows), conv.windows_dims(), conv.last), io.array(conv.out)
        size = x.itemsize
        total = np.zeros((d_taps, h_taps, groups, m, w_taps, inner), x.dtype)
        for part in unroll.parts(conv.images, size):
            first, end, low, high = part
            columns = (high - low) * (end - first) * width
            in_place = not conv.last and end - first == 1
            windows = y[first, :, :, low:high]
            a_row, a_slice = depth * height * width, height * width
            if not in_place:
                windows = np.ascontiguousarray(y[first:end, :, :, low:high].transpose(1, 2, 3, 0, 4))
                a_row, a_slice = depth * columns, columns
            base = windows.ctypes.data
            gemm = _Gemm(routine, m, n, columns, a_row, n, (False, True))
            for o, t, s, at, b_row in unroll.columns(x, part, in_place):
                rows, to = base + o * a_slice * size, total[t, s].ctypes.data
                for g in range(groups):
                    b, c = at + g * n * b_row * size, to + g * m * n * size
                    gemm(rows + g * m * a_row * size, b, b_row, c, True)
        grouped_out = out.reshape(groups, m, inner, d_taps, h_taps, w_taps)
        for d, h, w in np.ndindex(d_taps, h_taps, w_taps):  # one assignment would copy a row of taps at a time
            grouped_out[..., d, h, w] = total[d, h, :, :, w]

    return run


def _registered(op: str) -> Kernel:
    return register_kernel(op, "cpu", library="blas", dtypes=FLOATS, supports=_supports)(convolve)


conv2d, conv2d_grad = _registered("conv2d"), _registered("conv2d_grad")
conv3d, conv3d_grad = _registered("conv3d"), _registered("conv3d_grad")
depthwise_conv2d, depthwise_conv2d_grad = _registered("depthwise_conv2d"), _registered("depthwise_conv2d_grad")
conv2d_transpose, conv2d_transpose_grad = _registered("conv2d_transpose"), _registered("conv2d_transpose_grad")
conv3d_transpose, conv3d_transpose_grad = _registered("conv3d_transpose"), _registered("conv3d_transpose_grad")
depthwise_conv2d_transpose = _registered("depthwise_conv2d_transpose")
depthwise_conv2d_transpose_grad = _registered("depthwise_conv2d_transpose_grad")
