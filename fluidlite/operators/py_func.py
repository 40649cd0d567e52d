"""py_func: an operator whose body is a Python function of the user."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any
from zlib import crc32

import numpy as np

from fluidlite.base.dtypes import dtype_name
from fluidlite.base.errors import DtypeError, ProgramError, ShapeError
from fluidlite.base.fork import new_lock
from fluidlite.program.opdef import GRAD, Attr, Slot
from fluidlite.program.operator import EMPTY
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor import Tensor

_functions: dict[int, Callable[..., Any]] = {}
_lock = new_lock()


def register_function(function: Callable[..., Any]) -> int:
    """Return the id by which py_func operators name a function; it is the same for each call with that function.

    It is a hash of the function's name and code, so that a saved program does not find another function in another
    process.
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    number = crc32(f"{function.__module__} {name} {_code_text(getattr(function, '__code__', None))}".encode())
    with _lock:
        while _functions.setdefault(number, function) is not function:
            number += 1
    return number


def _code_text(constant: Any) -> str:
    """A code object, or a constant of one, as a text that is the same in every process."""
    if isinstance(constant, CodeType):
        return f"{constant.co_code.hex()} {constant.co_names} {[*map(_code_text, constant.co_consts)]}"
    return repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant)


def _function(number: int) -> Callable[..., Any]:
    if number not in _functions:
        raise ProgramError(
            f"function {number} is not registered in this process; a saved program does not hold Python functions"
            "\n  Do: build the py_func in the program that runs it"
        )
    return _functions[number]


def _run(frame: Any, op: Any) -> None:
    function = _function(op.attrs["forward_callable_id"])
    results = function(*frame.read("X"))
    names = op.output("Out")
    values = [] if results is None and not names else list(results) if isinstance(results, (list, tuple)) else [results]
    if len(values) != len(names):
        raise ProgramError(f"the function {_name(function)} returned {len(values)} values for {len(names)} outputs")
    tensors = [
        _tensor(frame, name, value, function) if name != EMPTY else Tensor().set(np.zeros(0, np.float32))
        for name, value in zip(names, values, strict=True)
    ]
    if names:
        frame.write("Out", tensors)


def _tensor(frame: Any, name: str, value: Any, function: Callable[..., Any]) -> Tensor:
    """Convert a result to a tensor; check it against the declared metadata of the output."""
    spec = frame.program.global_block().var(name).spec
    if value is None and GRAD in name:
        raise ProgramError(f"the function {_name(function)} returned None for {name!r}\n  Do: return zeros")
    tensor = Tensor().set(value.numpy() if isinstance(value, Tensor) else np.asarray(value))
    if isinstance(value, Tensor) and value.lod():
        tensor.set_lod(value.lod())
    if spec is not None and tensor.dtype != spec.dtype:
        raise DtypeError(
            f"the function {_name(function)} returned {tensor.dtype} for {name!r}, which is declared {spec.dtype}"
            f"\n  Do: return value.astype({dtype_name(spec.dtype)!r})"
        )
    if spec is not None and not spec.fits(spec.with_(dims=tensor.dims)):
        raise ShapeError(
            f"the function {_name(function)} returned dims {list(tensor.dims)} for {name!r}, "
            f"which is declared {list(spec.dims)}"
        )
    return tensor


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))


def _grad(maker: Any) -> None:
    if maker.attr("backward_callable_id") < 0:
        return
    op, skipped = maker.operator, set(maker.attr("backward_skip_vars"))
    grads = [maker.input_grad("X", i) for i in range(len(op.input("X")))]
    if all(name is None for name in grads):
        return
    read = [maker.input("X", i) for i, name in enumerate(op.input("X")) if name not in skipped]
    read += [maker.output("Out", i) for i, name in enumerate(op.output("Out")) if name not in skipped]
    out_grads = maker.output_grads("Out")
    outs = [name if name is not None else EMPTY for name in grads]
    attrs = {"forward_callable_id": maker.attr("backward_callable_id")}
    maker.op("py_func", {"X": [*read, *out_grads]}, {"Out": outs}, attrs)


register_op(
    "py_func",
    Differentiation(rule=_grad),
    Inference(dynamic=True),
    Execution(run=_run),
    inputs=(Slot("X", duplicable=True, dispensable=True, on_host=True),),
    outputs=(Slot("Out", duplicable=True, dispensable=True, on_host=True),),
    attrs=(
        Attr("forward_callable_id", "int", minimum=0, doc="number of the function, as layers.py_func registers it"),
        Attr("backward_callable_id", "int", -1, doc="number of the function that makes gradients; -1: none"),
        Attr("backward_skip_vars", "strs", (), doc="variables that the gradient's function does not take"),
    ),
    doc="Out = function(X), a Python function; its gradient is function(X, Out, Out@GRAD), another",
    source="Fluid py_func_op.cc",
)
