"""Routine: the small program of a node, planned once for a place, that runs eagerly on tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fluidlite.codegen.lower import typed_of
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.instrumentation import is_observed
from fluidlite.compiler.interpreter import run_stages
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.kernel_runs import NO_RANDOM, prepare_step, take_arrays, with_spec
from fluidlite.compiler.planning.plan import Launch, Output, Plan
from fluidlite.compiler.planning.planner import plan_graph
from fluidlite.compiler.policy import Policy, policy
from fluidlite.compiler.run_errors import fail, raise_deferred_errors
from fluidlite.nodes.devices import Device
from fluidlite.nodes.fallback import warn_of_fallback
from fluidlite.nodes.image import RoutineImage, image_of
from fluidlite.nodes.tensor import Tensor
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.place import Place
from fluidlite.program.kernel_io import IO
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope
from fluidlite.tensor.tensor import Tensor as PlacedTensor
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.transfer import contiguous, transfer

_NO_STATE = Scope()  # of frames for errors
Draw = tuple[int, int]
"""A seed and a run number: the key of the random operators of one run."""
_WORD_MASK = 0xFFFFFFFF  # the lower 32 bits
IMAGE_AFTER = 4
"""Uses of a routine before it is linked, which compiles its small kernels."""


class _RegisterLaunch:
    """A launch with the register numbers of its inputs and outputs."""

    __slots__ = ("ins", "launch", "outs", "skip")

    def __init__(self, launch: Launch, ins: list[int], outs: list[tuple[Spec, int, int, int]], view: bool) -> None:
        self.launch = launch
        self.ins = ins
        self.outs = outs
        self.skip = launch.skip or view  # a view launches nothing


class Routine:
    """Operators on tensors of one place.

    ``feeds``: specs of the operands by name, in order.
    ``metadata``: specs by name of values of which only the metadata are read; they are no operands.
    ``specs``: of the fetches.
    ``reads``: the names in ``feeds`` and ``metadata`` whose bytes its kernels read.
    ``feed_names``: the names of the operands.
    ``steps``: launches on registers, or None if some are not on the place itself. Operands come first, then ``spare``.
    ``results``: the registers of the fetches.
    ``shares``: for each fetch, the number of the feed of which it is a view, or -1.
    """

    def __init__(
        self,
        program: Program,
        place: Place,
        feeds: Mapping[str, Spec],
        fetches: Sequence[str],
        metadata: Mapping[str, Spec] | None = None,
        repeated: bool = False,
    ) -> None:
        self._specs = feeds, fetches, metadata
        self._images: dict[Context, RoutineImage | None] = {}
        self._uses = 0
        self.feed_specs = tuple(feeds.values())
        self.program = program
        self.place = place
        all_specs = {**feeds, **(metadata or {})}
        arguments = {name: (spec, place) for name, spec in all_specs.items()}
        plan_policy = replace(policy(), repeated=True) if repeated else _policy_of(program)
        self.plan: Plan = plan_graph(
            Graph(program, fetches).finished(), place, arguments, {}, plan_policy, inplace=False
        )
        warn_of_fallback(self.plan, place)
        self.specs = tuple(spec for _, _, _, spec in self.plan.fetches)
        self._feed_keys = [self.plan.feed_keys.get(name, name) for name in feeds]
        self.feed_names = tuple(feeds)
        self._fetch_keys = [(key, fetch_place) for _, key, fetch_place, _ in self.plan.fetches]
        read = _read_keys(self.plan)
        self.reads = frozenset(name for name in all_specs if self.plan.feed_keys.get(name, name) in read)
        self._views = _views_of(self.plan)
        self.steps = self._register_launches()
        self.spare: list[PlacedTensor | None] = []
        self.shares = tuple(self._aliased_feed(key) for key, _ in self._fetch_keys)
        if self.steps is not None:
            self._number_registers()

    @property
    def is_aliasable(self) -> bool:
        """Whether its only operator declares that it may write the first fetch over the first feed."""
        if self.steps is None or len(self.steps) != 1:
            return False
        step = self.steps[0]
        call = step.launch.call
        for slot, input_slot in step.launch.choice.aliasable_slots(call).items():
            if call.has(slot) and call.has(input_slot) and step.launch.choice.inplace:
                out, position = call.index[slot] - len(step.ins), call.index[input_slot]
                spec, _, fetched, _ = step.outs[out]
                return fetched == 0 and step.ins[position] == 0 and step.ins.count(0) == 1 and spec is self.specs[0]
        return False

    def _register_launches(self) -> list[_RegisterLaunch] | None:
        """The steps as register launches; None if one is no launch on this place on plain memory."""
        if self.plan.pending is not None:
            return None
        launches = []
        for step in self.plan.steps:
            if (
                not isinstance(step, Launch)
                or step.choice.place != self.place
                or step.layout_agnostic
                or step.writes_state
            ):
                return None
            if not all(out.spec.is_static and not out.state for out in step.outs):
                return None
            launches.append(_RegisterLaunch(step, [], [], any(out.key in self._views for out in step.outs)))
        return launches

    def _number_registers(self) -> None:
        assert self.steps is not None
        numbers = {key: at for at, key in enumerate(self._feed_keys)}
        fetched = {key: at for at, (key, _) in enumerate(self._fetch_keys)}
        for name, at in list(fetched.items()):
            while name in self._views:
                name = self._views[name]
                fetched.setdefault(name, -2 - at)  # the value that a fetched view aliases
        registers: list[PlacedTensor | None] = [None] * len(self._feed_keys)
        for step in self.steps:
            for key, spec in zip(step.launch.ins, step.launch.in_specs, strict=True):
                if key is None:  # its bytes are not read
                    step.ins.append(len(registers))
                    registers.append(PlacedTensor.of(spec, self.place))
                else:
                    if key not in numbers:  # known by metadata, and not read
                        numbers[key] = len(registers)
                        registers.append(PlacedTensor.of(spec, self.place))
                    step.ins.append(numbers[key])
            for out in step.launch.outs:
                numbers[out.key] = len(registers)
                registers.append(None)
                step.outs.append(
                    (out.spec, numbers[out.key], fetched.get(out.key, -1), self._shares_with(step.launch, out))
                )
        self.spare = registers[len(self._feed_keys) :]
        self.results = [numbers[key] for key, _ in self._fetch_keys]

    def _shares_with(self, step: Launch, out: Output) -> int:
        """The input of a launch that an output aliases; -1: it has its own memory."""
        view = step.call.op.view
        return step.call.index[view[1]] if view is not None and out.key in self._views else out.shares

    def _aliased_feed(self, key: str) -> int:
        """The feed that a value aliases; -1: it has its own memory."""
        for step in reversed(self.plan.steps):
            if isinstance(step, Launch):
                for out in step.outs:
                    if out.key == key and self._shares_with(step, out) >= 0:
                        key = step.ins[self._shares_with(step, out)] or ""
        return self._feed_keys.index(key) if key in self._feed_keys else -1

    def image(self, context: Context, after: int = IMAGE_AFTER) -> RoutineImage | None:
        """The linked launches; None if they cannot be linked, or before the routine was used ``after`` times."""
        try:
            return self._images[context]
        except KeyError:
            pass
        self._uses += 1
        if self._uses < after:
            return None
        feeds, fetches, metadata = self._specs
        for closed_context in [image_context for image_context in self._images if image_context.closed]:
            del self._images[closed_context]
        self._images[context] = None
        linked = Routine(self.program, self.place, feeds, fetches, metadata, repeated=True)
        if linked.reads <= set(feeds):
            self._images[context] = image_of(linked, context)
        return self._images[context]

    def run(
        self,
        context: Context,
        tensors: Sequence[PlacedTensor],
        devs: Sequence[Device],
        number: int = 0,
        over: PlacedTensor | None = None,
        draw: Draw | None = None,
    ) -> list[Tensor]:
        """Run it while the context's queue is locked.

        ``devs``: the device of each fetch.
        ``number``: the operator number in deferred errors.
        ``over``: a tensor whose memory the first fetch overwrites (:attr:`is_aliasable`).
        ``draw``: the key of random operators.
        """
        for fed in tensors:
            if fed._strides is not None:  # kernels take contiguous memory
                tensors = [contiguous(each) for each in tensors]
                break
        if self.steps is None or is_observed():
            return self._run_by_steps(context, tensors, devs, draw)
        registers: list[Any] = [*tensors, *self.spare]
        step: Any = None
        try:
            for step in self.steps:
                launch = step.launch
                prepared = launch.runs.get(context)
                if prepared is None:
                    prepared = prepare_step(launch, context)
                operands = [registers[i] for i in step.ins]
                count = len(operands)
                for spec, register, fetched, shares in step.outs:
                    tensor: Any
                    if fetched < -1:
                        tensor = (
                            Tensor.on(devs[-2 - fetched], spec) if shares < 0 else with_spec(operands[shares], spec)
                        )
                        if shares < 0:
                            tensor.allocate(context)
                    elif fetched < 0:
                        tensor = (
                            PlacedTensor.of(spec, context.place) if shares < 0 else with_spec(operands[shares], spec)
                        )
                    elif shares >= 0:
                        tensor = Tensor.on(devs[fetched], spec)
                        tensor.share_data_with(with_spec(operands[shares], spec))
                    elif over is not None and not fetched:
                        tensor = over
                    else:
                        dev = devs[fetched]
                        tensor = Tensor.on(dev, spec)
                        if dev.precedence > 0:
                            tensor.allocate(context)
                    registers[register] = tensor
                    operands.append(tensor)
                if step.skip:
                    for tensor in operands[count:] if launch.skip else ():
                        if tensor.allocation is None:
                            tensor.allocate(context)  # of no elements
                    continue
                workspace = None
                if prepared.workspace:
                    workspace = PlacedTensor.of(Spec.of((prepared.workspace,), "uint8"), context.place)
                    workspace.allocate(context)
                random = NO_RANDOM if launch.random is None else _philox_words(launch.random, draw)
                result = prepared.run(context, IO(launch.call, operands, context, number, random, workspace))
                if result is not None:
                    take_arrays(result, operands[count:], context)
                for tensor in operands[count:]:
                    if tensor.allocation is None:
                        tensor.allocate(context)  # of no elements
        except Exception as exc:
            frame = Frame(self.plan, _NO_STATE, {})
            frame.contexts[context.place] = context
            fail(exc, step.launch if step is not None else None, frame)
        return [registers[i] for i in self.results]

    def _run_by_steps(
        self, context: Context, tensors: Sequence[PlacedTensor], devs: Sequence[Device], draw: Draw | None
    ) -> list[Tensor]:
        """Run by the interpreter: for copies between places, and when observers are installed."""
        values = dict(zip(self._feed_keys, tensors, strict=True))
        frame = Frame(self.plan, _DrawScope(draw), values)
        frame.contexts = {fetch_place: get_context(fetch_place) for fetch_place in self.plan.queues}
        frame.contexts[context.place] = context
        run_stages(frame)
        raise_deferred_errors(frame, [each for each in frame.contexts.values() if each.may_have_error])
        results = []
        for (key, fetch_place), spec, dev in zip(self._fetch_keys, self.specs, devs, strict=True):
            tensor = frame.values[key]
            result = Tensor.on(dev, tensor.spec or spec)
            if fetch_place == context.place and not dev.precedence and tensor.contiguous:
                result.share_data_with(tensor)
            else:
                result.allocate(context)
                transfer(tensor, context, result)
            results.append(result)
        return results


class _DrawScope(Scope):
    """A scope that passes the run number of a seed to the interpreter."""

    def __init__(self, draw: Draw | None) -> None:
        super().__init__()
        self._draw = draw
        self.random_key = draw[0] if draw is not None else None

    def next_run(self, stream: int, seed: int) -> int:
        return self._draw[1] if self._draw is not None else 0


def _philox_words(random: tuple[int, int], draw: Draw | None) -> tuple[int, int, int, int]:
    """Philox words: key (2), run number, stream."""
    seed, stream = random
    if stream < 0 or draw is None:  # the operator has a fixed seed: equal numbers in each run
        return seed & _WORD_MASK, (seed >> 32) & _WORD_MASK, 0, 0
    return draw[0] & _WORD_MASK, (draw[0] >> 32) & _WORD_MASK, draw[1] & _WORD_MASK, stream


def _policy_of(program: Program) -> Policy:
    """The current policy; compiled kernels if an operator is not elementwise, as its array calls cost more."""
    elementwise = all(op.definition.scalar is not None for op in program.global_block().ops)
    return policy() if elementwise else replace(policy(), repeated=True)


def _views_of(plan: Plan) -> dict[str, str]:
    """The values that are views of another value, with that value."""
    views: dict[str, str] = {}
    for step in plan.steps:
        if isinstance(step, Launch) and step.call.op.view is not None and not step.layout_agnostic:
            call, (slot, input_slot) = step.call, step.call.op.view
            source = step.ins[call.index[input_slot]]
            if source is not None:
                views[step.outs[call.index[slot] - len(step.ins)].key] = source
    return views


def _read_keys(plan: Plan) -> set[str]:
    """The values whose bytes the kernels of a plan read."""
    read_keys: set[str] = set()
    for step in plan.steps:
        if isinstance(step, Launch):
            read_keys |= _launch_read_keys(step)
        else:
            read_keys |= {getattr(step, "from_key", "")}
            read_keys |= {key for keys in getattr(step, "ins", {}).values() for key in keys}
    return read_keys


def _launch_read_keys(step: Launch) -> set[str]:
    call = step.call
    keys = {key for key in step.ins if key is not None}
    if call.op.scalar is None or call.op.scalar.refuse(call) is not None:
        return keys
    read = typed_of(call).inputs  # the slots on which the requested outputs depend
    slots = [slot for slot, specs in call.ins.items() for _ in specs]
    return {key for slot, key in zip(slots, step.ins, strict=True) if key is not None and slot in read}
