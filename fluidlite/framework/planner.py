"""The one planner: from a block, feeds and state to a Plan. Pure: it looks at metadata only."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from fluidlite.base.errors import (
    DeviceUnavailable,
    FeedError,
    KernelNotFoundError,
    PlaceError,
    ProgramError,
    SupportsError,
)
from fluidlite.framework.call import Call, located
from fluidlite.framework.choice import Choice
from fluidlite.framework.choose import choose, tied
from fluidlite.framework.decompose import Part, Value
from fluidlite.framework.layout import PLAIN, Layout, layout_named
from fluidlite.framework.least_moves import Picked, better_layouts, better_places, moved_bytes, nbytes
from fluidlite.framework.lifetimes import finish_lifetimes
from fluidlite.framework.operator import EMPTY, Operator, check_inputs, inferred
from fluidlite.framework.plan import Control, Launch, Line, Output, Pending, Plan
from fluidlite.framework.policy import Policy
from fluidlite.framework.program import Block, Program
from fluidlite.framework.program_edit import sub_blocks
from fluidlite.framework.relayout import LAYOUT, relaid_call
from fluidlite.framework.spec import Spec, specs_of
from fluidlite.framework.values import Known, Values, is_state
from fluidlite.platform.devices import devices
from fluidlite.platform.place import Place

_PLACEHOLDER = Spec.of((), "float32")


def needed_operators(block: Block, fetches: Sequence[str]) -> list[Operator]:
    """The operators that fetches or side effects need: state written, or an operator that runs itself."""
    program = block.program
    wanted = set(fetches)
    kept: list[Operator] = []
    for op in reversed(block.ops):
        outs = op.output_arg_names
        effect = op.definition.run is not None or op.definition.effect
        effect = effect or any(is_state(block, name) for name in outs)
        if not effect and wanted.isdisjoint(outs):
            continue
        kept.append(op)
        wanted.update(op.input_arg_names)
        for index in sub_blocks(op):
            inner = program.blocks[index]
            wanted.update(n for o in inner.ops for n in o.input_arg_names if n not in inner.vars)
    return kept[::-1]


_needed_before: WeakKeyDictionary[Program, tuple[Any, list[int]]] = WeakKeyDictionary()
"""Which operators a program's last plan ran, by what that depends on: other sizes ask again.

They are numbers: an operator would keep its program alive.
"""


def _needed(block: Block, fetches: tuple[str, ...]) -> list[Operator]:
    program = block.program
    key = (block.idx, program.edits, tuple([len(each.ops) for each in program.blocks]), fetches)
    last = _needed_before.get(program)
    if last is None or last[0] != key:
        kept = {id(op) for op in needed_operators(block, fetches)}
        last = _needed_before[program] = key, [at for at, op in enumerate(block.ops) if id(op) in kept]
    return [block.ops[at] for at in last[1]]


def _left_out(op: Operator, outs: Collection[str]) -> list[str]:
    """Outputs that an operator must have and a program leaves out: kernels may count on them, so they are made."""
    made = op.definition
    if made.scalar is not None or made.infer is None or made.dynamic or made.run is not None:
        return []  # those of a scalar expression are independent
    return [
        slot.name for slot in made.outputs
        if not (slot.name in outs or slot.dispensable or slot.duplicable or slot.name in made.must_alias)
    ]  # fmt: skip


def updates(program: Program) -> bool:
    """Whether a program writes state over what it was, as those do that run again and again."""
    kept = {variable.name for variable in program.list_vars() if variable.persistable}
    return any(
        not kept.isdisjoint(set(op.input_arg_names) & set(op.output_arg_names))
        for block in program.blocks
        for op in block.ops
    )


def plan_block(
    program: Program,
    place: Place,
    feeds: Mapping[str, tuple[Spec, Place]],
    state: Mapping[str, tuple[Spec, Place]],
    fetches: Sequence[str],
    policy: Policy,
    block_index: int = 0,
    assume_state: bool = False,
    inplace: bool = True,
) -> Plan:
    """Plan one run of a program's block.

    Parameters
    ----------
    feeds : mapping of name to (Spec, where the value is)
    state : mapping of name to (Spec, Place)
        The scope's initialised state variables.
    fetches : names
    assume_state : bool
        Take state that is missing as declared and at home (for explain).
    inplace : bool
        Let outputs take the memory of inputs that end; off while observers want to see both.

    Raises
    ------
    ProgramError, FeedError, FetchError, KernelNotFoundError, ShapeError, ...
        Each with the operator and the user's line.
    """
    return _Planner(program, place, feeds, state, fetches, policy, block_index, assume_state, inplace).plan()


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
        ops = _needed(self.block, tuple(self.fetches))
        self.out.pruned = self.program.pruned + len(self.block.ops) - len(ops)
        plan = self._best_plan(ops, 0)
        plan.given = {name: self.state[name] for name in plan.state if name in self.state}
        return plan

    def _best_plan(self, ops: list[Operator], start: int) -> Plan:
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
        return better_layouts(lines, self.fetches, self.options) if self.options else {}

    def _better_places(self, lines: list[Line]) -> Picked:
        return better_places(
            lines, self.fetches, self.home, self.host, self.policy, lambda name: is_state(self.block, name)
        )

    def _copy(self, before: Plan | None) -> _Planner:
        """A planner that knows what this one knows now."""
        again = copy.copy(self)
        again.known = {name: replace(known, copies=dict(known.copies)) for name, known in self.known.items()}
        again.values = dict(self.values)
        again.last_use = {}
        again.out = Plan(self.home, lines=list(self.out.lines), pruned=self.out.pruned, state=dict(self.out.state),
                         feeds=self.out.feeds, feed_keys=self.out.feed_keys, before=before)  # fmt: skip
        return again

    def _plan_from(self, ops: list[Operator], start: int) -> Plan:
        for index in range(start, len(ops)):
            op = ops[index]
            unknown = self._unknown_values(op)
            if unknown:
                self._pause(ops, index, unknown, [])
                return self._finished(ops[index:])
            self.line = Line(op, None, None)
            self.out.lines.append(self.line)
            try:
                if op.definition.marker:
                    self._marked(op)
                elif op.definition.run is not None:
                    self._control(op, index)
                else:
                    self._operator(op, index)
            except ProgramError as exc:
                note = self._state_note(op)
                if note:
                    exc = type(exc)(f"{exc}{note}")
                raise exc if str(op) in str(exc) else located(exc, str(op)) from None
            except (KernelNotFoundError, SupportsError) as exc:
                raise type(exc)(f"{exc}\n  At: {op.line}") from exc.__cause__
            except (PlaceError, DeviceUnavailable) as exc:  # of its device_guard
                raise type(exc)(f"{op}: {exc}") from None
            self.line = None
            if op.definition.dynamic and index + 1 < len(ops):
                open_dims = [n for n in op.output_arg_names if n in self.known and not self.known[n].spec.known]
                if open_dims and not self.assume_state:
                    self._pause(ops, index + 1, [], open_dims)
                    return self._finished(ops[index + 1 :])
        for name in self.fetches:
            found = self._find(name, fetching=True)
            key = found.key if found.spec.layout is PLAIN else self._at(name, found.place)
            self.out.fetches.append((name, key, found.place, found.spec.with_(layout=PLAIN)))
            self._use(key)
        return self._finished([])

    def _state_note(self, op: Operator) -> str:
        """Which state that an operator reads is not what the program declares: lines for an error message."""
        lines = ""
        for slot, names in op.inputs.items():
            for name in names:
                held, variable = self.state.get(name), self.block.find_var(name)
                declared = variable.spec if variable is not None else None
                if held is not None and declared is not None and not declared.fits(held[0]):
                    lines += f"\n  {slot} is {name!r}: the scope holds {held[0]!r}, the program declares {declared!r}"
        return lines

    def _finished(self, later: Sequence[Operator]) -> Plan:
        """Complete this plan: which places it needs, and when values end; ``later`` is what a further plan runs."""
        places = {self.home} | {m.source for m in self.out.moves} | {m.target for m in self.out.moves}
        places |= {s.choice.place for s in self.out.steps if isinstance(s, Launch)}
        places |= {self.host} if any(isinstance(s, Control) for s in self.out.steps) else set()
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
                plain = plain and not step.blind and all(o.shares < 0 and not o.state for o in step.outs)
                step.simple = plain and not step.writes_state and all(o.spec.known for o in step.outs)
        finish_lifetimes(self.out, self.last_use, self.inplace)
        return self.out

    # Values that sizes depend on

    def _unknown_values(self, op: Operator) -> list[str]:
        """The variables whose numbers an operator takes as metadata, and that are not known yet."""
        if self.assume_state:  # explain: dims stay open
            return []
        slots = [slot.name for slot in op.definition.inputs if slot.value]
        return [name for slot in slots for name in op.inputs.get(slot, ()) if name not in self.values]

    def _pause(self, ops: list[Operator], index: int, values: list[str], dims: list[str]) -> None:
        """End this plan in front of an operator; the rest is planned when values, or dims, are known."""
        asked = {name: self._at(name, self.host, why="value") for name in dict.fromkeys(values)}
        found = {name: self.known[name].key for name in dims}
        for name in dict.fromkeys((*(n for op in ops[index:] for n in op.input_arg_names), *self.fetches)):
            if name in self.state:
                self._find(name)  # what the whole run reads of the scope is taken when it begins
            known = self.known.get(name)
            for key in (known.key, *known.copies.values()) if known is not None else ():
                self._use(key)
        for key in (*asked.values(), *found.values()):
            self._use(key)

        def resume(numbers: Mapping[str, tuple[Any, ...]], specs: Mapping[str, Spec]) -> Plan:
            again = self._copy(self.out)
            for name, spec in specs.items():
                again.known[name].spec = spec
            again.values.update(numbers)
            return again._best_plan(ops, index)

        self.out.pending = Pending(asked, found, resume)

    def _learn(self, op: Operator, call: Call) -> None:
        """Note which numbers an operator has written, where its metadata tells them."""
        for name in op.output_arg_names:
            self.values.pop(name, None)
        if op.definition.constant is not None and call.known:
            for slot, numbers in op.definition.constant(call).items():
                if numbers is not None and slot in op.outputs:
                    self.values[op.outputs[slot][0]] = numbers

    # Operators

    def _policy(self, op: Operator, target: Place) -> Policy:
        """The policy, with the operator's own choice of library (the hint ``op_library``) before all others."""
        return self.policy.with_first(target.kind, op.hints.get("op_library"))

    def _call(self, op: Operator) -> Call:
        ins: dict[str, tuple[Spec, ...]] = {}
        for slot, names in op.inputs.items():
            declared = op.definition.input(slot)
            specs_in = [self._find(name).spec for name in names]
            if declared is not None and declared.value:
                values = [self.values.get(name) for name in names]
                specs_in = [spec.with_(value=value) for spec, value in zip(specs_in, values, strict=True)]
            ins[slot] = tuple([s if s.layout is PLAIN else s.with_(layout=PLAIN) for s in specs_in])
        key = (self.home, self.program.edits, *ins.values())
        if op.planned is not None and op.planned[0] == key and op.planned[1].attrs is op.attrs:
            return op.planned[1]
        call = self._inferred(op, ins)
        op.planned = key, call
        return call

    def _inferred(self, op: Operator, ins: Mapping[str, tuple[Spec, ...]]) -> Call:
        outs = {
            slot: (_PLACEHOLDER,) * len(names) for slot, names in op.outputs.items() if any(n != EMPTY for n in names)
        }
        outs |= {slot: (_PLACEHOLDER,) for slot in _left_out(op, outs)}
        call = Call(op.definition, ins, outs, op.attrs)
        check_inputs(call)
        results = inferred(call) if op.definition.infer is not None else {}
        specs = {}
        for slot, placeholders in outs.items():
            result = results.get(slot)
            if result is None and (op.definition.dynamic or op.definition.infer is None):  # as the user declared them
                result = [self._declared(name) for name in op.outputs[slot]]
            if result is None:
                raise ProgramError(f"its inference says nothing of output {slot}")
            specs[slot] = specs_of(result)
            if len(specs[slot]) != len(placeholders):
                raise ProgramError(
                    f"output {slot} has {len(placeholders)} variables, its inference found {len(specs[slot])}"
                )
        return Call(op.definition, ins, specs, op.attrs, self.home, op.role != "forward")

    def _operator(self, op: Operator, index: int) -> None:
        call = self._call(op)
        elsewhere = op.hints.get("op_device")
        target = devices.unit(elsewhere).place if elsewhere else self.home
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
            self._decomposed(op, index, call, choice)
            self._learn(op, call)
            return
        keys: list[str | None] = []
        wanted = relaid.layouts if relaid is not None else _named_layouts(call, choice)
        for slot, names in op.inputs.items():
            declared = op.definition.input(slot)
            for name in names:
                if declared is not None and declared.unread:
                    keys.append(None)
                elif declared is not None and declared.on_host:
                    keys.append(self._at(name, self.host))
                else:
                    keys.append(self._at(name, choice.place, wanted.get(slot, PLAIN)))
        outputs, homes = [], []
        names_out = [(slot, i, name) for slot in call.outs for i, name in enumerate(op.outputs.get(slot, [EMPTY]))]
        in_names = op.input_arg_names
        for slot, i, name in names_out:
            spec = call.outs[slot][i].with_(layout=wanted.get(slot) or PLAIN)
            state = name != EMPTY and is_state(self.block, name)
            shares = self._shares(op, slot, name, in_names, spec, choice)
            output, home = self._output(name, spec, choice.place, state, shares)
            outputs.append(output)
            if home is not None:
                homes.append(home)
        placed = relaid.call if relaid is not None else self._laid(op, call, wanted) if wanted else call
        written = any(o.state for o in outputs) or bool(homes)
        self._launch(op, index, placed.at(choice.place), choice, keys, outputs, written, relaid is not None)
        for name, found in homes:
            self._home(name, found)
        self._learn(op, call)

    def _of_tied(self, op: Operator, call: Call, choice: Choice, preferences: Policy) -> Choice:
        """Of kernels in other layouts that rank equally with a chosen one, the one that takes inputs as they lie."""
        options = tied(call, choice, preferences)
        if not options:
            return choice
        hint = op.hints.get(LAYOUT)
        if hint is None:
            self.options[id(op)] = options
        return min(options, key=lambda each: self._mismatch(op, call, each, hint))

    def _mismatch(self, op: Operator, call: Call, choice: Choice, hint: str | None) -> int:
        """The bytes of inputs that lie otherwise than a kernel takes them; a layout that a pass asks for goes first."""
        if hint is not None:
            names = set(choice.kernel.layouts.values()) if choice.kernel is not None else set()
            return 0 if hint in names or (hint == PLAIN.name and not names) else 1
        wanted = _named_layouts(call, choice)
        return sum(
            nbytes(found.spec)
            for slot, names in op.inputs.items() if not ((declared := op.definition.input(slot)) and declared.unread)
            for found in map(self._find, names)
            if (layout := wanted.get(slot, PLAIN)) is not None and found.spec.layout != layout
        )  # fmt: skip

    def _relaid(self, op: Operator, call: Call, choice: Choice, target: Place) -> _Relaid | None:
        """The call on memory that is not plain, with its kernel; None: it computes on plain memory.

        An operator that works element by element does so where its inputs lie in one layout; others where a pass says
        it (the hint ``op_layout``). A kernel that names layouts itself is left alone.
        """
        hint = op.hints.get(LAYOUT)
        if hint == PLAIN.name or (hint is None and op.definition.scalar is None):
            return None
        lie = {name: self._find(name).spec.layout for names in op.inputs.values() for name in names}
        known = set(lie.values()) - {PLAIN}
        if (hint is None and len(known) != 1) or (choice.kernel is not None and choice.kernel.layouts):
            return None
        layout = known.pop() if hint is None else layout_named(hint)
        found = relaid_call(call, layout)
        if found is None:
            return None
        laid, slots = found
        read = [(s, n) for s, n in op.inputs.items() if not ((slot := op.definition.input(s)) and slot.unread)]
        if hint is None and any(lie[name] != layout for slot, names in read if slot in slots for name in names):
            return None
        if any(is_state(self.block, name) for slot in slots for name in op.outputs.get(slot, ())):
            return None
        try:
            again = choose(laid, target, self._policy(op, target))
        except KernelNotFoundError:
            return None
        if again.parts or again.place != choice.place or (again.kernel is not None and again.kernel.layouts):
            return None
        return _Relaid(laid, again, dict.fromkeys(slots, layout))

    def _laid(self, op: Operator, call: Call, wanted: Mapping[str, Layout | None]) -> Call:
        """The call with the layouts that its kernel sees."""

        def laid(slot: str, i: int, spec: Spec) -> Spec:
            layout = wanted.get(slot, PLAIN)
            return spec.with_(layout=self._find(op.inputs[slot][i]).spec.layout if layout is None else layout)

        ins = {slot: tuple(laid(slot, i, s) for i, s in enumerate(specs)) for slot, specs in call.ins.items()}
        outs = {s: tuple(x.with_(layout=wanted.get(s) or PLAIN) for x in specs) for s, specs in call.outs.items()}
        return Call(call.op, ins, outs, call.attrs, call.place, call.training)

    def _declared(self, name: str) -> Spec:
        variable = self.block.find_var(name)
        if variable is None or variable.spec is None:
            raise ProgramError(f"the dims and dtype of its output {name!r} are not declared")
        return variable.spec

    def _decomposed(self, op: Operator, index: int, call: Call, choice: Choice) -> None:
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
            homes: list[tuple[str, Known]] = []
            slots = [slot for slot, specs in part.call.outs.items() for _ in specs]
            for slot_out, value in zip(slots, part.outs, strict=True):
                assert value.spec is not None
                if value.role == "out" and self._final(part, value, choice):
                    name = op.outputs.get(value.slot, [EMPTY])[value.index]
                    state = name != EMPTY and is_state(self.block, name)
                    spec = call.outs[value.slot][value.index]
                    shares = self._updates(op, part, slot_out, name, spec, choice)
                    if name != EMPTY and (shares >= 0 or name not in op.input_arg_names):
                        output, home = self._output(name, spec, choice.place, state, shares)
                        outputs.append(output)
                        if home is not None:
                            homes.append(home)
                        values[("out", value.slot, value.index)] = output.key
                        continue
                    written[(value.slot, value.index)] = key_of(value)
                outputs.append(Output(key_of(value), value.spec))
            state_written = any(o.state for o in outputs) or bool(homes)
            self._launch(op, index, part.call.at(how.place), how, keys, outputs, state_written)
            for name, found in homes:
                self._home(name, found)

        for part, how in zip(choice.parts, choice.part_choices, strict=True):
            launch(part, how)
        for (slot, i), key in written.items():  # an output that is also an input: written aside, renamed at the end
            name = op.outputs.get(slot, [EMPTY])[i]
            if name != EMPTY:
                self.known[name] = Known(call.outs[slot][i], choice.place, key, {})
                if is_state(self.block, name):
                    self._move(name, self.known[name], self.home, "home", into_state=True, to_key=name)
                    self.known[name] = Known(call.outs[slot][i], self.home, name, {})

    def _updates(self, op: Operator, part: Part, slot: str, name: str, spec: Spec, choice: Choice) -> int:
        """Index of the part's input that is the output's own variable, updated in place; no later part reads it."""
        pair = part.call.op.must_alias.get(slot)
        if pair is None or not part.call.has(pair) or name not in op.input_arg_names:
            return -1
        position = part.call.index[pair]

        def is_it(value: Value) -> bool:
            return value.role == "in" and op.inputs[value.slot][value.index] == name

        later = choice.parts[choice.parts.index(part) + 1 :]
        reads = [is_it(value) for value in part.ins]
        if not reads[position] or sum(reads) > 1 or any(is_it(value) for p in later for value in p.ins):
            return -1
        found = self.known[name]
        return -1 if found.borrowed or found.spec.with_(lod=()) != spec.with_(lod=()) else position

    def _final(self, part: Part, value: Value, choice: Choice) -> bool:
        """Whether this part is the last that writes the value."""
        later = choice.parts[choice.parts.index(part) + 1 :]
        return not any(
            (v.role, v.slot, v.index) == (value.role, value.slot, value.index) for p in later for v in p.outs
        )

    def _marked(self, op: Operator) -> None:
        """See that what a marker writes was fed: no step comes of it."""
        for name in op.output_arg_names:
            variable = self.block.find_var(name)
            if name not in self.known and variable is not None and not variable.is_data and not self.assume_state:
                raise FeedError(f"variable {name!r} is to be fed\n  Do: exe.run(feed={{{name!r}: array}})")

    def _control(self, op: Operator, index: int) -> None:
        step = Control(op, index)
        call = self._call(op)
        place = self.home
        for slot, names in op.inputs.items():
            declared = op.definition.input(slot)
            at = [self.host if declared is not None and declared.on_host else self._find(n).place for n in names]
            step.ins[slot] = [self._at(name, where) for name, where in zip(names, at, strict=True)]
            place = at[0] if at and slot == op.definition.inputs[0].name else place
        homes: list[tuple[str, Known]] = []
        for slot, specs in call.outs.items():
            declared = op.definition.output(slot)
            where = self.host if declared is not None and declared.on_host else place
            step.outs[slot] = []
            for name, spec in zip(op.outputs[slot], specs, strict=True):
                state = name != EMPTY and is_state(self.block, name)
                output, home = self._output(name, spec, where, state, -1)
                step.outs[slot].append(output)
                homes += [home] if home is not None else []
        for key in (*(k for keys in step.ins.values() for k in keys), *(o.key for s in step.outs.values() for o in s)):
            self._use(key)
        self.out.steps.append(step)
        for name, found in homes:
            self._home(name, found)
        self._learn(op, call)
