"""Metadata of a tensor as a tensor: shape, size, is_empty. No kernel reads the tensor's elements."""

from __future__ import annotations

from collections.abc import Callable

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL
from fluidlite.expr.calls import numbers
from fluidlite.expr.declare import operator
from fluidlite.program.opdef import OpDef, Slot
from fluidlite.program.operator_options import Inference


def _metadata(type: str, slot: str, doc: str) -> Callable[[Callable[..., e.Tensor]], OpDef]:
    return operator(
        type,
        Inference(constant=numbers),
        inputs=[Slot(slot, metadata_only=True)],
        dtypes={slot: ALL},
        doc=doc,
        source=f"Fluid {type}_op.cc",
    )


@_metadata("shape", "Input", "Out = the dims of Input, int32")
def shape(input: e.Tensor) -> e.Tensor:
    """Out is empty for a tensor of rank 0."""
    for d in input.dims:
        e.need(d < 2**31, "Input", "dims below 2 ** 31: Out is int32")
    return e.concat([e.full((1,), d, "int32") for d in input.dims], 0) if input.rank else e.full((0,), 0, "int32")


@_metadata("size", "Input", "Out = the number of elements of Input, int64 [1]")
def size(input: e.Tensor) -> e.Tensor:
    """1 for a tensor of rank 0."""
    return e.full((1,), e.product(input.dims), "int64")


@_metadata("is_empty", "X", "Out = whether X has no elements, bool [1]")
def is_empty(x: e.Tensor) -> e.Tensor:
    """Whether the product of the dims is 0."""
    return e.full((1,), e.equal(e.product(x.dims), 0), "bool")
