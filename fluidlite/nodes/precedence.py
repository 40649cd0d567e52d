"""Which device a node is on, by those of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fluidlite.base.errors import NodeError
from fluidlite.nodes.devices import Device, null_device


def common_device(devs: Sequence[Device], names: Callable[[], Sequence[str]], what: str) -> Device:
    """The most precedent device of a node's inputs; of equals, the first. The null device if there are none.

    ``devs``: those of the inputs.
    ``names``: Returns what an error calls the inputs.
    ``what``: what errors call the node.
    Raises NodeError if two inputs lie in different memory.
    """
    if not devs:
        return null_device()
    best = devs[0]
    for dev in devs:
        if dev is best:
            continue
        here, there = dev.place, best.place
        if here is not there and here is not None and there is not None and here != there:
            raise NodeError(_different(devs, names(), what))
        if dev.precedence > best.precedence:
            best = dev
    return best


def _different(devs: Sequence[Device], names: Sequence[str], what: str) -> str:
    shown = ", ".join(f"{name} on {dev}" for name, dev in zip(names, devs, strict=True) if dev.place is not None)
    first = next(dev for dev in devs if dev.place is not None)
    other = next(i for i, dev in enumerate(devs) if dev.place is not None and not dev.same_memory(first))
    return (
        f"{what}: its inputs lie in different memory: {shown}; expected all in that of one place"
        f"\n  Do: DeviceTransfer({names[other]}, {first}) copies the value there, and the gradient back;"
        f" or move_to the leaf"
    )
