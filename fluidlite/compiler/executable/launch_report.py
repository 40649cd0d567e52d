"""How an executable runs: which launches are one call, and why the other steps are alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluidlite.compiler.executable.command_buffer import Launches
from fluidlite.compiler.executable.executable import Executable
from fluidlite.compiler.executable.linker import ErrorGuard
from fluidlite.compiler.executable.packed_state import PackedState
from fluidlite.compiler.planning.plan import Control, Launch, Move, Step

LOOKS = {
    ErrorGuard: "a look for deferred errors, before it writes state",
    PackedState: "a look whether state that kernels read in other forms was written",
}
STORE = "a copy of what it made, into state"


@dataclass(frozen=True)
class Piece:
    """Steps that run as one.

    Attributes
    ----------
    steps : tuple of str
        Types of the operators, or what is copied where.
    launches : int
        Kernels that it starts; 0: that is not known.
    how : str
        "one call", what the device makes of it ("one CUDA graph"), or why it is alone.
    """

    steps: tuple[str, ...]
    launches: int
    how: str

    def __str__(self) -> str:
        count = f"{self.launches} launches, " if self.launches > 1 else ""
        return f"{', '.join(self.steps)}: {count}{self.how}"


class Pieces(tuple[Piece, ...]):
    """The pieces of a program, in the order in which they run; ``print`` shows a line each."""

    __slots__ = ()

    def data(self) -> list[Mapping[str, Any]]:
        """All of it as plain dicts."""
        return [{"steps": list(piece.steps), "launches": piece.launches, "how": piece.how} for piece in self]

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def pieces(executable: Executable) -> Pieces:
    numbers = {id(step): number for number, step in enumerate(executable.plan.steps)}
    starts = [numbers[id(owner)] for owner in executable.owners]
    found = []
    ends = [*starts[1:], len(executable.plan.steps)]
    done = -1
    for action, start, end in zip(executable.actions, starts, ends, strict=True):
        step = executable.plan.steps[start]
        looks = next((text for kind, text in LOOKS.items() if isinstance(action, kind)), None)
        if looks is not None:
            found.append(Piece((_name(step),), 0, looks))
            continue
        if start == done:
            found.append(Piece((_name(step),), 0, STORE))
            continue
        if not isinstance(action, Launches):
            found.append(Piece((_name(step),), 0, _alone(step, executable)))
            done = start
            continue
        done = start
        inside = [(n, executable.plan.steps[n]) for n in range(start, max(end, start + 1))]
        names = tuple(_name(s) for n, s in inside if n not in executable.live_ranges.views and not _skipped(s))
        found.append(Piece(names, len(action.launches), getattr(action.chain, "how", "one call")))
    if executable.plan.pending is not None:
        new = Piece(("what follows",), 0, "interpreted, for it depends on values that are new")
        found += pieces(executable.following) if executable.following is not None else [new]
    return Pieces(found)


def _skipped(step: Step) -> bool:
    return isinstance(step, Launch) and step.skip


def _name(step: Step) -> str:
    if isinstance(step, Move):
        return f"{step.name} to {step.target}"
    return step.call.op.type if isinstance(step, Launch) else step.op.type


def _alone(step: Step, executable: Executable) -> str:
    """Why a step is no part of a chain."""
    if isinstance(step, Control):
        return "alone, for it runs itself"
    if isinstance(step, Move):
        return "alone, for it copies from place to place"
    if step.random is not None:
        return "alone, for its random numbers are others at each call"
    keys = [*step.ins, *(out.key for out in step.outs)]
    loose = [key for key in keys if key in executable.live_ranges.of and executable.live_ranges.of[key].loose]
    if loose:
        return f"alone, for {loose[0]!r} lies elsewhere at each call"
    language = executable.frame.contexts[step.choice.place].language
    if getattr(language, "chain", None) is None:
        return f"alone, for {step.choice.place} starts launches one by one"
    return f"alone, for its kernel, {step.choice.text}, may do more than launch"
