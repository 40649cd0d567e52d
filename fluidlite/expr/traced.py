"""A traced function: what it computes, of which operands, and for which calls it stands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from fluidlite.base import overloads
from fluidlite.base.errors import AttributeValueError, DtypeError, FluidError, ProgramError, ShapeError
from fluidlite.expr.formulas import Answers, Formulas
from fluidlite.expr.generic_sizes import generic_sizes, parts_of
from fluidlite.expr.number import Number, attribute, size
from fluidlite.expr.tensor import Tensor, ordered, symbol
from fluidlite.expr.tracing import Guard, Requirement, Tracing, tracing

Operands = Mapping[str, Sequence[tuple[tuple[int, ...], str]]]
"""By slot, the dims (-1: not known) and the dtype of each operand."""


class Unmet(Exception):
    """A requirement that the call at hand does not fulfil, so that it cannot be traced any further."""

    def __init__(self, requirement: Requirement) -> None:
        super().__init__(f"{requirement.name}: expected {requirement.expected}")
        self.requirement = requirement


@dataclass(frozen=True, eq=False)
class Traced:
    """What tracing a function gave.

    ``inputs``: the symbols of the operands.
    ``guards``: it stands for calls in which they answer alike.
    ``requirements``: what each call must fulfil.
    ``calls``: whether it calls operators, which are calls where it is decomposed and what they make here.
    """

    outputs: Mapping[str, tuple[Tensor, ...]]
    inputs: Mapping[str, tuple[Tensor, ...]]
    guards: tuple[Guard, ...]
    requirements: tuple[Requirement, ...]
    calls: bool = False

    def serves(self, values: Mapping[str, Any]) -> bool:
        """Whether it stands for a call of these sizes and attributes."""
        guards = self.guards
        if not guards:
            return True
        return self._answers.first_other(values, lambda k: guards[k].answer(values) != guards[k].truth) < 0

    @cached_property
    def _answers(self) -> Answers:
        return Answers([(guard.condition, guard.truth) for guard in self.guards])

    def failed(self, values: Mapping[str, Any]) -> Requirement | None:
        """The first requirement that a call is known not to fulfil."""
        at = self._required.first_other(values, lambda k: False) if self.requirements else -1
        return self.requirements[at] if at >= 0 else None

    @cached_property
    def _required(self) -> Answers:
        return Answers([(each.condition, True) for each in self.requirements])

    def completed(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The leaves of a call, with sizes that are not known from those to which they were assumed to be equal.

        One of which it was asked whether it is another number may be that: a 1 that is broadcast.
        """
        if None not in values.values():
            return values
        found, pairs = (
            dict(values),
            [
                (guard.condition.a, guard.condition.b)
                for guard in self.guards
                if guard.truth and guard.condition.op == "equal" and guard.default
            ],
        )
        asked = {
            each.value
            for guard in self.guards
            if guard.default is None and not guard.truth and guard.condition.op == "equal"
            for each in (guard.condition.a, guard.condition.b)
            if each.op == "size"
        }
        before = -1
        while before != (before := sum(value is None for value in found.values())):
            for a, b in (*pairs, *((b, a) for a, b in pairs)):
                if a.op == "size" and found[a.value] is None and a.value not in asked:
                    found[a.value] = b.evaluate(found)
        return found

    @cached_property
    def generic_sizes(self) -> dict[str, int]:
        """For each size of an operand or a result another one, but where all calls have equal ones."""
        conditions = [guard.condition for guard in self.guards if guard.truth]
        conditions += [requirement.condition for requirement in self.requirements]
        numbers = [d for found in self.inputs.values() for x in found for d in x.dims]
        numbers += [each for c in conditions for each in (c.a, c.b)]
        leaves = dict.fromkeys(leaf.value for n in numbers for leaf in parts_of(n) if leaf.op == "size")
        return generic_sizes(leaves, [c for c in conditions if c.op == "equal"])

    @cached_property
    def every(self) -> tuple[Tensor, ...]:
        """All tensors that the outputs are made of, and they, operands first."""
        return tuple(ordered([x for found in self.outputs.values() for x in found]))

    @cached_property
    def has_steps(self) -> bool:
        """Whether it runs another operator step by step."""
        return "steps" in [x.op for x in self.every]

    @cached_property
    def checks_indices(self) -> bool:
        """Whether it raises where an index is out of range."""
        return check_indices(self.every)

    def dims(self, slot: str, values: Mapping[str, Any], i: int = 0) -> tuple[int, ...]:
        """The dims of an output in a call; -1 where they are not known."""
        return tuple([-1 if d is None else int(d) for d in self._dims[slot][i](values)])

    @cached_property
    def _dims(self) -> dict[str, list[Formulas]]:
        return {slot: [Formulas(x.dims) for x in found] for slot, found in self.outputs.items()}


def check_indices(every: Sequence[Tensor]) -> bool:
    """Whether what computes all of these tensors raises where an index is out of range."""
    for x in every:
        if x.op in ("checked", "set_at", "call") or (x.op in ("take", "pick") and x.params[1] == "check"):
            return True
    return False


def values_of(operands: Operands, floats: Mapping[str, float] | None = None) -> dict[str, Any]:
    """What the leaves of numbers are in a call: sizes by ``slot.number.axis``, and float attributes by name."""
    found: dict[str, Any] = {
        f"{slot}.{i}.{axis}": None if d < 0 else d
        for slot, given in operands.items()
        for i, (dims, _) in enumerate(given)
        for axis, d in enumerate(dims)
    }
    return {**found, **(floats or {})}


def symbols(operands: Operands) -> dict[str, tuple[Tensor, ...]]:
    """A tensor for each operand, whose sizes are leaves."""
    return {
        slot: tuple(symbol(slot, i, _sizes(slot, i, dims), dtype) for i, (dims, dtype) in enumerate(given))
        for slot, given in operands.items()
    }


def _sizes(slot: str, i: int, dims: Sequence[int]) -> tuple[Number, ...]:
    return tuple(size(f"{slot}.{i}.{axis}") for axis in range(len(dims)))


def trace(
    function: Callable[..., Any],
    operands: Operands,
    floats: Iterable[str] = (),
    values: Mapping[str, Any] | None = None,
    what: str = "an expression",
    results: Operands | None = None,
) -> Traced:
    """Call ``function`` with symbols.

    ``function(symbols by slot, numbers by float attribute)`` returns a mapping of slot to a tensor, or to several.
    ``operands``, ``results``: dims and dtypes by slot, of each tensor; results are outputs that are known beforehand,
    for whose dims the function may ask.
    ``floats``: attributes that the trace takes as arguments.
    ``values``: what the leaves of numbers are in the call at hand; None: the sizes of ``operands`` alone.
    ``what``: what errors name.
    Raises ProgramError if the function fails, or asks what a trace cannot tell; the message says in which line.
    Raises Unmet if it fails on a call that does not fulfil a requirement.
    """
    known = {
        slot: [(_sizes(slot, i, dims), dtype) for i, (dims, dtype) in enumerate(found)]
        for slot, found in (results or {}).items()
    }
    with tracing(values_of({**operands, **(results or {})}) if values is None else values, known) as state:
        given = symbols(operands)
        try:
            result = function(given, {name: attribute(name) for name in floats})
        except (AttributeValueError, ShapeError, DtypeError):  # the user's, not the expression's
            raise
        except Exception as exc:
            _raise(exc, state, what)
        outputs = {slot: tuple(x) if isinstance(x, (tuple, list)) else (x,) for slot, x in result.items()}
        for slot, found in outputs.items():
            for x in found:
                if not isinstance(x, Tensor):
                    raise ProgramError(f"{what}: {slot} is {x!r:.60}, which is no tensor")
        return Traced(outputs, given, tuple(state.guards.values()), tuple(state.requirements), state.called)


def _raise(error: Exception, state: Tracing, what: str) -> NoReturn:
    """Raise what a function could not do: a requirement that was not fulfilled comes before what followed from it."""
    unmet = next((r for r in state.requirements if r.condition.evaluate(state.values) is False), None)
    if unmet is not None:
        raise Unmet(unmet) from error
    if isinstance(error, FluidError):
        raise type(error)(f"{what}{_line(error)}: {error}") from error
    if isinstance(error, (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)):
        raise ProgramError(f"{what}{_line(error)}: {type(error).__name__}: {error}") from error
    raise error


_LANGUAGE = (os.path.dirname(os.path.abspath(__file__)) + os.sep, os.path.abspath(overloads.__file__))
"""Files of the language: its folder, and the overloaded operators."""


def _line(error: BaseException) -> str:
    """The innermost line of the traceback that is not of the language itself, for an error's message."""
    found, traceback = "", error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if not name.startswith(_LANGUAGE):
            found = f" ({name.rpartition('/')[2]}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return found
