"""The state of the current trace: values of sizes, guards, and requirements on operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fluidlite.base.context_value import context_value
from fluidlite.base.errors import ProgramError

if TYPE_CHECKING:
    from fluidlite.expr.number import Condition, Number
    from fluidlite.expr.tensor import Tensor

_STAND_INS = (10007, 10009, 10037, 10039, 10061, 10067, 10069, 10079, 10091, 10093, 10099, 10103)
"""Distinct large primes that replace unknown sizes: different from each other and from usual sizes."""


Results = Mapping[str, "Sequence[tuple[tuple[Number, ...], str]]"]


@dataclass(frozen=True)
class Requirement:
    """A condition that a call must meet, on an operand or an attribute, and the text of the error if it does not."""

    condition: Condition
    name: str
    expected: str
    do: str = ""
    attr: bool = False
    numbers: tuple[Number, ...] = ()


@dataclass
class Tracing:
    """The state of one trace.

    ``values``: the leaves of the current call; None where a size is unknown.
    ``guards``: the conditions that were evaluated, by key and default: one condition may be decided and assumed.
    """

    values: Mapping[str, Any]
    guards: dict[tuple[str, bool | None], Guard] = field(default_factory=dict)
    requirements: list[Requirement] = field(default_factory=list)
    results: Results = field(default_factory=dict)
    """The dims and dtypes of the outputs by slot, if the operator has an inference of its own."""
    build: Any = None
    """Collects the parts of the call that is being decomposed, where calls of operators stay calls; else None."""
    inlines_calls: bool = False
    """Whether calls of operators are always inlined."""
    has_inlined_calls: bool = False
    """Whether a call of an operator was inlined because nothing is being decomposed."""
    inlining: list[str] = field(default_factory=list)
    """The stack of operators that are being inlined."""
    tensors: dict[Any, Tensor] = field(default_factory=dict)
    """The tensors by key: equal tensors are one object (hash consing)."""

    def decide(self, condition: Condition) -> bool:
        """The truth of a condition; unknown sizes differ from all other sizes."""
        return self._truth(condition, None)

    def assume(self, condition: Condition) -> bool:
        """The truth of a condition; true if it depends on unknown sizes."""
        return self._truth(condition, True)

    def is_assumed_equal(self, a: Number, b: Number) -> bool:
        """Whether the trace has already assumed that two sizes are equal."""
        pairs = (f"equal({a.key},{b.key})", f"equal({b.key},{a.key})")
        return any((key, True) in self.guards and self.guards[key, True].truth for key in pairs)

    def _truth(self, condition: Condition, default: bool | None) -> bool:
        a, b = condition.a, condition.b
        if a.op == b.op == "const" or (a.key == b.key and a.whole):  # functions of constants are constants
            return bool(condition.evaluate({}))
        key = (condition.key, default)
        if key not in self.guards:
            guard = Guard(condition, default)
            self.guards[key] = replace(guard, truth=guard.answer(self.values))
        return self.guards[key].truth


@dataclass(frozen=True)
class Guard:
    """A condition, and the truth on which a trace depends.

    ``default``: the truth if sizes are unknown; None: the truth for sizes that all differ.
    """

    condition: Condition
    default: bool | None
    truth: bool = True

    def answer(self, values: Mapping[str, Any]) -> bool:
        """The truth of the condition in a call."""
        truth = self.condition.evaluate(values)
        if truth is not None:
            return truth
        return holds(self.condition, values) if self.default is None else self.default


def holds(condition: Condition, values: Mapping[str, Any]) -> bool:
    """The truth of a condition where each unknown size differs from all other sizes."""
    stand_ins = iter(_STAND_INS * (1 + len(values) // len(_STAND_INS)))
    filled = {name: next(stand_ins) if value is None else value for name, value in values.items()}
    return bool(condition.evaluate(filled))


_tracing: ContextVar[Tracing | None] = ContextVar("tracing", default=None)


def current() -> Tracing:
    """The current trace; raises ProgramError outside of a trace."""
    state = _tracing.get()
    if state is None:
        raise ProgramError("tensor expressions are made while an operator is traced")
    return state


def tracing(
    values: Mapping[str, Any], results: Results | None = None, build: Any = None
) -> AbstractContextManager[Tracing]:
    """Make a trace current; ``build`` collects the parts of the call that is being decomposed."""
    return context_value(_tracing, Tracing(values, results=results or {}, build=build))


@contextmanager
def declared_results(results: Results) -> Iterator[None]:
    """Trace an operator with an inference of its own, whose outputs have these dims and dtypes."""
    state = current()
    before, state.results = state.results, {**state.results, **results}
    try:
        yield
    finally:
        state.results = before


@contextmanager
def inlined_calls() -> Iterator[None]:
    """Inline calls of operators: derivatives are derived from their expressions."""
    state = current()
    before = state.build, state.inlines_calls
    state.build, state.inlines_calls = None, True
    try:
        yield
    finally:
        state.build, state.inlines_calls = before
