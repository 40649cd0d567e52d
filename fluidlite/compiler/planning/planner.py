"""The one planner: from a graph, feeds and state to a Plan. Pure: it looks at metadata only."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fluidlite.base.errors import (
    DeviceUnavailable,
    FeedError,
    KernelNotFoundError,
    PlaceError,
    ProgramError,
    SupportsError,
)
from fluidlite.compiler.ir.graph import READ, Graph, GraphOp, GraphValue
from fluidlite.compiler.planning.plan import Control, Launch, Line, Output, Pending, Plan
from fluidlite.compiler.planning.plan_liveness import finish_lifetimes
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_selection import choose, tied
from fluidlite.compiler.selection.least_moves import Picked, better_layouts, better_places, moved_bytes, nbytes
from fluidlite.compiler.selection.placement import Known, Values
from fluidlite.compiler.selection.policy import Policy
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.decompose import Part, Value
from fluidlite.program.layout_rewrite import LAYOUT, relaid_call
from fluidlite.program.op_call import Call, located
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator import EMPTY, Operator, check_inputs, inferred
from fluidlite.program.registry import ops as registry
from fluidlite.program.variable import copy_operator
from fluidlite.tensor.layout import PLAIN, Layout, layout_named
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Spec, specs_of

_PLACEHOLDER = Spec.of((), "float32")


def _left_out(definition: OpDef, outs: Collection[str]) -> list[str]:
    """Outputs that an operator must have and a program leaves out: kernels may count on them, so they are made."""
    if definition.scalar is not None or definition.infer is None or definition.dynamic or definition.run is not None:
        return []  # those of a scalar expression are independent
    return [
        slot.name
        for slot in definition.outputs
        if not (slot.name in outs or slot.dispensable or slot.duplicable or slot.name in definition.must_alias)
    ]


def plan_graph(
    graph: Graph,
    place: Place,
    feeds: Mapping[str, tuple[Spec, Place]],
    state: Mapping[str, tuple[Spec, Place]],
    policy: Policy,
    assume_state: bool = False,
    inplace: bool = True,
) -> Plan:
    """Plan one run of a graph.

    Parameters
    ----------
    feeds : mapping of name to (Spec, where the value is)
    state : mapping of name to (Spec, Place)
        The scope's initialised state variables.
    assume_state : bool
        Take state that is missing as declared and at home (for explain).
    inplace : bool
        Let outputs take the memory of inputs that end; off while observers want to see both.

    Raises
    ------
    ProgramError, FeedError, FetchError, KernelNotFoundError, ShapeError, ...
        Each with the operator and the user's line.
    """
    return _Planner(graph, place, feeds, state, policy, assume_state, inplace).plan()


class _Relaid(NamedTuple):
    """A call on memory that is not plain, its kernel, and the slots that lie in a layout."""

    call: Call
    choice: Choice
    layouts: dict[str, Layout | None]


def _named_layouts(call: Call, choice: Choice) -> dict[str, Layout | None]:
    """The layouts, by slot, that a kernel names; None: as the input lies."""
    if choice.kernel is None:
        return {}
    names = choice.kernel.layouts.items()
    return {slot: None if name == "any" else layout_named(name) for slot, name in names if call.has(slot)}


class _Planner(Values):
    def plan(self) -> Plan:
        self.picked: Picked = {}  # what was chosen for the sake of the whole plan
        self.out.pruned = self.graph.pruned
        plan = self._best_plan(self.graph.operators, 0)
        plan.state_specs = {name: self.state[name] for name in plan.state if name in self.state}
        return plan

    def _best_plan(self, ops: list[GraphOp], start: int) -> Plan:
        """Plan operator by operator; and once more with other choices, where those move fewer bytes."""
        again = self._copy(self.out.before)
        self.options: dict[int, tuple[Choice, ...]] = {}
        plan = self._plan_from(ops, start)
        lines = plan.lines[len(again.out.lines) :]
        for better in (self._better_layouts, self._better_places):
            picked = better(lines)
            if not picked:
                continue
            trial = again._copy(again.out.before)
            trial.options, trial.picked = {}, {**self.picked, **picked}
            other = trial._plan_from(ops, start)
            if moved_bytes(other, self.home, self.host) < moved_bytes(plan, self.home, self.host):
                plan, lines, self.picked = other, other.lines[len(again.out.lines) :], trial.picked
        return plan

    def _better_layouts(self, lines: list[Line]) -> Picked:
        return better_layouts(lines, self.graph.results, self.options) if self.options else {}

    def _better_places(self, lines: list[Line]) -> Picked:
        return better_places(lines, self.graph.results, self.home, self.host, self.policy)

    def _copy(self, before: Plan | None) -> _Planner:
        """A planner that knows what this one knows now."""
        again = copy.copy(self)
        again.known = {value: replace(known, copies=dict(known.copies)) for value, known in self.known.items()}
        again.held, again.last_reads, again.keys = dict(self.held), dict(self.last_reads), set(self.keys)
        again.values = dict(self.values)
        again.last_use = {}
        again.out = replace(self.out, before=before)
        again.out.lines, again.out.state = list(self.out.lines), dict(self.out.state)
        again.out.steps, again.out.fetches, again.out.places, again.out.pending = [], [], [], None
        return again

    def _plan_from(self, ops: list[GraphOp], start: int) -> Plan:
        for self.at in range(start, len(ops)):
            op = ops[self.at]
            unknown = self._unknown_values(op)
            if unknown:
                self._pause(ops[self.at :], self.at, unknown, [])
                return self._finished(ops[self.at :])
            self._step(op)
            later = ops[self.at + 1 :] if op.definition.dynamic else []
            if later:
                open_dims = [each for each in op.results if each in self.known and self._is_open(self.known[each].spec)]
                if open_dims and not self.assume_state:
                    self._pause(later, self.at + 1, [], open_dims)
                    return self._finished(later)
        for name, value in zip(self.graph.fetches, self.graph.results, strict=True):
            found = self._find(value, fetching=True)
            key = found.key if found.spec.layout is PLAIN else self._at(value, found.place)
            self.out.fetches.append((name, key, found.place, found.spec.with_(layout=PLAIN)))
            self._use(key)
        return self._finished([])

    def _step(self, op: GraphOp) -> None:
        """Plan one operator."""
        around = self.line, self.line_index
        self.line, self.line_index = Line(op, None, None), len(self.out.lines)
        self.out.lines.append(self.line)
        try:
            if op.definition.marker:
                self._marked(op)
            elif op.definition.run is not None:
                self._control(op)
            else:
                self._operator(op)
        except ProgramError as exc:
            note = self._state_note(op)
            if note:
                exc = type(exc)(f"{exc}{note}")
            raise exc if str(op) in str(exc) else located(exc, str(op)) from None
        except (KernelNotFoundError, SupportsError) as exc:
            raise type(exc)(f"{exc}\n  At: {op.line}") from exc.__cause__
        except (PlaceError, DeviceUnavailable) as exc:  # of its device_guard
            raise type(exc)(f"{op}: {exc}") from None
        self.line, self.line_index = around

    def _keep(self, value: GraphValue) -> None:
        assert self.line is not None
        near = self.line.op.source
        definition = registry.get(copy_operator(value.variable) if value.variable is not None else "assign")
        hints = {name: near.hints[name] for name in ("op_device",) if name in near.hints}  # others are of that operator
        source = Operator(
            self.graph.block, definition, {}, {}, {}, hints, near.id, near.role, near.line, near.namescope
        )
        made = GraphOp(definition.type, {"X": [value]}, {}, source)
        kept = GraphValue(f"{value.name}@{self.at}", value.spec, made, None)
        made.outputs["Out"] = [kept]
        self.last_reads[kept] = self.last_reads[value]
        self._step(made)
        self.known[value] = self.known[kept]

    @staticmethod
    def _is_open(spec: Spec) -> bool:
        """Whether the run itself finds the dims of a value, or its LoD."""
        return not spec.known or (spec.lod_level > len(spec.lod) and spec.kind != TENSOR_ARRAY)

    def _state_note(self, op: GraphOp) -> str:
        """Which state that an operator reads is not what the program declares: lines for an error message."""
        lines = ""
        for slot, values in op.inputs.items():
            for value in values:
                held = self.state.get(value.name)
                declared = value.variable.spec if value.variable is not None else None
                if held is not None and declared is not None and not declared.fits(held[0]):
                    lines += (
                        f"\n  {slot} is {value.name!r}: the scope holds {held[0]!r}, the program declares {declared!r}"
                    )
        return lines

    def _finished(self, later: Sequence[GraphOp]) -> Plan:
        """Complete this plan: which places it needs, and when values end; ``later`` is what a further plan runs."""
        places = {self.home} | {m.source for m in self.out.moves} | {m.target for m in self.out.moves}
        for step in self.out.steps:
            if isinstance(step, Launch):
                places.add(step.choice.place)
            elif isinstance(step, Control):
                places.add(self.host)
        places |= {place for _, _, place, _ in self.out.fetches}
        if later:  # all locks are taken when the run begins
            places |= {self.host, *(devices.unit(at).place for op in later if (at := op.hints.get("op_device")))}
        if self.out.before is not None:
            places |= set(self.out.before.places)
        self.out.places = sorted(places, key=str)
        for step in self.out.steps:
            if isinstance(step, Launch):
                step.where = self.out.places.index(step.choice.place)
                plain = not step.skip and step.random is None and None not in step.ins
                plain = plain and not step.blind and not step.writes_state
                step.simple = plain and all([o.shares < 0 and not o.state and o.spec.known for o in step.outs])
        finish_lifetimes(self.out, self.last_use, self.inplace)
        return self.out

    # Values that sizes depend on

    def _unknown_values(self, op: GraphOp) -> list[GraphValue]:
        """The values whose numbers an operator takes as metadata, and that are not known yet."""
        definition = op.definition
        slots = (*definition.stated, *definition.tables)
        if self.assume_state or not slots:  # explain: dims stay open
            return []
        return [value for slot in slots for value in op.inputs.get(slot, ()) if value not in self.values]

    def _pause(self, later: list[GraphOp], at: int, values: list[GraphValue], dims: list[GraphValue]) -> None:
        """End this plan in front of an operator; the rest is planned when values, or dims, are known."""
        asked = {value: self._at(value, self.host, why="value") for value in dict.fromkeys(values)}
        found = {value: self.known[value].key for value in dims}
        for value in dict.fromkeys((*(arg for op in later for arg in op.args), *self.graph.results)):
            if value.op is not None and value.op.type == READ and value.name in self.state:
                self._find(value)  # what the whole run reads of the scope is taken when it begins
            known = self.known.get(value)
            for key in (known.key, *known.copies.values()) if known is not None else ():
                self._use(key)
        for key in (*asked.values(), *found.values()):
            self._use(key)

        def resume(numbers: Mapping[GraphValue, tuple[Any, ...]], specs: Mapping[GraphValue, Spec]) -> Plan:
            again = self._copy(self.out)
            for value, spec in specs.items():
                again.known[value].spec = spec
            again.values.update(numbers)
            return again._best_plan(self.graph.operators, at)

        self.out.pending = Pending(asked, found, resume)

    def _learn(self, op: GraphOp, call: Call) -> None:
        """Note which numbers an operator has written, where its metadata tells them."""
        if op.definition.constant is not None and call.known:
            for slot, numbers in op.definition.constant(call).items():
                value = op.outputs[slot][0] if slot in op.outputs else None
                if numbers is not None and value is not None:
                    self.values[value] = numbers

    # Operators

    def _policy(self, op: GraphOp, target: Place) -> Policy:
        """The policy, with the operator's own choice of library (the hint ``op_library``) before all others."""
        library = op.hints.get("op_library")
        return self.policy if library is None else self.policy.with_first(target.kind, library)

    def _call(self, op: GraphOp) -> Call:
        ins: dict[str, tuple[Spec, ...]] = {}
        definition = op.definition
        for slot, values in op.inputs.items():
            specs_in = []
            for value in values:
                spec = self._find(value).spec
                specs_in.append(spec if spec.layout is PLAIN else spec.with_(layout=PLAIN))
            if slot in definition.stated or slot in definition.tables:
                numbers = [self.values.get(value) for value in values]
                specs_in = [spec.with_(value=value) for spec, value in zip(specs_in, numbers, strict=True)]
            ins[slot] = tuple(specs_in)
        key = (self.home, *ins.values())
        if op.planned is not None and op.planned[0] == key:
            return op.planned[1]
        call = self._inferred(op, ins)
        op.planned = key, call
        return call

    def _inferred(self, op: GraphOp, ins: Mapping[str, tuple[Spec, ...]]) -> Call:
        definition = op.definition
        outs = {slot: (_PLACEHOLDER,) * len(values) for slot, values in op.outputs.items() if any(values)}
        outs |= {slot: (_PLACEHOLDER,) for slot in _left_out(definition, outs)}
        call = Call(definition, ins, outs, op.attrs)
        check_inputs(call)
        results = inferred(call) if definition.infer is not None else {}
        specs = {}
        for slot, placeholders in outs.items():
            result = results.get(slot)
            if result is None and (definition.dynamic or definition.infer is None):  # as the user declared them
                result = [_declared(value) for value in op.outputs[slot]]
                if definition.run is not None:  # which offsets a block leaves, the run says
                    result = [spec.with_(lod=(), lod_level=spec.lod_level) for spec in result]
            if result is None:
                raise ProgramError(f"its inference says nothing of output {slot}")
            specs[slot] = specs_of(result)
            if len(specs[slot]) != len(placeholders):
                raise ProgramError(
                    f"output {slot} has {len(placeholders)} variables, its inference found {len(specs[slot])}"
                )
        return call._alike(Call(definition, ins, specs, op.attrs, self.home, op.role != "forward"))

    def _operator(self, op: GraphOp) -> None:
        call = self._call(op)
        definition = op.definition
        elsewhere = op.hints.get("op_device")
        target = devices.unit(elsewhere).place if elsewhere else self.home
        if definition.unmoved:
            self._check_unmoved(op, target)
        preferences = self._policy(op, target)
        picked = self.picked.get(id(op))
        choice = choose(call, target, preferences) if picked is None else picked
        if picked is None and choice.kernel is not None:
            choice = self._of_tied(op, call, choice, preferences)
        assert self.line is not None
        relaid = self._relaid(op, call, choice, target)
        if relaid is not None:
            choice = relaid.choice
        self.line.call, self.line.choice = call, choice
        if choice.parts:
            self._decomposed(op, call, choice)
            self._learn(op, call)
            return
        keys: list[str | None] = []
        wanted = relaid.layouts if relaid is not None else _named_layouts(call, choice)
        for slot, values in op.inputs.items():
            declared = definition.input(slot) if slot in definition.not_computed else None
            for value in values:
                if declared is None:
                    keys.append(self._at(value, choice.place, wanted.get(slot, PLAIN)))
                else:
                    keys.append(None if declared.unread else self._at(value, self.host))
        placed = relaid.call if relaid is not None else self._laid(op, call, wanted) if wanted else call
        outputs, homes = [], []
        for slot, specs in call.outs.items():
            for made, plain in zip(op.outputs.get(slot, [None]), specs, strict=True):
                spec = plain.with_(layout=wanted.get(slot) or PLAIN)
                shares, shared = self._shares(op, slot, made, spec, choice)
                output, home = self._output(made, spec, choice.place, shares, shared)
                outputs.append(output)
                if home is not None:
                    homes.append(home)
        written = bool(homes) or any([o.state for o in outputs])
        self._launch(op, placed.at(choice.place), choice, keys, outputs, written, relaid is not None)
        for value, found in homes:
            self._home(value, found)
        self._learn(op, call)

    def _of_tied(self, op: GraphOp, call: Call, choice: Choice, preferences: Policy) -> Choice:
        """Of kernels in other layouts that rank equally with a chosen one, the one that takes inputs as they lie."""
        options = tied(call, choice, preferences)
        if not options:
            return choice
        hint = op.hints.get(LAYOUT)
        if hint is None:
            self.options[id(op)] = options
        return min(options, key=lambda each: self._mismatch(op, call, each, hint))

    def _mismatch(self, op: GraphOp, call: Call, choice: Choice, hint: str | None) -> int:
        """The bytes of inputs that lie otherwise than a kernel takes them; a layout that a pass asks for goes first."""
        if hint is not None:
            names = set(choice.kernel.layouts.values()) if choice.kernel is not None else set()
            return 0 if hint in names or (hint == PLAIN.name and not names) else 1
        wanted = _named_layouts(call, choice)
        return sum(
            nbytes(found.spec)
            for slot, values in op.inputs.items()
            if not ((declared := op.definition.input(slot)) and declared.unread)
            for found in map(self._find, values)
            if (layout := wanted.get(slot, PLAIN)) is not None and found.spec.layout != layout
        )

    def _relaid(self, op: GraphOp, call: Call, choice: Choice, target: Place) -> _Relaid | None:
        """The call on memory that is not plain, with its kernel; None: it computes on plain memory.

        An operator that works element by element does so where its inputs lie in one layout; others where a pass says
        it (the hint ``op_layout``). A kernel that names layouts itself is left alone.
        """
        hint = op.hints.get(LAYOUT)
        if hint == PLAIN.name or (hint is None and not op.definition.elementwise):
            return None
        lie = {value: self._find(value).spec.layout for value in op.args}
        known = {layout for layout in lie.values() if layout is not PLAIN} - {PLAIN}
        if (hint is None and len(known) != 1) or (choice.kernel is not None and choice.kernel.layouts):
            return None
        layout = known.pop() if hint is None else layout_named(hint)
        found = relaid_call(call, layout)
        if found is None:
            return None
        laid, slots = found
        read = [
            (s, values) for s, values in op.inputs.items() if not ((slot := op.definition.input(s)) and slot.unread)
        ]
        if hint is None and any(lie[value] != layout for slot, values in read if slot in slots for value in values):
            return None
        outputs = [value for slot in slots for value in op.outputs.get(slot, ())]
        if any(value is not None and value.state is not None for value in outputs):
            return None
        try:
            again = choose(laid, target, self._policy(op, target))
        except KernelNotFoundError:
            return None
        if again.parts or again.place != choice.place or (again.kernel is not None and again.kernel.layouts):
            return None
        return _Relaid(laid, again, dict.fromkeys(slots, layout))

    def _laid(self, op: GraphOp, call: Call, wanted: Mapping[str, Layout | None]) -> Call:
        """The call with the layouts that its kernel sees."""

        def laid(slot: str, i: int, spec: Spec) -> Spec:
            layout = wanted.get(slot, PLAIN)
            return spec.with_(layout=self._find(op.inputs[slot][i]).spec.layout if layout is None else layout)

        ins = {slot: tuple(laid(slot, i, s) for i, s in enumerate(specs)) for slot, specs in call.ins.items()}
        outs = {s: tuple(x.with_(layout=wanted.get(s) or PLAIN) for x in specs) for s, specs in call.outs.items()}
        return Call(call.op, ins, outs, call.attrs, call.place, call.training)

    def _decomposed(self, op: GraphOp, call: Call, choice: Choice) -> None:
        values: dict[tuple[str, str, int], str] = {}
        self.serial += 1
        serial = self.serial
        written: dict[tuple[str, int], str] = {}

        def key_of(value: Value) -> str:
            if value.role == "in":
                return self._at(op.inputs[value.slot][value.index], choice.place)
            return values.setdefault(
                (value.role, value.slot, value.index), f"@{serial}.{value.role}{value.slot}{value.index}"
            )

        def launch(part: Part, how: Choice) -> None:
            declared = [
                (part.call.op.input(slot), i) for slot, specs in part.call.ins.items() for i in range(len(specs))
            ]
            keys = [
                None if slot is not None and slot.unread else key_of(value)
                for (slot, _), value in zip(declared, part.ins, strict=True)
            ]
            outputs: list[Output] = []
            homes: list[tuple[GraphValue, Known]] = []
            slots = [slot for slot, specs in part.call.outs.items() for _ in specs]
            for slot_out, value in zip(slots, part.outs, strict=True):
                assert value.spec is not None
                if value.role == "out" and self._final(part, value, choice):
                    made = op.outputs.get(value.slot, [None])[value.index]
                    spec = call.outs[value.slot][value.index]
                    shares, shared = self._updates(op, part, slot_out, made, spec, choice)
                    if made is not None and (shares >= 0 or made.name not in op.input_arg_names):
                        output, home = self._output(made, spec, choice.place, shares, shared)
                        outputs.append(output)
                        if home is not None:
                            homes.append(home)
                        values[("out", value.slot, value.index)] = output.key
                        continue
                    written[(value.slot, value.index)] = key_of(value)
                outputs.append(Output(key_of(value), value.spec))
            state_written = any(o.state for o in outputs) or bool(homes)
            self._launch(op, part.call.at(how.place), how, keys, outputs, state_written)
            for written_value, found in homes:
                self._home(written_value, found)

        for part, how in zip(choice.parts, choice.part_choices, strict=True):
            launch(part, how)
        for (slot, i), key in written.items():  # an output that is also an input: written aside, renamed at the end
            out = op.outputs.get(slot, [None])[i]
            if out is not None:
                self.known[out] = Known(call.outs[slot][i], choice.place, key, {})
                if out.state is not None:
                    self._home(out, self.known[out])

    def _updates(
        self, op: GraphOp, part: Part, slot: str, output: GraphValue | None, spec: Spec, choice: Choice
    ) -> tuple[int, Known | None]:
        """Index of the part's input that is the output's own variable, updated in place; no later part reads it."""
        pair = part.call.op.must_alias.get(slot)
        own = next((value for value in op.args if output is not None and value.name == output.name), None)
        if pair is None or not part.call.has(pair) or own is None:
            return -1, None
        position = part.call.index[pair]

        def is_it(value: Value) -> bool:
            return value.role == "in" and op.inputs[value.slot][value.index] is own

        later = choice.parts[choice.parts.index(part) + 1 :]
        reads = [is_it(value) for value in part.ins]
        if not reads[position] or sum(reads) > 1 or any(is_it(value) for p in later for value in p.ins):
            return -1, None
        found = self.known[own]
        if found.borrowed or found.spec.with_(lod=()) != spec.with_(lod=()):
            return -1, None
        if self.last_reads[own] > self.at:
            self._keep(own)
        return position, found

    def _final(self, part: Part, value: Value, choice: Choice) -> bool:
        """Whether this part is the last that writes the value."""
        later = choice.parts[choice.parts.index(part) + 1 :]
        return not any(
            (v.role, v.slot, v.index) == (value.role, value.slot, value.index) for p in later for v in p.outs
        )

    def _marked(self, op: GraphOp) -> None:
        """See that what a marker writes was fed: no step comes of it."""
        for value in op.results:
            fed = self._fed(value)
            if fed is None and value.variable is not None and not value.variable.is_data and not self.assume_state:
                raise FeedError(f"variable {value.name!r} is to be fed\n  Do: exe.run(feed={{{value.name!r}: array}})")

    def _control(self, op: GraphOp) -> None:
        step = Control(op, self.line_index)
        call = self._call(op)
        place = self.home
        for slot, values in op.inputs.items():
            declared = op.definition.input(slot)
            if declared is not None and declared.metadata_only:
                step.ins[slot] = []
                continue
            at = [self.host if declared is not None and declared.on_host else self._find(v).place for v in values]
            if declared is not None and declared.run_place:
                at = [self.home] * len(values)
            step.ins[slot] = [self._at(value, where) for value, where in zip(values, at, strict=True)]
            place = at[0] if at and slot == op.definition.inputs[0].name else place
        homes: list[tuple[GraphValue, Known]] = []
        for slot, specs in call.outs.items():
            declared = op.definition.output(slot)
            where = self.host if declared is not None and declared.on_host else place
            where = self.home if declared is not None and declared.run_place else where
            step.outs[slot] = []
            for made, spec in zip(op.outputs[slot], specs, strict=True):
                output, home = self._output(made, spec, where)
                step.outs[slot].append(output)
                homes += [home] if home is not None else []
                if op.definition.pure and made in self.known:  # an array may hold it: it is not written in place
                    self.known[made].borrowed = True
        for key in (*(k for keys in step.ins.values() for k in keys), *(o.key for s in step.outs.values() for o in s)):
            self._use(key)
        self.out.steps.append(step)
        for value, found in homes:
            self._home(value, found)
        self._learn(op, call)


def _declared(value: GraphValue | None) -> Spec:
    if value is None or value.spec is None:
        name = value.name if value is not None else EMPTY
        raise ProgramError(f"the dims and dtype of its output {name!r} are not declared")
    return value.spec
