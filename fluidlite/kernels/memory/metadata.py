"""shape, size, is_empty: they copy metadata to the output."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.plugin import IO, Call, Context, numpy_dtype, register_kernel


def _metadata_kernel(call: Call, context: Context) -> Any:
    """Copy the constant that the operator's definition computes from metadata."""
    constant = call.op.constant
    assert constant is not None
    content = memoryview(np.asarray(constant(call)["Out"], numpy_dtype(call.dtype("Out"))).tobytes())

    def run(context: Context, io: IO) -> None:
        context.copy_in(io.span("Out"), content)

    return run


shape = register_kernel("shape", "memory")(_metadata_kernel)
size = register_kernel("size", "memory")(_metadata_kernel)
is_empty = register_kernel("is_empty", "memory")(_metadata_kernel)
