"""print: write a tensor to standard output while a program runs; Out is In."""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fluidlite.operators.inference import Inferred, spec_like
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op

_PHASES = ("FORWARD", "BACKWARD", "BOTH")
_print_counts: WeakKeyDictionary[Any, dict[int, int]] = WeakKeyDictionary()
"""Number of prints by program and operator id; entries live as long as the program."""


def _infer(call: Call) -> Inferred:
    return {"Out": spec_like(call.spec("In"))}


def _run(frame: Any, op: Any) -> None:
    (tensor,) = frame.read("In")
    if frame.output_count("Out"):
        frame.write("Out", [tensor])
    attr, counts = op.attrs, _print_counts.setdefault(frame.program, {})
    if attr["print_phase"] not in ("BOTH", "FORWARD" if attr["is_forward"] else "BACKWARD"):
        return
    times = counts.get(op.id, 0)
    if 0 <= attr["first_n"] <= times:
        return
    counts[op.id] = times + 1
    sys.stdout.write(tensor_text(tensor, op.input("In")[0], attr, times + 1) + "\n")
    sys.stdout.flush()


def tensor_text(tensor: Any, name: str, attrs: Any, times: int) -> str:
    """The text of one tensor: a message, then a line each of name, place, LoD, dims, dtype and data."""
    lines = [f"{times}\t{attrs['message']}".rstrip()]
    if attrs["print_tensor_name"]:
        lines.append(f"Variable: {name}")
    lines.append(f"  - place: {tensor.place}")
    if attrs["print_tensor_lod"]:
        lines.append(f"  - lod: {[list(level) for level in tensor.lod()]}")
    if attrs["print_tensor_shape"]:
        lines.append(f"  - shape: {list(tensor.dims)}")
    if attrs["print_tensor_type"]:
        lines.append(f"  - dtype: {tensor.dtype}")
    values = np.asarray(tensor.numpy()).reshape(-1)
    limit = attrs["summarize"]
    printed = values if limit < 0 else values[:limit]
    ellipsis = " ..." if len(printed) < len(values) else ""
    lines.append(f"  - data: [{' '.join(map(str, printed.tolist()))}{ellipsis}]")
    return "\n".join(lines)


def _grad(maker: Any) -> None:
    grad = maker.input_grad("In")
    if grad is not None:
        attrs = {**maker.operator.attrs, "is_forward": False}
        maker.op("print", {"In": maker.output_grad("Out")}, {"Out": grad}, attrs)


register_op(
    "print",
    Differentiation(rule=_grad),
    Inference(_infer),
    Execution(run=_run),
    inputs=("In",),
    outputs=(Slot("Out", dispensable=True),),
    attrs=(
        Attr("first_n", "int", -1, doc="how often to print; -1: always"),
        Attr("message", "str", "", doc="printed first"),
        Attr("summarize", "int", 20, doc="how many elements to print; -1: all"),
        Attr("print_tensor_name", "bool", True, doc="print its name"),
        Attr("print_tensor_type", "bool", True, doc="print its dtype"),
        Attr("print_tensor_shape", "bool", True, doc="print its dims"),
        Attr("print_tensor_lod", "bool", True, doc="print its LoD"),
        Attr("print_phase", "str", "BOTH", choices=_PHASES, doc="which of value and gradient is printed"),
        Attr("is_forward", "bool", True, doc="whether In is a value; False in the gradient operator"),
    ),
    doc="Out = In, which is printed to standard output as the program runs",
    source="Fluid print_op.cc",
)
