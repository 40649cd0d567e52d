"""Attributes of convolutions, poolings and normalisations, and the layout rule of channels-last images.

Layouts are semantic: with ``data_format`` "NHWC" the logical dims are [N, H, W, C].
"""

from __future__ import annotations

from collections.abc import Callable

from fluidlite.geometry.windows import channels_last
from fluidlite.program.layout_rewrite import LayoutRewrite
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr
from fluidlite.tensor.layout import NDHWC, NHWC, Layout

FORMATS = {2: ("NCHW", "NHWC", "AnyLayout"), 3: ("NCDHW", "NDHWC", "AnyLayout")}
"""The values of ``data_format`` for each number of spatial dims."""

PADDING_ALGORITHM = Attr(
    "padding_algorithm",
    "str",
    "EXPLICIT",
    choices=("EXPLICIT", "SAME", "VALID"),
    doc="EXPLICIT: paddings count; SAME: Output has ceil(size / stride) windows; VALID: no padding",
)


def data_format(spatial: int) -> Attr:
    """Return the attribute ``data_format`` of an operator on that many spatial dims."""
    return Attr(
        "data_format",
        "str",
        FORMATS[spatial][0],
        choices=("NCHW", "NHWC", "NCDHW", "NDHWC", "AnyLayout"),
        doc="the order of the logical dims; AnyLayout: channels come second",
    )


def channels_to_end(*slots: str, name: str = "data_format") -> Callable[[Call, Layout], LayoutRewrite | None]:
    """Return the layout rule of an operator on images in those slots: a channels-last layout sets its attribute."""

    def rule(call: Call, layout: Layout) -> LayoutRewrite | None:
        if layout not in (NHWC, NDHWC) or channels_last(call, name):
            return None
        attr = call.op.attr(name)
        is_choice = attr is None or attr.choices is None or layout.name in attr.choices
        attrs = {**call.attrs, name: layout.name if is_choice else NHWC.name}
        return LayoutRewrite(call.op, attrs, frozenset(slot for slot in slots if call.has(slot)))

    return rule
