"""logsumexp: the logarithm of a sum of exponentials, without overflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Dims
from fluidlite.operators.inference import Inferred, grad_inputs, grad_like, grad_outputs, like
from fluidlite.operators.reduce import reduced_axes
from fluidlite.operators.samples import EVERY, WIDE, rand

_ATTRS = (
    Attr("dim", "ints", (0,), doc="the dims to reduce; negative ones count from the end"),
    Attr("keep_dim", "bool", False, doc="keep reduced dims as 1"),
    Attr("reduce_all", "bool", False, doc="reduce every dim, whatever dim says"),
)


def _kept(call: Call) -> Dims:
    axes = reduced_axes(call)
    return tuple(1 if i in axes else d for i, d in enumerate(call.dims("X")))


def _infer(call: Call) -> Inferred:
    x, axes = call.spec("X"), reduced_axes(call)
    if 0 in [x.dims[axis] for axis in axes]:
        call.fail("X", "1 element or more in the dims to reduce")
    left = tuple(d for i, d in enumerate(x.dims) if i not in axes)
    dims = (_kept(call) if call.attr("keep_dim") else left) or (1,)
    return {"Out": like(x, dims) if 0 not in axes else x.with_(dims=dims, lod=(), lod_level=0)}


def _like_rows(build: Any, value: Any, dims: Dims) -> Any:
    """Return the value in other dims of as many elements."""
    return value if value.dims == dims else build("reshape2", {"X": value}, {"Out": build.temp()}, {"shape": dims})


def _decompose(call: Call, build: Any) -> None:
    out, dims = build.output("Out"), call.dims("Out")
    if 0 in dims:
        build("fill_constant", {}, {"Out": out}, {"shape": list(dims), "dtype": call.dtype("Out")})
        return
    attrs = {"dim": list(reduced_axes(call)) or [0], "reduce_all": call.attr("reduce_all"), "keep_dim": True}
    x = build.input("X")
    most = build("reduce_max", {"X": x}, {"Out": build.temp()}, attrs)
    powers = build("elementwise_sub", {"X": x, "Y": most}, {"Out": build.temp()})
    powers = build("exp", {"X": powers}, {"Out": build.temp()})
    total = build("reduce_sum", {"X": powers}, {"Out": build.temp()}, attrs)
    total = build("log", {"X": total}, {"Out": build.temp()})
    inputs = {"X": _like_rows(build, total, dims), "Y": _like_rows(build, most, dims)}
    build("elementwise_add", inputs, {"Out": out})


def _decompose_grad(call: Call, build: Any) -> None:
    result, dims = build.output("X@GRAD"), call.dims("X")
    if 0 in dims:
        build("fill_constant", {}, {"Out": result}, {"shape": list(dims), "dtype": call.dtype("X")})
        return
    kept = _kept(call) or (1,)
    out, dout = (_like_rows(build, build.input(slot), kept) for slot in ("Out", "Out@GRAD"))
    parts = build("elementwise_sub", {"X": build.input("X"), "Y": out}, {"Out": build.temp()})
    parts = build("exp", {"X": parts}, {"Out": build.temp()})
    build("elementwise_mul", {"X": parts, "Y": dout}, {"Out": result})


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    axes = None if attrs["reduce_all"] else tuple(attrs["dim"])
    found = np.logaddexp.reduce(inputs["X"], axes, keepdims=attrs["keep_dim"])
    return {"Out": np.asarray(found).reshape(np.shape(found) or (1,))}


_READS = ("X", "Out", "Out@GRAD")

register_op(
    "logsumexp",
    inputs=("X",),
    outputs=("Out",),
    attrs=_ATTRS,
    infer=_infer,
    grad=GradRule("logsumexp_grad", _READS, ("X",)),
    decompose=_decompose,
    memory="where it is decomposed, X less its greatest element, whose exponential takes its place: as much as X",
    dtypes={"X": ALL_FLOATS},
    reference=_reference,
    samples=lambda: [
        Sample({"X": rand(3, 4)}, {}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": rand(3, 4)}, {"dim": [-1], "keep_dim": True}, ("X",), name="rows", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4)}, {"dim": [0, 2]}, ("X",), name="two"),
        Sample({"X": rand(2, 3)}, {"reduce_all": True}, ("X",), name="all", dtypes=WIDE),
        Sample({"X": rand(2, 3)}, {"reduce_all": True, "keep_dim": True}, ("X",), name="all_kept"),
        Sample({"X": rand()}, {"reduce_all": True}, ("X",), name="rank0"),
        Sample({"X": rand(4, 3, low=500, high=900)}, {"dim": [1]}, name="large_numbers"),
        Sample({"X": rand(3, 0)}, {}, name="empty"),
    ],
    doc="Out = ln(the sum over dims of exp(X))",
    source="Fluid logsumexp_op.cc",
)

register_op(
    "logsumexp_grad",
    inputs=grad_inputs(*_READS),
    outputs=grad_outputs("X"),
    attrs=_ATTRS,
    infer=grad_like("X"),
    decompose=_decompose_grad,
    doc="X@GRAD = Out@GRAD exp(X - Out)",
)
