"""dist: the p-norm of a difference."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isinf
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Dims, Spec
from fluidlite.operators.inference import Inferred, agree, grad_inputs, grad_like, grad_outputs, same_dtype
from fluidlite.operators.samples import EVERY, WIDE, distinct, rand

_P = (Attr("p", "float", 2.0, doc="which norm; 0 counts what differs, inf and -inf give the greatest and least"),)
_READS = ("X", "Y", "Out", "Out@GRAD")

_LEAST = {"float16": 1e-7}
"""What Out counts as at least: numbers that are equal have no direction."""


def _infer(call: Call) -> Inferred:
    x, y = call.dims("X"), call.dims("Y")
    same_dtype(call, "Y", "X")
    for slot in ("X", "Y"):
        call.need(len(call.dims(slot)) >= 1, slot, "rank 1 or more")
        call.need(0 not in call.dims(slot), slot, "1 element or more")
    for a, b in zip(reversed(x), reversed(y), strict=False):
        if 1 not in (a, b) and not agree(a, b):
            call.fail("Y", f"dims that broadcast with those of X, {list(x)}, from the last one on")
    return {"Out": Spec.of((1,), call.dtype("X"))}


def _difference(call: Call, build: Any) -> Any:
    inputs = {"X": build.input("X"), "Y": build.input("Y")}
    return build("elementwise_sub", inputs, {"Out": build.temp()})


def _decompose(call: Call, build: Any) -> None:
    def unary(type: str, value: Any, **attrs: Any) -> Any:
        return build(type, {"X": value}, {"Out": build.temp()}, attrs)

    p, out, over = call.attr("p"), build.output("Out"), {"reduce_all": True}
    gap = _difference(call, build)
    if p == 2:
        build("sqrt", {"X": unary("squared_l2_norm", gap)}, {"Out": out})
        return
    gap = unary("abs", gap)
    if isinf(p):
        build("reduce_max" if p > 0 else "reduce_min", {"X": gap}, {"Out": out}, over)
    elif p == 0:
        build("reduce_sum", {"X": unary("sign", gap)}, {"Out": out}, over)
    else:
        total = unary("reduce_sum", unary("pow", gap, factor=p), **over)
        build("pow", {"X": total}, {"Out": out}, {"factor": 1 / p})


def _decompose_grad(call: Call, build: Any) -> None:
    def binary(type: str, x: Any, y: Any) -> Any:
        return build(type, {"X": x, "Y": y}, {"Out": build.temp()})

    p, out, dout = call.attr("p"), build.input("Out"), build.input("Out@GRAD")
    gap = _difference(call, build)
    if p == 2:  # d / Out is both the direction and the power
        least = {"shape": [1], "value": _LEAST.get(call.dtype("X"), 1e-30), "dtype": call.dtype("X")}
        below = binary("elementwise_max", out, build("fill_constant", {}, {"Out": build.temp()}, least))
        _write(call, build, binary("elementwise_mul", binary("elementwise_div", gap, below), dout))
        return
    way = build("sign", {"X": gap}, {"Out": build.temp()})
    size = build("abs", {"X": gap}, {"Out": build.temp()})
    if p == 0:
        part = build("fill_zeros_like", {"X": gap}, {"Out": build.temp()})
    elif p == 1:
        part = way
    elif isinf(p):  # every element that is as far away as Out
        same = binary("equal", size, out)
        part = binary("elementwise_mul", way, build("cast", {"X": same}, {"Out": build.temp()}, {
            "in_dtype": "bool", "out_dtype": call.dtype("X")}))  # fmt: skip
    else:  # (|d| / Out) ^ (p - 1), and 0 / 0 counts as 0: numbers that are equal have no direction
        least = {"shape": [1], "value": _LEAST.get(call.dtype("X"), 1e-30), "dtype": call.dtype("X")}
        below = binary("elementwise_max", out, build("fill_constant", {}, {"Out": build.temp()}, least))
        ratio = binary("elementwise_div", size, below)
        part = binary("elementwise_mul", way, build("pow", {"X": ratio}, {"Out": build.temp()}, {"factor": p - 1}))
        if p < 1:  # the power of 0 is infinite
            part = _finite(call, build, part, size)
    _write(call, build, binary("elementwise_mul", part, dout))


def _write(call: Call, build: Any, part: Any) -> None:
    """Write the gradients that are wanted from that of the difference."""
    for slot, factor in (("X", 1.0), ("Y", -1.0)):
        if call.has(f"{slot}@GRAD"):
            _sum_to(build, part, call.dims(slot), build.output(f"{slot}@GRAD"), factor)


def _finite(call: Call, build: Any, part: Any, size: Any) -> Any:
    zeros = build("fill_zeros_like", {"X": size}, {"Out": build.temp()})
    some = build("greater_than", {"X": size, "Y": zeros}, {"Out": build.temp()})
    return build("where", {"Condition": some, "X": part, "Y": zeros}, {"Out": build.temp()})


def _sum_to(build: Any, value: Any, dims: Dims, out: Any, factor: float) -> None:
    """Write ``factor`` times the sums of a value over the dims that were broadcast."""
    extra = len(value.dims) - len(dims)
    axes = [i for i, d in enumerate(value.dims) if i < extra or dims[i - extra] != d]
    if axes:
        value = build("reduce_sum", {"X": value}, {"Out": build.temp()}, {"dim": axes, "keep_dim": True})
    if extra > 0:
        value = build("reshape2", {"X": value}, {"Out": build.temp()}, {"shape": list(dims)})
    build("scale", {"X": value}, {"Out": out}, {"scale": factor})


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"Out": np.asarray([np.linalg.norm(np.ravel(inputs["X"] - inputs["Y"]), attrs["p"])])}


def _case(name: str, x: Dims, y: Dims, p: float | None = None, dtypes: tuple[str, ...] = ("float32",)) -> Sample:
    inputs = {"X": distinct(*x), "Y": distinct(*y, seed=1) * np.float32(0.75) + np.float32(0.1)}
    attrs = {} if p is None else {"p": p}
    return Sample(inputs, attrs, ("X", "Y"), name=name, dtypes=dtypes)


register_op(
    "dist",
    inputs=("X", "Y"),
    outputs=("Out",),
    attrs=_P,
    infer=_infer,
    grad=GradRule("dist_grad", _READS, ("X", "Y")),
    decompose=_decompose,
    dtypes={"X": ALL_FLOATS, "Y": ALL_FLOATS},
    reference=_reference,
    samples=lambda: [
        _case("plain", (3, 4), (3, 4), None, EVERY),
        _case("one", (3, 4), (3, 4), 1.0, WIDE),
        _case("three", (2, 3), (2, 3), 3.0, WIDE),
        _case("half", (2, 3), (2, 3), 0.5),
        _case("greatest", (3, 4), (3, 4), inf),
        _case("least", (3, 4), (3, 4), -inf),
        _case("count", (3, 4), (3, 4), 0.0),
        _case("row", (3, 4), (4,)),
        _case("both", (2, 1, 3), (4, 1), 3.0),
        Sample({"X": rand(3), "Y": rand(3)}, {"p": 3.0}, name="equal"),
    ],
    doc="Out = (the sum of |X - Y| ^ p) ^ (1 / p), as [1]",
    memory="X - Y, and what becomes of each element before the sum: up to twice as much as X",
    source="Fluid dist_op.cc",
)

register_op(
    "dist_grad",
    inputs=grad_inputs(*_READS),
    outputs=grad_outputs("X", "Y"),
    attrs=_P,
    infer=grad_like("X", "Y"),
    kernel_dtype="Out@GRAD",
    decompose=_decompose_grad,
    doc="X@GRAD = Out@GRAD sign(X - Y) (|X - Y| / Out) ^ (p - 1), and Y@GRAD its negative, summed where broadcast; "
    "takes temporary memory of several times X - Y",
)
