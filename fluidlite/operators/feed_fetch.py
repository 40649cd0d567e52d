"""feed and fetch: they mark where values enter and leave a program. The executor moves the values itself."""

from __future__ import annotations

from typing import Any

from fluidlite.base.errors import FeedError
from fluidlite.framework.opdef import Attr, Slot
from fluidlite.framework.registry import register_op


def _run_feed(frame: Any, op: Any) -> None:
    name = op.output("Out")[0]
    if name not in frame.values:
        raise FeedError(f"{op}: variable {name!r} is to be fed\n  Do: exe.run(feed={{{name!r}: array}})")


def _run_fetch(frame: Any, op: Any) -> None:
    frame.fetched.append(frame.get(op.input("X")[0]))


feed = register_op(
    "feed",
    inputs=[Slot("X", dispensable=True, doc="Fluid's holder of feeds")],
    outputs=["Out"],
    attrs=[Attr("col", "int", 0, minimum=0)],
    run=_run_feed,
    doc="Out is the fed value of its own name.",
)
fetch = register_op(
    "fetch",
    inputs=["X"],
    outputs=[Slot("Out", dispensable=True, doc="Fluid's holder of fetches")],
    attrs=[Attr("col", "int", 0, minimum=0)],
    run=_run_fetch,
    doc="Marks X as a result.",
)
