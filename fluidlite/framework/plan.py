"""The plan of one run: what runs where, with which kernel, and what moves. Interpreter and explain share it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fluidlite.framework.call import Call
from fluidlite.framework.choose import Choice
from fluidlite.framework.kernels import Run
from fluidlite.framework.operator import Operator
from fluidlite.framework.spec import Spec
from fluidlite.platform.place import Place


@dataclass(eq=False)
class Move:
    """A copy of a value to another place.

    ``why``: "feed" (a fed array to its reader's place), "transfer" (between operators), "home" (a state variable
    that was written elsewhere goes back), "state" (a state variable that was left elsewhere by an earlier run).
    ``into_state`` says that the target is a scope's tensor, written in place.
    """

    name: str
    source: Place
    target: Place
    spec: Spec
    why: str
    from_key: str
    to_key: str
    into_state: bool = False


@dataclass(eq=False)
class Output:
    """One output of a step: a new tensor, or the memory of an input (``shares``: index among the inputs)."""

    key: str
    spec: Spec
    shares: int = -1
    state: bool = False


@dataclass(eq=False)
class Launch:
    """One kernel run.

    ``writes_state``: it writes a state variable; ``guarded``: by a kernel that writes nothing after a late error.
    ``where`` is the index of its place in ``Plan.places``; ``simple``: it only reads values and makes
    new ones, which are ``makes``.
    ``runs`` holds what was prepared, with its workspace, by context. ``free`` are the keys that nothing reads
    later; ``recycle`` those of them whose tensors serve again, each with the index of its place.
    """

    op: Operator
    call: Call
    choice: Choice
    ins: list[str | None]
    in_specs: list[Spec]
    outs: list[Output]
    op_index: int
    free: list[str] = field(default_factory=list)
    recycle: list[tuple[str, int]] = field(default_factory=list)
    writes_state: bool = False
    guarded: bool = False
    skip: bool = False
    simple: bool = False
    makes: list[tuple[Spec, str]] = field(default_factory=list)
    where: int = 0
    runs: dict[Any, tuple[Run, Spec | None]] = field(default_factory=dict)
    random: tuple[int, int] | None = None


@dataclass(eq=False)
class Control:
    """An operator that runs itself (``run(frame, op)``)."""

    op: Operator
    op_index: int
    free: list[str] = field(default_factory=list)


Step = Move | Launch | Control


@dataclass(eq=False)
class Line:
    """What explain says of one operator."""

    op: Operator
    choice: Choice | None
    call: Call | None
    moves: list[Move] = field(default_factory=list)

    @property
    def how(self) -> str:
        """One of the six words, or "control"."""
        return self.choice.how if self.choice is not None else "control"


@dataclass(eq=False)
class Plan:
    """Steps of a run in order, and what explain shows.

    Attributes
    ----------
    place : Place
        The executor's.
    steps : list of Step
    lines : list of Line
        One an operator of the program that runs; ``pruned`` counts the others.
    state : dict of name to whether it is read before it is written
    feeds, fetches : names; fetch keys say which copy is read.
    """

    place: Place
    steps: list[Step] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    pruned: int = 0
    state: dict[str, bool] = field(default_factory=dict)
    feeds: dict[str, Spec] = field(default_factory=dict)
    fetches: list[tuple[str, str, Place, Spec]] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    @property
    def moves(self) -> list[Move]:
        """All copies between places, in order."""
        return [step for step in self.steps if isinstance(step, Move)]
