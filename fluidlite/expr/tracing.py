"""The trace under way: what is known of sizes, which guards it has asked, and what it requires of its operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fluidlite.base.errors import ProgramError

if TYPE_CHECKING:
    from fluidlite.expr.number import Condition, Number
    from fluidlite.expr.tensor import Tensor

_STAND_INS = (10007, 10009, 10037, 10039, 10061, 10067, 10069, 10079, 10091, 10093, 10099, 10103)
"""Large different primes: sizes that are not known are taken for none of the usual ones, and for none of each other."""


Results = Mapping[str, "Sequence[tuple[tuple[Number, ...], str]]"]


@dataclass(frozen=True)
class Requirement:
    """What a call must fulfil: ``condition`` of an operand or an attribute, and what to say if it does not."""

    condition: Condition
    name: str
    expected: str
    do: str = ""
    attr: bool = False
    numbers: tuple[Number, ...] = ()


@dataclass
class Tracing:
    """The state of one trace.

    ``values``: the leaves of numbers in the call at hand; None where a size is not known.
    ``guards``: what was asked; the trace serves calls that answer alike. A condition may be decided and assumed.
    """

    values: Mapping[str, Any]
    guards: dict[tuple[str, bool | None], Guard] = field(default_factory=dict)
    requirements: list[Requirement] = field(default_factory=list)
    results: Results = field(default_factory=dict)
    """The dims and dtypes of the outputs by slot, where the operator infers them by other means than the trace."""
    build: Any = None
    """What collects the parts of the call that is being decomposed, if one is: calls of operators are calls there."""
    spelled: bool = False
    """Whether calls of operators are what they make in any case."""
    called: bool = False
    """Whether a call of an operator is what it makes because nothing is being decomposed."""
    said: list[str] = field(default_factory=list)
    """The operators whose expressions are being traced as what calls of them make."""
    tensors: dict[Any, Tensor] = field(default_factory=dict)
    """Equal tensors are one."""

    def decide(self, condition: Condition) -> bool:
        """The truth of a condition; where sizes are not known, each differs from all others."""
        return self._ask(condition, None)

    def assume(self, condition: Condition) -> bool:
        """The truth of a condition that holds unless sizes that are known say otherwise."""
        return self._ask(condition, True)

    def assumed(self, a: Number, b: Number) -> bool:
        """Whether two sizes were taken to be equal before."""
        pairs = (f"equal({a.key},{b.key})", f"equal({b.key},{a.key})")
        return any((key, True) in self.guards and self.guards[key, True].truth for key in pairs)

    def _ask(self, condition: Condition, default: bool | None) -> bool:
        if not _leaves(condition):
            return bool(condition.evaluate({}))
        key = (condition.key, default)
        if key not in self.guards:
            guard = Guard(condition, default)
            self.guards[key] = replace(guard, truth=guard.answer(self.values))
        return self.guards[key].truth


@dataclass(frozen=True)
class Guard:
    """A condition, and the answer on which a trace is built.

    ``default`` is what it is taken for where sizes are not known; None: what it is of sizes that all differ.
    """

    condition: Condition
    default: bool | None
    truth: bool = True

    def answer(self, values: Mapping[str, Any]) -> bool:
        """The truth of the condition in a call."""
        known = self.condition.evaluate(values)
        if known is not None:
            return known
        return holds(self.condition, values) if self.default is None else self.default


def _leaves(condition: Condition) -> bool:
    """Whether what a condition compares depends on a call."""
    if condition.a.key == condition.b.key and condition.a.whole:
        return False
    pending = [condition.a, condition.b]
    while pending:
        one = pending.pop()
        if one.op in ("size", "attr", "value", "offsets"):
            return True
        pending.extend(one.args)
    return False


def holds(condition: Condition, values: Mapping[str, Any]) -> bool:
    """The truth of a condition where every size that is not known differs from all others."""
    stand_ins = iter(_STAND_INS * (1 + len(values) // len(_STAND_INS)))
    filled = {name: next(stand_ins) if value is None else value for name, value in values.items()}
    return bool(condition.evaluate(filled))


_tracing: ContextVar[Tracing | None] = ContextVar("tracing", default=None)


def current() -> Tracing:
    """The trace under way; raises ProgramError outside of one."""
    found = _tracing.get()
    if found is None:
        raise ProgramError("tensor expressions are made while an operator is traced")
    return found


@contextmanager
def tracing(values: Mapping[str, Any], results: Results | None = None, build: Any = None) -> Iterator[Tracing]:
    """Trace inside; ``build`` collects the parts of what is being decomposed."""
    made = Tracing(values, results=results or {}, build=build)
    token = _tracing.set(made)
    try:
        yield made
    finally:
        _tracing.reset(token)


@contextmanager
def known_results(results: Results) -> Iterator[None]:
    """Trace an operator whose outputs, inferred by other means, are these."""
    state = current()
    before, state.results = state.results, {**state.results, **results}
    try:
        yield
    finally:
        state.results = before


@contextmanager
def spelled_out() -> Iterator[None]:
    """Trace calls of operators as what they make: derivatives are taken of that."""
    state = current()
    before = state.build, state.spelled
    state.build, state.spelled = None, True
    try:
        yield
    finally:
        state.build, state.spelled = before
