"""A place of PyTorch's tensors: a device that has an array namespace, and no kernels of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from fluidlite.plugin import (
    AllocatorBase,
    ArrayBase,
    ContextBase,
    DeviceBase,
    DeviceInfo,
    DeviceUnavailable,
    Span,
    hookimpl,
)


class TorchAllocator(AllocatorBase):
    """A handle is a tensor of bytes, freed with its last reference."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch

    def allocate(self, nbytes: int) -> Any:
        return self.torch.empty(nbytes, dtype=self.torch.uint8)

    def release(self, handle: Any) -> None: ...


class TorchContext(ContextBase):
    """Copies between host memory and tensors; on the CPU they are synchronous."""

    def __init__(self, place: Any, torch: ModuleType) -> None:
        super().__init__(place)
        self.torch = torch

    def copy_in(self, dst: Span, src: memoryview) -> None:
        part(dst).copy_(self.torch.frombuffer(bytearray(src), dtype=self.torch.uint8))

    def copy_out(self, dst: memoryview, src: Span) -> None:
        self.torch.frombuffer(dst, dtype=self.torch.uint8).copy_(part(src))

    def copy_within(self, dst: Span, src: Span) -> None:
        part(dst).copy_(part(src))

    def wait(self) -> None: ...

    def activate(self) -> Any:
        return self.torch.no_grad()  # fluidlite computes the gradients


def part(span: Span) -> Any:
    """The bytes of a span, as a tensor that shares its memory."""
    return span.handle[span.offset : span.offset + span.nbytes]


class TorchArrays(ArrayBase):
    """PyTorch's array namespace, by array-api-compat, and the conversion of bytes to tensors."""

    def __init__(self, torch: ModuleType) -> None:
        from array_api_compat import torch as namespace

        self.torch, self.xp = torch, namespace

    def wrap(self, span: Span, dims: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None) -> Any:
        flat = part(span).view(getattr(self.torch, dtype))
        return flat.view(dims) if strides is None else flat.as_strided(dims, strides)

    def adopt(self, array: Any) -> Any:
        """Return a result's bytes without a copy; None for a view, which may share memory with an input."""
        owned = isinstance(array, self.torch.Tensor) and array._base is None and array.is_contiguous()
        return array.reshape(-1).view(self.torch.uint8) if owned else None

    def extra(self, name: str) -> Any:
        return {"erf": self.torch.special.erf, "from_dlpack": self.torch.from_dlpack}.get(name)


class TorchDevice(DeviceBase):
    """The CPU, by PyTorch."""

    kind = "torch"
    place_name = "TorchPlace"

    def probe(self) -> int:
        try:
            import torch
        except ImportError:
            raise DeviceUnavailable("PyTorch is not installed: pip install torch") from None
        self.torch = torch
        return 1

    def info(self, index: int) -> DeviceInfo:
        return DeviceInfo(name=f"PyTorch {self.torch.__version__} on the CPU", dlpack=1)

    def allocator(self, index: int) -> TorchAllocator:
        return TorchAllocator(self.torch)

    def context(self, index: int, queue: int) -> TorchContext:
        return TorchContext(self.place(index), self.torch)

    def array(self, index: int) -> TorchArrays:
        return TorchArrays(self.torch)

    def supports(self, call: Any) -> str | None:
        """Return the reason if PyTorch lacks a feature of the standard; the call then runs on the host."""
        if call.op.type == "hash":
            return "PyTorch has no arithmetic of uint64"
        if call.op.type.startswith("pad2d") and call.attr("mode") == "reflect":
            return "PyTorch's tensors have no negative steps, which reflecting takes"
        if call.op.type.startswith("strided_slice"):
            return "PyTorch's tensors have no negative steps" if may_step_backwards(call) else None
        return None


def may_step_backwards(call: Any) -> bool:
    """Whether a step of a strided slice is negative, or its value unknown until the run."""
    slots = [(slot, i) for slot in ("StridesTensor", "StridesTensorList") for i in range(call.count(slot))]
    values = [call.value(slot, i) for slot, i in slots]
    return None in values or any(step < 0 for steps in (call.attr("strides"), *values) for step in steps)


@hookimpl
def register_devices(register: Callable[[Any], None]) -> None:
    """Register the device."""
    register(TorchDevice())
