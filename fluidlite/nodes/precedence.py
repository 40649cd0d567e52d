"""common_device: the device of a node, from the devices of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fluidlite.base.errors import NodeError
from fluidlite.nodes.devices import Device, null_device


def common_device(devs: Sequence[Device], names: Callable[[], Sequence[str]], node_name: str) -> Device:
    """The device of highest precedence of a node's inputs; of equals, the first. The null device if there are none.

    ``devs``: the devices of the inputs.
    ``names``: returns the names of the inputs for an error.
    ``node_name``: the name of the node for an error.
    Raises NodeError if two inputs are in different memory.
    """
    if not devs:
        return null_device()
    best = devs[0]
    for dev in devs:
        if dev is best:
            continue
        place, best_place = dev.place, best.place
        if place is not best_place and place is not None and best_place is not None and place != best_place:
            raise NodeError(_memory_error(devs, names(), node_name))
        if dev.precedence > best.precedence:
            best = dev
    return best


def _memory_error(devs: Sequence[Device], names: Sequence[str], node_name: str) -> str:
    placed_inputs = ", ".join(
        f"{name} on {dev}" for name, dev in zip(names, devs, strict=True) if dev.place is not None
    )
    first = next(dev for dev in devs if dev.place is not None)
    other = next(i for i, dev in enumerate(devs) if dev.place is not None and not dev.same_memory(first))
    return (
        f"{node_name}: its inputs lie in different memory: {placed_inputs}; expected all in that of one place"
        f"\n  Do: DeviceTransfer({names[other]}, {first}) copies the value there, and the gradient back;"
        f" or move_to the leaf"
    )
