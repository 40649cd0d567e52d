"""Helpers of recurrent operators: activations by name, initial states, checks of operands."""

from __future__ import annotations

from typing import Any

from fluidlite import expr as e
from fluidlite.operators.inference import all_dims_compatible, same_dtype
from fluidlite.operators.sequence_rows import sequence_count
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr
from fluidlite.tensor.tensor_spec import Spec

FLOATS = ("float32", "float64")
ACTIVATIONS = ("sigmoid", "tanh", "relu", "identity")


def activation(name: str, default: str, doc: str) -> Attr:
    """An attribute that names an activation of a cell, as in Fluid."""
    return Attr(name, "str", default, choices=ACTIVATIONS, doc=doc)


def activate(name: str, x: Any) -> Any:
    return {"sigmoid": e.sigmoid, "tanh": e.tanh, "relu": lambda y: e.maximum(y, 0), "identity": lambda y: y}[name](x)


def initial_states(state: Any, offsets: Any, units: Any, dtype: str) -> Any:
    """The initial states of sequences, in the order of ``e.steps``; None: 0."""
    if state is None:
        return e.full((offsets.dims[0] - 1, units), 0, dtype)
    return e.arrange(state, offsets, "sequences")


def sequences(call: Call, slot: str = "Input") -> int:
    """The number of sequences, -1 if unknown; raise unless the slot is a LoD tensor of rank 2."""
    x = call.spec(slot)
    call.need(x.rank == 2, slot, "[steps of all sequences, gates]")
    if not x.lod_level:
        call.fail(slot, "a LoD tensor: its sequences", do="declare the data with lod_level=1, or use lod_reset")
    return sequence_count(x)


def need_dims(call: Call, slot: str, dims: tuple[int, ...], meaning: str) -> None:
    """Raise unless a slot, if present, has these dims and the dtype of Input."""
    if not call.has(slot):
        return
    same_dtype(call, slot, "Input")
    if not all_dims_compatible(call.dims(slot), dims):
        call.fail(slot, f"{list(dims)}, {meaning}")


def need_gates(call: Call, units: int, gates: int) -> None:
    """Raise unless the rows of Input are ``gates`` times as wide as a cell."""
    width = call.dims("Input")[1]
    if width >= 0 and units >= 0 and width != gates * units:
        call.fail("Input", f"rows of {gates * units} numbers: {gates} gates of {units} units each")


def rows_like(call: Call, width: int) -> Spec:
    """The metadata of Input with another width."""
    x = call.spec("Input")
    return Spec.of((x.dims[0], width), x.dtype, lod=x.lod, lod_level=x.lod_level)
