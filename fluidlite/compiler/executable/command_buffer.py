"""Command buffers: consecutive launches become one call, on devices whose kernel language offers ``chain``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fluidlite.compiler.planning.plan import Launch
from fluidlite.compiler.selection.choice import Choice
from fluidlite.platform.context import Context
from fluidlite.program.kernel_io import IO
from fluidlite.program.prepared import Prepared

Action = Callable[[], Any]
"""A callable that a run of an executable calls in order."""
Owner = TypeVar("Owner")


class Unrecordable(Exception):
    """The kernel uses more of its context than launches and the status word."""


class Recorder:
    """A substitute for a context: records the launches of a kernel and does not execute them.

    Any attribute but those of launches and the status word raises Unrecordable. A kernel with ``Prepared.record``
    is not run: ``record`` records its native calls and returns True, or records nothing and returns False.
    """

    def __init__(self, context: Context, suspect: bool) -> None:
        self.place = context.place
        self.language = context.language
        self.may_have_error = suspect
        self.marks = False
        """Whether a kernel may set the status word."""
        self.launches: list[tuple[Any, int, Sequence[Any], int | None]] = []
        self.calls = 0
        """Number of launches that are calls of native functions."""
        self._context = context

    def launch(self, kernel: Any, items: int, args: Sequence[Any], group: int | None = None) -> None:
        if items > 0:
            self.launches.append((kernel, items, tuple(args), group))

    def call(self, address: int, kinds: tuple[str, ...], *args: Any) -> None:
        """Record a call of the C function at an address; ``kinds`` are the types of its arguments."""
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
    """An action: launches on operands at static addresses.

    ``launches``: (kernel, work-items, arguments, work-group size) of each.
    ``marks``: whether one of them may set the status word.
    ``calls``: number of calls of native functions among them; these are not counted as launches.
    """

    def __init__(self, context: Context, launches: list[Any], marks: bool, calls: int = 0) -> None:
        self.context, self.launches, self.marks, self.calls = context, launches, marks, calls
        self._chain: Any = None

    @property
    def counted(self) -> int:
        """Number of launches without calls of native functions."""
        return len(self.launches) - self.calls

    @property
    def chain(self) -> Any:
        """The device's command buffer; ``chain.run()`` executes all launches."""
        if self._chain is None:
            self._chain = self.context.language.chain(self.context.raw, self.launches)
        return self._chain

    def __call__(self) -> None:
        context = self.context
        if self.marks:
            context.status_span()
        context.counts.launches += self.counted
        self.chain.run()


def record_launches(
    choice: Choice, prepared: Prepared, context: Context, io: IO, suspect: bool = False
) -> Recorder | None:
    """Record the launches of a kernel on the operands of ``io``; return None if the kernel may do more than launch.

    ``suspect``: an earlier kernel may have set the status word; predicated kernels then read it first.
    """
    language = context.language
    record = prepared.record if getattr(language, "native", None) is not None else None
    if getattr(language, "chain", None) is None or not (record is not None or choice.is_kernel_language):
        return None
    recorder: Any = Recorder(context, suspect)
    previous = context.may_have_error
    try:
        if record is not None:
            return recorder if record(recorder, io) else None
        return recorder if prepared.run(recorder, io) is None else None
    except Unrecordable:
        return None
    finally:
        context._may_have_error = previous


def record_step(step: Launch, prepared: Prepared, context: Context, io: IO, suspect: bool) -> Launches | None:
    """Return the launches of a step, or None if they may differ from call to call."""
    recorder = record_launches(step.choice, prepared, context, io, suspect) if step.random is None else None
    return Launches(context, recorder.launches, recorder.marks, recorder.calls) if recorder is not None else None


def merge_launches(actions: Sequence[Action], owners: Sequence[Owner]) -> tuple[list[Action], list[Owner]]:
    """Merge consecutive launches on one context; the owner of the first becomes the owner of all."""
    merged_actions: list[Action] = []
    merged_owners: list[Owner] = []
    for action, owner in zip(actions, owners, strict=True):
        last = merged_actions[-1] if merged_actions else None
        if isinstance(action, Launches) and isinstance(last, Launches) and action.context is last.context:
            last.launches += action.launches
            last.marks, last.calls = last.marks or action.marks, last.calls + action.calls
        else:
            merged_actions.append(action)
            merged_owners.append(owner)
    return merged_actions, merged_owners
