"""It registers an operator and a device, and then raises: neither must stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.plugin import DeviceBase, Inference, hookimpl, register_op


class HalfDevice(DeviceBase):
    """A device of a kind that must not appear."""

    kind = "half"

    def probe(self) -> int:
        return 1


@hookimpl
def register_devices(register: Callable[[Any], None]) -> None:
    """Register one."""
    register(HalfDevice())


@hookimpl
def register_operators(register: Callable[[Any], None]) -> None:
    """Register one, then fail with a chain of causes."""
    register(register_op("half_made", Inference(lambda call: {"Out": call.spec("X")}), inputs=("X",), outputs=("Out",)))
    try:
        {}["calibration"]
    except KeyError as error:
        raise RuntimeError("the board is not calibrated") from error
