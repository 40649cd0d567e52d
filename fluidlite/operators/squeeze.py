"""squeeze, unsqueeze and flatten: remove, insert and merge dims."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.geometry.numbers import numbers_of
from fluidlite.operators.inference import dims_compatible, normal_axis, size
from fluidlite.operators.shape import register_pair, with_dims, with_other_dims
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, as_tensor, as_tensors
from fluidlite.tensor.tensor_spec import Spec

# squeeze -----------------------------------------------------------------------------------------------------------


def _infer_squeeze(call: Call) -> Spec:
    x, axes = call.spec("X"), {normal_axis(call, "axes", axis, call.spec("X").rank) for axis in call.attr("axes")}
    for axis in axes:
        if not dims_compatible(x.dims[axis], 1):
            call.fail_attr("axes", f"dims of 1; X is {call.describe('X')}")
    if not call.attr("axes"):
        axes = {i for i, d in enumerate(x.dims) if d == 1}
    return with_dims(x, [d for i, d in enumerate(x.dims) if i not in axes])


register_pair(
    "squeeze",
    with_other_dims,
    e.reshape,
    _infer_squeeze,
    attrs=(Attr("axes", "ints", (), doc="dims of 1 that Out lacks; none: all that are known to be 1"),),
    doc="Out = X without dims of 1",
    grad_doc="X@GRAD = Out@GRAD with the dims of X",
    source="Fluid squeeze_op.cc",
)

# unsqueeze ---------------------------------------------------------------------------------------------------------


def _infer_unsqueeze(call: Call) -> Spec:
    x, axes = call.spec("X"), numbers_of(call, "axes")
    if axes is None:
        call.fail("AxesTensor", "known dims, [how many axes]")
    if not axes:
        call.fail_attr("axes", "one axis or more")
    if None in axes:
        return Spec.of((-1,) * (x.rank + len(axes)), x.dtype)
    dims = list(x.dims)
    for axis in axes:
        assert axis is not None
        rank = len(dims)
        if not -rank - 1 <= axis <= rank:
            call.fail_attr("axes", f"places in [{-rank - 1}, {rank + 1}) of the {rank} dims there are by then")
        dims.insert(axis + rank + 1 if axis < 0 else axis, 1)
    return with_dims(x, dims)


register_pair(
    "unsqueeze",
    with_other_dims,
    e.reshape,
    _infer_unsqueeze,
    attrs=(
        Attr(
            "axes",
            "ints",
            (),
            doc="where dims of 1 are put in, one after the other; negative: from the end",
            tensors=(as_tensors("AxesTensorList"), as_tensor("AxesTensor")),
        ),
    ),
    doc="Out = X with dims of 1 put in",
    grad_doc="X@GRAD = Out@GRAD with the dims of X",
    source="Fluid unsqueeze_op.cc",
)

# flatten -----------------------------------------------------------------------------------------------------------


def _infer_flatten(call: Call) -> Spec:
    x, axis = call.spec("X"), call.attr("axis")
    if axis > x.rank:
        call.fail_attr("axis", f"0 to {x.rank}, the rank of X ({call.describe('X')})")
    return with_dims(x, (size(x.dims[:axis]), size(x.dims[axis:])))


register_pair(
    "flatten",
    with_other_dims,
    e.reshape,
    _infer_flatten,
    attrs=(Attr("axis", "int", 1, minimum=0, doc="how many dims of X become the first dim of Out"),),
    doc="Out = X as a matrix: its first dims are the rows, the others the columns",
    grad_doc="X@GRAD = Out@GRAD with the dims of X",
    source="Fluid flatten_op.cc",
)
