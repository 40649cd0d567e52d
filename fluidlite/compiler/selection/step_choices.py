"""The kernels of an operator that runs another one step by step: those of one step, for each number of rows."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from fluidlite.base.lru_cache import LRUCache
from fluidlite.compiler.selection.choice import Choice
from fluidlite.program.op_call import Call, once
from fluidlite.program.opdef import OpDef
from fluidlite.tensor.tensor_spec import Spec

_calls: WeakKeyDictionary[OpDef, LRUCache[Call]] = WeakKeyDictionary()


@once
def step_calls(call: Call) -> dict[int, Call]:
    """By number of rows, the call of one step.

    Each is made once for all calls of the operator: a batch has the number of rows of another at some step.
    """
    rule = call.op.steps
    assert rule is not None
    facts = [(slot, spec.dims if slot == "P" else spec.dims[1:], spec.dtype) for slot, spec in _operands(call)]
    known = _calls.get(rule.step) or _calls.setdefault(rule.step, LRUCache(1024, "calls of steps"))
    place, training = call.place, call.training

    def of(rows: int) -> Call:
        return known.get((rows, *facts, place, training), lambda: cut_call(rows))

    def cut_call(rows: int) -> Call:
        def cut(spec: Spec) -> Spec:
            return Spec.of((rows, *spec.dims[1:]), spec.dtype)

        ins = {slot: specs if slot == "P" else tuple(map(cut, specs)) for slot, specs in call.ins.items()}
        outs = {slot: tuple(map(cut, specs)) for slot, specs in call.outs.items()}
        return Call(rule.step, ins, outs, {}, call.place, call.training)

    return {rows: of(rows) for rows in sorted(set(call.attr("counts")), reverse=True)}


def _operands(call: Call) -> list[tuple[str, Spec]]:
    return [(slot, spec) for slot, specs in call.ins.items() for spec in specs]


def step_choices(call: Call, choose: Callable[[Call], Choice | str]) -> tuple[Choice, ...] | str:
    """The choice for each number of rows, in the order of :func:`step_calls`; or why there is none."""
    found = []
    for each in step_calls(call).values():
        choice = choose(each)
        if isinstance(choice, str):
            return choice
        found.append(choice)
    return tuple(found)
