"""The one planner: from a block, feeds and state to a Plan. Pure: it looks at metadata only."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fluidlite.base.errors import (
    DeviceUnavailable,
    FeedError,
    FetchError,
    KernelNotFoundError,
    PlaceError,
    ProgramError,
)
from fluidlite.framework.call import Call, located
from fluidlite.framework.choose import Choice, choose
from fluidlite.framework.decompose import Part, Value
from fluidlite.framework.operator import EMPTY, Operator, check_dtypes
from fluidlite.framework.plan import Control, Launch, Line, Move, Output, Plan
from fluidlite.framework.policy import Policy
from fluidlite.framework.program import Block, Program
from fluidlite.framework.program_edit import sub_blocks
from fluidlite.framework.spec import Spec
from fluidlite.platform.devices import devices
from fluidlite.platform.place import Place

WORTH_SHARING = 16384
"""Bytes from which updating in place gains more than the short path of recycled tensors."""
_PLACEHOLDER = Spec.of((), "float32")


@dataclass
class _Known:
    """What planning knows of a variable: metadata, where its value lies, and its copies elsewhere."""

    spec: Spec
    place: Place
    key: str
    copies: dict[Place, str]
    feed: bool = False
    borrowed: bool = False


def needed_operators(block: Block, fetches: Sequence[str]) -> list[Operator]:
    """The operators that fetches or side effects need: state written, or an operator that runs itself."""
    program = block.program
    wanted = set(fetches)
    kept: list[Operator] = []
    for op in reversed(block.ops):
        outs = op.output_arg_names
        effect = op.definition.run is not None or any(_is_state(block, name) for name in outs)
        if not effect and wanted.isdisjoint(outs):
            continue
        kept.append(op)
        wanted.update(op.input_arg_names)
        for index in sub_blocks(op):
            inner = program.blocks[index]
            wanted.update(n for o in inner.ops for n in o.input_arg_names if n not in inner.vars)
    return kept[::-1]


def _is_state(block: Block, name: str) -> bool:
    variable = block.find_var(name)
    return variable is not None and variable.persistable


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


class _Planner:
    def __init__(
        self,
        program: Program,
        place: Place,
        feeds: Mapping[str, tuple[Spec, Place]],
        state: Mapping[str, tuple[Spec, Place]],
        fetches: Sequence[str],
        policy: Policy,
        block_index: int,
        assume_state: bool,
        inplace: bool,
    ) -> None:
        self.inplace = inplace
        self.program = program
        self.block = program.blocks[block_index]
        self.home = place
        self.host = devices.host()
        self.state = state
        self.fetches = fetches
        self.policy = policy
        self.assume_state = assume_state
        self.out = Plan(place)
        self.known: dict[str, _Known] = {}
        self.line: Line | None = None
        self.serial = 0
        self.last_use: dict[str, int] = {}
        for name, (spec, where) in feeds.items():
            self.known[name] = _Known(spec, where, name, {}, feed=True, borrowed=True)
            self.out.feeds[name] = spec

    def plan(self) -> Plan:
        ops = needed_operators(self.block, self.fetches)
        self.out.pruned = len(self.block.ops) - len(ops)
        for index, op in enumerate(ops):
            self.line = Line(op, None, None)
            self.out.lines.append(self.line)
            try:
                if op.definition.run is not None:
                    self._control(op, index)
                else:
                    self._operator(op, index)
            except ProgramError as exc:
                raise exc if str(op) in str(exc) else located(exc, str(op)) from None
            except KernelNotFoundError as exc:
                raise KernelNotFoundError(f"{exc}\n  At: {op.line}") from None
            except (PlaceError, DeviceUnavailable) as exc:  # of its device_guard
                raise type(exc)(f"{op}: {exc}") from None
        self.line = None
        for name in self.fetches:
            found = self._find(name, fetching=True)
            self.out.fetches.append((name, found.key, found.place, found.spec))
            self._use(found.key)
        self._place_frees()
        places = {self.home} | {m.source for m in self.out.moves} | {m.target for m in self.out.moves}
        places |= {s.choice.place for s in self.out.steps if isinstance(s, Launch)}
        places |= {place for _, _, place, _ in self.out.fetches}
        self.out.places = sorted(places, key=str)
        for step in self.out.steps:
            if isinstance(step, Launch):
                step.where = self.out.places.index(step.choice.place)
                plain = not step.skip and step.random is None and None not in step.ins
                step.simple = plain and all(o.shares < 0 and not o.state for o in step.outs) and not step.writes_state
        self._place_recycling()
        if self.inplace:
            self._share_dying_inputs()
        return self.out

    # Values

    def _find(self, name: str, fetching: bool = False) -> _Known:
        found = self.known.get(name)
        if found is not None:
            return found
        if name in self.state:
            spec, where = self.state[name]
            self.out.state[name] = True
            found = self.known[name] = _Known(spec, where, name, {})
            if where != self.home:  # an earlier run on another place left it there: it comes home for good
                self._move(name, found, self.home, "state", into_state=True)
                found.place, found.copies = self.home, {}
            return found
        variable = self.block.find_var(name)
        if variable is None:
            error = FetchError if fetching else ProgramError
            raise error(f"the program has no variable {name!r}")
        if variable.is_data and not (self.assume_state and variable.spec is not None):
            raise FeedError(
                f"variable {name!r} {variable.spec!r} is to be fed, and the feed has no {name!r}"
                f"\n  Do: exe.run(feed={{{name!r}: array, ...}})"
            )
        if self.assume_state and variable.spec is not None and (variable.persistable or variable.is_data):
            where = self.home if variable.persistable else self.host
            found = self.known[name] = _Known(
                variable.spec, where, name, {}, feed=variable.is_data, borrowed=variable.is_data
            )
            if variable.persistable:
                self.out.state[name] = True
            return found
        if variable.persistable:
            raise ProgramError(
                f"variable {name!r} has no value in the scope\n  Do: run the startup program first, "
                "exe.run(fluid.default_startup_program()), or load it"
            )
        if fetching:
            raise FetchError(f"variable {name!r} is fetched, but no operator of the program writes it")
        raise ProgramError(f"variable {name!r} is read before anything writes it")

    def _use(self, key: str) -> None:
        self.last_use[key] = len(self.out.steps)

    def _move(
        self, name: str, found: _Known, target: Place, why: str, into_state: bool = False, to_key: str = ""
    ) -> str:
        to_key = to_key or (found.key if into_state else f"{found.key}@{target}")
        move = Move(name, found.place, target, found.spec, why, found.key, to_key, into_state)
        self._use(found.key)
        self.out.steps.append(move)
        if self.line is not None:
            self.line.moves.append(move)
        return to_key

    def _at(self, name: str, target: Place) -> str:
        """The key of a variable's value on a place, moved there if it must be."""
        found = self._find(name)
        if found.place == target:
            return found.key
        key = found.copies.get(target)
        if key is None:
            key = found.copies[target] = self._move(name, found, target, "feed" if found.feed else "transfer")
        return key

    # Operators

    def _policy(self, op: Operator, target: Place) -> Policy:
        """The policy, with the operator's own choice of library (the hint ``op_library``) before all others."""
        library = op.hints.get("op_library")
        if not isinstance(library, str):
            return self.policy
        others = [name for name in self.policy.preferred(target.kind) if name != library]
        return self.policy.with_libraries({target.kind: (library, *others)})

    def _call(self, op: Operator) -> Call:
        ins: dict[str, tuple[Spec, ...]] = {}
        for slot, names in op.inputs.items():
            ins[slot] = tuple(self._find(name).spec for name in names)
        outs = {
            slot: (_PLACEHOLDER,) * len(names) for slot, names in op.outputs.items() if any(n != EMPTY for n in names)
        }
        call = Call(op.definition, ins, outs, op.attrs)
        infer = op.definition.infer
        assert infer is not None
        check_dtypes(call)
        results = infer(call)
        specs = {}
        for slot, placeholders in outs.items():
            result = results.get(slot)
            if result is None:
                raise ProgramError(f"its inference says nothing of output {slot}")
            specs[slot] = (result,) if isinstance(result, Spec) else tuple(result)
            if len(specs[slot]) != len(placeholders):
                raise ProgramError(
                    f"output {slot} has {len(placeholders)} variables, its inference found {len(specs[slot])}"
                )
        return Call(op.definition, ins, specs, op.attrs, self.home, op.role != "forward")

    def _operator(self, op: Operator, index: int) -> None:
        call = self._call(op)
        elsewhere = op.hints.get("op_device")
        target = devices.unit(elsewhere).place if elsewhere else self.home
        choice = choose(call, target, self._policy(op, target))
        assert self.line is not None
        self.line.call, self.line.choice = call, choice
        if choice.parts:
            self._decomposed(op, index, call, choice)
            return
        keys: list[str | None] = []
        for slot, names in op.inputs.items():
            declared = op.definition.input(slot)
            for name in names:
                if declared is not None and declared.metadata_only:
                    keys.append(None)
                elif declared is not None and declared.on_host:
                    keys.append(self._at(name, self.host))
                else:
                    keys.append(self._at(name, choice.place))
        outputs, homes = [], []
        names_out = [(slot, i, name) for slot in call.outs for i, name in enumerate(op.outputs[slot])]
        in_names = op.input_arg_names
        for slot, i, name in names_out:
            spec = call.outs[slot][i]
            state = name != EMPTY and _is_state(self.block, name)
            shares = self._shares(op, slot, name, in_names, spec, choice)
            output, home = self._output(name, spec, choice.place, state, shares)
            outputs.append(output)
            if home is not None:
                homes.append(home)
        self._launch(
            op, index, call.at(choice.place), choice, keys, outputs, any(o.state for o in outputs) or bool(homes)
        )
        for name, found in homes:
            self._home(name, found)

    def _shares(self, op: Operator, slot: str, name: str, in_names: list[str], spec: Spec, choice: Choice) -> int:
        """Index of the input whose memory an output takes: its own variable, updated in place."""
        if name not in in_names:
            return -1
        declared = {**op.definition.may_alias, **op.definition.must_alias}
        pair = declared.get(slot)
        found = self.known[name]
        allowed = choice.inplace or slot in op.definition.must_alias
        if pair is None or name not in op.inputs.get(pair, ()) or not allowed or found.borrowed:
            return -1
        if found.spec.with_(lod=()) != spec.with_(lod=()):
            return -1
        return in_names.index(name)

    def _output(
        self, name: str, spec: Spec, place: Place, state: bool, shares: int
    ) -> tuple[Output, tuple[str, _Known] | None]:
        """Declare an output; a state variable that is written away from home is copied back."""
        self.serial += 1
        if name == EMPTY:
            return Output(f"@{self.serial}", spec), None
        if state and place == self.home:
            if name not in self.known:
                self.out.state.setdefault(name, False)
            self.known[name] = _Known(spec, place, name, {})
            return Output(name, spec, shares, state=True), None
        key = f"{name}@{place}" if state else (name if name not in self.known else f"{name}#{self.serial}")
        old = self.known.get(name)
        if shares >= 0 and old is not None:
            key = old.copies.get(place, old.key) if old.place != place else old.key
        found = _Known(spec, place, key, {})
        if not state:
            self.known[name] = found
            return Output(key, spec, shares), None
        if name not in self.known:
            self.out.state.setdefault(name, False)
        return Output(key, spec, shares), (name, found)

    def _home(self, name: str, found: _Known) -> None:
        self._move(name, found, self.home, "home", into_state=True, to_key=name)
        self.known[name] = _Known(found.spec, self.home, name, {found.place: found.key})

    def _launch(
        self,
        op: Operator,
        index: int,
        call: Call,
        choice: Choice,
        keys: list[str | None],
        outputs: list[Output],
        state: bool,
    ) -> None:
        in_specs = [spec for group in call.ins.values() for spec in group]
        step = Launch(op, call, choice, keys, in_specs, outputs, index, writes_state=state)
        # where a guarded kernel skips, the state is what its input was: only if they share memory
        kept = all(output.shares >= 0 for output in outputs)
        step.guarded = kept and (choice.guarded or (choice.kernel is None and bool(call.op.must_alias)))
        step.skip = all(output.spec.size == 0 for output in outputs)
        if call.op.random:
            step.random = random_key(self.program, op, call)
        for key in keys:
            if key is not None:
                self._use(key)
        for output in outputs:
            self._use(output.key)
        self.out.steps.append(step)

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
                None if slot is not None and slot.metadata_only else key_of(value)
                for (slot, _), value in zip(declared, part.ins, strict=True)
            ]
            outputs: list[Output] = []
            homes: list[tuple[str, _Known]] = []
            for value in part.outs:
                assert value.spec is not None
                if value.role == "out" and self._final(part, value, choice):
                    name = op.outputs[value.slot][value.index]
                    state = name != EMPTY and _is_state(self.block, name)
                    if name != EMPTY and name not in op.input_arg_names:
                        output, home = self._output(name, call.outs[value.slot][value.index], choice.place, state, -1)
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
            name = op.outputs[slot][i]
            if name != EMPTY:
                self.known[name] = _Known(call.outs[slot][i], choice.place, key, {})
                if _is_state(self.block, name):
                    self._move(name, self.known[name], self.home, "home", into_state=True, to_key=name)
                    self.known[name] = _Known(call.outs[slot][i], self.home, name, {})

    def _final(self, part: Part, value: Value, choice: Choice) -> bool:
        """Whether this part is the last that writes the value."""
        later = choice.parts[choice.parts.index(part) + 1 :]
        return not any(
            (v.role, v.slot, v.index) == (value.role, value.slot, value.index) for p in later for v in p.outs
        )

    def _control(self, op: Operator, index: int) -> None:
        for name in op.input_arg_names:
            self._use(self._find(name).key)
        self.out.steps.append(Control(op, index))
        for name in op.output_arg_names:
            variable = self.block.find_var(name)
            if name not in self.known and variable is not None and variable.spec is not None:
                self.known[name] = _Known(variable.spec, self.host, name, {})

    # Lifetimes

    def _place_frees(self) -> None:
        kept = set(self.out.state)
        for key, index in self.last_use.items():
            if key in kept or index >= len(self.out.steps):
                continue
            step = self.out.steps[index]
            if isinstance(step, Move):
                index += 1
                while index < len(self.out.steps) and isinstance(self.out.steps[index], Move):
                    index += 1
                if index >= len(self.out.steps):
                    continue
                step = self.out.steps[index]
            assert isinstance(step, (Launch, Control))
            step.free.append(key)

    def _share_dying_inputs(self) -> None:
        """Let an output take the memory of an input that ends at its operator, where definition and kernel allow.

        Proven, not assumed: the input's tensor was made by an operator of this run on the same place, nothing
        reads it later (it would be recycled here), and the two have equal dims and dtype.
        """
        for step in self.out.steps:
            if not isinstance(step, Launch) or step.skip or not step.choice.inplace:
                continue
            ends = {key for key, where in step.recycle if where == step.where}
            for out, given in _alias_pairs(step):
                position = step.call.index[given]
                key = step.ins[position]
                if out.spec.nbytes < WORTH_SHARING or key not in ends or out.shares >= 0 or out.state or key is None:
                    continue
                if step.ins.count(key) == 1 and step.in_specs[position].with_(lod=()) == out.spec.with_(lod=()):
                    out.shares = position
                    ends.discard(key)
                    step.recycle = [item for item in step.recycle if item[0] != key]
                    step.free.append(key)
                    step.simple = False

    def _place_recycling(self) -> None:
        """Of the values that end at a step, those that operators made serve again as they are."""
        launches = [step for step in self.out.steps if isinstance(step, Launch)]
        makers = {o.key: s.where for s in launches for o in s.outs if o.shares < 0 and not o.state}
        for step in self.out.steps:
            if isinstance(step, Launch):
                step.makes = [(o.spec, o.key) for o in step.outs]
                step.recycle = [(key, makers[key]) for key in step.free if key in makers]
                step.free = [key for key in step.free if key not in makers]


def _alias_pairs(step: Launch) -> list[tuple[Output, str]]:
    """Outputs of a step that may share memory, each with the input slot whose memory that is."""
    definition = step.call.op
    allowed = {**definition.may_alias, **definition.must_alias}
    slots = [slot for slot, specs in step.call.outs.items() for _ in specs]
    return [
        (out, allowed[slot])
        for out, slot in zip(step.outs, slots, strict=True)
        if slot in allowed and step.call.has(allowed[slot])
    ]


def random_key(program: Program, op: Operator, call: Call) -> tuple[int, int]:
    """(seed, stream) of a random operator; a stream of 0 with a seed means: the same numbers at every run.

    The stream is a checksum of the first output's name, so that an operator's numbers do not depend on
    what stands before it in the program. An operator's own ``seed`` fixes its numbers for every run, as in Fluid.
    """
    own = call.attrs.get("seed") or 0
    fixed = call.attrs.get("fix_seed", True)
    if own and fixed:
        return own, -1
    name = next((n for n in op.output_arg_names if n != EMPTY), op.type)
    return program.random_seed, zlib.crc32(name.encode())
