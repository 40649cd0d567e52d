"""sampling_id and random_crop, with the random numbers of the step."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import ITEMSIZE, random_windows
from fluidlite.plugin import IO, Call, Context, Prepared, compute_dtype, register_kernel

from .source import COPY_DTYPES, Buffer, build, ctype, group_size, load, scratch

_SAMPLE = """
  $U32 words[4];
  fl_philox_any(($U64)(gid / 4), r0, r1, r2, r3, words);
  const $T drawn = ($T)((float)(words[gid & 3] >> 8) * 5.9604644775390625e-8f) * span + low;
  const index_t from = gid * classes;
  index_t j = 0;
  $T sum = 0;
  for (; j < classes - 1; ++j) {
    sum += $x;
    if (sum > drawn) break;
  }
  out[gid] = j;
"""


@register_kernel("sampling_id", "language")
def sampling_id(call: Call, context: Context) -> Any:
    """Out = the first class at which the cumulative sum exceeds the row's random number, else the last class."""
    dtype, (rows, classes) = call.dtype("X"), call.dims("X")
    wide, types = compute_dtype(dtype), context.language.types
    low, span = call.attr("min"), call.attr("max") - call.attr("min")
    words = {"U32": types["uint32"], "U64": types["uint64"], "T": ctype(context, wide), "x": load(dtype, "x[from + j]")}
    random = [(f"r{i}", "uint32") for i in range(4)]
    kernel = build(
        context,
        f"sampling_{dtype}",
        [Buffer("x", dtype), Buffer("out", "int64", True)],
        ["classes", ("low", wide), ("span", wide), *random],
        _SAMPLE,
        words,
    )

    def run(context: Context, io: IO) -> None:
        kernel(context, rows, (io.span("X"), io.span("Out")), (classes, low, span, *io.random), group_size(rows))

    return run


_CROP = """
  const index_t block = gid / runs;
  index_t left = gid - block * runs, from = 0, step = width;
  $decode
  from += block * size + starts[block * $rank + $last];
  for (index_t j = 0; j < part; ++j) out[gid * part + j] = x[from + j];
"""


@register_kernel("random_crop", "language")
def random_crop(call: Call, context: Context) -> Any:
    """Out[i] = a block of X[i] at a random offset; a work-item copies a run of the last dim."""
    dims, shape, dtype = call.dims("X"), call.attr("shape"), COPY_DTYPES[ITEMSIZE[call.dtype("X")]]
    rank = len(shape)
    batch_dims, cropped_dims = dims[:-rank], dims[-rank:]
    count, max_starts = prod(batch_dims), [size - part for size, part in zip(cropped_dims, shape, strict=True)]
    lines = [
        f"from += (left - left / p{d} * p{d} + starts[block * {rank} + {d}]) * step; left /= p{d}; step *= n{d};"
        for d in range(rank - 2, -1, -1)
    ]
    kernel = build(
        context,
        f"random_crop_{rank}_{dtype}",
        [Buffer("x", dtype), Buffer("starts", "int64"), Buffer("out", dtype, True)],
        ["runs", "width", "size", "part", *(f"{word}{d}" for d in range(rank - 1) for word in ("n", "p"))],
        _CROP,
        {"decode": "\n  ".join(lines), "rank": str(rank), "last": str(rank - 1)},
    )
    runs = prod(shape[:-1])
    sizes = [number for d in range(rank - 1) for number in (cropped_dims[d], shape[d])]
    numbers = (runs, cropped_dims[-1], prod(cropped_dims), shape[-1], *sizes)

    def run(context: Context, io: IO) -> None:
        windows, next_seed = random_windows(int(io.tensor("Seed").numpy().reshape(-1)[0]), count, max_starts)
        if io.has("Out") and count:
            starts = scratch(io)
            context.copy_in(starts, np.asarray(windows, np.int64).data.cast("B"))
            kernel(context, count * runs, (io.span("X"), starts, io.span("Out")), numbers, group_size(count * runs))
        if io.has("SeedOut"):
            context.copy_in(io.span("SeedOut"), np.asarray([next_seed], np.int64).data.cast("B"))

    return Prepared(run, count * rank * 8 if call.has("Out") else 0)
