"""Kernels of operators that run another one step by step: launches that are prepared once, on parts of the operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from fluidlite.compiler.executable.command_buffer import Action, Launches, merged, noted
from fluidlite.compiler.executable.launch_forms import LaunchForm, Spot, form_of
from fluidlite.compiler.kernel_runs import prepared, run_kernel
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.step_choices import step_calls
from fluidlite.platform.context import Context
from fluidlite.platform.device_memory import aligned
from fluidlite.program import codegen_registry as generated
from fluidlite.program.decompose import Part, Value, key_of
from fluidlite.program.kernel_io import IO
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared
from fluidlite.tensor.tensor_spec import Spec

Key = tuple[str, str, int]
SPACE: Key = "workspace", "", 0


@dataclass(frozen=True, eq=False)
class StepLaunch:
    """One kernel of a step: what it reads and writes, by name, and where its workspace lies (None: it has none).

    ``operands`` are both, each with where it lies in the workspace of the step; None: it is one of the step itself.
    """

    context: Context
    call: Call
    choice: Choice
    kernel: Prepared
    ins: tuple[Key, ...]
    outs: tuple[Key, ...]
    operands: tuple[tuple[Key, Spec, int | None], ...]
    space: tuple[int, int] | None

    @cached_property
    def form(self) -> LaunchForm | None:
        """Its launches, wherever its operands lie."""
        specs = [spec for _, spec, _ in self.operands]
        note = partial(noted, self.choice, self.kernel, self.context)
        return form_of(self.call, specs, self.space[1] if self.space is not None else 0, note, self.context)


@dataclass(frozen=True, eq=False)
class OneStep:
    """The kernels of a step of so many rows, its call and choice, and where what lies between them is in the workspace.

    ``end`` is how many bytes of workspace it takes.
    """

    call: Call
    choice: Choice
    launches: tuple[StepLaunch, ...]
    between: dict[Key, tuple[Spec, int]]
    end: int

    @property
    def weight(self) -> int:
        """An estimate of its bytes, for caches."""
        return 1000 + 3000 * len(self.launches)


def _step_of(one: Call, choice: Choice, context: Context) -> OneStep:
    """The kernels of a step: each batch has those of another at some step, and they are prepared once."""
    key = one, id(choice)  # which the step holds
    found: OneStep = context.prepared.get(key, lambda: _prepared(one, choice, context))
    return found


class _Room:
    def __init__(self) -> None:
        self.end = 0

    def take(self, nbytes: int) -> int:
        at = self.end
        self.end += aligned(nbytes)
        return at


class StepKernels:
    def __init__(self, call: Call, choices: Sequence[Choice], context: Context) -> None:
        rule = call.op.steps
        assert rule is not None
        self.call, self.states, self.backward = call, rule.states, rule.backward
        self.counts: tuple[int, ...] = call.attr("counts")
        self.begins = [0]
        for n in self.counts:
            self.begins.append(self.begins[-1] + n)
        held, need = _Room(), 0
        grows = rule.backward and len(set(self.counts)) > 1
        self.carried = [
            (spec, held.take(spec.nbytes)) for spec in call.specs("S")[: self.states] if grows and spec.nbytes
        ]
        self.steps: dict[int, OneStep] = {}
        for (rows, one), choice in zip(step_calls(call).items(), choices, strict=True):
            self.steps[rows] = _step_of(one, choice, context)
            need = max(need, self.steps[rows].end)
        self.begin = held.end
        """Where in the workspace a step's own begins."""
        self.workspace = held.end + need

    def run(self, context: Context, io: IO) -> None:
        for action in self._actions(context, io, False):
            action()

    def bind(self, context: Context, io: IO) -> Action:
        """Return what runs all steps on buffers that stay."""
        each = self._actions(context, io, True)
        actions, _ = merged(each, each)

        def run() -> None:
            for action in actions:
                action()

        return run

    def _actions(self, context: Context, io: IO, stay: bool) -> list[Action]:
        found: list[Action] = []
        last = len(self.counts) - 1
        before: int | None = None
        operands = _Operands(self.call, io, self.begin)
        for t in range(last, -1, -1) if self.backward else range(last + 1):
            one, begin = self.steps[self.counts[t]], self.begins[t]
            spots = operands.fixed | {("in", "X", k): x for k, x in enumerate(operands.rows("X", begin))}
            spots |= {("out", "O", k): x for k, x in enumerate(operands.rows("O", begin))}
            spots |= {("in", "S", k): x for k, x in enumerate(self._states(operands, before, one, io.context, found))}
            for each in one.launches:
                found.append(_bind_launch(each, spots, context, io, stay))
            before = t
        return found

    def _states(
        self, operands: _Operands, before: int | None, one: OneStep, context: Context, found: list[Action]
    ) -> list[Spot]:
        """The states with which a step begins: those that the step before it made, of as many rows."""
        rows = one.call.dims("S")[0]
        if before is None:
            return operands.rows("S", 0)[: self.states]
        begin, there = self.begins[before], self.counts[before]
        made = operands.rows("O", begin)[: self.states]
        if there >= rows:
            return made
        carried = []
        for (spec, at), old, new in zip(self.carried, operands.rows("S", there), made, strict=False):
            whole, row = operands.space.after(at), _row(spec)
            for source, start, count in ((new, 0, there), (old, there, rows - there)):
                nbytes = count * row
                found.append(partial(context.copy_within, whole.after(start * row).span(nbytes), source.span(nbytes)))
            carried.append(whole)
        return carried


class _Operands:
    """Where the operands of all steps lie, of which each sees some rows, and what steps have between them."""

    def __init__(self, call: Call, io: IO, begin: int) -> None:
        self._rows = {
            slot: [(Spot.of(io.tensor(slot, k)), _row(spec)) for k, spec in enumerate(call.specs(slot))]
            for slot in ("S", "X", "O")
        }
        self.fixed = {("in", "P", k): Spot.of(io.tensor("P", k)) for k in range(call.count("P"))}
        if io.workspace is not None:
            self.space = Spot.of(io.workspace)
            self.fixed[SPACE] = self.space.after(begin)

    def rows(self, slot: str, begin: int) -> list[Spot]:
        """The operands of a slot from a row on."""
        return [spot.after(begin * row) for spot, row in self._rows[slot]]


def _row(spec: Spec) -> int:
    """Bytes of a row."""
    return spec.nbytes // spec.dims[0] if spec.dims[0] else 0


def _prepared(one: Call, choice: Choice, context: Context) -> OneStep:
    parts, choices = choice.parts, choice.part_choices
    slots = (("in", one.ins), ("out", one.outs))
    specs = {
        (role, slot, i): spec for role, group in slots for slot, each in group.items() for i, spec in enumerate(each)
    }
    if not parts:
        ins, outs = (
            tuple(Value(*key, spec) for key, spec in specs.items() if key[0] == role) for role in ("in", "out")
        )
        parts, choices = (Part(one, ins, outs),), (choice,)
    between: dict[Key, tuple[Spec, int]] = {}
    launches, room = [], _Room()
    for part, how in zip(parts, choices, strict=True):
        kernel = prepared(how, part.call, context)
        for value in part.outs:
            if value.role == "tmp" and key_of(value) not in between:
                assert value.spec is not None
                specs[key_of(value)] = value.spec
                between[key_of(value)] = value.spec, room.take(value.spec.nbytes)
        space = (room.take(kernel.workspace), kernel.workspace) if kernel.workspace else None
        reads, writes = tuple(map(key_of, part.ins)), tuple(map(key_of, part.outs))
        operands = tuple((key, specs[key], between[key][1] if key in between else None) for key in (*reads, *writes))
        launches.append(StepLaunch(context, part.call, how, kernel, reads, writes, operands, space))
    return OneStep(one, choice, tuple(launches), between, room.end)


def _bind_launch(each: StepLaunch, spots: dict[Key, Spot], context: Context, io: IO, stay: bool) -> Action:
    """What launches a kernel of a step on its buffers."""
    lie = [spots[key] if at is None else spots[SPACE].after(at) for key, _, at in each.operands]
    lie += [spots[SPACE].after(each.space[0])] if each.space is not None else []
    form = each.form if stay else None
    if form is not None:
        return Launches(context, form.at(lie), form.marks, form.calls)
    tensors = [spot.tensor(spec) for spot, (_, spec, _) in zip(lie, each.operands, strict=False)]
    space = None if each.space is None else lie[-1].tensor(Spec.of((each.space[1],), "uint8"))
    mine, made = IO(each.call, tensors, context, io.op_id, io.random, space), tensors[len(each.ins) :]
    action = each.kernel.bind(context, mine) if stay and each.kernel.bind is not None else None
    if action is not None:
        return action
    return partial(run_kernel, each.kernel.run, context, mine, made)


def prepare(call: Call, choices: Sequence[Choice], context: Context) -> Prepared:
    """Return what runs an operator that runs another one step by step."""
    steps = StepKernels(call, choices, context)
    return Prepared(steps.run, steps.workspace, steps.bind)


generated.prepare_steps = prepare
