"""Helpers of inference functions: dims that may be -1 at build time, shared LoD, metadata of gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, prod

from fluidlite.base.dtypes import integer_limits, is_float
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, Infer, Slot
from fluidlite.tensor.tensor_spec import (
    Dims,
    Spec,
    all_dims_compatible as all_dims_compatible,
    dims_compatible as dims_compatible,
    specs_of,
)

Inferred = Mapping[str, "Spec | Sequence[Spec]"]


def size(dims: Sequence[int]) -> int:
    """Number of elements; -1 if a dim is unknown, even if another dim is 0."""
    return -1 if any(d < 0 for d in dims) else prod(dims)


def merged_dims(a: Sequence[int], b: Sequence[int]) -> Dims:
    """Merge dims that are equal at run time: each one that is known in either."""
    return tuple(y if x < 0 else x for x, y in zip(a, b, strict=True))


def spec_like(spec: Spec, dims: Sequence[int] | None = None, dtype: str | None = None) -> Spec:
    """Return a spec with the LoD of ``spec`` (Fluid's ShareLoD), and with its dims and dtype by default."""
    return Spec.of(
        spec.dims if dims is None else dims,
        spec.dtype if dtype is None else dtype,
        lod=spec.lod,
        lod_level=spec.lod_level,
    )


def same_dtype(call: Call, slot: str, other: str) -> None:
    """Raise DtypeError unless two input slots have one dtype."""
    if call.dtype(slot) != call.dtype(other):
        call.fail_dtype(slot, f"{call.dtype(other)}, the dtype of {other}", do="use layers.cast on one of the two")


def one_number(call: Call, slot: str, like: str | None = None) -> None:
    """Raise unless an optional slot, if present, holds one number (of the dtype of the slot ``like``)."""
    if call.has(slot):
        if not all(d in (1, -1) for d in call.dims(slot)):
            call.fail(slot, "one number, as [1]")
        if like is not None:
            same_dtype(call, slot, like)


def normal_axis(call: Call, name: str, value: int, rank: int, slot: str = "X") -> int:
    """Return an axis as 0..rank-1, or raise AttributeValueError."""
    if not -rank <= value < rank:
        call.fail_attr(name, f"an axis in [{-rank}, {rank}) of {slot}, which is {call.describe(slot)}")
    return value + rank if value < 0 else value


def without_lod(infer: Infer) -> Infer:
    """Wrap an inference function so that its outputs have no LoD."""

    def infer_without_lod(call: Call) -> Inferred:
        return {slot: [spec.with_(lod=()) for spec in specs_of(specs)] for slot, specs in infer(call).items()}

    return infer_without_lod


def grad_outputs(*names: str) -> tuple[Slot, ...]:
    """Return the gradient slots of forward slots; each is optional."""
    return tuple(Slot(name + GRAD, dispensable=True) for name in names)


def grad_like(*names: str) -> Callable[[Call], Inferred]:
    """Return the inference of a gradient operator: each gradient has the metadata of its forward variable."""

    def infer(call: Call) -> Inferred:
        for slot in call.ins:
            if slot.endswith(GRAD) and is_float(call.dtype(slot)):
                same_dtype(call, slot, names[0])
        return {name + GRAD: spec_like(call.spec(name)) for name in names}

    return infer


def number_fits(call: Call, name: str, dtype: str) -> None:
    """Raise AttributeValueError unless a tensor of a dtype can hold an attribute's number, or text of one.

    Floating and bool tensors hold every number. For integers fractions are truncated, as in Fluid; NaN, infinities and
    numbers out of range are refused.
    """
    if is_float(dtype) or dtype == "bool":
        return
    value, (low, high) = call.attr(name), integer_limits(dtype)
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            value = float(value)
    if not (isfinite(value) and low <= int(value) <= high):
        expected = f"a number from {low} to {high}, for it becomes one of {dtype}"
        call.fail_attr(name, expected, do="cast the tensor to a wider dtype, or ask for one")
