"""Operators on tensor arrays: the host knows which tensor has which number; the tensors stay on the place of the run.

An array is a value: a write makes another array, which shares the elements that are equal. Elements are copies of what
was written, and nothing changes them. In a gradient array an element that is absent stands for zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL
from fluidlite.base.errors import OutOfRangeError, ProgramError, ShapeError
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.run_errors import before_state
from fluidlite.control_flow.bodies import copied, zeros
from fluidlite.control_flow.operator_calls import run_operator
from fluidlite.control_flow.second_gradients import forward_again_of_array, grad_write
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

KINDS = (TENSOR_ARRAY,)
INTEGERS = ("int64", "int32")


def array_slot(name: str, doc: str, **options: Any) -> Slot:
    """A slot for an array, which lies on the place of the run."""
    return Slot(name, kinds=KINDS, run_place=True, doc=doc, **options)


def index_slot(doc: str) -> Slot:
    """A slot for an index, which the host reads."""
    return Slot("I", on_host=True, doc=doc)


def read_array(frame: Frame, slot: str) -> TensorArray:
    (found,) = frame.read(slot)
    if not isinstance(found, TensorArray):
        raise ProgramError(f"{slot} is {found!r}; expected a tensor array")
    return found


def read_index(frame: Frame, op: Operator) -> int:
    """The number of an index, when no operator before has recorded an error."""
    before_state(frame, None)
    (tensor,) = frame.read("I")
    values = tensor.numpy().reshape(-1)
    if values.size != 1:
        raise ShapeError(f"I {op.input('I')[0]!r} has dims {list(tensor.dims)}; expected one element")
    return int(values[0])


def named(op: Operator, error: OutOfRangeError, slot: str) -> OutOfRangeError:
    """An error of an index, with the operator and the variable of the array."""
    return OutOfRangeError(f"{op}: {slot} {op.input(slot)[0]!r}: {error}")


def _element(frame: Frame, op: Operator, slot: str) -> tuple[int, Tensor]:
    """The element that I names; it must be there."""
    index = read_index(frame, op)
    try:
        found = read_array(frame, slot).element(index)
        if found is None:
            raise OutOfRangeError(f"element {index} was never written")
    except OutOfRangeError as exc:
        raise named(op, exc, slot) from None
    return index, found


def _shared(tensor: Tensor, context: Context) -> Tensor:
    """An element as a value of a run: the same memory, which nothing writes."""
    transfer.ready(tensor, context)
    return Tensor().share_data_with(tensor)


def check_planned(name: str, tensor: Tensor, planned: Spec) -> None:
    """Raise ProgramError if a value is not what the rest of the run was planned with."""
    spec = tensor._known()
    if not planned.with_(lod=()).fits(spec.with_(lod=())) or (spec.lod and not planned.lod_level):
        raise ProgramError(f"{name} is {spec!r}; the program was planned with {planned!r}")


# Making, writing, reading, counting


def _run_create(frame: Frame, op: Operator) -> None:
    frame.write("Out", [TensorArray(op.attrs["dtype"], frame.place)])


def _infer_write(call: Call) -> Inferred:
    return {"Out": joined_spec(call.spec("Array"), call.spec("X"))}


def _run_write(frame: Frame, op: Operator) -> None:
    index = read_index(frame, op)
    (tensor,) = frame.read("X")
    try:
        made = read_array(frame, "Array").with_element(index, copied(tensor, frame.context))
    except OutOfRangeError as exc:
        raise named(op, exc, "Array") from None
    frame.write("Out", [made])


def _infer_write_grad(call: Call) -> Inferred:
    found: dict[str, Any] = {}
    if call.has("X" + GRAD):
        found["X" + GRAD] = call.spec("X")
    if call.has("Array" + GRAD):
        found["Array" + GRAD] = call.spec("Out" + GRAD)
    return found


def _run_write_grad(frame: Frame, op: Operator) -> None:
    index, array = read_index(frame, op), read_array(frame, "Out" + GRAD)
    given = array.element(index) if index < len(array) else None
    if frame.wants("X" + GRAD):
        (planned,) = frame.planned("X" + GRAD)
        if given is not None:
            check_planned("the gradient of X", given, planned)
            given = _shared(given, frame.context)
        frame.write("X" + GRAD, [given if given is not None else zeros(planned, frame.context)])
    if frame.wants("Array" + GRAD):
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
    _, found = _element(frame, op, "X")
    check_planned(f"the element of {op.input('X')[0]!r}", found, frame.planned("Out")[0])
    frame.write("Out", [_shared(found, frame.context)])


def _grad_read(maker: Any) -> None:
    inputs = {"I": maker.input("I"), "Out" + GRAD: maker.output_grad("Out")}
    maker.op("read_from_array_grad", inputs, {"X" + GRAD: maker.input_grad("X")})


def _infer_read_grad(call: Call) -> Inferred:
    given = call.spec("Out" + GRAD)
    return {"X" + GRAD: array_spec(given.dtype, given.dims, given.lod_level)}


def _run_read_grad(frame: Frame, op: Operator) -> None:
    index = read_index(frame, op)
    (tensor,) = frame.read("Out" + GRAD)
    empty = TensorArray(tensor.dtype, frame.place)
    frame.write("X" + GRAD, [empty.with_element(index, copied(tensor, frame.context))])


def _run_length(frame: Frame, op: Operator) -> None:
    count = np.array([len(read_array(frame, "X"))], np.int64)
    frame.write("Out", [Tensor().set(count, frame.place)])


# Arrays as values


def _run_assign(frame: Frame, op: Operator) -> None:
    frame.write("Out", [read_array(frame, "X").copy()])


def _grad_assign(maker: Any) -> None:
    maker.op("assign_array", {"X": maker.output_grad("Out")}, {"Out": maker.input_grad("X")})


def _infer_sum(call: Call) -> Inferred:
    found = call.spec("X")
    for spec in call.specs("X")[1:]:
        found = joined_spec(found, spec) if found.dims else spec
    return {"Out": found}


def _run_sum(frame: Frame, op: Operator) -> None:
    arrays = [each for each in frame.read("X") if isinstance(each, TensorArray)]
    made = arrays[0].copy()
    for index in range(max(map(len, arrays))):
        found = [tensor for array in arrays if index < len(array) and (tensor := array.element(index)) is not None]
        if len(found) > 1:
            found = run_operator(frame, op, "sum", {"X": found})
        if index >= len(made) or (found and made.element(index) is not found[0]):
            made = made.with_element(index, found[0] if found else None)
    frame.write("Out", [made])


def _grad_sum(maker: Any) -> None:
    given = maker.output_grad("Out")
    for i in range(maker.count("X")):
        if maker.wants("X", i):
            maker.op("assign_array", {"X": given}, {"Out": maker.input_grad("X", i)})


def _run_empty(frame: Frame, op: Operator) -> None:
    frame.write("Out", [TensorArray(frame.planned("Out")[0].dtype, frame.place)])


# Declarations

_OUT = array_slot("Out", "the array")
register_op(
    "create_tensor_array",
    Inference(lambda call: {"Out": array_spec(call.attr("dtype"))}),
    Execution(run=_run_create, pure=True),
    outputs=(_OUT,),
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
        Slot("X", run_place=True, doc="what is written"),
        index_slot("where: 0 or more; what lies between is not written"),
        array_slot("Array", "the array so far; of layers.create_array, if there is nothing in it"),
    ),
    outputs=(_OUT,),
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
        index_slot("what was written"),
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
    inputs=(array_slot("X", "the array"), index_slot("which element; it has to be there")),
    outputs=(Slot("Out", run_place=True),),
    dtypes={"I": INTEGERS},
    doc="Out = X[I]",
    source="Fluid controlflow/tensor_array_read_write_op.cc",
)
register_op(
    "read_from_array_grad",
    Inference(_infer_read_grad),
    Differentiation(rule=forward_again_of_array("read_from_array", ("I",))),
    Execution(run=_run_read_grad, pure=True),
    inputs=(index_slot("which element was read"), Slot("Out" + GRAD, run_place=True)),
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
    outputs=(_OUT,),
    doc="Out = X: later writes to one are not seen in the other",
    source="Fluid assign_op.cc",
)
register_op(
    "sum_arrays",
    Differentiation(rule=_grad_sum),
    Inference(_infer_sum),
    Execution(run=_run_sum, pure=True),
    inputs=(array_slot("X", "arrays of one dtype and rank", duplicable=True),),
    outputs=(_OUT,),
    doc="Out[i] is the sum of the elements i that there are",
    source="Fluid sum_op.cc",
)
register_op(
    "empty_array_like",
    Differentiation(stop_gradient={"X": "zeros do not depend on it"}),
    Inference(lambda call: {"Out": call.spec("X")}),
    Execution(run=_run_empty, pure=True),
    inputs=(array_slot("X", "the array", metadata_only=True),),
    outputs=(_OUT,),
    doc="Out is an array without elements, as the gradient of an array is that nothing depends on",
    source="Fluid fill_zeros_like_op.cc",
)
