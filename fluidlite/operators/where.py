"""Selection by condition and by value: where, where_index, unique, unique_with_counts."""

from __future__ import annotations

from fluidlite.base.dtypes import ALL, ALL_FLOATS, FLOATS, INTS
from fluidlite.expr import where
from fluidlite.operators.inference import Inferred, all_dims_compatible, merged_dims, same_dtype, spec_like
from fluidlite.operators.scalar_op import Elementwise, scalar_op
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor_spec import Spec

# where -------------------------------------------------------------------------------------------------------------


def _infer_where(call: Call) -> Inferred:
    condition, x = call.dims("Condition"), call.spec("X")
    call.need(all_dims_compatible(condition, x.dims), "Condition", f"the dims of X, {list(x.dims)}")
    call.need(all_dims_compatible(call.dims("Y"), x.dims), "Y", f"the dims of X, {list(x.dims)}")
    same_dtype(call, "Y", "X")
    return {"Out": spec_like(x, merged_dims(merged_dims(x.dims, call.dims("Y")), condition))}


scalar_op(
    "where",
    lambda condition, x, y: where(condition, x, y),
    Inference(_infer_where),
    Elementwise(differentiable=("X", "Y")),
    grad=lambda condition, dout: {"X": where(condition, dout, 0), "Y": where(condition, 0, dout)},
    dtypes={"Condition": ("bool",), "X": (*ALL_FLOATS, *INTS)},
    doc="Out = X where Condition holds, else Y",
    source="Fluid where_op.cc",
)

# where_index -------------------------------------------------------------------------------------------------------


def _infer_where_index(call: Call) -> Inferred:
    rank = len(call.dims("Condition"))
    call.need(rank >= 1, "Condition", "rank 1 or more")
    return {"Out": Spec.of((-1, rank), "int64")}


register_op(
    "where_index",
    Inference(_infer_where_index, dynamic=True),
    inputs=("Condition",),
    outputs=("Out",),
    dtypes={"Condition": ALL},
    doc="Out = where Condition is not 0: a row of indices for each such element, in order",
    source="Fluid where_index_op.cc",
)

# unique ------------------------------------------------------------------------------------------------------------


def _infer_unique(call: Call) -> Inferred:
    x, dtype = call.spec("X"), call.attr("dtype")
    call.need(x.rank == 1, "X", "rank 1", do="flatten it with layers.reshape")
    specs = {"Out": Spec.of((-1,), x.dtype), "Index": Spec.of(x.dims, dtype)}
    return specs if call.op.type == "unique" else {**specs, "Count": Spec.of((-1,), dtype)}


for _type in ("unique", "unique_with_counts"):
    _counts = _type == "unique_with_counts"
    register_op(
        _type,
        Differentiation(no_gradient={"X": "take the values by their positions, with layers.gather"}),
        Inference(_infer_unique, dynamic=True),
        Execution(
            memory="two sorted copies of X with the places of their elements; on the host, of integers in a small "
            "range, a table of where each comes first"
        ),
        inputs=("X",),
        outputs=("Out", "Index", "Count") if _counts else ("Out", "Index"),
        attrs=(Attr("dtype", "dtype", choices=INTS, doc=f"dtype of Index{' and Count' if _counts else ''}"),),
        dtypes={"X": (*FLOATS, *INTS)},
        doc="Out = the different values of X, in the order in which they come first; X[i] = Out[Index[i]]"
        + ("; Count = how often each comes" if _counts else ""),
        source=f"Fluid {_type}_op.cc",
    )
