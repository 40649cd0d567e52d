"""Kernel selection for operators that run another operator step by step: one choice for each number of rows."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from fluidlite.base.lru_cache import LRUCache
from fluidlite.compiler.selection.choice import Choice
from fluidlite.program.op_call import Call, cached_in_call
from fluidlite.program.opdef import OpDef
from fluidlite.tensor.tensor_spec import Spec

_calls: WeakKeyDictionary[OpDef, LRUCache[Call]] = WeakKeyDictionary()


@cached_in_call
def step_calls(call: Call) -> dict[int, Call]:
    """By number of rows, the call of one step.

    The calls are cached by operator: different batches have steps with the same number of rows.
    """
    rule = call.op.steps
    assert rule is not None
    facts = [(slot, spec.dims if slot == "P" else spec.dims[1:], spec.dtype) for slot, spec in _operands(call)]
    cache = _calls.get(rule.step) or _calls.setdefault(rule.step, LRUCache(1024, "calls of steps"))
    place, training = call.place, call.training

    def step_call(rows: int) -> Call:
        return cache.get((rows, *facts, place, training), lambda: make_call(rows))

    def make_call(rows: int) -> Call:
        def with_rows(spec: Spec) -> Spec:
            return Spec.of((rows, *spec.dims[1:]), spec.dtype)

        ins = {slot: specs if slot == "P" else tuple(map(with_rows, specs)) for slot, specs in call.ins.items()}
        outs = {slot: tuple(map(with_rows, specs)) for slot, specs in call.outs.items()}
        return Call(rule.step, ins, outs, {}, call.place, call.training)

    return {rows: step_call(rows) for rows in sorted(set(call.attr("counts")), reverse=True)}


def _operands(call: Call) -> list[tuple[str, Spec]]:
    return [(slot, spec) for slot, specs in call.ins.items() for spec in specs]


def step_choices(call: Call, choose: Callable[[Call], Choice | str]) -> tuple[Choice, ...] | str:
    """The choice for each number of rows, in the order of :func:`step_calls`; or the reason of a refusal."""
    choices = []
    for step_call in step_calls(call).values():
        choice = choose(step_call)
        if isinstance(choice, str):
            return choice
        choices.append(choice)
    return tuple(choices)
