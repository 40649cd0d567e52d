"""Creation of patterns: range, linspace, eye, diag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL, ALL_FLOATS, FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, same_dtype, size
from fluidlite.operators.samples import EVERY, ints, rand

_FLOAT = Attr("dtype", "dtype", "float32", choices=FLOATS, doc="dtype of Out")


def _numbers(call: Call, *slots: str) -> list[Any]:
    """The number that each slot holds; None where one is not known yet."""
    for slot in slots:
        call.need(size(call.dims(slot)) in (1, -1), slot, "one number, [1]")
    return [None if (value := call.value(slot)) is None else value[0] for slot in slots]


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


def _reference_range(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    start, end, step = (inputs[slot][0] for slot in ("Start", "End", "Step"))
    return {"Out": np.arange(start, end, step, dtype=inputs["Start"].dtype)}


def _range_of(dtype: str, start: float, end: float, step: float) -> dict[str, Any]:
    return {slot: np.array([n], dtype) for slot, n in (("Start", start), ("End", end), ("Step", step))}


register_op(
    "range",
    inputs=[Slot(name, value=True) for name in ("Start", "End", "Step")],
    outputs=("Out",),
    infer=_infer_range,
    dtypes={slot: (*FLOATS, *INTS) for slot in ("Start", "End", "Step")},
    reference=_reference_range,
    samples=lambda: [
        Sample(_range_of("float32", 0, 10, 2.5), {}, name="floats", dtypes=("float32", "float64")),
        Sample(_range_of("float32", 1, -1, -0.25), {}, name="falling"),
        Sample(_range_of("float32", 0.5, 3, 1), {}, name="between"),
        Sample(_range_of("int32", 3, 20, 5), {}, name="int32", dtypes=("int32",)),
        Sample(_range_of("int64", 2**53 + 1, 2**53 - 8, -3), {}, name="int64", dtypes=("int64",)),
        Sample(_range_of("int64", 4, 4, 1), {}, name="empty", dtypes=("int64",)),
    ],
    doc="Out = Start, Start + Step, ... up to End, which it leaves out",
    source="Fluid range_op.cc",
)

# linspace ----------------------------------------------------------------------------------------------------------


def _infer_linspace(call: Call) -> Inferred:
    same_dtype(call, "Stop", "Start")
    number = _numbers(call, "Start", "Stop", "Num")[2]
    if number is not None and number < 1:
        call.fail("Num", "1 or more", got=number)
    return {"Out": Spec.of((-1 if number is None else int(number),), call.attr("dtype"))}


def _linspace_of(dtype: str, start: float, stop: float, count: int) -> dict[str, Any]:
    return {"Start": np.array([start], dtype), "Stop": np.array([stop], dtype), "Num": np.array([count], "int32")}


register_op(
    "linspace",
    inputs=[Slot(name, value=True) for name in ("Start", "Stop", "Num")],
    outputs=("Out",),
    attrs=(_FLOAT,),
    infer=_infer_linspace,
    dtypes={"Start": FLOATS, "Stop": FLOATS, "Num": INTS},
    reference=lambda inputs, attrs: {
        "Out": np.linspace(inputs["Start"][0], inputs["Stop"][0], inputs["Num"][0], dtype="float64")
    },
    samples=lambda: [
        Sample(_linspace_of("float32", 0, 10, 5), {}, name="five"),
        Sample(_linspace_of("float64", 3, -1, 9), {"dtype": "float64"}, name="falling", dtypes=("float64",)),
        Sample(_linspace_of("float32", 4, 9, 1), {}, name="one"),
        Sample(_linspace_of("float32", 2, 2, 3), {}, name="equal"),
    ],
    doc="Out = Num numbers from Start to Stop, evenly spaced",
    source="Fluid linspace_op.cc",
)

# eye and diag ------------------------------------------------------------------------------------------------------


def _infer_eye(call: Call) -> Inferred:
    rows, columns = call.attr("num_rows"), call.attr("num_columns")
    return {"Out": Spec.of((rows, rows if columns < 0 else columns), call.attr("dtype"))}


register_op(
    "eye",
    outputs=("Out",),
    attrs=(
        Attr("num_rows", "int", minimum=0, doc="rows of Out"),
        Attr("num_columns", "int", -1, minimum=-1, doc="columns of Out; -1: as many as rows"),
        Attr("dtype", "dtype", "float32", doc="dtype of Out"),
    ),
    infer=_infer_eye,
    reference=lambda inputs, attrs: {"Out": np.eye(
        attrs["num_rows"], None if attrs["num_columns"] < 0 else attrs["num_columns"],
        dtype="float64" if "float" in attrs["dtype"] else attrs["dtype"],
    )},
    samples=lambda: [
        Sample({}, {"num_rows": 4}, name="square"),
        Sample({}, {"num_rows": 3, "num_columns": 5, "dtype": "float64"}, name="wide"),
        Sample({}, {"num_rows": 5, "num_columns": 2, "dtype": "int32"}, name="tall"),
        Sample({}, {"num_rows": 2, "dtype": "float16"}, name="float16"),
        Sample({}, {"num_rows": 2, "dtype": "bool"}, name="bool"),
        Sample({}, {"num_rows": 0, "num_columns": 3}, name="empty"),
    ],
    doc="Out = 1 on the diagonal, else 0",
    source="Fluid eye_op.cc",
)  # fmt: skip


def _infer_diag(call: Call) -> Inferred:
    dims = call.dims("Diagonal")
    call.need(len(dims) == 1, "Diagonal", "rank 1")
    return {"Out": Spec.of((dims[0], dims[0]), call.dtype("Diagonal"))}


register_op(
    "diag",
    inputs=(Slot("Diagonal", doc="a vector"),),
    outputs=("Out",),
    infer=_infer_diag,
    dtypes={"Diagonal": (*ALL_FLOATS, *(dtype for dtype in ALL if "float" not in dtype and dtype != "bool"))},
    reference=lambda inputs, attrs: {"Out": np.diag(inputs["Diagonal"])},
    samples=lambda: [
        Sample({"Diagonal": rand(5)}, {}, name="five", dtypes=EVERY),
        Sample({"Diagonal": rand(1)}, {}, name="one"),
        Sample({"Diagonal": ints(3)}, {}, name="int64", dtypes=("int64",)),
        Sample({"Diagonal": rand(0)}, {}, name="empty"),
    ],
    doc="Out = a matrix with the given diagonal, else 0",
    source="Fluid diag_op.cc",
)
