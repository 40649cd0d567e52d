"""Launches that follow each other become one call, on devices whose kernel language offers ``chain``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fluidlite.compiler.planning.plan import Launch
from fluidlite.compiler.selection.choice import Choice
from fluidlite.platform.context import Context
from fluidlite.program.kernel_io import IO
from fluidlite.program.prepared import Prepared

Action = Callable[[], Any]
Owner = TypeVar("Owner")


class Unrecordable(Exception):
    """A kernel does more than launch."""


class Recorder:
    """Stands in for a context, and notes what a kernel launches instead of doing it.

    A kernel that asks for anything but a launch and the status word is not noted. One that has ``Prepared.record`` is
    asked for its native calls in place of being run: it notes them and returns True, or notes nothing and returns
    False.
    """

    def __init__(self, context: Context, suspect: bool) -> None:
        self.place = context.place
        self.language = context.language
        self.suspect = suspect
        self.marks = False
        """Whether a kernel may set the status word."""
        self.launches: list[tuple[Any, int, Sequence[Any], int | None]] = []
        self.calls = 0
        """How many of the launches are calls of native functions."""
        self._context = context

    def launch(self, kernel: Any, items: int, args: Sequence[Any], group: int | None = None) -> None:
        if items > 0:
            self.launches.append((kernel, items, tuple(args), group))

    def call(self, address: int, kinds: tuple[str, ...], *args: Any) -> None:
        """Note the call of a C function at an address, on arguments of some types."""
        self.calls += 1
        self.launches.append((self.language.native(kinds), 1, (address, *args), None))

    def status_span(self) -> Any:
        """The status word of the context itself."""
        self.marks = True
        return self._context.status_span()

    def status_args(self) -> tuple[Any, int]:
        """The status word as launch arguments."""
        self.marks = True
        return self._context.status_args()

    def __getattr__(self, name: str) -> Any:
        raise Unrecordable(name)


class Launches:
    """An action: launches on memory that stays.

    ``launches``: (kernel, items, args, group) of each.
    ``marks``: whether one of them may set the status word.
    ``calls``: how many of them are calls of native functions, which no launch is counted for.
    """

    def __init__(self, context: Context, launches: list[Any], marks: bool, calls: int = 0) -> None:
        self.context, self.launches, self.marks, self.calls = context, launches, marks, calls
        self._chain: Any = None

    @property
    def counted(self) -> int:
        """How many launches there are, native calls aside."""
        return len(self.launches) - self.calls

    @property
    def chain(self) -> Any:
        """What does them all: ``chain.run()``."""
        if self._chain is None:
            self._chain = self.context.language.chain(self.context.raw, self.launches)
        return self._chain

    def __call__(self) -> None:
        context = self.context
        if self.marks:
            context.status_span()
        context.counts.launches += self.counted
        self.chain.run()


def noted(choice: Choice, prepared: Prepared, context: Context, io: IO, suspect: bool = False) -> Recorder | None:
    """What a kernel launches on some operands; None where it may do more.

    ``suspect``: whether a kernel before it may have set the status word: those that write state look at it then.
    """
    language = context.language
    record = prepared.record if getattr(language, "native", None) is not None else None
    if getattr(language, "chain", None) is None or not (record is not None or choice.of_language):
        return None
    recorder: Any = Recorder(context, suspect)
    suspected = context.suspect
    try:
        if record is not None:
            return recorder if record(recorder, io) else None
        return recorder if prepared.run(recorder, io) is None else None
    except Unrecordable:
        return None
    finally:
        context._suspect = suspected


def recorded(step: Launch, prepared: Prepared, context: Context, io: IO, suspect: bool) -> Launches | None:
    """Note the launches of a kernel, or return None if they may be others at the next call."""
    found = noted(step.choice, prepared, context, io, suspect) if step.random is None else None
    return Launches(context, found.launches, found.marks, found.calls) if found is not None else None


def merged(actions: Sequence[Action], owners: Sequence[Owner]) -> tuple[list[Action], list[Owner]]:
    """Join launches that follow each other on one context; the owner of several is that of the first."""
    made: list[Action] = []
    kept: list[Owner] = []
    for action, owner in zip(actions, owners, strict=True):
        last = made[-1] if made else None
        if isinstance(action, Launches) and isinstance(last, Launches) and action.context is last.context:
            last.launches += action.launches
            last.marks, last.calls = last.marks or action.marks, last.calls + action.calls
        else:
            made.append(action)
            kept.append(owner)
    return made, kept
