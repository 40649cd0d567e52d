"""Launches that follow each other become one call, on devices whose dialect offers ``chain``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluidlite.framework.io import IO
from fluidlite.framework.kernels import Run
from fluidlite.framework.plan import Launch, Step
from fluidlite.platform.context import Context


class Unrecordable(Exception):
    """A kernel does more than launch."""


class Recorder:
    """Stands in for a context, and notes what a kernel launches instead of doing it.

    A kernel that asks for anything but a launch and the status word is not noted.
    """

    def __init__(self, context: Context, suspect: bool) -> None:
        self.place = context.place
        self.dialect = context.dialect
        self.suspect = suspect
        self.marks = False
        """Whether a kernel may set the status word."""
        self.launches: list[tuple[Any, int, Sequence[Any], int | None]] = []
        self._context = context

    def launch(self, kernel: Any, items: int, args: Sequence[Any], group: int | None = None) -> None:
        """Note a launch."""
        if items > 0:
            self.launches.append((kernel, items, tuple(args), group))

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

    Attributes
    ----------
    context : Context
    launches : list of (kernel, items, args, group)
    marks : bool
        Whether one of them may set the status word.
    """

    def __init__(self, context: Context, launches: list[Any], marks: bool) -> None:
        self.context, self.launches, self.marks = context, launches, marks
        self._chain: Any = None

    @property
    def chain(self) -> Any:
        """What does them all: ``chain.run()``."""
        if self._chain is None:
            self._chain = self.context.dialect.chain(self.context.raw, self.launches)
        return self._chain

    def __call__(self) -> None:
        context = self.context
        if self.marks:
            context.status_span()
        context.counts.launches += len(self.launches)
        self.chain.run()


def recorded(step: Launch, run: Run, context: Context, io: IO, suspect: bool) -> Launches | None:
    """Note the launches of a kernel, or return None if they may be others at the next call.

    Parameters
    ----------
    suspect : bool
        Whether a kernel before it may have set the status word: those that write state look at it then.
    """
    dialect = context.dialect
    kernel = step.choice.kernel
    written = step.choice.capability == "dialect" or (kernel is not None and kernel.vectors)
    if dialect is None or getattr(dialect, "chain", None) is None or not written:
        return None
    if step.random is not None:
        return None
    recorder: Any = Recorder(context, suspect)
    suspected = context.suspect
    try:
        result = run(recorder, io)
    except Unrecordable:
        return None
    finally:
        context._suspect = suspected
    return Launches(context, recorder.launches, recorder.marks) if result is None else None


def merged(actions: Sequence[Callable[[], Any]], owners: Sequence[Step]) -> tuple[list[Callable[[], Any]], list[Step]]:
    """Join launches that follow each other on one context; the step of several is their first."""
    made: list[Callable[[], Any]] = []
    kept: list[Step] = []
    for action, owner in zip(actions, owners, strict=True):
        last = made[-1] if made else None
        if isinstance(action, Launches) and isinstance(last, Launches) and action.context is last.context:
            made[-1] = Launches(last.context, [*last.launches, *action.launches], last.marks or action.marks)
        else:
            made.append(action)
            kept.append(owner)
    return made, kept
