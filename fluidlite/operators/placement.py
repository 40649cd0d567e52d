"""Placement of a value: device_view, which checks its place, and device_transfer, which copies to a place."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL
from fluidlite.expr.declare import operator
from fluidlite.operators.assign_cast import copy_back
from fluidlite.program.opdef import Slot
from fluidlite.program.operator_options import Aliasing, Differentiation


@operator(
    "device_view",
    Differentiation(rule=copy_back),
    Aliasing(view=("Out", "X")),
    inputs=[Slot("X", unmoved=True)],
    dtypes={"X": ALL},
    doc="Out = X, in the same memory: X must be located on the place that op_device names, by default the executor's",
    source="Ginn's DeviceView",
)
def device_view(x: e.Tensor) -> e.Tensor:
    """Return X."""
    return x


@operator(
    "device_transfer",
    Differentiation(rule=copy_back),
    dtypes={"X": ALL},
    doc="Out = X, copied to the place that op_device names; the gradient is copied back",
    source="Ginn's DeviceTransfer",
)
def device_transfer(x: e.Tensor) -> e.Tensor:
    """Return X."""
    return x
