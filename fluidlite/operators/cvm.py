"""cvm: how often an advertisement was shown and clicked, in the first two features of its row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, agree, grad_outputs, like, same_dtype
from fluidlite.operators.samples import WIDE, rand

_ATTRS = (Attr("use_cvm", "bool", True, doc="keep the first two features, as logarithms; False: leave them out"),)


def _check(call: Call) -> None:
    x, cvm = call.dims("X"), call.dims("CVM")
    call.need(len(x) == 2 and (x[1] < 0 or x[1] >= 2), "X", "[rows, features], 2 features or more")
    same_dtype(call, "CVM", "X")
    fits = len(cvm) == 2 and agree(cvm[0], x[0]) and agree(cvm[1], 2)
    call.need(fits, "CVM", f"[{x[0]}, 2]: a show and a click for each row of X")


def _width(call: Call) -> int:
    features = call.dims("X")[1]
    return features if call.attr("use_cvm") or features < 0 else features - 2


def _infer(call: Call) -> Inferred:
    _check(call)
    return {"Y": like(call.spec("X"), (call.dims("X")[0], _width(call)))}


def _cut(build: Any, value: Any, start: int, end: int, out: Any = None) -> Any:
    return build("slice", {"Input": value}, {"Out": out}, {"axes": [1], "starts": [start], "ends": [end]})


def _decompose(call: Call, build: Any) -> None:
    x, features, y = build.input("X"), call.dims("X")[1], build.output("Y")
    if not call.attr("use_cvm"):
        _cut(build, x, 2, features, y)
        return
    logs = build("log1p", {"X": _cut(build, x, 0, 2)}, {"Out": None})
    show = _cut(build, logs, 0, 1)
    rate = build("elementwise_sub", {"X": _cut(build, logs, 1, 2), "Y": show}, {"Out": None})
    parts = [show, rate, *([_cut(build, x, 2, features)] if features > 2 else [])]
    build("concat", {"X": parts}, {"Out": y}, {"axis": 1})


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = inputs["X"]
    show, click = np.log(x[:, :1] + 1), np.log(x[:, 1:2] + 1)
    return {"Y": np.concatenate([show, click - show, x[:, 2:]], axis=1) if attrs["use_cvm"] else x[:, 2:]}


def _inputs(*dims: int) -> dict[str, Any]:
    return {"X": rand(*dims, low=0, high=9), "CVM": rand(dims[0], 2, low=0, high=5, seed=1)}


register_op(
    "cvm",
    inputs=("X", Slot("CVM", metadata_only=True, doc="show and click of each row, which are the gradient of the first "
                      "two features")),
    outputs=("Y",),
    attrs=_ATTRS,
    infer=_infer,
    grad=GradRule("cvm_grad", ("X", "CVM", "Y@GRAD"), ("X",)),
    decompose=_decompose,
    dtypes={"X": FLOATS, "CVM": FLOATS},
    reference=_reference,
    samples=lambda: [
        Sample(_inputs(5, 7), {}, name="rows", dtypes=WIDE),
        Sample(_inputs(5, 7), {"use_cvm": False}, name="without", dtypes=WIDE),
        Sample(_inputs(3, 2), {}, name="only_two"),
        Sample(_inputs(3, 2), {"use_cvm": False}, name="nothing_left"),
        Sample(_inputs(0, 4), {}, name="no_rows"),
    ],
    doc="Y = ln(X0 + 1), ln(X1 + 1) - ln(X0 + 1), and the other features of X as they are",
    source="Fluid cvm_op.cc",
)  # fmt: skip


def _infer_grad(call: Call) -> Inferred:
    _check(call)
    rows, width = call.dims("X")[0], _width(call)
    given = call.dims("Y@GRAD")
    if len(given) != 2 or not agree(given[0], rows) or not agree(given[1], width):
        call.fail("Y@GRAD", f"[{rows}, {width}], the dims of Y")
    return {"X@GRAD": like(call.spec("X"))}


def _decompose_grad(call: Call, build: Any) -> None:
    features, given = call.dims("X")[1], build.input("Y@GRAD")
    parts = [build.input("CVM")]
    if features > 2:
        parts.append(_cut(build, given, 2, features) if call.attr("use_cvm") else given)
    build("concat", {"X": parts}, {"Out": build.output("X@GRAD")}, {"axis": 1})


def _reference_grad(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    rest = inputs["Y@GRAD"][:, 2:] if attrs["use_cvm"] else inputs["Y@GRAD"]
    return {"X@GRAD": np.concatenate([inputs["CVM"], rest], axis=1)}


register_op(
    "cvm_grad",
    inputs=(Slot("X", metadata_only=True), "CVM", "Y@GRAD"),
    outputs=grad_outputs("X"),
    attrs=_ATTRS,
    infer=_infer_grad,
    decompose=_decompose_grad,
    kernel_dtype="Y@GRAD",
    reference=_reference_grad,
    samples=lambda: [
        Sample({**_inputs(5, 7), "Y@GRAD": rand(5, 7, seed=2)}, {}, name="rows", dtypes=WIDE),
        Sample({**_inputs(5, 7), "Y@GRAD": rand(5, 5, seed=2)}, {"use_cvm": False}, name="without", dtypes=WIDE),
        Sample({**_inputs(3, 2), "Y@GRAD": rand(3, 0, seed=2)}, {"use_cvm": False}, name="nothing_left"),
    ],
    doc="X@GRAD = CVM, and Y@GRAD of the other features: the first two are no gradients, as in Fluid",
    source="Fluid cvm_op.h",
)
