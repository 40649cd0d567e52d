"""Elementwise forms of operators without a scalar rule: alone they run by other kernels, fused as elementwise ones.

In a fused operator, ``assign`` is a store, ``sum`` is additions, and ``reduce_sum`` an output that lacks dims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from weakref import WeakKeyDictionary

from fluidlite.base.dtypes import FLOATS
from fluidlite.codegen.expr import Expr, ScalarTrace
from fluidlite.codegen.typed import Typed, typed
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Infer, OpDef, Slot
from fluidlite.program.rules import ElementwiseOperands, ScalarRule
from fluidlite.tensor.tensor_spec import Dims

_forms: WeakKeyDictionary[OpDef, dict[int, OpDef]] = WeakKeyDictionary()

MAX_TERMS = 20
"""A ``sum`` of more inputs has no elementwise form."""


def elementwise_form_of(definition: OpDef, count: int) -> OpDef | None:
    """The elementwise form of an operator with ``count`` inputs, or None.

    The inputs of a duplicable slot become slots of their own, ``X[0]``, ``X[1]``, ...
    """
    make = _FORMS.get(definition.type)
    if make is None or not 0 < count <= MAX_TERMS:
        return None
    by_count = _forms.setdefault(definition, {})
    if count not in by_count:
        by_count[count] = make(definition, count)
    return by_count[count]


def _assign(definition: OpDef, count: int) -> OpDef:
    return replace(definition, scalar=ScalarRule(lambda x: x, ("Out",)), grad=None)


def _sum(definition: OpDef, count: int) -> OpDef:
    slots = tuple(f"X[{k}]" for k in range(count))
    total = Expr("input", (), slots[0])
    for slot in slots[1:]:
        total = total + Expr("input", (), slot)

    def code(call: Call) -> Typed:
        return typed(
            ScalarTrace(slots, ("Out",), (total,)), {s: call.dtype(s) for s in slots}, {"Out": call.dtype("Out")}
        )

    return replace(
        definition,
        inputs=tuple(map(Slot, slots)),
        infer=_of_one_slot(definition, slots),
        grad=None,
        dtypes={},
        scalar=ScalarRule(lambda: None, ("Out",), code=code),
    )


def _of_one_slot(definition: OpDef, slots: tuple[str, ...]) -> Infer:
    def infer(call: Call) -> dict[str, object]:
        assert definition.infer is not None
        specs = tuple(call.spec(slot) for slot in slots)
        return dict(definition.infer(Call(definition, {"X": specs}, call.outs, call.attrs)))

    return infer  # type: ignore[return-value]


def _reduce_sum(definition: OpDef, count: int) -> OpDef:
    rule = ScalarRule(lambda x: x, ("Out",), supports=_floats, placed=_with_kept_axes)
    return replace(definition, scalar=rule, decompose=None, grad=None)


def _floats(call: Call) -> str | None:
    return None if call.dtype("X") in FLOATS and call.dims("X") else "it adds up numbers of another kind"


def _with_kept_axes(call: ElementwiseOperands) -> dict[str, Dims]:
    dims = call.dims("X")
    axes = range(len(dims)) if call.attr("reduce_all") else {axis % len(dims) for axis in call.attr("dim")}
    return {"X": dims, "Out": tuple(1 if k in axes else dim for k, dim in enumerate(dims))}


_FORMS: dict[str, Callable[[OpDef, int], OpDef]] = {"assign": _assign, "sum": _sum, "reduce_sum": _reduce_sum}
