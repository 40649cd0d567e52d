"""Operators on tensor arrays: the host stores the list of tensors; the tensors stay on the place of the run.

An array is immutable: a write makes a new array, which shares the other elements. Elements are copies of the written
tensors and do not change. In a gradient array an absent element stands for zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL
from fluidlite.base.errors import OutOfRangeError, ProgramError, ShapeError
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.run_errors import raise_before_state_write
from fluidlite.control_flow.bodies import copy_of, zeros
from fluidlite.control_flow.operator_calls import run_operator
from fluidlite.control_flow.second_gradients import array_forward_as_gradient, grad_write
from fluidlite.operators.inference import Inferred
from fluidlite.platform.context import Context
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, Attr, Slot
from fluidlite.program.operator import Operator
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.program.rules import GradRule
from fluidlite.tensor import transfer
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray, array_spec, joined_spec
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Spec

ARRAY_KINDS = (TENSOR_ARRAY,)
INTEGERS = ("int64", "int32")


def array_slot(name: str, doc: str, **options: Any) -> Slot:
    """A slot for an array on the place of the run."""
    return Slot(name, kinds=ARRAY_KINDS, run_place=True, doc=doc, **options)


def index_slot(doc: str) -> Slot:
    """A slot for an index, which the host reads."""
    return Slot("I", on_host=True, doc=doc)


def read_arrays(frame: Frame, slot: str) -> list[TensorArray]:
    """The arrays of a slot; raises ProgramError for another value."""
    arrays: list[TensorArray] = []
    for value in frame.read(slot):
        if not isinstance(value, TensorArray):
            raise ProgramError(f"{slot} is {value!r}; expected a tensor array")
        arrays.append(value)
    return arrays


def read_array(frame: Frame, slot: str) -> TensorArray:
    (array,) = read_arrays(frame, slot)
    return array


def read_index(frame: Frame, op: Operator) -> int:
    """The value of I; raises deferred errors of earlier operators first."""
    raise_before_state_write(frame, None)
    (tensor,) = frame.read("I")
    values = tensor.numpy().reshape(-1)
    if values.size != 1:
        raise ShapeError(f"I {op.input('I')[0]!r} has dims {list(tensor.dims)}; expected one element")
    return int(values[0])


def index_error(op: Operator, error: OutOfRangeError, slot: str) -> OutOfRangeError:
    """An error of an index, with the operator and the variable of the array."""
    return OutOfRangeError(f"{op}: {slot} {op.input(slot)[0]!r}: {error}")


def _element(frame: Frame, op: Operator, slot: str) -> tuple[int, Tensor]:
    """The value of I and its element; raises OutOfRangeError if the element was not written."""
    index = read_index(frame, op)
    try:
        element = read_array(frame, slot).element(index)
        if element is None:
            raise OutOfRangeError(f"element {index} was never written")
    except OutOfRangeError as exc:
        raise index_error(op, exc, slot) from None
    return index, element


def _shared_tensor(tensor: Tensor, context: Context) -> Tensor:
    """An element as a value of a run: it shares the memory, which is never written."""
    transfer.order_after_writes(tensor, context)
    return Tensor().share_data_with(tensor)


def check_planned(name: str, tensor: Tensor, planned: Spec) -> None:
    """Raise ProgramError if a value does not fit the spec that the rest of the run was planned with."""
    spec = tensor._required_spec()
    if not planned.with_(lod=()).fits(spec.with_(lod=())) or (spec.lod and not planned.lod_level):
        raise ProgramError(f"{name} is {spec!r}; the program was planned with {planned!r}")


# Create, write, read, count


def _run_create(frame: Frame, op: Operator) -> None:
    frame.write("Out", [TensorArray(op.attrs["dtype"], frame.place)])


def _infer_write(call: Call) -> Inferred:
    return {"Out": joined_spec(call.spec("Array"), call.spec("X"))}


def _run_write(frame: Frame, op: Operator) -> None:
    index = read_index(frame, op)
    (tensor,) = frame.read("X")
    try:
        array = read_array(frame, "Array").with_element(index, copy_of(tensor, frame.context))
    except OutOfRangeError as exc:
        raise index_error(op, exc, "Array") from None
    frame.write("Out", [array])


def _infer_write_grad(call: Call) -> Inferred:
    specs: dict[str, Any] = {}
    if call.has("X" + GRAD):
        specs["X" + GRAD] = call.spec("X")
    if call.has("Array" + GRAD):
        specs["Array" + GRAD] = call.spec("Out" + GRAD)
    return specs


def _run_write_grad(frame: Frame, op: Operator) -> None:
    index, array = read_index(frame, op), read_array(frame, "Out" + GRAD)
    gradient = array.element(index) if index < len(array) else None
    if frame.output_count("X" + GRAD):
        (planned,) = frame.planned("X" + GRAD)
        if gradient is not None:
            check_planned("the gradient of X", gradient, planned)
            gradient = _shared_tensor(gradient, frame.context)
        frame.write("X" + GRAD, [gradient if gradient is not None else zeros(planned, frame.context)])
    if frame.output_count("Array" + GRAD):
        frame.write("Array" + GRAD, [array.with_element(index, None) if index < len(array) else array.copy()])


def _infer_read(call: Call) -> Inferred:
    array = call.spec("X")
    if not array.dims:
        raise ShapeError(
            "X is a tensor array to which nothing is written so far: the dims of an element are not known"
            "\n  Do: layers.array_write in front of it, such as of what the first iteration reads"
        )
    return {"Out": Spec.of(array.dims, array.dtype, lod_level=array.lod_level)}


def _run_read(frame: Frame, op: Operator) -> None:
    _, element = _element(frame, op, "X")
    check_planned(f"the element of {op.input('X')[0]!r}", element, frame.planned("Out")[0])
    frame.write("Out", [_shared_tensor(element, frame.context)])


def _grad_read(maker: Any) -> None:
    inputs = {"I": maker.input("I"), "Out" + GRAD: maker.output_grad("Out")}
    maker.op("read_from_array_grad", inputs, {"X" + GRAD: maker.input_grad("X")})


def _infer_read_grad(call: Call) -> Inferred:
    gradient = call.spec("Out" + GRAD)
    return {"X" + GRAD: array_spec(gradient.dtype, gradient.dims, gradient.lod_level)}


def _run_read_grad(frame: Frame, op: Operator) -> None:
    index = read_index(frame, op)
    (tensor,) = frame.read("Out" + GRAD)
    empty = TensorArray(tensor.dtype, frame.place)
    frame.write("X" + GRAD, [empty.with_element(index, copy_of(tensor, frame.context))])


def _run_length(frame: Frame, op: Operator) -> None:
    count = np.array([len(read_array(frame, "X"))], np.int64)
    frame.write("Out", [Tensor().set(count, frame.place)])


# Arrays as values


def _run_assign(frame: Frame, op: Operator) -> None:
    frame.write("Out", [read_array(frame, "X").copy()])


def _grad_assign(maker: Any) -> None:
    maker.op("assign_array", {"X": maker.output_grad("Out")}, {"Out": maker.input_grad("X")})


def _infer_sum(call: Call) -> Inferred:
    sum_spec = call.spec("X")
    for term_spec in call.specs("X")[1:]:
        sum_spec = joined_spec(sum_spec, term_spec) if sum_spec.dims else term_spec
    return {"Out": sum_spec}


def _run_sum(frame: Frame, op: Operator) -> None:
    arrays = read_arrays(frame, "X")
    total = arrays[0].copy()
    for index in range(max(map(len, arrays))):
        elements = [tensor for array in arrays if index < len(array) and (tensor := array.element(index)) is not None]
        if len(elements) > 1:
            elements = run_operator(frame, op, "sum", {"X": elements})
        if index >= len(total) or (elements and total.element(index) is not elements[0]):
            total = total.with_element(index, elements[0] if elements else None)
    frame.write("Out", [total])


def _grad_sum(maker: Any) -> None:
    gradient = maker.output_grad("Out")
    for i in range(maker.count("X")):
        if maker.output_count("X", i):
            maker.op("assign_array", {"X": gradient}, {"Out": maker.input_grad("X", i)})


def _run_empty(frame: Frame, op: Operator) -> None:
    frame.write("Out", [TensorArray(frame.planned("Out")[0].dtype, frame.place)])


# Declarations

_OUT_SLOT = array_slot("Out", "the array")
register_op(
    "create_tensor_array",
    Inference(lambda call: {"Out": array_spec(call.attr("dtype"))}),
    Execution(run=_run_create, pure=True),
    outputs=(_OUT_SLOT,),
    attrs=(Attr("dtype", "dtype", "float32", doc="of its elements"),),
    doc="Out is an array without elements",
    source="Fluid layers.create_array",
)
register_op(
    "write_to_array",
    Differentiation(rule=GradRule("write_to_array_grad", ("X", "I", "Out" + GRAD), ("X", "Array"))),
    Inference(_infer_write),
    Execution(run=_run_write, pure=True),
    inputs=(
        Slot("X", run_place=True, doc="the tensor that is written"),
        index_slot("its index, 0 or more; elements before it may be absent"),
        array_slot("Array", "the array before; an empty one is of layers.create_array"),
    ),
    outputs=(_OUT_SLOT,),
    dtypes={"X": ALL, "I": INTEGERS},
    doc="Out is Array, with a copy of X as its element I",
    source="Fluid controlflow/tensor_array_read_write_op.cc",
)
register_op(
    "write_to_array_grad",
    Inference(_infer_write_grad),
    Differentiation(rule=grad_write),
    Execution(run=_run_write_grad, pure=True),
    inputs=(
        Slot("X", metadata_only=True),
        index_slot("the index that was written"),
        array_slot("Out" + GRAD, "the gradient of the array after the write"),
    ),
    outputs=(
        Slot("X" + GRAD, dispensable=True, run_place=True),
        array_slot("Array" + GRAD, "that of the array before", dispensable=True),
    ),
    doc="X@GRAD is element I of Out@GRAD, which Array@GRAD lacks",
    source="Fluid controlflow/tensor_array_read_write_op.cc",
)
register_op(
    "read_from_array",
    Differentiation(rule=_grad_read),
    Inference(_infer_read, dynamic=True),
    Execution(run=_run_read, pure=True),
    inputs=(array_slot("X", "the array"), index_slot("the index of an element that was written")),
    outputs=(Slot("Out", run_place=True),),
    dtypes={"I": INTEGERS},
    doc="Out = X[I]",
    source="Fluid controlflow/tensor_array_read_write_op.cc",
)
register_op(
    "read_from_array_grad",
    Inference(_infer_read_grad),
    Differentiation(rule=array_forward_as_gradient("read_from_array", ("I",))),
    Execution(run=_run_read_grad, pure=True),
    inputs=(index_slot("the index that was read"), Slot("Out" + GRAD, run_place=True)),
    outputs=(array_slot("X" + GRAD, "an array whose only element is I"),),
    doc="X@GRAD[I] = Out@GRAD",
    source="Fluid controlflow/tensor_array_read_write_op.cc",
)
register_op(
    "lod_array_length",
    Differentiation(stop_gradient={"X": "the number of elements does not depend on their values"}),
    Inference(lambda call: {"Out": Spec.of((1,), "int64")}),
    Execution(run=_run_length, pure=True),
    inputs=(array_slot("X", "the array"),),
    outputs=(Slot("Out", run_place=True),),
    doc="Out = [the number of elements of X]",
    source="Fluid lod_array_length_op.cc",
)
register_op(
    "assign_array",
    Differentiation(rule=_grad_assign),
    Inference(lambda call: {"Out": call.spec("X")}),
    Execution(run=_run_assign, pure=True),
    inputs=(array_slot("X", "the array"),),
    outputs=(_OUT_SLOT,),
    doc="Out = X; later writes to one do not change the other",
    source="Fluid assign_op.cc",
)
register_op(
    "sum_arrays",
    Differentiation(rule=_grad_sum),
    Inference(_infer_sum),
    Execution(run=_run_sum, pure=True),
    inputs=(array_slot("X", "arrays of one dtype and rank", duplicable=True),),
    outputs=(_OUT_SLOT,),
    doc="Out[i] is the sum of the elements i that are present",
    source="Fluid sum_op.cc",
)
register_op(
    "empty_array_like",
    Differentiation(stop_gradient={"X": "zeros do not depend on it"}),
    Inference(lambda call: {"Out": call.spec("X")}),
    Execution(run=_run_empty, pure=True),
    inputs=(array_slot("X", "the array", metadata_only=True),),
    outputs=(_OUT_SLOT,),
    doc="Out is an empty array: the gradient of an array on which nothing depends",
    source="Fluid fill_zeros_like_op.cc",
)
