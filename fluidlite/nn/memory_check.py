"""Check that a place has memory for a network's parameters, before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fluidlite.base.errors import OutOfMemoryError
from fluidlite.memory import memory_of
from fluidlite.platform.device_registry import devices

if TYPE_CHECKING:
    from fluidlite.nn.layer import Layer
    from fluidlite.nn.network import Network


def available_bytes(network: Network) -> int | None:
    """The free bytes of the place: its limit or size without the used bytes; None if unknown."""
    memory = memory_of(network.place)
    bounds = [bound for bound in (memory.limit, devices.unit(network.place).info.memory) if bound is not None]
    return min(bounds) - memory.stats().used if bounds else None


def check_memory(network: Network, layers: Sequence[Layer], state_bytes: int = 0) -> None:
    """Raise OutOfMemoryError if parameters, gradients and state exceed the place's free memory.

    ``state_bytes``: bytes of the optimizer's state. Outputs count for one row only, since their size depends on the
    batch.
    """
    free = available_bytes(network)
    if free is None:
        return
    parameters = sum(layer.parameter_bytes for layer in layers)
    gradients = sum(layer.gradient_bytes for layer in layers) if network.optimizer is not None else 0
    outputs = sum(layer.output_bytes() for layer in layers)
    total = parameters + gradients + state_bytes + outputs
    if total <= free:
        return
    last = layers[-1]
    parts = [f"{parameters:,} of parameters"]
    if gradients:
        parts.append(f"{gradients:,} of gradients")
    if state_bytes:
        parts.append(f"{state_bytes:,} of optimizer state")
    parts.append(f"{outputs:,} of outputs a row")
    raise OutOfMemoryError(
        f"{network.place} has {free:,} bytes left, and the network takes {total:,} with layer {last.number}, {last}, "
        f"whose parameters are {last.parameter_bytes:,} bytes: {', '.join(parts)}"
        "\n  Do: a smaller layer, a place with more memory, or fluid.memory.set_limit if it is the limit"
    )
