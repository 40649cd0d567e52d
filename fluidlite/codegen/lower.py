"""Lowers a call to its typed expression, which is cached by operator, static attributes and dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from fluidlite.base.lru_cache import LRUCache
from fluidlite.codegen.expr import trace
from fluidlite.codegen.typed import Typed, typed
from fluidlite.program.op_call import Call, cached_in_call
from fluidlite.program.opdef import OpDef
from fluidlite.tensor.layout import PLAIN

_cache: WeakKeyDictionary[OpDef, LRUCache[Typed]] = WeakKeyDictionary()
_MAX_EXPRESSIONS = 256
"""The number of cached typed expressions of one operator."""


@cached_in_call
def typed_of(call: Call) -> Typed:
    """The typed expression of a call, for the outputs that the call has."""
    op = call.op
    rule = op.scalar
    assert rule is not None
    static = tuple([(name, type(v), v) for name, v in call.attrs.items() if v is None or name not in op.floats])
    dtypes = {slot: specs[0].dtype for slot, specs in (*call.ins.items(), *call.outs.items()) if specs}
    key = (static, tuple(dtypes.items()))
    cache = _cache.get(op)
    if cache is None:
        cache = _cache.setdefault(op, LRUCache(_MAX_EXPRESSIONS, "expressions", 1 << 20))

    def make() -> Typed:
        if rule.code is not None:
            code: Typed = rule.code(call)
            return code
        outputs = {slot: dtypes[slot] for slot in rule.outputs if slot in dtypes}
        return typed(trace(rule, op, call.attrs, dtypes), dtypes, outputs)

    return cache.get(key, make)


def alias_of(call: Call) -> Mapping[str, str]:
    """For each output that must alias an input (an in-place update): that input."""
    return {out: source for out, source in call.op.must_alias.items() if out in call.outs and source in call.ins}


def refusal(call: Call, dtypes: tuple[str, ...]) -> str | None:
    """The reason why no generated kernel of any capability can run this call, or None."""
    if call.op.scalar is None:
        return "no expression" if call.op.expression is None else "kernels are generated of functions of scalars"
    reason = call.op.scalar.refuse(call)
    return operand_refusal(call, dtypes) if reason is None else reason


def operand_refusal(call: Call, dtypes: tuple[str, ...]) -> str | None:
    """The reason why no generated kernel can run on these operands, or None."""
    for slot, specs in (*call.ins.items(), *call.outs.items()):
        for spec in specs if slot not in call.op.unread else ():
            if spec.dtype not in dtypes:
                return f"{slot} is {spec.dtype}, which the device does not compute"
            if spec.kind != "dense":
                return f"{slot} is {spec.kind}"
            if spec.layout is not PLAIN:
                return f"{slot} lies in layout {spec.layout.name}"
    return None
