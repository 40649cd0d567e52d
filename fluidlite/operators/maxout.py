"""maxout: the maximum over groups of channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, grad_inputs, grad_like, grad_outputs, like
from fluidlite.operators.samples import WIDE, distinct, rand

_ATTRS = (
    Attr("groups", "int", minimum=1, doc="how many neighbouring channels become one"),
    Attr("axis", "int", 1, doc="where the channels are: 1, or -1 or 3 (channels last)"),
)


def _infer(call: Call) -> Inferred:
    x, groups, axis = call.dims("X"), call.attr("groups"), call.attr("axis")
    call.need(len(x) == 4, "X", "[batch, channels, height, width], or channels last")
    if axis not in (1, -1, 3):
        call.fail_attr("axis", "1, -1 or 3")
    channels = x[axis]
    if channels >= 0 and channels % groups:
        call.fail_attr("groups", f"a divisor of the channels of X, {channels}")
    out = list(x)
    out[axis] = channels // groups if channels >= 0 else -1
    return {"Out": like(call.spec("X"), tuple(out))}


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, groups = np.moveaxis(inputs["X"], attrs["axis"], 1), attrs["groups"]
    parts = [x[:, g::groups] for g in range(groups)]
    return {"Out": np.moveaxis(np.maximum.reduce(parts), 1, attrs["axis"])}


register_op(
    "maxout",
    inputs=("X",),
    outputs=("Out",),
    attrs=_ATTRS,
    infer=_infer,
    grad=GradRule("maxout_grad", ("X", "Out", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL_FLOATS},
    reference=_reference,
    samples=lambda: [
        Sample({"X": distinct(2, 6, 3, 4)}, {"groups": 2}, ("X",), name="two", dtypes=WIDE),
        Sample({"X": distinct(2, 6, 2, 2)}, {"groups": 3}, ("X",), name="three"),
        Sample({"X": distinct(1, 4, 1, 1)}, {"groups": 4}, ("X",), name="all"),
        Sample({"X": distinct(2, 3, 2, 6)}, {"groups": 2, "axis": -1}, ("X",), name="channels_last"),
        Sample({"X": distinct(1, 2, 3, 4)}, {"groups": 4, "axis": 3}, ("X",), name="axis_3", dtypes=WIDE),
        Sample({"X": distinct(2, 3, 2, 2)}, {"groups": 1}, ("X",), name="single", dtypes=("float32", "bfloat16")),
        Sample({"X": rand(0, 4, 2, 2)}, {"groups": 2}, name="empty"),
    ],
    doc="Out[n, c] = max over g < groups of X[n, c groups + g], c counting along axis",
    source="Fluid maxout_op.cc",
)

register_op(
    "maxout_grad",
    inputs=grad_inputs("X", "Out", "Out@GRAD"),
    outputs=grad_outputs("X"),
    attrs=_ATTRS,
    infer=grad_like("X"),
    doc="X@GRAD = Out@GRAD at the first channel of each group that equals Out, else 0",
    memory="where arrays compute, the choice and the gradient before it is stored: three times X",
)
