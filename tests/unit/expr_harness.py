"""A function of tensors, run by array calls of several namespaces and by operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import array_api_strict
import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import plugin_loader, unique_name
from fluidlite.codegen import functions
from fluidlite.devices.cpu import NumPyArrays
from fluidlite.expr.calls import infer
from fluidlite.expr.decompose import decompose
from fluidlite.expr.traced import Traced, trace, values_of
from fluidlite.plugin import Inference, Lowering
from fluidlite.program.opdef import Attr
from fluidlite.program.registry import ops, register_op
from fluidlite.program.rules import ExpressionRule
from fluidlite.render import array_functions
from fluidlite.render.arrays import array_code

Function = Callable[..., Any]
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
NAMESPACES = {
    "numpy": np,
    "strict": array_api_strict,
    "operators": None,
    "required": SimpleNamespace(
        **{name: getattr(array_api_strict, name) for name in array_functions.REQUIRED + DTYPES}
    ),
}
X = np.random.default_rng(0).standard_normal((3, 5))


LLVM = "llvm:0"


@pytest.fixture(scope="module", autouse=True)
def llvm() -> Iterator[None]:
    """A place that has a kernel language and no arrays."""
    fluid.places()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent.parent / "plugins"))
        assert plugin_loader.load("llvm", "llvm_device").state == "loaded"
        yield
        plugin_loader.unload("llvm")


def operands(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: [(tuple(x.shape), str(x.dtype).rpartition(".")[2])] for name, x in arrays.items()}


def check_index(index: Any, size: int, io: Any) -> Any:
    assert ((np.asarray(index) >= 0) & (np.asarray(index) < size)).all()
    return index


def traced(function: Function, arrays: dict[str, Any], **floats: float) -> Traced:
    def all_of(given: Any, numbers: Any) -> dict[str, Any]:
        return {"Out": function(*(found[0] for found in given.values()), **numbers)}

    return trace(all_of, operands(arrays), floats, values_of(operands(arrays), floats))


def run(function: Function, arrays: dict[str, Any], namespace: str = "numpy", **floats: float) -> Any:
    if namespace == "operators":
        return run_operators(function, arrays, floats)
    made, xp = traced(function, arrays, **floats), NAMESPACES[namespace]
    code = array_code(made, host=namespace == "numpy")
    given = [xp.asarray(arrays[slot]) for slot, _ in code.operands]
    extra = NumPyArrays().extra if namespace == "numpy" else lambda name: None
    array = SimpleNamespace(eager=namespace == "numpy", extra=extra)
    context = SimpleNamespace(xp=xp, array=array, check_index=check_index)
    numbers = code.values(values_of(operands(arrays), floats))
    dims, dtype = made.dims("Out", values_of(operands(arrays), floats)), made.outputs["Out"][0].dtype
    full = np.full if xp is np else array_api_strict.full
    out = full(dims, 77, dtype=getattr(xp, dtype))
    compute, kept = code.function(), list[Any]()
    if all(x.size for x in given):  # a call before, whose constants this one has, but whose operands are others
        before = [xp.flip(x) if x.dtype in (xp.float32, xp.float64) else x for x in given]
        compute(xp, functions, array_functions, context, None, numbers, kept, *before, xp.zeros_like(out))
    compute(xp, functions, array_functions, context, None, numbers, kept, *given, out)
    return np.asarray(out)


def run_operators(function: Function, arrays: dict[str, Any], floats: dict[str, float]) -> Any:
    """The function as an operator, on a place that has kernels of other operators alone."""

    def computed(given: Any, attrs: Any) -> dict[str, Any]:
        return {"Out": function(*(found[0] for found in given.values()), **{name: attrs[name] for name in floats})}

    op = register_op(
        "case",
        Inference(infer),
        Lowering(expression=ExpressionRule(computed), decompose=decompose),
        inputs=tuple(arrays),
        outputs=("Out",),
        attrs=[Attr(name, "float", 0.0) for name in floats],
    )
    try:
        block = fluid.default_main_program().global_block()
        given = {slot: block.create_var(unique_name.generate(slot), x.shape, str(x.dtype), is_data=True)
                 for slot, x in arrays.items()}  # fmt: skip
        out = block.create_var(unique_name.generate("out"))
        block.append_op("case", given, {"Out": out}, floats)
        feed = {given[slot].name: np.array(x, order="C") for slot, x in arrays.items()}
        (found,) = fluid.Executor(LLVM, mode="interpreted").run(fluid.default_main_program(), feed, [out])
        return found
    finally:
        ops.remove(op)
