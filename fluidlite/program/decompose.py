"""Saying an operator with others: the ``build`` object that a decomposition writes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.program.inference import check_inputs
from fluidlite.program.op_call import PLACEHOLDER, Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator_arguments import check_attrs
from fluidlite.program.registry import ops
from fluidlite.program.source_location import NOWHERE
from fluidlite.tensor.tensor_spec import Spec, specs_of

_taken_apart: ContextVar[tuple[Call, ...]] = ContextVar("taken_apart", default=())


@contextmanager
def taken_apart(call: Call) -> Iterator[None]:
    """Inside, a call is being decomposed, and its parts after it."""
    token = _taken_apart.set((*_taken_apart.get(), call))
    try:
        yield
    finally:
        _taken_apart.reset(token)


@dataclass(eq=False)
class Value:
    """A value inside a decomposition: ``("in" | "out" | "tmp", slot, index)``, and its metadata once it is known."""

    role: str
    slot: str
    index: int
    spec: Spec | None = None

    @property
    def dims(self) -> tuple[int, ...]:
        if self.spec is None:
            raise ProgramError("a decomposition reads a value before it writes it")
        return self.spec.dims


key_of: Callable[[Value], tuple[str, str, int]] = attrgetter("role", "slot", "index")
"""What a value of a decomposition is known by."""


@dataclass(frozen=True)
class Part:
    call: Call
    ins: tuple[Value, ...]
    outs: tuple[Value, ...]


class Build:
    def __init__(self, call: Call) -> None:
        self.call = call
        self.parts: list[Part] = []
        self._temps = 0

    def input(self, slot: str, i: int = 0) -> Value:
        """The ``i``-th input of a slot."""
        return Value("in", slot, i, self.call.spec(slot, i))

    def output(self, slot: str, i: int = 0) -> Value:
        """The ``i``-th output of a slot, to be written."""
        return Value("out", slot, i)

    def temp(self) -> Value:
        self._temps += 1
        return Value("tmp", "", self._temps - 1)

    def __call__(
        self,
        type: str | OpDef,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        attrs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Append an operator; an output given as None becomes a temporary. Returns its outputs (one: itself)."""
        definition = type if isinstance(type, OpDef) else ops.get(type)
        ins = {slot: _values(given) for slot, given in inputs.items() if given is not None}
        for declared in definition.inputs:
            if declared.name not in ins and not declared.dispensable:
                raise ProgramError(
                    f"the decomposition of {self.call.op.type} leaves out {definition.type}'s input {declared.name}"
                )
        outs = {
            slot: [
                value if value is not None else self.temp()
                for value in (given if isinstance(given, (list, tuple)) else [given])
            ]
            for slot, given in outputs.items()
        }
        given: dict[str, Any] = {slot: tuple(v.spec for v in values) for slot, values in ins.items()}
        call = self._part_call(definition, given, {slot: len(values) for slot, values in outs.items()}, attrs)
        for slot, specs in call.outs.items():
            for value, spec in zip(outs[slot], specs, strict=True):
                value.spec = spec
        self.parts.append(
            Part(
                call,
                tuple(value for slot in call.ins for value in ins[slot]),
                tuple(value for slot in call.outs for value in outs[slot]),
            )
        )
        made = [value for slot in outs for value in outs[slot]]
        return made[0] if len(made) == 1 else made

    def _part_call(
        self,
        op: OpDef,
        ins: Mapping[str, tuple[Spec, ...]],
        counts: Mapping[str, int],
        attrs: Mapping[str, Any] | None,
    ) -> Call:
        """The call of a part, with outputs as they are inferred."""
        clean, _ = check_attrs(op, attrs, NOWHERE)
        given = {s.name: ins[s.name] for s in op.inputs if s.name in ins}
        asked = {s.name: (PLACEHOLDER,) * counts[s.name] for s in op.outputs if s.name in counts}
        call = Call(op, given, asked, clean, self.call.place, self.call.training)
        assert op.infer is not None
        results = op.infer(call)
        return call.with_outs({slot: specs_of(results[slot])[: len(specs)] for slot, specs in asked.items()})

    def callee(
        self,
        op: OpDef,
        ins: Mapping[str, tuple[Spec, ...]],
        counts: Mapping[str, int],
        attrs: Mapping[str, Any],
    ) -> Call | None:
        """The call that a part would be; None if it is being decomposed itself: such a part would have no end.

        Raises ShapeError, DtypeError or AttributeValueError if the operator does not take these operands.
        """
        call = self._part_call(op, ins, counts, attrs)
        check_inputs(call)
        facts = _facts(call)
        return None if any(_facts(each) == facts for each in (self.call, *_taken_apart.get())) else call


def _facts(call: Call) -> Any:
    """What two calls that make the same have in common."""
    given = {slot: [(spec.dims, spec.dtype) for spec in specs] for slot, specs in call.ins.items()}
    return call.op.type, given, repr(sorted(call.attrs.items()))


def _values(value: Any) -> list[Value]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def decompose(call: Call) -> list[Part] | str:
    """The parts of a call, or the reason why it cannot be said with others."""
    assert call.op.decompose is not None
    build = Build(call)
    with taken_apart(call), call.op.blamed(f"the decomposition of {call.op.type}", ProgramError):
        reason = call.op.decompose(call, build)
    if isinstance(reason, str):
        return reason
    written = {key_of(made) for part in build.parts for made in part.outs}
    for slot, specs in call.outs.items():
        for i in range(len(specs)):
            if ("out", slot, i) not in written:
                return f"it does not write {slot}"
    return build.parts


def spliced(outer: Part, inner: tuple[Part, ...], number: int) -> list[Part]:
    """The parts of a part's own decomposition, with the outer part's values in place of its inputs and outputs."""
    known: dict[tuple[str, str, int], Value] = {}
    for role, slots, values in (("in", outer.call.ins, outer.ins), ("out", outer.call.outs, outer.outs)):
        names = [(slot, i) for slot, specs in slots.items() for i in range(len(specs))]
        known.update({(role, slot, i): value for (slot, i), value in zip(names, values, strict=True)})

    def outside(value: Value) -> Value:
        key = key_of(value)
        if key not in known:
            known[key] = Value("tmp", f"{number}.{value.slot}", value.index, value.spec)
        return known[key]

    return [Part(p.call, tuple(map(outside, p.ins)), tuple(map(outside, p.outs))) for p in inner]
