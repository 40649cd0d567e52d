"""The compute form of a kernel: a function of one context object, as in Fluid's ``Compute(ctx)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.base.errors import DeviceError
from fluidlite.platform.place import Place
from fluidlite.program.kernel_io import IO
from fluidlite.program.op_call import Call
from fluidlite.tensor.tensor import Tensor


class ExecutionContext:
    """The argument of a kernel in compute form: inputs and outputs as tensors, attributes, place and device context."""

    __slots__ = ("_io", "device_context")

    def __init__(self, io: IO, device_context: Any) -> None:
        self._io = io
        self.device_context = device_context

    @property
    def place(self) -> Place:
        """The place that the kernel runs on."""
        place: Place = self.device_context.place
        return place

    def has(self, slot: str) -> bool:
        """Whether an input or output slot is present."""
        return self._io.has(slot)

    def input(self, slot: str, i: int = 0) -> Tensor:
        """An input tensor; ``.data()`` is its native array."""
        return self._io.tensor(slot, i)

    def output(self, slot: str, i: int = 0) -> Tensor:
        """An output tensor; ``.mutable_data(ctx.place)`` returns the buffer that is bound to it."""
        return self._io.tensor(slot, i)

    def attr(self, name: str) -> Any:
        """An attribute's value."""
        return self._io.call.attrs[name]


def plain_run(function: Callable[[ExecutionContext], Any], call: Call) -> Callable[[Any, IO], Any]:
    """Wrap ``f(ctx)`` as ``run(context, io)``."""
    first = sum(map(len, call.ins.values()))
    specs = [spec for group in call.outs.values() for spec in group]

    def run(context: Any, io: IO) -> Any:
        result = function(ExecutionContext(io, context))
        for tensor, spec in zip(io.tensors[first:], specs, strict=True):
            if tensor.spec is not spec and tensor.spec != spec:
                raise DeviceError(f"the kernel made {tensor.spec!r} of an output, inference found {spec!r}")
        return result

    return run
