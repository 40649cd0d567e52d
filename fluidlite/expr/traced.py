"""Traces a function: its tensors, the operands, and the guards under which calls can reuse the trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from fluidlite.base import overloads
from fluidlite.base.errors import AttributeValueError, DtypeError, FluidError, ProgramError, ShapeError
from fluidlite.expr.generic_sizes import generic_sizes, subexpressions
from fluidlite.expr.number import Number, attribute, size
from fluidlite.expr.number_table import ConditionList
from fluidlite.expr.tensor import Tensor, symbol, topological_order
from fluidlite.expr.tracing import Guard, Requirement, Tracing, tracing

Operands = Mapping[str, Sequence[tuple[tuple[int, ...], str]]]
"""By slot, the dims (-1: unknown) and the dtype of each operand."""


class Unmet(Exception):
    """The current call does not meet a requirement, and its trace failed."""

    def __init__(self, requirement: Requirement) -> None:
        super().__init__(f"{requirement.name}: expected {requirement.expected}")
        self.requirement = requirement


@dataclass(frozen=True, eq=False)
class Traced:
    """The trace of a function.

    ``inputs``: the symbols of the operands.
    ``guards``: the trace is valid for calls in which all of them have the same truth.
    ``requirements``: conditions that each call must meet.
    ``calls``: whether it contains inlined calls of operators, which a decomposition keeps as calls.
    """

    outputs: Mapping[str, tuple[Tensor, ...]]
    inputs: Mapping[str, tuple[Tensor, ...]]
    guards: tuple[Guard, ...]
    requirements: tuple[Requirement, ...]
    calls: bool = False

    def serves(self, values: Mapping[str, Any]) -> bool:
        """Whether the trace is valid for a call with these leaves: a hit of the cache."""
        guards = self.guards
        if not guards:
            return True
        return self._guard_conditions.first_mismatch(values, lambda k: guards[k].answer(values) != guards[k].truth) < 0

    @cached_property
    def _guard_conditions(self) -> ConditionList:
        return ConditionList([(guard.condition, guard.truth) for guard in self.guards])

    def failed_requirement(self, values: Mapping[str, Any]) -> Requirement | None:
        """The first requirement that a call is known not to meet."""
        at = self._required_conditions.first_mismatch(values, lambda k: False) if self.requirements else -1
        return self.requirements[at] if at >= 0 else None

    @cached_property
    def _required_conditions(self) -> ConditionList:
        return ConditionList([(each.condition, True) for each in self.requirements])

    def completed_values(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The leaves of a call; unknown sizes are taken from the numbers to which guards assume them to be equal.

        A size that a guard compares with another number stays unknown: it may be a 1 that is broadcast.
        """
        if None not in values.values():
            return values
        completed, pairs = (
            dict(values),
            [
                (guard.condition.a, guard.condition.b)
                for guard in self.guards
                if guard.truth and guard.condition.op == "equal" and guard.default
            ],
        )
        compared = {
            each.value
            for guard in self.guards
            if guard.default is None and not guard.truth and guard.condition.op == "equal"
            for each in (guard.condition.a, guard.condition.b)
            if each.op == "size"
        }
        before = -1
        while before != (before := sum(value is None for value in completed.values())):
            for a, b in (*pairs, *((b, a) for a, b in pairs)):
                if a.op == "size" and completed[a.value] is None and a.value not in compared:
                    completed[a.value] = b.evaluate(completed)
        return completed

    @cached_property
    def generic_sizes(self) -> dict[str, int]:
        """A generic size for each size leaf: equal ones only where they are equal in all calls."""
        conditions = [guard.condition for guard in self.guards if guard.truth]
        conditions += [requirement.condition for requirement in self.requirements]
        numbers = [d for row in self.inputs.values() for x in row for d in x.dims]
        numbers += [each for c in conditions for each in (c.a, c.b)]
        leaves = dict.fromkeys(leaf.value for n in numbers for leaf in subexpressions(n) if leaf.op == "size")
        return generic_sizes(leaves, [c for c in conditions if c.op == "equal"])

    @cached_property
    def every(self) -> tuple[Tensor, ...]:
        """The outputs and all their subexpressions, operands first."""
        return tuple(topological_order([x for row in self.outputs.values() for x in row]))

    @cached_property
    def has_steps(self) -> bool:
        """Whether it contains ``steps``."""
        return "steps" in [x.op for x in self.every]

    @cached_property
    def checks_indices(self) -> bool:
        """Whether it raises for an index out of range."""
        return check_indices(self.every)

    def dims(self, slot: str, values: Mapping[str, Any], i: int = 0) -> tuple[int, ...]:
        """The dims of an output in a call; -1 where unknown."""
        dims = self.outputs[slot][i].dims
        return tuple([-1 if (size := d.evaluate(values)) is None else int(size) for d in dims])


def check_indices(tensors: Sequence[Tensor]) -> bool:
    """Whether computing these tensors may raise for an index out of range."""
    for x in tensors:
        if x.op in ("checked", "set_at", "call") or (x.op in ("take", "pick") and x.params[1] == "check"):
            return True
    return False


def values_of(operands: Operands, floats: Mapping[str, float] | None = None) -> dict[str, Any]:
    """The values of leaves in a call: sizes by ``slot.index.axis``, and float attributes by name."""
    sizes: dict[str, Any] = {
        f"{slot}.{i}.{axis}": None if d < 0 else d
        for slot, row in operands.items()
        for i, (dims, _) in enumerate(row)
        for axis, d in enumerate(dims)
    }
    return {**sizes, **(floats or {})}


def symbols(operands: Operands) -> dict[str, tuple[Tensor, ...]]:
    """A symbol for each operand; its sizes are leaves."""
    return {
        slot: tuple(symbol(slot, i, _sizes(slot, i, dims), dtype) for i, (dims, dtype) in enumerate(row))
        for slot, row in operands.items()
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

    ``function(symbols by slot, numbers by float attribute)`` returns a mapping of slot to a tensor or a row of tensors.
    ``operands``, ``results``: dims and dtypes of each tensor, by slot; results are outputs with an inference of their
    own, whose dims the function may read.
    ``floats``: attributes that stay symbolic in the trace.
    ``values``: the leaves of the current call; None: the sizes of ``operands``.
    ``what``: the subject of error messages.
    Raises ProgramError if the function fails, or reads a value that a trace does not have; the message has the line.
    Raises Unmet if it fails for a call that does not meet a requirement.
    """
    result_specs = {
        slot: [(_sizes(slot, i, dims), dtype) for i, (dims, dtype) in enumerate(row)]
        for slot, row in (results or {}).items()
    }
    with tracing(values_of({**operands, **(results or {})}) if values is None else values, result_specs) as state:
        inputs = symbols(operands)
        try:
            result = function(inputs, {name: attribute(name) for name in floats})
        except (AttributeValueError, ShapeError, DtypeError):  # the user's, not the expression's
            raise
        except Exception as exc:
            _raise(exc, state, what)
        outputs = {slot: tuple(x) if isinstance(x, (tuple, list)) else (x,) for slot, x in result.items()}
        for slot, row in outputs.items():
            for x in row:
                if not isinstance(x, Tensor):
                    raise ProgramError(f"{what}: {slot} is {x!r:.60}, which is no tensor")
        return Traced(outputs, inputs, tuple(state.guards.values()), tuple(state.requirements), state.has_inlined_calls)


def _raise(error: Exception, state: Tracing, what: str) -> NoReturn:
    """Raise the error of a function; a requirement that is not met comes first, since it may have caused the error."""
    unmet = next((r for r in state.requirements if r.condition.evaluate(state.values) is False), None)
    if unmet is not None:
        raise Unmet(unmet) from error
    if isinstance(error, FluidError):
        raise type(error)(f"{what}{_line(error)}: {error}") from error
    if isinstance(error, (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)):
        raise ProgramError(f"{what}{_line(error)}: {type(error).__name__}: {error}") from error
    raise error


_OWN_FILES = (os.path.dirname(os.path.abspath(__file__)) + os.sep, os.path.abspath(overloads.__file__))
"""Paths of the code of expressions: this folder, and the overloaded operators."""


def _line(error: BaseException) -> str:
    """The innermost line of the traceback outside of this package, for an error message."""
    line, traceback = "", error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if not name.startswith(_OWN_FILES):
            line = f" ({name.rpartition('/')[2]}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return line
