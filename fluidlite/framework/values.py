"""Values of a plan: which place and layout each lies in, its copies, and the steps that move or rearrange it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluidlite.base.errors import FeedError, FetchError, ProgramError
from fluidlite.framework.call import Call
from fluidlite.framework.choice import Choice
from fluidlite.framework.choose import choose
from fluidlite.framework.layout import PLAIN, Layout
from fluidlite.framework.operator import EMPTY, Operator
from fluidlite.framework.plan import Launch, Line, Move, Output, Plan
from fluidlite.framework.policy import Policy
from fluidlite.framework.program import Block, Program
from fluidlite.framework.registry import ops
from fluidlite.framework.spec import Spec
from fluidlite.platform.devices import devices
from fluidlite.platform.place import Place

DRAWS = "draws"
"""Hint of a fused operator: its random part's own seed, or 0, and that part's first output."""


@dataclass
class Known:
    """What planning knows of a variable: metadata, where its value lies, and its copies elsewhere or laid otherwise."""

    spec: Spec
    place: Place
    key: str
    copies: dict[tuple[Place, Layout], str]
    feed: bool = False
    borrowed: bool = False


def is_state(block: Block, name: str) -> bool:
    variable = block.find_var(name)
    return variable is not None and variable.persistable


class Values:
    """Where the values of a plan lie while it is made; steps that bring them elsewhere are added as they are needed."""

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
        self.known: dict[str, Known] = {}
        self.line: Line | None = None
        self.serial = 0
        self.values: dict[str, tuple[Any, ...]] = {}
        self.last_use: dict[str, int] = {}
        for name, (spec, where) in feeds.items():
            key = self.out.feed_keys[name] = f"{name}@feed" if is_state(self.block, name) else name
            self.known[name] = Known(spec, where, key, {}, feed=True, borrowed=True)
            self.out.feeds[name] = spec

    def _find(self, name: str, fetching: bool = False) -> Known:
        found = self.known.get(name)
        if found is not None:
            return found
        if name in self.state:
            spec, where = self.state[name]
            self.out.state[name] = True
            found = self.known[name] = Known(spec, where, name, {})
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
            found = self.known[name] = Known(
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
        self, name: str, found: Known, target: Place, why: str, into_state: bool = False, to_key: str = ""
    ) -> str:
        to_key = to_key or (found.key if into_state else f"{found.key}@{target}")
        move = Move(name, found.place, target, found.spec, why, found.key, to_key, into_state)
        self._use(found.key)
        self.out.steps.append(move)
        if self.line is not None:
            self.line.moves.append(move)
        return to_key

    def _at(self, name: str, target: Place, layout: Layout | None = PLAIN, why: str = "") -> str:
        """The key of a variable's value on a place in a layout (None: any), moved and rearranged if it must be."""
        found = self._find(name)
        own = found.spec.layout
        layout = own if layout is None else layout
        if found.place == target and own == layout:
            return found.key
        key = found.copies.get((target, layout))
        if key is None and own != layout:
            key = found.copies[target, layout] = self._rearranged(name, target, own, layout)
        if key is None:
            why = why or ("feed" if found.feed else "transfer")
            key = found.copies[target, layout] = self._move(name, found, target, why)
        return key

    def _rearranged(self, name: str, target: Place, own: Layout, layout: Layout) -> str:
        """Rearrange a value into another layout: transpose2 of its memory, by whatever kernel the place has."""
        found = self._find(name)
        rank = found.spec.rank
        plain = tuple(range(rank))
        before, after = own.permutation or plain, layout.permutation or plain
        memory = Spec.of([found.spec.dims[axis] for axis in before], found.spec.dtype)
        result = Spec.of([found.spec.dims[axis] for axis in after], found.spec.dtype)
        definition = ops.get("transpose2")
        attrs = {attr.name: attr.check(attr.default) if attr.default is not None else None for attr in definition.attrs}
        attrs["axis"] = tuple(before.index(axis) for axis in after)
        call = Call(definition, {"X": (memory,)}, {"Out": (result,)}, attrs, target)
        choice = choose(call, target, self.policy)
        line = self.line or self.out.lines[-1]
        where = choice.place  # the fallback place, if this one cannot
        given = self._at(name, where, own)
        spec, key = found.spec.with_(layout=layout), f"{found.key}@{where}:{layout.name}"
        line.moves.append(Move(name, where, where, spec, "layout", given, key))
        index = len(self.out.lines) - 1
        self._launch(line.op, index, call.at(where), choice, [given], [Output(key, spec)], False, blind=True)
        return key if where == target else self._move(name, Known(spec, where, key, {}), target, "transfer")

    # Steps

    def _shares(self, op: Operator, slot: str, name: str, in_names: list[str], spec: Spec, choice: Choice) -> int:
        """Index of the input whose memory an output takes: its own variable, updated in place."""
        if name not in in_names:
            return -1
        pair = op.definition.must_alias.get(slot) or op.definition.may_alias.get(slot)
        found = self.known[name]
        allowed = choice.inplace or slot in op.definition.must_alias
        if pair is None or name not in op.inputs.get(pair, ()) or not allowed or found.borrowed:
            return -1
        if found.spec.with_(lod=()) != spec.with_(lod=()):
            return -1
        return in_names.index(name)

    def _output(
        self, name: str, spec: Spec, place: Place, state: bool, shares: int
    ) -> tuple[Output, tuple[str, Known] | None]:
        """Declare an output; a state variable that is written away from home is copied back."""
        self.serial += 1
        if name == EMPTY:
            return Output(f"@{self.serial}", spec), None
        plain = spec.layout is PLAIN
        if state:
            self.out.state.setdefault(name, False)
        if state and place == self.home and plain:
            self.known[name] = Known(spec, place, name, {})
            return Output(name, spec, shares, state=True), None
        key = (
            f"{name}@{place}:{spec.layout.name}"
            if state
            else (name if name not in self.known else f"{name}#{self.serial}")
        )
        old = self.known.get(name)
        if shares >= 0 and old is not None:
            key = old.copies.get((place, spec.layout), old.key) if old.place != place else old.key
        found = Known(spec, place, key, {})
        if not state:
            self.known[name] = found
            return Output(key, spec, shares), None
        return Output(key, spec, shares), (name, found)

    def _home(self, name: str, found: Known) -> None:
        if found.spec.layout is not PLAIN:
            self.known[name] = found
            key = self._at(name, found.place)
            found = Known(found.spec.with_(layout=PLAIN), found.place, key, {})
        self._move(name, found, self.home, "home", into_state=True, to_key=name)
        self.known[name] = Known(found.spec, self.home, name, {(found.place, PLAIN): found.key})

    def _launch(
        self,
        op: Operator,
        index: int,
        call: Call,
        choice: Choice,
        keys: list[str | None],
        outputs: list[Output],
        state: bool,
        blind: bool = False,
    ) -> None:
        in_specs = [spec for group in call.ins.values() for spec in group]
        step = Launch(op, call, choice, keys, in_specs, outputs, index, writes_state=state, blind=blind)
        # where a guarded kernel skips, the state is what its input was: only if they share memory
        kept = all(output.shares >= 0 for output in outputs)
        step.guarded = kept and choice.guarded and (choice.kernel is not None or bool(call.op.must_alias))
        step.skip = all(output.spec.size == 0 for output in outputs)
        if call.op.random:
            step.random = random_key(self.program, op, call)
        for key in keys:
            if key is not None:
                self._use(key)
        for output in outputs:
            self._use(output.key)
        self.out.steps.append(step)


def own_seed(attrs: Mapping[str, Any]) -> int:
    """The seed that fixes an operator's numbers for every run, or 0."""
    return int(attrs.get("seed") or 0) if attrs.get("fix_seed", True) else 0


def random_key(program: Program, op: Operator, call: Call) -> tuple[int, int]:
    """(seed, stream) of a random operator; a stream of 0 with a seed means: the same numbers at every run.

    The stream is a checksum of the first output's name, so that an operator's numbers do not depend on
    what stands before it in the program. An operator's own ``seed`` fixes its numbers for every run, as in Fluid;
    so does one that it is fed as the value ``Seed``. A fused operator draws as the random one in it (hint ``DRAWS``).
    """
    if DRAWS in op.hints:
        own, name = op.hints[DRAWS]
        return (own, -1) if own else (program.random_seed, zlib.crc32(name.encode()))
    given = call.op.input("Seed")
    seed = call.value("Seed") if given is not None and given.value and call.has("Seed") else None
    if seed is not None:
        return int(seed[0]), -1
    own = own_seed(call.attrs)
    if own:
        return own, -1
    name = next((n for n in op.output_arg_names if n != EMPTY), op.type)
    return program.random_seed, zlib.crc32(name.encode())
