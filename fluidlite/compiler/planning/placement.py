"""Values of a plan: which place and layout each lies in, its copies, and the steps that move or rearrange it."""

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
from fluidlite.compiler.planning.plan import Launch, Line, Move, Output, Plan
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_selection import choose
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.op_call import Call
from fluidlite.program.operator import EMPTY, Operator
from fluidlite.program.program import Program
from fluidlite.program.registry import ops
from fluidlite.tensor.layout import PLAIN, Layout
from fluidlite.tensor.tensor_spec import Spec

DRAWS = "draws"
"""Hint of a fused operator: its random part's own seed, or 0, and that part's first output."""


@dataclass
class Known:
    """What planning knows of a value: metadata, where it lies, and its copies elsewhere or laid otherwise."""

    spec: Spec
    place: Place
    key: str
    copies: dict[tuple[Place, Layout], str]
    feed: bool = False
    borrowed: bool = False


Homes = list[tuple[GraphValue, Known]]
"""State variables that are written away from home, and where they are: they are copied back."""
Over = tuple[int, Union[Known, None]]
"""The index of the input over which an output is written, and what that was; -1 and None of others."""


class Values(ABC):
    """Where the values of a plan lie while it is made; steps that bring them elsewhere are added as they are needed."""

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
        self.home = place
        self.host = devices.host()
        self.state = state
        self.feeds = feeds
        self.policy = policy
        self.assume_state = assume_state
        self.out = Plan(place, graph.program, frozenset(name for name, written in graph.state.items() if written))
        self.known: dict[GraphValue, Known] = {}
        self.held = {value.name: value for op in graph.ops if op.type == READ for value in op.results}
        """By state variable: the value that its memory holds."""
        self.last_reads: dict[GraphValue, float] = dict(graph.last_reads)
        self.at = 0
        """The index of the operator that is being planned."""
        self.line: Line | None = None
        self.line_index = 0
        self.serial = 0
        self.values: dict[GraphValue, tuple[Any, ...]] = {}
        self.inferred: dict[tuple[Call, bool], Call] = {}
        """Calls with outputs, by the call without them and whether gradients of it are read: layers are often alike."""
        types = Counter(map(attrgetter("type"), graph.ops))
        self.alike = types - Counter([*types])
        """Types of operators that the graph has several of."""
        self.last_use: dict[str, int] = {}
        for name, (spec, _) in feeds.items():
            variable = graph.block.find_var(name)
            stored = variable is not None and variable.persistable
            self.out.feed_keys[name] = f"{name}@feed" if stored else name
            self.out.feeds[name] = spec
        self.keys = set(self.out.feed_keys.values())

    def _check_unmoved(self, op: GraphOp, target: Place) -> None:
        """Raise unless inputs that are never moved belong where an operator shall run, whatever fell back meanwhile."""
        for slot in op.definition.unmoved:
            for value in op.inputs.get(slot, ()):
                writer = value.op.operator if value.op is not None else None
                hint = writer.hints.get("op_device") if writer is not None else None
                lies = devices.unit(hint).place if hint else self.home
                if lies != target:
                    raise ProgramError(
                        f"{slot} is {value.name!r}, which lies on {lies}; expected on {target}, as it is never moved"
                        f"\n  Do: layers.device_transfer copies it to {target}, and its gradient back"
                    )

    def _fed(self, value: GraphValue) -> Known | None:
        """What is known of a value that is fed, if it is."""
        if value.name not in self.feeds:
            return None
        spec, where = self.feeds[value.name]
        found = self.known[value] = Known(spec, where, self.out.feed_keys[value.name], {}, feed=True, borrowed=True)
        return found

    def _find(self, value: GraphValue, fetching: bool = False) -> Known:
        found = self.known.get(value) or self._fed(value)
        if found is not None:
            return found
        name, variable = value.name, value.variable
        if name in self.state:
            spec, where = self.state[name]
            self.out.state[name] = True
            found = self.known[value] = Known(spec, where, name, {})
            self.keys.add(name)
            if where != self.home:  # an earlier run on another place left it there: it comes home for good
                self._move(name, found, self.home, "state", into_state=True)
                found.place, found.copies = self.home, {}
            return found
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
            found = self.known[value] = Known(
                variable.spec, where, name, {}, feed=variable.is_data, borrowed=variable.is_data
            )
            self.keys.add(name)
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

    def _new_key(self, name: str) -> str:
        """A key that no value of the run has: values of one name, and their copies on a place, are several."""
        self.serial += 1
        key = name if name not in self.keys else f"{name}#{self.serial}"
        self.keys.add(key)
        return key

    def _use(self, key: str) -> None:
        self.last_use[key] = len(self.out.steps)

    def _move(
        self, name: str, source: Known, target: Place, why: str, into_state: bool = False, to_key: str = ""
    ) -> str:
        to_key = to_key or (source.key if into_state else self._new_key(f"{source.key}@{target}"))
        move = Move(name, source.place, target, source.spec, why, source.key, to_key, into_state)
        self._use(source.key)
        self.out.steps.append(move)
        if self.line is not None:
            self.line.moves.append(move)
        return to_key

    def _at(self, value: GraphValue, target: Place, layout: Layout | None = PLAIN, why: str = "") -> str:
        """The key of a value on a place in a layout (None: any), moved and rearranged if it must be."""
        found = self._find(value)
        own = found.spec.layout
        layout = own if layout is None else layout
        if found.place == target and (own is layout or own == layout):
            return found.key
        key = found.copies.get((target, layout))
        if key is None and own != layout:
            key = found.copies[target, layout] = self._rearranged(value, target, own, layout)
        if key is None:
            why = why or ("feed" if found.feed else "transfer")
            key = found.copies[target, layout] = self._move(value.name, found, target, why)
        return key

    def _rearranged(self, value: GraphValue, target: Place, own: Layout, layout: Layout) -> str:
        """Rearrange a value into another layout: transpose2 of its memory, by whatever kernel the place has."""
        found, name = self._find(value), value.name
        rank = found.spec.rank
        plain = tuple(range(rank))
        before, after = own.permutation or plain, layout.permutation or plain
        memory = Spec.of([found.spec.dims[axis] for axis in before], found.spec.dtype)
        result = Spec.of([found.spec.dims[axis] for axis in after], found.spec.dtype)
        definition = ops.get("transpose2")
        attrs = {attr.name: attr.canonical_default for attr in definition.attrs}
        attrs["axis"] = tuple(before.index(axis) for axis in after)
        call = Call(definition, {"X": (memory,)}, {"Out": (result,)}, attrs, target)
        choice = choose(call, target, self.policy)
        line = self.line or self.out.lines[-1]
        where = choice.place  # the fallback place, if this one cannot
        given = self._at(value, where, own)
        spec, key = found.spec.with_(layout=layout), self._new_key(f"{found.key}@{where}:{layout.name}")
        line.moves.append(Move(name, where, where, spec, "layout", given, key))
        self._launch(line.op, call.at(where), choice, [given], [Output(key, spec)], [], blind=True)
        return key if where == target else self._move(name, Known(spec, where, key, {}), target, "transfer")

    # Steps

    def _shares(self, op: GraphOp, call: Call, slot: str, value: GraphValue | None, spec: Spec, choice: Choice) -> Over:
        """Index of the input whose memory an output takes, its own variable, updated in place; and what that was."""
        pair = choice.may_share(call).get(slot) if value is not None else None
        if value is None or pair is None:
            return -1, None
        own = next((given for given in op.inputs.get(pair, ()) if given.name == value.name), None)
        if own is None:
            return -1, None
        found, must = self._find(own), slot in op.definition.must_alias
        read_later = self.last_reads[own] > self.at
        if found.borrowed or (read_later and not must):
            return -1, None
        if found.spec.with_(lod=()) != spec.with_(lod=()):
            return -1, None
        if read_later:
            self._keep(own)
        return op.args.index(own), found

    def _output(
        self, value: GraphValue | None, spec: Spec, place: Place, homes: Homes, over: Over = (-1, None)
    ) -> Output:
        """Declare an output; a state variable that is written away from home is one of ``homes``."""
        shares, shared = over
        if value is None:
            return Output(self._new_key("@"), spec)
        state = value.state
        if state is not None:
            self.out.state.setdefault(state, False)
            if place == self.home and spec.layout is PLAIN:
                self._write_state(state, value)
                self.known[value] = Known(spec, place, state, {})
                return Output(state, spec, shares, state=True)
        if shared is not None:
            key = shared.copies.get((place, spec.layout), shared.key) if shared.place != place else shared.key
        else:
            key = self._new_key(f"{state}@{place}:{spec.layout.name}" if state is not None else value.name)
        found = Known(spec, place, key, {})
        if state is None:
            self.known[value] = found
        else:
            homes.append((value, found))
        return Output(key, spec, shares)

    def _home(self, value: GraphValue, source: Known) -> None:
        """Bring a state variable back that was written away from home, or in another layout."""
        assert value.state is not None
        if source.spec.layout is not PLAIN:
            self.known[value] = source
            key = self._at(value, source.place)
            source = Known(source.spec.with_(layout=PLAIN), source.place, key, {})
        self._write_state(value.state, value)
        self._move(value.state, source, self.home, "home", into_state=True, to_key=value.state)
        self.known[value] = Known(source.spec, self.home, value.state, {(source.place, PLAIN): source.key})

    def _write_state(self, name: str, value: GraphValue) -> None:
        """Note that the memory of a state variable holds another value; what is read of the old one later is kept."""
        old = self.held.get(name)
        self.held[name] = value
        later = old is not None and old is not value and self.last_reads.get(old, -1) > self.at
        if old is not None and later and self._find(old).key == name:
            self._keep(old)

    @abstractmethod
    def _keep(self, value: GraphValue) -> None:
        """Copy a value whose memory is about to be overwritten, for those that read it later."""

    def _launch(
        self,
        op: GraphOp,
        call: Call,
        choice: Choice,
        keys: list[str | None],
        outputs: list[Output],
        homes: Homes,
        blind: bool = False,
    ) -> None:
        state = bool(homes) or any(map(attrgetter("state"), outputs))
        in_specs = list(chain.from_iterable(call.ins.values()))
        index = self.line_index if self.line is not None else len(self.out.lines) - 1
        step = Launch(op, call, choice, keys, in_specs, outputs, index, writes_state=state, blind=blind)
        if call.op.random and call.op.draws(call.attrs):
            step.random = random_key(self.graph.program, op, call)
        now, kept, step.skip = len(self.out.steps), True, step.random is None  # of no elements it draws, and counts it
        self.last_use.update(dict.fromkeys(filter(None, keys), now))
        for output in outputs:
            self.last_use[output.key] = now
            kept = kept and output.shares >= 0
            step.skip = step.skip and not output.spec.size
        # where a guarded kernel skips, the state is what its input was: only if they share memory
        step.guarded = kept and choice.guarded and (choice.kernel is not None or bool(call.op.must_alias))
        self.out.steps.append(step)
        for value, found in homes:
            self._home(value, found)


def own_seed(attrs: Mapping[str, Any]) -> int:
    """The seed that fixes an operator's numbers for every run, or 0."""
    return int(attrs.get("seed") or 0) if attrs.get("fix_seed", True) else 0


def random_key(program: Program, op: GraphOp, call: Call) -> tuple[int, int]:
    """(seed, stream) of a random operator; a stream of -1 means: the same numbers at every run.

    The stream is a checksum of the first output's name, so that an operator's numbers do not depend on
    what stands before it in the program. An operator's own ``seed`` fixes its numbers for every run, as in Fluid;
    so does one that it is fed as the value ``Seed``. A fused operator draws as the random one in it (hint ``DRAWS``).
    """
    if DRAWS in op.operator.hints:
        own, name = op.operator.hints[DRAWS]
        return (own, -1) if own else (program.random_seed, zlib.crc32(name.encode()))
    given = call.op.input("Seed")
    seed = call.value("Seed") if given is not None and given.value and call.has("Seed") else None
    if seed is not None:
        return int(seed[0]), -1
    own = own_seed(call.attrs)
    if own:
        return own, -1
    return program.random_seed, stream_of(op)


def stream_of(op: GraphOp | Operator) -> int:
    """The stream of random numbers of an operator without a seed of its own: a checksum of its first output's name."""
    name = next((n for n in op.output_arg_names if n != EMPTY), op.type)
    return zlib.crc32(name.encode())
