"""feed and fetch: they mark where values enter and leave a program. The executor moves the values itself."""

from __future__ import annotations

from fluidlite.framework.opdef import Attr, Slot
from fluidlite.framework.registry import register_op

feed = register_op(
    "feed",
    inputs=[Slot("X", dispensable=True, doc="Fluid's holder of feeds")],
    outputs=["Out"],
    attrs=[Attr("col", "int", 0, minimum=0, doc="its number in the holder; of no effect")],
    marker=True,
    doc="Out is the fed value of its own name.",
)
fetch = register_op(
    "fetch",
    inputs=["X"],
    outputs=[Slot("Out", dispensable=True, doc="Fluid's holder of fetches")],
    attrs=[Attr("col", "int", 0, minimum=0, doc="its number in the holder; of no effect")],
    marker=True,
    doc="Marks X as a result.",
)
