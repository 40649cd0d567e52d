"""tensor_array_to_tensor: concatenates or stacks the elements of an array; its gradient splits them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.errors import OutOfRangeError, ShapeError
from fluidlite.compiler.frame import Frame
from fluidlite.control_flow.join_split import join, split
from fluidlite.control_flow.second_gradients import array_forward_as_gradient
from fluidlite.control_flow.tensor_arrays import array_slot, index_error, read_array
from fluidlite.operators.inference import Inferred
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, Attr, Slot
from fluidlite.program.operator import Operator
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray, array_spec
from fluidlite.tensor.tensor_spec import Spec


def _axis(call: Call, rank: int) -> int:
    axis: int = call.attr("axis")
    if not -rank <= axis < rank:
        call.fail_attr("axis", f"{-rank} to {rank - 1}")
    return axis % rank


def _infer_to_tensor(call: Call) -> Inferred:
    array = call.spec("X")
    if not array.dims:
        call.fail("X", "an array to which something was written")
    dims = list(array.dims)
    if call.attr("use_stack"):
        dims.insert(_axis(call, array.rank + 1), -1)
    else:
        dims[_axis(call, array.rank)] = -1
    return {"Out": Spec.of(dims, array.dtype), "OutIndex": Spec.of((-1,), "int32")}


def _run_to_tensor(frame: Frame, op: Operator) -> None:
    try:
        elements = read_array(frame, "X").present()
    except OutOfRangeError as exc:
        raise index_error(op, exc, "X") from None
    if not elements:
        raise ShapeError(f"X {op.input('X')[0]!r} is an empty array; expected one element or more")
    axis, stacked = op.attrs["axis"], op.attrs["use_stack"]
    along = min(axis, elements[0]._required_spec().rank - 1)  # as in Fluid, also if they are stacked
    sizes = np.array([tensor.dims[along] for tensor in elements], np.int32)
    frame.write("Out", [join(frame, op, elements, axis, stacked)])
    if frame.output_count("OutIndex"):
        frame.write("OutIndex", [Tensor().set(sizes)])


def _grad_to_tensor(maker: Any) -> None:
    inputs = {"OutIndex": maker.output("OutIndex"), "Out" + GRAD: maker.output_grad("Out")}
    attrs = {name: maker.attr(name) for name in ("axis", "use_stack")}
    maker.op("tensor_array_to_tensor_grad", inputs, {"X" + GRAD: maker.input_grad("X")}, attrs)


def _infer_to_tensor_grad(call: Call) -> Inferred:
    gradient = call.spec("Out" + GRAD)
    dims = list(gradient.dims)
    if call.attr("use_stack"):
        del dims[_axis(call, gradient.rank)]
    else:
        dims[_axis(call, gradient.rank)] = -1
    return {"X" + GRAD: array_spec(gradient.dtype, dims)}


def _run_to_tensor_grad(frame: Frame, op: Operator) -> None:
    (index,), (gradient,) = frame.read("OutIndex"), frame.read("Out" + GRAD)
    sizes = index.numpy().tolist()
    parts = split(frame, op, gradient, sizes, op.attrs["axis"], op.attrs["use_stack"])
    array = TensorArray(gradient.dtype, frame.place)
    for number, part in enumerate(parts):
        array = array.with_element(number, part)
    frame.write("X" + GRAD, [array])


_AXES = (
    Attr("axis", "int", 0, doc="the axis of concatenation; the new axis, if elements are stacked"),
    Attr("use_stack", "bool", False, doc="True: stack along a new axis"),
)

register_op(
    "tensor_array_to_tensor",
    Differentiation(rule=_grad_to_tensor),
    Inference(_infer_to_tensor, dynamic=True),
    Execution(run=_run_to_tensor, pure=True),
    inputs=(array_slot("X", "the array"),),
    outputs=(
        Slot("Out", run_place=True),
        Slot("OutIndex", intermediate=True, on_host=True, content="the size of each element along the axis"),
    ),
    attrs=_AXES,
    doc="Out is the elements of X, concatenated or stacked along an axis",
    source="Fluid tensor_array_to_tensor_op.cc",
)
register_op(
    "tensor_array_to_tensor_grad",
    Inference(_infer_to_tensor_grad),
    Differentiation(rule=array_forward_as_gradient("tensor_array_to_tensor", ("OutIndex",), ("axis", "use_stack"))),
    Execution(run=_run_to_tensor_grad, pure=True),
    inputs=(Slot("OutIndex", on_host=True), Slot("Out" + GRAD, run_place=True)),
    outputs=(array_slot("X" + GRAD, "the parts"),),
    attrs=_AXES,
    doc="X@GRAD is the parts of Out@GRAD",
    source="Fluid tensor_array_to_tensor_op.cc",
)
