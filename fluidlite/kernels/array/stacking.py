"""stack and unstack with gradients, unbind."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, parts_of, register_kernel


def _stack(call: Call, context: Context) -> Any:
    """Copy between the parts and their places in the whole, of which each has one along the axis."""
    parts = parts_of(call)
    before = (slice(None),) * parts.axis
    places: list[Any] = [(*before, i, ...) for i in range(len(parts.sizes))]

    def join(context: Context, io: IO) -> None:
        whole = io.array(parts.whole)
        for i, place in enumerate(places):
            whole[place] = io.array(parts.parts, i)

    def divide(context: Context, io: IO) -> None:
        whole = io.array(parts.whole)
        for i, place in enumerate(places):
            io.array(parts.parts, i)[...] = whole[place]

    return join if parts.joins else divide


stack = register_kernel("stack", "array")(_stack)
stack_grad = register_kernel("stack_grad", "array")(_stack)
unstack = register_kernel("unstack", "array")(_stack)
unstack_grad = register_kernel("unstack_grad", "array")(_stack)
unbind = register_kernel("unbind", "array")(_stack)
