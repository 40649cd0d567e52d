"""Other dims for the same elements: reshape2, transpose2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Dims, Spec
from fluidlite.operators.inference import (
    Inferred,
    grad_inputs,
    grad_outputs,
    like,
    size,
)
from fluidlite.operators.samples import EVERY, WIDE, bools, ints, rand

_X_SHAPE = Slot("XShape", intermediate=True, dispensable=True, content="dims (0, *dims of X) and X's LoD; no bytes")


def _x_shape(x: Spec) -> Spec:
    return like(x, (0, *x.dims))


def _infer_from_x_shape(call: Call) -> Inferred:
    """X@GRAD is as XShape says that X was."""
    return {"X@GRAD": like(call.spec("XShape"), call.dims("XShape")[1:])}


# reshape2 ----------------------------------------------------------------------------------------------------------

_RESHAPE_ATTRS = (Attr("shape", "ints", minimum=-1, doc="dims of Out; 0: as in X; one may be -1: what remains"),)


def reshaped(call: Call, x: Dims, shape: Sequence[int]) -> Dims:
    """Return the dims that ``shape`` gives X."""
    for i, d in enumerate(shape):
        if d == 0 and i >= len(x):
            call.fail_attr("shape", f"0 only where X has a dim; X is {call.shown('X')}")
    if list(shape).count(-1) > 1:
        call.fail_attr("shape", "at most one -1")
    dims = [x[i] if d == 0 else d for i, d in enumerate(shape)]
    # Dims of X that are unknown and copied stand on both sides, so what remains is known without them.
    copied = {i for i, d in enumerate(shape) if d == 0 and x[i] < 0}
    total = size([d for i, d in enumerate(x) if i not in copied])
    rest = prod(d for i, d in enumerate(dims) if i not in copied and shape[i] != -1)
    if -1 not in shape:
        if total >= 0 and total != rest:
            call.fail_attr("shape", f"{total} elements, as many as X ({call.shown('X')}) has")
        return tuple(dims)
    if total >= 0:
        if total % rest if rest else total:
            call.fail_attr("shape", f"a divisor of the size of X ({call.shown('X')}) beside the -1")
        dims[list(shape).index(-1)] = total // rest if rest else 0
    return tuple(dims)


def _infer_reshape(call: Call) -> Inferred:
    x = call.spec("X")
    dims = reshaped(call, x.dims, call.attr("shape"))
    keeps_rows = bool(dims) and bool(x.dims) and dims[0] == x.dims[0]
    return {"Out": like(x, dims) if keeps_rows else Spec.of(dims, x.dtype), "XShape": _x_shape(x)}


def _reference_reshape(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = inputs["X"]
    dims = [x.shape[i] if d == 0 else d for i, d in enumerate(attrs["shape"])]
    return {"Out": x.reshape(dims) if x.size else np.zeros([max(d, 0) for d in dims], x.dtype)}


register_op(
    "reshape2",
    inputs=("X",),
    outputs=("Out", _X_SHAPE),
    attrs=_RESHAPE_ATTRS,
    infer=_infer_reshape,
    grad=GradRule("reshape2_grad", ("XShape", "Out@GRAD"), ("X",)),
    view=("Out", "X"),
    dtypes={"X": ALL},
    reference=_reference_reshape,
    samples=lambda: [
        Sample({"X": rand(4, 6)}, {"shape": [3, 8]}, ("X",), name="plain", dtypes=EVERY),
        Sample({"X": rand(4, 6)}, {"shape": [0, 2, -1]}, ("X",), name="copied_and_inferred"),
        Sample({"X": rand(2, 3, 4)}, {"shape": [-1]}, ("X",), name="flat"),
        Sample({"X": ints(6)}, {"shape": [2, 3]}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(6)}, {"shape": [6, 1]}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(1)}, {"shape": []}, name="rank0"),
        Sample({"X": rand(0, 4)}, {"shape": [-1, 2]}, name="empty"),
    ],
    doc="Out = X with other dims; the bytes are the same",
    source="Fluid reshape_op.cc",
)

register_op(
    "reshape2_grad",
    inputs=grad_inputs("XShape", "Out@GRAD", meta=("XShape",)),
    outputs=grad_outputs("X"),
    attrs=_RESHAPE_ATTRS,
    infer=_infer_from_x_shape,
    kernel_dtype="Out@GRAD",
    view=("X@GRAD", "Out@GRAD"),
    doc="X@GRAD = Out@GRAD with the dims of X",
)

# transpose2 --------------------------------------------------------------------------------------------------------

_TRANSPOSE_ATTRS = (Attr("axis", "ints", doc="which dim of X each dim of Out is"),)


def _infer_transpose(call: Call) -> Inferred:
    x, axis = call.spec("X"), call.attr("axis")
    if sorted(axis) != list(range(x.rank)):
        call.fail_attr("axis", f"a permutation of {list(range(x.rank))}, the dims of X ({call.shown('X')})")
    return {"Out": Spec.of([x.dims[i] for i in axis], x.dtype), "XShape": _x_shape(x)}


def _decompose_transpose_grad(call: Call, build: Any) -> None:
    axis = call.attr("axis")
    inverse = tuple(axis.index(i) for i in range(len(axis)))
    build("transpose2", {"X": build.input("Out@GRAD")}, {"Out": build.output("X@GRAD")}, {"axis": inverse})


register_op(
    "transpose2",
    inputs=("X",),
    outputs=("Out", _X_SHAPE),
    attrs=_TRANSPOSE_ATTRS,
    infer=_infer_transpose,
    grad=GradRule("transpose2_grad", ("XShape", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL},
    reference=lambda inputs, attrs: {"Out": np.moveaxis(inputs["X"], attrs["axis"], range(len(attrs["axis"])))},
    samples=lambda: [
        Sample({"X": rand(4, 6)}, {"axis": [1, 0]}, ("X",), name="matrix", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4)}, {"axis": [2, 0, 1]}, ("X",), name="cycle", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4, 5)}, {"axis": [0, 2, 3, 1]}, ("X",), name="nhwc"),
        Sample({"X": rand(2, 3)}, {"axis": [0, 1]}, ("X",), name="identity"),
        Sample({"X": rand(33, 65)}, {"axis": [1, 0]}, name="tiles"),
        Sample({"X": rand(5)}, {"axis": [0]}, name="vector"),
        Sample({"X": ints(2, 3)}, {"axis": [1, 0]}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(2, 3)}, {"axis": [1, 0]}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 4)}, {"axis": [1, 0]}, name="empty"),
    ],
    doc="Out = X with its dims in the order axis",
    source="Fluid transpose_op.cc",
)

register_op(
    "transpose2_grad",
    inputs=grad_inputs("XShape", "Out@GRAD", meta=("XShape",)),
    outputs=grad_outputs("X"),
    attrs=_TRANSPOSE_ATTRS,
    infer=_infer_from_x_shape,
    decompose=_decompose_transpose_grad,
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = Out@GRAD with its dims in the inverse order",
)
