"""Norms of a whole tensor and distances of rows: l1_norm, squared_l2_norm, clip_by_norm, squared_l2_distance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.codegen.expr import sign
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, ScalarRule, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Dims, Spec
from fluidlite.operators.inference import Inferred, agree, grad_inputs, grad_like, grad_outputs, like, same_dtype, size
from fluidlite.operators.samples import EVERY, WIDE, away_from, rand
from fluidlite.operators.scalar_op import scalar_op

# One number of a tensor --------------------------------------------------------------------------------------------


def _infer_norm(call: Call) -> Inferred:
    return {"Out": Spec.of((1,), call.dtype("X"))}


def _samples_norm() -> list[Sample]:
    def case(name: str, *dims: int, dtypes: Any = WIDE, check: bool = True) -> Sample:
        return Sample({"X": away_from(rand(*dims), 0)}, {}, ("X",) if check else (), name=name, dtypes=dtypes)

    return [
        case("matrix", 5, 7, dtypes=EVERY), case("one", 1), case("rank0"), case("rank4", 2, 3, 2, 2),
        case("long", 3, 20000, check=False, dtypes=EVERY), case("empty", 0, 3, check=False),
    ]  # fmt: skip


def _register_norm(name: str, exact: Callable[[Any], Any], grad: Callable[..., Any], doc: str, grad_doc: str) -> None:
    register_op(
        name,
        inputs=("X",),
        outputs=("Out",),
        infer=_infer_norm,
        grad=GradRule(name + "_grad", ("X", "Out@GRAD"), ("X",)),
        dtypes={"X": ALL_FLOATS},
        reference=lambda inputs, attrs: {"Out": np.asarray(exact(inputs["X"])).reshape(1)},
        samples=_samples_norm,
        doc=doc,
        source=f"Fluid {name}_op.cc",
    )
    register_op(
        name + "_grad",
        inputs=grad_inputs("X", "Out@GRAD"),
        outputs=grad_outputs("X"),
        infer=grad_like("X"),
        scalar=ScalarRule(grad, ("X@GRAD",)),
        kernel_dtype="Out@GRAD",
        doc=grad_doc,
    )


_register_norm("l1_norm", lambda x: np.abs(x).sum(), lambda x, dout: dout * sign(x),
               "Out = the sum of |X|, as [1]", "X@GRAD = Out@GRAD sign(X)")  # fmt: skip
_register_norm("squared_l2_norm", lambda x: (x * x).sum(), lambda x, dout: 2 * dout * x,
               "Out = the sum of X X, as [1]", "X@GRAD = 2 Out@GRAD X")  # fmt: skip

# clip_by_norm ------------------------------------------------------------------------------------------------------


def _infer_clip(call: Call) -> Inferred:
    return {"Out": like(call.spec("X"))}


def _reference_clip(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, most = inputs["X"], attrs["max_norm"]
    norm = np.sqrt(np.sum(x * x))
    return {"Out": x if norm <= most else x * most / norm}


register_op(
    "clip_by_norm",
    inputs=("X",),
    outputs=("Out",),
    attrs=(Attr("max_norm", "float", minimum=0.0, doc="the largest norm that stays as it is"),),
    infer=_infer_clip,
    may_alias={"Out": "X"},
    dtypes={"X": ALL_FLOATS},
    reference=_reference_clip,
    samples=lambda: [
        Sample({"X": rand(5, 7)}, {"max_norm": 1.0}, name="clipped", dtypes=EVERY),
        Sample({"X": rand(5, 7)}, {"max_norm": 100.0}, name="kept", dtypes=EVERY),
        Sample({"X": rand(2, 3, 2)}, {"max_norm": 0.25}, name="rank3"),
        Sample({"X": rand(1)}, {"max_norm": 0.1}, name="one"),
        Sample({"X": rand()}, {"max_norm": 0.1}, name="rank0"),
        Sample({"X": rand(3, 50000)}, {"max_norm": 2.0}, name="long", dtypes=EVERY),
        Sample({"X": rand(3) * 0}, {"max_norm": 2.0}, name="zeros"),
        Sample({"X": rand(0, 3)}, {"max_norm": 2.0}, name="empty"),
    ],
    doc="Out = X if its L2 norm is at most max_norm, else max_norm X / norm(X); no gradient, as in Fluid",
    source="Fluid clip_by_norm_op.h",
)

# squared_l2_distance -----------------------------------------------------------------------------------------------


def _infer_distance(call: Call) -> Inferred:
    x, y = call.dims("X"), call.dims("Y")
    same_dtype(call, "Y", "X")
    call.need(len(x) >= 2, "X", "[rows, width], or more dims")
    call.need(len(y) == len(x), "Y", f"rank {len(x)}, that of X")
    width, other = size(x[1:]), size(y[1:])
    if not agree(width, other):
        call.fail("Y", f"rows of {width} elements, as X has ({call.shown('X')})")
    if y[0] != 1 and not agree(x[0], y[0]):
        call.fail("Y", f"one row, or as many as X ({x[0]})")
    return {
        "sub_result": Spec.of((x[0], width if width >= 0 else other), call.dtype("X")),
        "Out": like(call.spec("X"), (x[0], 1)),
    }


def _placed_distance(call: Call) -> Mapping[str, Dims]:
    """Everything as matrices of rows; Out lacks their width, and so is a sum."""
    x = call.dims("sub_result") if call.has("sub_result") else call.dims("X")
    rows, width = x[0], size(x[1:])
    one_row = call.dims("Y")[0] == 1
    y = (1 if one_row else rows, width)
    found = {"Out": (rows, 1), "Out@GRAD": (rows, 1), "sub_result": (rows, width), "X": (rows, width), "Y": y}
    return {**found, "X@GRAD": (rows, width), "Y@GRAD": y}


def _reference_distance(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, y = inputs["X"], inputs["Y"]
    width = int(np.prod(x.shape[1:]))
    apart = x.reshape(-1, width) - y.reshape(-1, width)
    return {"sub_result": apart, "Out": np.asarray([[row @ row] for row in apart]).reshape(-1, 1)}


scalar_op(
    "squared_l2_distance", lambda x, y: (x - y, (x - y) * (x - y)), outputs=("sub_result", "Out"),
    slots={"sub_result": Slot("sub_result", intermediate=True, content="X - Y, as [rows, width]")},
    grad=lambda sub_result, dout: (2 * dout * sub_result, -2 * dout * sub_result), infer=_infer_distance,
    placed=_placed_distance, differentiable=("X", "Y"), broadcasts=True,
    dtypes={"X": ALL_FLOATS, "Y": ALL_FLOATS}, reference=_reference_distance,
    samples=lambda: [
        Sample({"X": rand(5, 7), "Y": rand(5, 7, seed=1)}, {}, ("X", "Y"), name="rows", dtypes=EVERY),
        Sample({"X": rand(5, 7), "Y": rand(1, 7, seed=1)}, {}, ("X", "Y"), name="one_row", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4), "Y": rand(2, 3, 4, seed=1)}, {}, ("X", "Y"), name="rank3"),
        Sample({"X": rand(2, 3, 4), "Y": rand(1, 3, 4, seed=1)}, {}, ("X", "Y"), name="rank3_one_row"),
        Sample({"X": rand(1, 3), "Y": rand(1, 3, seed=1)}, {}, ("X", "Y"), name="one"),
        Sample({"X": rand(4, 1), "Y": rand(4, 1, seed=1)}, {}, ("X", "Y"), name="narrow"),
        Sample({"X": rand(60, 900), "Y": rand(1, 900, seed=1)}, {}, name="large", dtypes=WIDE),
        Sample({"X": rand(0, 3), "Y": rand(0, 3)}, {}, name="empty"),
    ],
    doc="Out = the sum of (X - Y)^2 over each row, as [rows, 1]; one row of Y serves all of X",
    source="Fluid squared_l2_distance_op.cc",
)  # fmt: skip
