"""Collective operators (all-reduce, all-gather, reduce-scatter, broadcast) of several processes or places.

An operator names a ring: an ordered group of members. A ring that nobody has joined has this process as its only
member, and every operator on it is the identity.
"""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import ALL, ALL_FLOATS
from fluidlite.operators.inference import Inferred, spec_like
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Aliasing, Differentiation, Execution, Inference
from fluidlite.program.registry import register_op

NUMBERS = (*ALL_FLOATS, "int32", "int64")
_RING = Attr("ring_id", "int", 0, minimum=0, doc="the number of the ring")
_USE_CALC_STREAM = Attr(
    "use_calc_stream",
    "bool",
    False,
    doc="finish before the next operator; else run asynchronously: Out may be read after c_sync_comm_stream",
)
_MEMBERS = Attr("nranks", "int", 1, minimum=1, doc="members of the ring")


def _infer_same(call: Call) -> Inferred:
    return {"Out": [spec_like(spec) for spec in call.specs("X")]}


def _infer_bucket(call: Call) -> Inferred:
    dtype = call.dtype("X")
    for i in range(call.count("X")):
        if call.dtype("X", i) != dtype:
            call.fail_dtype("X", f"{dtype}, as the first: one operator reduces one bucket")
    return _infer_same(call)


def _grad_sum(maker: Any) -> None:
    """X@GRAD is the sum of Out@GRAD over all members, whose losses all depend on X."""
    grads = [maker.input_grad("X", i) for i in range(maker.count("X"))]
    requested = [i for i, name in enumerate(grads) if name is not None]
    if requested:
        attrs = {"ring_id": maker.attr("ring_id"), "use_calc_stream": True}
        maker.op(
            "c_allreduce_sum",
            {"X": [maker.output_grad("Out", i) for i in requested]},
            {"Out": [grads[i] for i in requested]},
            attrs,
        )


for _reduction in ("sum", "max", "min", "prod"):
    register_op(
        f"c_allreduce_{_reduction}",
        Differentiation(
            rule=_grad_sum if _reduction == "sum" else None,
            no_gradient={} if _reduction == "sum" else {"X": "its gradient is not defined; reduce by c_allreduce_sum"},
        ),
        Inference(_infer_bucket),
        Aliasing(may={"Out": "X"}),
        Execution(effect=True, memory="a copy of X on the host, where the ring has several members"),
        inputs=(Slot("X", duplicable=True, doc="one variable as in Fluid, or several of one dtype: a bucket"),),
        outputs=(Slot("Out", duplicable=True),),
        attrs=(_RING, _USE_CALC_STREAM),
        dtypes={"X": NUMBERS},
        doc=f"Out = the {_reduction} of X over all members of the ring, the same for each",
        source=f"Fluid c_allreduce_{_reduction}_op.cc",
    )


def _infer_gather(call: Call) -> Inferred:
    x = call.spec("X")
    call.need(x.rank >= 1, "X", "a rank of 1 or more: the members' rows follow each other")
    rows = x.dims[0]
    return {"Out": spec_like(x, (rows * call.attr("nranks") if rows >= 0 else -1, *x.dims[1:]))}


def _infer_scatter(call: Call) -> Inferred:
    x = call.spec("X")
    members = call.attr("nranks")
    call.need(x.rank >= 1, "X", "a rank of 1 or more: its rows are scattered")
    rows = x.dims[0]
    call.need(rows < 0 or rows % members == 0, "X", f"rows that {members} members can share equally")
    return {"Out": spec_like(x, (rows // members if rows >= 0 else -1, *x.dims[1:]))}


def _grad_by(type: str) -> Any:
    def grad(maker: Any) -> None:
        attrs = {"ring_id": maker.attr("ring_id"), "nranks": maker.attr("nranks"), "use_calc_stream": True}
        maker.op(type, {"X": maker.output_grad("Out")}, {"Out": maker.input_grad("X")}, attrs)

    return grad


register_op(
    "c_allgather",
    Differentiation(rule=_grad_by("c_reducescatter")),
    Inference(_infer_gather),
    Execution(effect=True, memory="copies of X and Out on the host"),
    inputs=("X",),
    outputs=("Out",),
    attrs=(_MEMBERS, _RING, _USE_CALC_STREAM),
    dtypes={"X": ALL},
    doc="Out = the rows of all members, in their order",
    source="Fluid c_allgather_op.cc",
)

register_op(
    "c_reducescatter",
    Differentiation(rule=_grad_by("c_allgather")),
    Inference(_infer_scatter),
    Execution(effect=True, memory="copies of X and Out on the host"),
    inputs=("X",),
    outputs=("Out",),
    attrs=(_MEMBERS, _RING, _USE_CALC_STREAM),
    dtypes={"X": NUMBERS},
    doc="Out = this member's one of nranks equal parts of the rows of the sum of X over all members",
    source="Fluid c_reducescatter_op.cc",
)

register_op(
    "c_broadcast",
    Differentiation(no_gradient={"X": "its gradient is not defined; broadcast parameters, which are no results"}),
    Inference(lambda call: {"Out": spec_like(call.spec("X"))}),
    Aliasing(may={"Out": "X"}),
    Execution(effect=True, memory="a copy of X on the host, where the ring has several members"),
    inputs=("X",),
    outputs=("Out",),
    attrs=(Attr("root", "int", 0, minimum=0, doc="whose X it is"), _RING, _USE_CALC_STREAM),
    dtypes={"X": ALL},
    doc="Out = the X of member root",
    source="Fluid c_broadcast_op.cc",
)

register_op(
    "c_sync_calc_stream",
    Differentiation(no_gradient={"X": "it only orders work"}),
    Inference(lambda call: {"Out": spec_like(call.spec("X"))}),
    Aliasing(may={"Out": "X"}),
    Execution(effect=True),
    inputs=("X",),
    outputs=("Out",),
    dtypes={"X": ALL},
    doc="Out = X, once all that was computed before is finished",
    source="Fluid c_sync_calc_stream_op.cc",
)

register_op(
    "c_sync_comm_stream",
    Differentiation(no_gradient={"X": "it only orders work"}),
    Inference(_infer_same),
    Aliasing(may={"Out": "X"}),
    Execution(effect=True),
    inputs=(Slot("X", duplicable=True),),
    outputs=(Slot("Out", duplicable=True),),
    attrs=(_RING,),
    dtypes={"X": ALL},
    doc="Out = X once the collective operators that are running on the ring have written it",
    source="Fluid c_sync_comm_stream_op.cc",
)
