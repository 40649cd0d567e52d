"""The launch report of an executable: which launches are one call, and why the other steps are unbatched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluidlite.compiler.executable.command_buffer import Launches
from fluidlite.compiler.executable.executable import Executable
from fluidlite.compiler.executable.linker import ErrorGuard
from fluidlite.compiler.executable.packed_state import PackedState
from fluidlite.compiler.planning.plan import Control, Launch, Move, Step

GUARD_TEXTS = {
    ErrorGuard: "a check for deferred errors, before a write of state",
    PackedState: "a check whether packed state was written",
}
"""Texts of the actions that are checks."""
STORE_TEXT = "a copy of the result into state"


@dataclass(frozen=True)
class LaunchGroup:
    """Steps that run as one call.

    Attributes
    ----------
    steps : tuple of str
        Types of the operators, or the value and the target of a copy.
    launches : int
        Number of kernels that it launches; 0: unknown.
    how : str
        "one call", the device's own word for it ("one CUDA graph"), or the reason why it is unbatched.
    """

    steps: tuple[str, ...]
    launches: int
    how: str

    def __str__(self) -> str:
        count = f"{self.launches} launches, " if self.launches > 1 else ""
        return f"{', '.join(self.steps)}: {count}{self.how}"


class LaunchGroups(tuple[LaunchGroup, ...]):
    """The launch groups of a program, in order of execution; ``print`` shows one line each."""

    __slots__ = ()

    def data(self) -> list[Mapping[str, Any]]:
        """Return the groups as plain dicts."""
        return [{"steps": list(group.steps), "launches": group.launches, "how": group.how} for group in self]

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def launch_groups(executable: Executable) -> LaunchGroups:
    numbers = {id(step): number for number, step in enumerate(executable.plan.steps)}
    starts = [numbers[id(owner)] for owner in executable.owners]
    groups = []
    ends = [*starts[1:], len(executable.plan.steps)]
    last_launched = -1
    for action, start, end in zip(executable.actions, starts, ends, strict=True):
        step = executable.plan.steps[start]
        guard_text = next((text for kind, text in GUARD_TEXTS.items() if isinstance(action, kind)), None)
        if guard_text is not None:
            groups.append(LaunchGroup((_name(step),), 0, guard_text))
            continue
        if start == last_launched:
            groups.append(LaunchGroup((_name(step),), 0, STORE_TEXT))
            continue
        if not isinstance(action, Launches):
            groups.append(LaunchGroup((_name(step),), 0, _reason_unbatched(step, executable)))
            last_launched = start
            continue
        last_launched = start
        merged_steps = [(n, executable.plan.steps[n]) for n in range(start, max(end, start + 1))]
        names = tuple(_name(s) for n, s in merged_steps if n not in executable.live_ranges.views and not _skipped(s))
        groups.append(LaunchGroup(names, len(action.launches), getattr(action.chain, "how", "one call")))
    if executable.plan.pending is not None:
        rest = LaunchGroup(("later stages",), 0, "interpreted: it depends on values of this run")
        groups += launch_groups(executable.next_stage) if executable.next_stage is not None else [rest]
    return LaunchGroups(groups)


def _skipped(step: Step) -> bool:
    return isinstance(step, Launch) and step.skip


def _name(step: Step) -> str:
    if isinstance(step, Move):
        return f"{step.name} to {step.target}"
    return step.call.op.type if isinstance(step, Launch) else step.op.type


def _reason_unbatched(step: Step, executable: Executable) -> str:
    """Return why a step is not merged with other launches."""
    if isinstance(step, Control):
        return "unbatched: it runs a sub-block or calls the host"
    if isinstance(step, Move):
        return "unbatched: it copies between places"
    if step.random is not None:
        return "unbatched: its random numbers change at each call"
    keys = [*step.ins, *(out.key for out in step.outs)]
    dynamic_keys = [
        key for key in keys if key in executable.live_ranges.of and executable.live_ranges.of[key].is_dynamic
    ]
    if dynamic_keys:
        return f"unbatched: {dynamic_keys[0]!r} has a dynamic address"
    language = executable.frame.contexts[step.choice.place].language
    if getattr(language, "chain", None) is None:
        return f"unbatched: {step.choice.place} launches kernels one by one"
    return f"unbatched: its kernel, {step.choice.text}, may do more than launch"
