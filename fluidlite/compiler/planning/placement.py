"""Placement of values in a plan: the place and layout of each, its copies, and the steps that move or rearrange it."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, Union

from fluidlite.base.errors import FeedError, FetchError, ProgramError
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import READ, GraphOp, GraphValue
from fluidlite.compiler.planning.plan import Launch, Move, Output, Plan, PlanEntry
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_selection import select_kernel
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.op_call import Call
from fluidlite.program.operator import EMPTY, Operator
from fluidlite.program.program import Program
from fluidlite.program.registry import ops
from fluidlite.tensor.layout import PLAIN, Layout
from fluidlite.tensor.tensor_spec import Spec

RANDOM_HINT = "draws"
"""Hint of a fused operator: the seed of its random part, or 0, and the name of that part's first output."""


@dataclass
class Placement:
    """Where a value is: its spec, place and key, and the keys of its copies on other places or in other layouts.

    ``feed``: it is fed; ``borrowed``: its tensor belongs to the caller or to an array, and is not overwritten.
    """

    spec: Spec
    place: Place
    key: str
    copies: dict[tuple[Place, Layout], str]
    feed: bool = False
    borrowed: bool = False


WriteBacks = list[tuple[GraphValue, Placement]]
"""State variables that a step writes on another place than their owning place, or in a layout: they are copied back."""
SharedInput = tuple[int, Union[Placement, None]]
"""The index of the input that an output overwrites, and the placement of that input; (-1, None) if none."""


class ValuePlacer(ABC):
    """Tracks where the values of a plan are while it is made, and adds the steps that move or rearrange them."""

    def __init__(
        self,
        graph: Graph,
        place: Place,
        feeds: Mapping[str, tuple[Spec, Place]],
        state: Mapping[str, tuple[Spec, Place]],
        policy: Policy,
        assume_state: bool,
        inplace: bool,
    ) -> None:
        self.inplace = inplace
        self.graph = graph
        self.place = place
        self.host = devices.host()
        self.state = state
        self.feeds = feeds
        self.policy = policy
        self.assume_state = assume_state
        self.out = Plan(place, graph.program, frozenset(name for name, written in graph.state.items() if written))
        self.placements: dict[GraphValue, Placement] = {}
        self.state_values = {value.name: value for op in graph.ops if op.type == READ for value in op.results}
        """By state variable: the value that is in its memory."""
        self.last_reads: dict[GraphValue, float] = dict(graph.last_reads)
        self.at = 0
        """The index in the graph of the operator that is being planned."""
        self.entry: PlanEntry | None = None
        self.entry_index = 0
        self.serial = 0
        self.numbers: dict[GraphValue, tuple[Any, ...]] = {}
        self.inferred: dict[tuple[Call, bool], Call] = {}
        """Inferred calls, by the call without outputs and whether it is of a backward pass: layers are often alike."""
        types = Counter(map(attrgetter("type"), graph.ops))
        self.repeated_types = types - Counter([*types])
        """Types of which the graph has several operators."""
        self.last_use: dict[str, int] = {}
        for name, (spec, _) in feeds.items():
            variable = graph.block.find_var(name)
            stored = variable is not None and variable.persistable
            self.out.feed_keys[name] = f"{name}@feed" if stored else name
            self.out.feeds[name] = spec
        self.keys = set(self.out.feed_keys.values())

    def _check_unmoved(self, op: GraphOp, target: Place) -> None:
        """Raise ProgramError if an input that is never moved belongs to another place than ``target``."""
        for slot in op.definition.unmoved:
            for value in op.inputs.get(slot, ()):
                writer = value.op.operator if value.op is not None else None
                hint = writer.hints.get("op_device") if writer is not None else None
                owner = devices.unit(hint).place if hint else self.place
                if owner != target:
                    raise ProgramError(
                        f"{slot} is {value.name!r}, which lies on {owner}; expected on {target}, as it is never moved"
                        f"\n  Do: layers.device_transfer copies it to {target}, and its gradient back"
                    )

    def _feed_placement(self, value: GraphValue) -> Placement | None:
        """The placement of a fed value; None if it is not fed."""
        if value.name not in self.feeds:
            return None
        spec, place = self.feeds[value.name]
        placement = self.placements[value] = Placement(
            spec, place, self.out.feed_keys[value.name], {}, feed=True, borrowed=True
        )
        return placement

    def _placement(self, value: GraphValue, fetching: bool = False) -> Placement:
        """The placement of a value, recorded at first use for feeds and state; an error if it has no value."""
        placement = self.placements.get(value) or self._feed_placement(value)
        if placement is not None:
            return placement
        name, variable = value.name, value.variable
        if name in self.state:
            spec, place = self.state[name]
            self.out.state[name] = True
            placement = self.placements[value] = Placement(spec, place, name, {})
            self.keys.add(name)
            if place != self.place:  # an earlier run on another place left it there
                self._add_move(name, placement, self.place, "state", into_state=True)
                placement.place, placement.copies = self.place, {}
            return placement
        if variable is None:
            error = FetchError if fetching else ProgramError
            raise error(f"the program has no variable {name!r}")
        if variable.is_data and not (self.assume_state and variable.spec is not None):
            raise FeedError(
                f"variable {name!r} {variable.spec!r} is to be fed, and the feed has no {name!r}"
                f"\n  Do: exe.run(feed={{{name!r}: array, ...}})"
            )
        if self.assume_state and variable.spec is not None and (variable.persistable or variable.is_data):
            place = self.place if variable.persistable else self.host
            placement = self.placements[value] = Placement(
                variable.spec, place, name, {}, feed=variable.is_data, borrowed=variable.is_data
            )
            self.keys.add(name)
            if variable.persistable:
                self.out.state[name] = True
            return placement
        if variable.persistable:
            raise ProgramError(
                f"variable {name!r} has no value in the scope\n  Do: run the startup program first, "
                "exe.run(fluid.default_startup_program()), or load it"
            )
        if fetching:
            raise FetchError(f"variable {name!r} is fetched, but no operator of the program writes it")
        raise ProgramError(f"variable {name!r} is read before anything writes it")

    def _new_key(self, name: str) -> str:
        """A key that is unique in the run: several values, and their copies, may have one name."""
        self.serial += 1
        key = name if name not in self.keys else f"{name}#{self.serial}"
        self.keys.add(key)
        return key

    def _record_use(self, key: str) -> None:
        self.last_use[key] = len(self.out.steps)

    def _add_move(
        self, name: str, source: Placement, target: Place, why: str, into_state: bool = False, to_key: str = ""
    ) -> str:
        to_key = to_key or (source.key if into_state else self._new_key(f"{source.key}@{target}"))
        move = Move(name, source.place, target, source.spec, why, source.key, to_key, into_state)
        self._record_use(source.key)
        self.out.steps.append(move)
        if self.entry is not None:
            self.entry.moves.append(move)
        return to_key

    def _key_at(self, value: GraphValue, target: Place, layout: Layout | None = PLAIN, why: str = "") -> str:
        """The key of a value on a place in a layout (None: any); adds the move or the rearrangement that this needs."""
        placement = self._placement(value)
        current = placement.spec.layout
        layout = current if layout is None else layout
        if placement.place == target and (current is layout or current == layout):
            return placement.key
        key = placement.copies.get((target, layout))
        if key is None and current != layout:
            key = placement.copies[target, layout] = self._rearranged(value, target, current, layout)
        if key is None:
            why = why or ("feed" if placement.feed else "transfer")
            key = placement.copies[target, layout] = self._add_move(value.name, placement, target, why)
        return key

    def _rearranged(self, value: GraphValue, target: Place, current: Layout, layout: Layout) -> str:
        """Rearrange a value into another layout by transpose2 on its memory; return the key of the result."""
        placement, name = self._placement(value), value.name
        rank = placement.spec.rank
        plain = tuple(range(rank))
        before, after = current.permutation or plain, layout.permutation or plain
        source_spec = Spec.of([placement.spec.dims[axis] for axis in before], placement.spec.dtype)
        result_spec = Spec.of([placement.spec.dims[axis] for axis in after], placement.spec.dtype)
        definition = ops.get("transpose2")
        attrs = {attr.name: attr.canonical_default for attr in definition.attrs}
        attrs["axis"] = tuple(before.index(axis) for axis in after)
        call = Call(definition, {"X": (source_spec,)}, {"Out": (result_spec,)}, attrs, target)
        choice = select_kernel(call, target, self.policy)
        entry = self.entry or self.out.lines[-1]
        run_place = choice.place  # the fallback place, if the target has no kernel
        from_key = self._key_at(value, run_place, current)
        spec = placement.spec.with_(layout=layout)
        to_key = self._new_key(f"{placement.key}@{run_place}:{layout.name}")
        entry.moves.append(Move(name, run_place, run_place, spec, "layout", from_key, to_key))
        self._add_launch(
            entry.op, call.at(run_place), choice, [from_key], [Output(to_key, spec)], [], layout_agnostic=True
        )
        if run_place == target:
            return to_key
        return self._add_move(name, Placement(spec, run_place, to_key, {}), target, "transfer")

    # Steps

    def _shared_input(
        self, op: GraphOp, call: Call, slot: str, value: GraphValue | None, spec: Spec, choice: Choice
    ) -> SharedInput:
        """The input that an output updates in place: the previous value of the output's own variable."""
        input_slot = choice.inplace_slots(call).get(slot) if value is not None else None
        if value is None or input_slot is None:
            return -1, None
        own = next((each for each in op.inputs.get(input_slot, ()) if each.name == value.name), None)
        if own is None:
            return -1, None
        placement, must = self._placement(own), slot in op.definition.must_alias
        read_later = self.last_reads[own] > self.at
        if placement.borrowed or (read_later and not must):
            return -1, None
        if placement.spec.with_(lod=()) != spec.with_(lod=()):
            return -1, None
        if read_later:
            self._copy_before_overwrite(own)
        return op.args.index(own), placement

    def _declare_output(
        self,
        value: GraphValue | None,
        spec: Spec,
        place: Place,
        write_backs: WriteBacks,
        shared_input: SharedInput = (-1, None),
    ) -> Output:
        """Declare an output; add it to ``write_backs`` if it is state that must be copied to its own memory."""
        shares, old = shared_input
        if value is None:
            return Output(self._new_key("@"), spec)
        state = value.state
        if state is not None:
            self.out.state.setdefault(state, False)
            if place == self.place and spec.layout is PLAIN:
                self._write_state(state, value)
                self.placements[value] = Placement(spec, place, state, {})
                return Output(state, spec, shares, state=True)
        if old is not None:
            key = old.copies.get((place, spec.layout), old.key) if old.place != place else old.key
        else:
            key = self._new_key(f"{state}@{place}:{spec.layout.name}" if state is not None else value.name)
        placement = Placement(spec, place, key, {})
        if state is None:
            self.placements[value] = placement
        else:
            write_backs.append((value, placement))
        return Output(key, spec, shares)

    def _write_back(self, value: GraphValue, source: Placement) -> None:
        """Copy a state variable that was written on another place, or in a layout, to its own memory."""
        assert value.state is not None
        if source.spec.layout is not PLAIN:
            self.placements[value] = source
            key = self._key_at(value, source.place)
            source = Placement(source.spec.with_(layout=PLAIN), source.place, key, {})
        self._write_state(value.state, value)
        self._add_move(value.state, source, self.place, "home", into_state=True, to_key=value.state)
        self.placements[value] = Placement(source.spec, self.place, value.state, {(source.place, PLAIN): source.key})

    def _write_state(self, name: str, value: GraphValue) -> None:
        """Record that ``value`` overwrites a state variable; copy the old value before if it is read later."""
        old = self.state_values.get(name)
        self.state_values[name] = value
        later = old is not None and old is not value and self.last_reads.get(old, -1) > self.at
        if old is not None and later and self._placement(old).key == name:
            self._copy_before_overwrite(old)

    @abstractmethod
    def _copy_before_overwrite(self, value: GraphValue) -> None:
        """Copy a value that is read later and whose memory the current operator overwrites."""

    def _add_launch(
        self,
        op: GraphOp,
        call: Call,
        choice: Choice,
        keys: list[str | None],
        outputs: list[Output],
        write_backs: WriteBacks,
        layout_agnostic: bool = False,
    ) -> None:
        """Add the launch of a kernel, and the write-backs of state that it writes on another place."""
        state = bool(write_backs) or any(map(attrgetter("state"), outputs))
        in_specs = list(chain.from_iterable(call.ins.values()))
        index = self.entry_index if self.entry is not None else len(self.out.lines) - 1
        step = Launch(
            op, call, choice, keys, in_specs, outputs, index, writes_state=state, layout_agnostic=layout_agnostic
        )
        if call.op.random and call.op.draws(call.attrs):
            step.random = random_key(self.graph.program, op, call)
        now, all_shared = len(self.out.steps), True
        step.skip = step.random is None  # a random operator is counted even if it writes no elements
        self.last_use.update(dict.fromkeys(filter(None, keys), now))
        for output in outputs:
            self.last_use[output.key] = now
            all_shared = all_shared and output.shares >= 0
            step.skip = step.skip and not output.spec.size
        # a predicated kernel that skips leaves the state unchanged only if output and input share memory
        step.guarded = all_shared and choice.guarded and (choice.kernel is not None or bool(call.op.must_alias))
        self.out.steps.append(step)
        for value, placement in write_backs:
            self._write_back(value, placement)


def own_seed(attrs: Mapping[str, Any]) -> int:
    """The seed attribute that fixes an operator's random numbers in every run, or 0."""
    return int(attrs.get("seed") or 0) if attrs.get("fix_seed", True) else 0


def random_key(program: Program, op: GraphOp, call: Call) -> tuple[int, int]:
    """(seed, stream) of a random operator; a stream of -1 means the same numbers in every run.

    The stream is a checksum of the first output's name, so that an operator's numbers do not depend on the operators
    before it. The attribute ``seed`` fixes an operator's numbers in every run, as in Fluid; so does the input
    ``Seed``. A fused operator draws the numbers of its random part (hint ``DRAWS``).
    """
    if RANDOM_HINT in op.operator.hints:
        own, name = op.operator.hints[RANDOM_HINT]
        return (own, -1) if own else (program.random_seed, zlib.crc32(name.encode()))
    seed_slot = call.op.input("Seed")
    seed = call.value("Seed") if seed_slot is not None and seed_slot.value and call.has("Seed") else None
    if seed is not None:
        return int(seed[0]), -1
    own = own_seed(call.attrs)
    if own:
        return own, -1
    return program.random_seed, random_stream(op)


def random_stream(op: GraphOp | Operator) -> int:
    """The random stream of an operator without its own seed: a checksum of its first output's name."""
    name = next((n for n in op.output_arg_names if n != EMPTY), op.type)
    return zlib.crc32(name.encode())
