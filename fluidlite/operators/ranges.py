"""Creation of sequences and diagonals: range, linspace, eye, diag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL, ALL_FLOATS, FLOATS, INTS
from fluidlite.expr.declare import operator
from fluidlite.operators.inference import Inferred, same_dtype, size
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Inference
from fluidlite.tensor.tensor_spec import Spec

Numbers = tuple[e.Number, ...]

_FLOAT = Attr("dtype", "dtype", "float32", choices=FLOATS, doc="dtype of Out")


def _numbers(call: Call, *slots: str) -> list[Any]:
    """The number in each slot; None if it is unknown."""
    for slot in slots:
        call.need(size(call.dims(slot)) in (1, -1), slot, "one number, [1]")
    return [None if (value := call.value(slot)) is None else value[0] for slot in slots]


def _ramp(start: e.Number, step: e.Number) -> e.Tensor:
    """start, start + step, ...; inference has computed how many."""
    return e.iota(e.results("Out")[0], 0, e.result_dtype("Out")) * step + start


# range -------------------------------------------------------------------------------------------------------------


def _infer_range(call: Call) -> Inferred:
    same_dtype(call, "End", "Start")
    same_dtype(call, "Step", "Start")
    dtype = call.dtype("Start")
    numbers = _numbers(call, "Start", "End", "Step")
    if None in numbers:
        return {"Out": Spec.of((-1,), dtype)}
    for slot, number in zip(("Start", "End", "Step"), numbers, strict=True):
        if not np.isfinite(number):
            call.fail(slot, "a finite number", got=number)
    start, end, step = (np.asarray(number, dtype)[()] for number in numbers)
    if step == 0 or (start < end and step < 0) or (start > end and step > 0):
        call.fail("Step", f"a step from {start} towards {end}", got=step)
    if "int" in dtype:
        count = -(-abs(int(end) - int(start)) // abs(int(step)))
    else:
        count = int(np.ceil(abs((end - start) / step)))  # in the dtype, as Fluid counts
    return {"Out": Spec.of((count,), dtype)}


@operator(
    "range",
    Differentiation(
        stop_gradient={"End": "it only sets the number of elements"},
        no_gradient=dict.fromkeys(
            ("Start", "Step"), "start + step layers.range(0, count, 1, dtype), with operators of layers"
        ),
    ),
    Inference(_infer_range),
    inputs=[Slot(name, value=True) for name in ("Start", "End", "Step")],
    dtypes={slot: (*FLOATS, *INTS) for slot in ("Start", "End", "Step")},
    doc="Out = Start, Start + Step, ... up to End, which it leaves out",
    source="Fluid range_op.cc",
)
def range_(start: Numbers, end: Numbers, step: Numbers) -> e.Tensor:
    """Inference has computed the number of elements."""
    return _ramp(start[0], step[0])


# linspace ----------------------------------------------------------------------------------------------------------


def _infer_linspace(call: Call) -> Inferred:
    same_dtype(call, "Stop", "Start")
    number = _numbers(call, "Start", "Stop", "Num")[2]
    if number is not None and number < 1:
        call.fail("Num", "1 or more", got=number)
    return {"Out": Spec.of((-1 if number is None else int(number),), call.attr("dtype"))}


@operator(
    "linspace",
    Differentiation(
        no_gradient=dict.fromkeys(
            ("Start", "Stop"), "start + (stop - start) layers.linspace(0, 1, num, dtype), with operators of layers"
        )
    ),
    Inference(_infer_linspace),
    inputs=[Slot(name, value=True) for name in ("Start", "Stop", "Num")],
    attrs=[_FLOAT],
    dtypes={"Start": FLOATS, "Stop": FLOATS, "Num": INTS},
    doc="Out = Num numbers from Start to Stop, evenly spaced",
    source="Fluid linspace_op.cc",
)
def linspace(start: Numbers, stop: Numbers, num: Numbers) -> e.Tensor:
    """A single number is Start."""
    return _ramp(start[0], (stop[0] - start[0]) / e.highest(num[0] - 1, 1))


# eye and diag ------------------------------------------------------------------------------------------------------


def _diagonal(line: e.Tensor | int, dims: Sequence[e.Numeric], dtype: str) -> e.Tensor:
    """A matrix with a vector, or one number, on its diagonal, else 0."""
    rows, columns = (e.iota(dims, axis) for axis in (0, 1))
    along = line if isinstance(line, int) else e.unsqueeze(line, 1)
    return e.cast(e.where(rows == columns, along, 0), dtype)


@operator(
    "eye",
    attrs=(
        Attr("num_rows", "int", minimum=0, doc="rows of Out"),
        Attr("num_columns", "int", -1, minimum=-1, doc="columns of Out; -1: as many as rows"),
        Attr("dtype", "dtype", "float32", doc="dtype of Out"),
    ),
    doc="Out = 1 on the diagonal, else 0",
    source="Fluid eye_op.cc",
)
def eye(*, num_rows: int, num_columns: int, dtype: str) -> e.Tensor:
    """Square by default."""
    columns = num_rows if num_columns < 0 else num_columns
    return _diagonal(1, (num_rows, columns), dtype)


@operator(
    "diag",
    Differentiation(no_gradient={"Diagonal": "layers.elementwise_mul(layers.eye(n, n), x)"}),
    inputs=[Slot("Diagonal", doc="a vector")],
    dtypes={"Diagonal": (*ALL_FLOATS, *(dtype for dtype in ALL if "float" not in dtype and dtype != "bool"))},
    doc="Out = a matrix with the given diagonal, else 0",
    source="Fluid diag_op.cc",
)
def diag(diagonal: e.Tensor) -> e.Tensor:
    """A square matrix of the size of the vector."""
    if diagonal.rank != 1:
        e.fail("Diagonal", "rank 1")
    return _diagonal(diagonal, (diagonal.dims[0], diagonal.dims[0]), diagonal.dtype)
