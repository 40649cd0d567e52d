"""Decomposition of an operator into others: the ``build`` object that records the parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from fluidlite.base.context_value import context_value
from fluidlite.base.errors import ProgramError
from fluidlite.program.inference import check_inputs
from fluidlite.program.op_call import PLACEHOLDER, Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator_arguments import check_attrs
from fluidlite.program.registry import ops
from fluidlite.program.source_location import NOWHERE
from fluidlite.tensor.tensor_spec import Spec, specs_of

_decomposing_calls: ContextVar[tuple[Call, ...]] = ContextVar("decomposing_calls", default=())


def decomposing(call: Call) -> AbstractContextManager[tuple[Call, ...]]:
    """Mark a call as being decomposed inside the ``with`` block, so that its parts do not contain it."""
    return context_value(_decomposing_calls, (*_decomposing_calls.get(), call))


@dataclass(eq=False)
class PartValue:
    """A value inside a decomposition: ``("in" | "out" | "tmp", slot, index)``, and its metadata once inferred."""

    role: str
    slot: str
    index: int
    spec: Spec | None = None

    @property
    def dims(self) -> tuple[int, ...]:
        if self.spec is None:
            raise ProgramError("a decomposition reads a value before it writes it")
        return self.spec.dims


value_key: Callable[[PartValue], tuple[str, str, int]] = attrgetter("role", "slot", "index")
"""Returns the key that identifies a value of a decomposition."""


@dataclass(frozen=True)
class DecompositionPart:
    call: Call
    ins: tuple[PartValue, ...]
    outs: tuple[PartValue, ...]


class Build:
    def __init__(self, call: Call) -> None:
        self.call = call
        self.parts: list[DecompositionPart] = []
        self._temps = 0

    def input(self, slot: str, i: int = 0) -> PartValue:
        """Return the ``i``-th input of a slot."""
        return PartValue("in", slot, i, self.call.spec(slot, i))

    def output(self, slot: str, i: int = 0) -> PartValue:
        """Return the ``i``-th output of a slot, for a part to write."""
        return PartValue("out", slot, i)

    def temp(self) -> PartValue:
        self._temps += 1
        return PartValue("tmp", "", self._temps - 1)

    def __call__(
        self,
        type: str | OpDef,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        attrs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Append an operator and return its output, or a list of several; an output of None becomes a temporary."""
        definition = type if isinstance(type, OpDef) else ops.get(type)
        ins = {slot: _values(arguments) for slot, arguments in inputs.items() if arguments is not None}
        for declared in definition.inputs:
            if declared.name not in ins and not declared.dispensable:
                raise ProgramError(
                    f"the decomposition of {self.call.op.type} leaves out {definition.type}'s input {declared.name}"
                )
        outs = {
            slot: [
                value if value is not None else self.temp()
                for value in (arguments if isinstance(arguments, (list, tuple)) else [arguments])
            ]
            for slot, arguments in outputs.items()
        }
        arguments: dict[str, Any] = {slot: tuple(v.spec for v in values) for slot, values in ins.items()}
        call = self._part_call(definition, arguments, {slot: len(values) for slot, values in outs.items()}, attrs)
        for slot, specs in call.outs.items():
            for value, spec in zip(outs[slot], specs, strict=True):
                value.spec = spec
        self.parts.append(
            DecompositionPart(
                call,
                tuple(value for slot in call.ins for value in ins[slot]),
                tuple(value for slot in call.outs for value in outs[slot]),
            )
        )
        results = [value for slot in outs for value in outs[slot]]
        return results[0] if len(results) == 1 else results

    def _part_call(
        self,
        op: OpDef,
        ins: Mapping[str, tuple[Spec, ...]],
        counts: Mapping[str, int],
        attrs: Mapping[str, Any] | None,
    ) -> Call:
        """Return the call of a part, with inferred outputs."""
        clean, _ = check_attrs(op, attrs, NOWHERE)
        arguments = {s.name: ins[s.name] for s in op.inputs if s.name in ins}
        placeholders = {s.name: (PLACEHOLDER,) * counts[s.name] for s in op.outputs if s.name in counts}
        call = Call(op, arguments, placeholders, clean, self.call.place, self.call.training)
        assert op.infer is not None
        results = op.infer(call)
        return call.with_outs({slot: specs_of(results[slot])[: len(specs)] for slot, specs in placeholders.items()})

    def callee(
        self,
        op: OpDef,
        ins: Mapping[str, tuple[Spec, ...]],
        counts: Mapping[str, int],
        attrs: Mapping[str, Any],
    ) -> Call | None:
        """Return the call that a part would be; None if it is being decomposed itself, which would recurse forever.

        Raises ShapeError, DtypeError or AttributeValueError if the operator does not accept these operands.
        """
        call = self._part_call(op, ins, counts, attrs)
        check_inputs(call)
        facts = _facts(call)
        return None if any(_facts(each) == facts for each in (self.call, *_decomposing_calls.get())) else call


def _facts(call: Call) -> Any:
    """Return a key that is equal for equal computations."""
    input_types = {slot: [(spec.dims, spec.dtype) for spec in specs] for slot, specs in call.ins.items()}
    return call.op.type, input_types, repr(sorted(call.attrs.items()))


def _values(value: Any) -> list[PartValue]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def decompose(call: Call) -> list[DecompositionPart] | str:
    """Return the parts of a call, or the reason why it cannot be decomposed."""
    assert call.op.decompose is not None
    build = Build(call)
    with decomposing(call), call.op.attribute_errors(f"the decomposition of {call.op.type}", ProgramError):
        reason = call.op.decompose(call, build)
    if isinstance(reason, str):
        return reason
    written = {value_key(value) for part in build.parts for value in part.outs}
    for slot, specs in call.outs.items():
        for i in range(len(specs)):
            if ("out", slot, i) not in written:
                return f"it does not write {slot}"
    return build.parts


def inlined_parts(
    outer: DecompositionPart, inner: tuple[DecompositionPart, ...], number: int
) -> list[DecompositionPart]:
    """Return the parts of a part's decomposition, with the outer part's values as their inputs and outputs."""
    values_by_key: dict[tuple[str, str, int], PartValue] = {}
    for role, slots, values in (("in", outer.call.ins, outer.ins), ("out", outer.call.outs, outer.outs)):
        names = [(slot, i) for slot, specs in slots.items() for i in range(len(specs))]
        values_by_key.update({(role, slot, i): value for (slot, i), value in zip(names, values, strict=True)})

    def outer_value(value: PartValue) -> PartValue:
        key = value_key(value)
        if key not in values_by_key:
            values_by_key[key] = PartValue("tmp", f"{number}.{value.slot}", value.index, value.spec)
        return values_by_key[key]

    return [DecompositionPart(p.call, tuple(map(outer_value, p.ins)), tuple(map(outer_value, p.outs))) for p in inner]
