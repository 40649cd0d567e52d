"""shape, size, is_empty: the bytes are metadata."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.plugin import IO, Call, Context, numpy_dtype, register_kernel


def _tell(call: Call, context: Context) -> Any:
    """Copy in what the definition knows."""
    constant = call.op.constant
    assert constant is not None
    content = memoryview(np.asarray(constant(call)["Out"], numpy_dtype(call.dtype("Out"))).tobytes())

    def run(context: Context, io: IO) -> None:
        context.copy_in(io.span("Out"), content)

    return run


shape = register_kernel("shape", "memory")(_tell)
size = register_kernel("size", "memory")(_tell)
is_empty = register_kernel("is_empty", "memory")(_tell)
