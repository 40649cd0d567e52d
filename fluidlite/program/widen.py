"""Widening: computes an operator in a wider dtype, by casts, the operator, and casts back to its outputs' dtypes.

It is used if a place has no kernel for a dtype. The wide dtype represents all values of the narrow one, so that
results are at least as exact before they are rounded.
"""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.base.errors import FluidError
from fluidlite.program.decompose import Build, DecompositionPart, PartValue
from fluidlite.program.op_call import Call

WIDER = {
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
    "int32": ("int64",),
}
"""The dtypes that an operator may be widened to, the narrowest first."""


def widenable(call: Call) -> bool:
    """Whether an operator's definition allows a wider dtype.

    Random numbers depend on the dtype; state that is updated in place has a fixed one; so has a dtype attribute.
    """
    op = call.op
    if op.random or op.dynamic or op.effect or op.must_alias or op.epilogue is not None or op.infer is None:
        return False
    return not any(attr.type == "dtype" and call.attrs.get(attr.name) is not None for attr in op.attrs)


def widen(call: Call, wide: str) -> list[DecompositionPart] | None:
    """Return the parts of a call with casts of all operands of its kernel dtype; None if the definition forbids it."""
    narrow = call.key_dtype
    build = Build(call)

    def cast(value: PartValue, out: PartValue | None, dtype: str) -> Any:
        return build("cast", {"X": value}, {"Out": out}, {"out_dtype": dtype})

    inputs: dict[str, list[PartValue]] = {}
    for slot, specs in call.ins.items():
        declared = call.op.input(slot)
        if any(spec.dtype == narrow for spec in specs) and wide not in call.op.dtypes.get(slot, (wide,)):
            return None
        values = [build.input(slot, i) for i in range(len(specs))]
        for value, spec in zip(values, specs, strict=True):
            if declared is not None and declared.unread and not declared.value and spec.dtype == narrow:
                value.spec = spec.with_(dtype=wide)  # metadata only: nothing to cast
        if declared is None or not declared.unread:
            values = [
                cast(value, None, wide) if spec.dtype == narrow else value
                for value, spec in zip(values, specs, strict=True)
            ]
        inputs[slot] = values
    outputs = {
        slot: [build.temp() if spec.dtype == narrow else build.output(slot, i) for i, spec in enumerate(specs)]
        for slot, specs in call.outs.items()
    }
    try:
        build(call.op, inputs, outputs, {name: value for name, value in call.attrs.items() if value is not None})
    except FluidError:
        return None
    for slot, specs in call.outs.items():
        for i, (value, spec) in enumerate(zip(outputs[slot], specs, strict=True)):
            expected = wide if spec.dtype == narrow else spec.dtype
            if value.spec is None or value.spec.dtype != expected or value.spec.dims != spec.dims:
                return None
            if expected != spec.dtype:
                cast(value, build.output(slot, i), spec.dtype)
    return build.parts


def cast_bytes(parts: tuple[DecompositionPart, ...]) -> int:
    """Return the bytes that the casts of a widened call read and write; -1 if dims are unknown."""
    specs = [value.spec for part in parts if part.call.op.type == "cast" for value in (*part.ins, *part.outs)]
    if any(spec is None or not spec.is_static for spec in specs):
        return -1
    return sum(spec.size * ITEMSIZE[spec.dtype] for spec in specs if spec is not None)
