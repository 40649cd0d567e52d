"""feed and fetch: they mark where values enter and leave a program. The executor moves the values itself."""

from __future__ import annotations

from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Execution
from fluidlite.program.registry import register_op

feed = register_op(
    "feed",
    Execution(marker=True),
    inputs=[Slot("X", dispensable=True, doc="Fluid's holder of feeds")],
    outputs=["Out"],
    attrs=[Attr("col", "int", 0, minimum=0, doc="its number in the holder; of no effect")],
    doc="Out is the fed value of its own name.",
)
fetch = register_op(
    "fetch",
    Execution(marker=True),
    inputs=["X"],
    outputs=[Slot("Out", dispensable=True, doc="Fluid's holder of fetches")],
    attrs=[Attr("col", "int", 0, minimum=0, doc="its number in the holder; of no effect")],
    doc="Marks X as a result.",
)
