"""Kernels of operators that run another operator step by step: prepared once, launched on slices of the operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from fluidlite.compiler.executable.command_buffer import Action, Launches, merge_launches, record_launches
from fluidlite.compiler.executable.launch_templates import LaunchTemplate, Spot, launch_template
from fluidlite.compiler.kernel_runs import prepare_kernel, run_kernel
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.step_choices import step_calls
from fluidlite.platform.context import Context
from fluidlite.platform.device_memory import aligned
from fluidlite.program import codegen_registry as generated
from fluidlite.program.decompose import DecompositionPart, PartValue, value_key
from fluidlite.program.kernel_io import IO
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared
from fluidlite.tensor.tensor_spec import Spec

Key = tuple[str, str, int]
"""An operand of a step: role ("in", "out", "tmp" or "workspace"), slot and index."""
SPACE: Key = "workspace", "", 0


@dataclass(frozen=True, eq=False)
class StepLaunch:
    """One kernel of a step.

    ``operands``: its inputs and outputs, each with its offset in the workspace of the step; None: the step's own.
    ``space``: offset and bytes of its workspace, or None.
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
    def template(self) -> LaunchTemplate | None:
        """The template of its launches, without the addresses of operands."""
        specs = [spec for _, spec, _ in self.operands]
        note = partial(record_launches, self.choice, self.kernel, self.context)
        return launch_template(self.call, specs, self.space[1] if self.space is not None else 0, note, self.context)


@dataclass(frozen=True, eq=False)
class OneStep:
    """The kernels of one step for one number of rows.

    ``between``: intermediate values of its kernels, each with its offset in the workspace.
    ``end``: bytes of workspace.
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


def _cached_step(call: Call, choice: Choice, context: Context) -> OneStep:
    """Return the kernels of a step from the cache of the context: batches have steps of equal numbers of rows."""
    key = call, id(choice)  # the step holds a reference to the choice
    step: OneStep = context.prepared.get(key, lambda: _prepare_step(call, choice, context))
    return step


class _WorkspaceAllocator:
    """A bump allocator of aligned offsets in a workspace."""

    def __init__(self) -> None:
        self.end = 0

    def allocate(self, nbytes: int) -> int:
        at = self.end
        self.end += aligned(nbytes)
        return at


class StepKernels:
    """The prepared kernels of all steps of one call; ``counts`` are the rows of each step."""

    def __init__(self, call: Call, choices: Sequence[Choice], context: Context) -> None:
        rule = call.op.steps
        assert rule is not None
        self.call, self.states, self.backward = call, rule.states, rule.backward
        self.counts: tuple[int, ...] = call.attr("counts")
        self.begins = [0]
        for n in self.counts:
            self.begins.append(self.begins[-1] + n)
        space, step_bytes = _WorkspaceAllocator(), 0
        grows = rule.backward and len(set(self.counts)) > 1
        self.carried = [
            (spec, space.allocate(spec.nbytes)) for spec in call.specs("S")[: self.states] if grows and spec.nbytes
        ]
        self.steps: dict[int, OneStep] = {}
        for (rows, one), choice in zip(step_calls(call).items(), choices, strict=True):
            self.steps[rows] = _cached_step(one, choice, context)
            step_bytes = max(step_bytes, self.steps[rows].end)
        self.begin = space.end
        """Offset in the workspace at which that of a step begins."""
        self.workspace = space.end + step_bytes

    def run(self, context: Context, io: IO) -> None:
        for action in self._actions(context, io, False):
            action()

    def bind(self, context: Context, io: IO) -> Action:
        """Return a callable that runs all steps on operands at static addresses."""
        unmerged = self._actions(context, io, True)
        actions, _ = merge_launches(unmerged, unmerged)

        def run() -> None:
            for action in actions:
                action()

        return run

    def _actions(self, context: Context, io: IO, is_static: bool) -> list[Action]:
        actions: list[Action] = []
        last = len(self.counts) - 1
        prior: int | None = None
        operands = _StepOperands(self.call, io, self.begin)
        for t in range(last, -1, -1) if self.backward else range(last + 1):
            one, begin = self.steps[self.counts[t]], self.begins[t]
            spots = operands.fixed | {("in", "X", k): x for k, x in enumerate(operands.rows("X", begin))}
            spots |= {("out", "O", k): x for k, x in enumerate(operands.rows("O", begin))}
            spots |= {("in", "S", k): x for k, x in enumerate(self._states(operands, prior, one, io.context, actions))}
            for launch in one.launches:
                actions.append(_bind_launch(launch, spots, context, io, is_static))
            prior = t
        return actions

    def _states(
        self, operands: _StepOperands, prior: int | None, one: OneStep, context: Context, actions: list[Action]
    ) -> list[Spot]:
        """Return the initial states of a step: those of the previous step, with the number of rows of this one."""
        rows = one.call.dims("S")[0]
        if prior is None:
            return operands.rows("S", 0)[: self.states]
        begin, available = self.begins[prior], self.counts[prior]
        results = operands.rows("O", begin)[: self.states]
        if available >= rows:
            return results
        carried = []
        for (spec, at), old, new in zip(self.carried, operands.rows("S", available), results, strict=False):
            state, row = operands.space.after(at), _row(spec)
            for source, start, count in ((new, 0, available), (old, available, rows - available)):
                nbytes = count * row
                actions.append(partial(context.copy_within, state.after(start * row).span(nbytes), source.span(nbytes)))
            carried.append(state)
        return carried


class _StepOperands:
    """Locations of the operands of all steps, of which each step uses some rows, and of the workspace."""

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
        """Return the operands of a slot, from row ``begin`` on."""
        return [spot.after(begin * row) for spot, row in self._rows[slot]]


def _row(spec: Spec) -> int:
    """Return the bytes of a row."""
    return spec.nbytes // spec.dims[0] if spec.dims[0] else 0


def _prepare_step(call: Call, choice: Choice, context: Context) -> OneStep:
    parts, choices = choice.parts, choice.part_choices
    slots = (("in", call.ins), ("out", call.outs))
    specs = {
        (role, slot, i): spec for role, group in slots for slot, each in group.items() for i, spec in enumerate(each)
    }
    if not parts:
        ins, outs = (
            tuple(PartValue(*key, spec) for key, spec in specs.items() if key[0] == role) for role in ("in", "out")
        )
        parts, choices = (DecompositionPart(call, ins, outs),), (choice,)
    between: dict[Key, tuple[Spec, int]] = {}
    launches, allocator = [], _WorkspaceAllocator()
    for part, part_choice in zip(parts, choices, strict=True):
        kernel = prepare_kernel(part_choice, part.call, context)
        for value in part.outs:
            if value.role == "tmp" and value_key(value) not in between:
                assert value.spec is not None
                specs[value_key(value)] = value.spec
                between[value_key(value)] = value.spec, allocator.allocate(value.spec.nbytes)
        space = (allocator.allocate(kernel.workspace), kernel.workspace) if kernel.workspace else None
        reads, writes = tuple(map(value_key, part.ins)), tuple(map(value_key, part.outs))
        operands = tuple((key, specs[key], between[key][1] if key in between else None) for key in (*reads, *writes))
        launches.append(StepLaunch(context, part.call, part_choice, kernel, reads, writes, operands, space))
    return OneStep(call, choice, tuple(launches), between, allocator.end)


def _bind_launch(launch: StepLaunch, spots: dict[Key, Spot], context: Context, io: IO, is_static: bool) -> Action:
    """Return an action that launches one kernel of a step on its operands."""
    operand_spots = [spots[key] if at is None else spots[SPACE].after(at) for key, _, at in launch.operands]
    operand_spots += [spots[SPACE].after(launch.space[0])] if launch.space is not None else []
    template = launch.template if is_static else None
    if template is not None:
        return Launches(context, template.at(operand_spots), template.marks, template.calls)
    tensors = [spot.tensor(spec) for spot, (_, spec, _) in zip(operand_spots, launch.operands, strict=False)]
    space = None if launch.space is None else operand_spots[-1].tensor(Spec.of((launch.space[1],), "uint8"))
    part_io, outputs = IO(launch.call, tensors, context, io.op_id, io.random, space), tensors[len(launch.ins) :]
    action = launch.kernel.bind(context, part_io) if is_static and launch.kernel.bind is not None else None
    if action is not None:
        return action
    return partial(run_kernel, launch.kernel.run, context, part_io, outputs)


def prepare(call: Call, choices: Sequence[Choice], context: Context) -> Prepared:
    """Prepare an operator that runs another operator step by step."""
    steps = StepKernels(call, choices, context)
    return Prepared(steps.run, steps.workspace, steps.bind)


generated.prepare_steps = prepare
