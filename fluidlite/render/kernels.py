"""Kernels of expressions by array calls; registers their generator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fluidlite.base.errors import ProgramError
from fluidlite.codegen import functions
from fluidlite.codegen.lower import operand_refusal
from fluidlite.expr.calls import has_steps, leaves, traced_of
from fluidlite.expr.traced import Traced
from fluidlite.program import codegen_registry as generated
from fluidlite.program.codegen_registry import CodeGenerator, generators
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared
from fluidlite.render import array_functions
from fluidlite.render.array_code import ArrayCode
from fluidlite.render.arrays import array_code


class ArrayKernels:
    """The generator of kernels by array calls; another generator handles scalar expressions."""

    def __init__(self, scalars: CodeGenerator) -> None:
        self.scalars = scalars
        self.codes: WeakKeyDictionary[Traced, dict[tuple[bool, str], tuple[ArrayCode, Callable[..., Any]]]]
        self.codes = WeakKeyDictionary()

    def refuse(self, call: Call, unit: Any) -> str | None:
        """Why no kernel can be generated, or None."""
        if not call.of_tensors:
            return self.scalars.refuse(call, unit)
        if call.op.expression is not None and call.op.expression.operators:
            return "array calls of its operators start as soon"
        if unit.array is None:
            return "the device has no array namespace"
        try:
            if has_steps(call):
                return "its steps are operators of their own"
        except ProgramError as exc:  # operands that it reads as values are not known yet
            return str(exc)
        return operand_refusal(call, unit.array_dtypes)

    def _code(self, call: Call, context: Any) -> tuple[ArrayCode, Callable[..., Any]]:
        slots, host = _computed_slots(call), _on_host(context)
        stored = {slot: [spec.dtype for spec in call.outs[slot]] for slot in slots}
        codes = self.codes.setdefault(traced_of(call), {})
        key = host, repr(stored)
        if key not in codes:
            code = array_code(traced_of(call), slots, host, _aliases(call), stored)
            codes[key] = code, code.function()
        return codes[key]

    def aliasable_slots(self, call: Call) -> Mapping[str, str]:
        """By output slot, the input slot that it may alias; array calls may write a part before they read all."""
        return {} if call.of_tensors else self.scalars.aliasable_slots(call)

    def prepare(self, call: Call, context: Any) -> Prepared:
        """Return the prepared kernel of a call."""
        if not call.of_tensors:
            return self.scalars.prepare(call, context)
        code, compute = self._code(call, context)
        xp, values = context.array.xp, leaves(call)
        numbers, arrays = code.values(values), (*code.operands, *code.outputs)
        cache = list[Any]()

        def bind(context: Any, io: Any) -> Callable[[], None]:
            buffers = [io.array(slot, i) for slot, i in arrays]
            return partial(compute, xp, functions, array_functions, context, io, numbers, cache, *buffers)

        def run(context: Any, io: Any) -> None:
            bind(context, io)()

        def function(name: str) -> tuple[str, list[int]]:
            return code.text(name, numbers), [call.index[slot] + i for slot, i in arrays]

        return Prepared(run, bind=bind if _on_host(context) else None, source=code.source, function=function)


def _aliases(call: Call) -> dict[str, str]:
    """By output slot, the input slot that it may alias."""
    return {**call.op.may_alias, **call.op.must_alias}


def _on_host(context: Any) -> bool:
    """Whether arrays are NumPy's."""
    return context.array is not None and bool(context.array.out and context.array.eager)


def _computed_slots(call: Call) -> tuple[str, ...]:
    """The output slots that are computed: not empty intermediate ones, which only carry dims for a gradient."""

    def computed(slot: str) -> bool:
        declared = call.op.output(slot)
        return declared is None or not declared.intermediate or any(spec.size for spec in call.outs[slot])

    return tuple(filter(computed, call.outs))


def _evaluated(traced: Traced, values: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate a trace without operands by array calls on NumPy."""
    code = array_code(traced)
    results = {slot: np.empty(traced.dims(slot, values), x.dtype) for slot, (x,) in traced.outputs.items()}
    with np.errstate(all="ignore"):
        code.function()(np, functions, array_functions, None, None, code.values(values), [], *results.values())
    return results


generators["array"], generated.evaluated = ArrayKernels(generators["array"]), _evaluated
