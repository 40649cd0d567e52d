"""The steps of an operator: its call, its kernel, the layouts and copies that this needs, and what its outputs are."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fluidlite.base.errors import (
    DeviceUnavailable,
    FeedError,
    KernelNotFoundError,
    PlaceError,
    ProgramError,
    SupportsError,
)
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.planning.layout_choice import LayoutChoice, named_layouts
from fluidlite.compiler.planning.least_moves import Picked
from fluidlite.compiler.planning.placement import Homes, Known, Over
from fluidlite.compiler.planning.plan import Control, Line, Output
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_selection import choose
from fluidlite.platform.device_registry import devices
from fluidlite.program.decompose import Part, Value, key_of
from fluidlite.program.inference import check_inputs, inferred
from fluidlite.program.op_call import PLACEHOLDER, Call, located
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator import EMPTY
from fluidlite.program.registry import ops as registry
from fluidlite.program.variable_metadata import copy_operator
from fluidlite.tensor.layout import PLAIN
from fluidlite.tensor.tensor_spec import Spec


def _left_out(definition: OpDef, outs: Collection[str]) -> list[str]:
    """Outputs that an operator must have and a program leaves out: kernels may count on them, so they are made."""
    if definition.scalar is not None or definition.infer is None or definition.dynamic or definition.run is not None:
        return []  # those of a scalar expression are independent
    return [
        slot.name
        for slot in definition.outputs
        if not (slot.name in outs or slot.dispensable or slot.duplicable or slot.name in definition.must_alias)
    ]


def _declared(value: GraphValue | None) -> Spec:
    if value is None or value.spec is None:
        name = value.name if value is not None else EMPTY
        raise ProgramError(f"the dims and dtype of its output {name!r} are not declared")
    return value.spec


class OperatorSteps(LayoutChoice):
    """Plans single operators: each becomes one step, several or none of the plan."""

    picked: Picked

    def _step(self, op: GraphOp) -> None:
        around = self.line, self.line_index
        self.line, self.line_index = Line(op, None, None), len(self.out.lines)
        self.out.lines.append(self.line)
        definition = op.definition
        try:
            if definition.marker:
                self._marked(op)
            elif definition.run is not None:
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
        near = self.line.op.operator
        definition = registry.get(copy_operator(value.variable) if value.variable is not None else "assign")
        hints = {name: near.hints[name] for name in ("op_device",) if name in near.hints}  # others are of that operator
        made = GraphOp.near(near, definition, {"X": [value]}, {}, hints)
        kept = GraphValue(f"{value.name}@{self.at}", value.spec, made, None)
        made.outputs["Out"] = [kept]
        self.last_reads[kept] = self.last_reads[value]
        self._step(made)
        self.known[value] = self.known[kept]

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

    def _learn(self, op: GraphOp, call: Call) -> None:
        """Note which numbers an operator has written, where its metadata tells them."""
        assert call.op.constant is not None
        for slot, numbers in call.op.constant(call).items() if call.known else ():
            value = op.outputs[slot][0] if slot in op.outputs else None
            if numbers is not None and value is not None:
                self.values[value] = numbers

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
        call = self._inferred(op, definition, ins)
        op.planned = key, call
        return call

    def _inferred(self, op: GraphOp, definition: OpDef, ins: Mapping[str, tuple[Spec, ...]]) -> Call:
        outs = {slot: (PLACEHOLDER,) * len(values) for slot, values in op.outputs.items() if any(values)}
        outs |= dict.fromkeys(_left_out(definition, outs), (PLACEHOLDER,))
        call, backward = Call(definition, ins, outs, op.attrs), op.operator.role != "forward"
        shared = op.type in self.alike and definition.run is None
        shared = shared and definition.infer is not None and not definition.dynamic
        found = self.inferred.get((call, backward)) if shared else None
        if found is not None:
            return found
        check_inputs(call)
        results = inferred(call) if definition.infer is not None else {}
        specs = {}
        for slot, placeholders in outs.items():
            result = results.get(slot)
            if result is None and (definition.dynamic or definition.infer is None):  # as the user declared them
                result = tuple(_declared(value) for value in op.outputs[slot])
                if definition.run is not None:  # which offsets a block leaves, the run says
                    result = tuple(spec.with_(lod=(), lod_level=spec.lod_level) for spec in result)
            if result is None:
                raise ProgramError(f"its inference says nothing of output {slot}")
            specs[slot] = result
            if len(result) != len(placeholders):
                raise ProgramError(
                    f"output {slot} has {len(placeholders)} variables, its inference found {len(result)}"
                )
        made = call._alike(Call(definition, ins, specs, op.attrs, self.home, backward))
        if shared:
            self.inferred[call, backward] = made
        return made

    def _operator(self, op: GraphOp) -> None:
        call = self._call(op)
        definition = call.op
        elsewhere = op.operator.hints.get("op_device")
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
            if call.op.constant is not None:
                self._learn(op, call)
            return
        keys: list[str | None] = []
        wanted = relaid.layouts if relaid is not None else named_layouts(call, choice)
        for slot, values in op.inputs.items():
            declared = definition.input(slot) if slot in definition.not_computed else None
            for value in values:
                if declared is None:
                    keys.append(self._at(value, choice.place, wanted.get(slot, PLAIN)))
                else:
                    keys.append(None if declared.unread else self._at(value, self.host))
        placed = relaid.call if relaid is not None else self._laid(op, call, wanted) if wanted else call
        outputs, homes = list[Output](), Homes()
        for slot, specs in call.outs.items():
            for made, plain in zip(op.outputs.get(slot, [None]), specs, strict=True):
                spec = plain.with_(layout=wanted.get(slot) or PLAIN) if wanted else plain
                over = self._shares(op, call, slot, made, spec, choice)
                outputs.append(self._output(made, spec, choice.place, homes, over))
        self._launch(op, placed.at(choice.place), choice, keys, outputs, homes, relaid is not None)
        if call.op.constant is not None:
            self._learn(op, call)

    def _decomposed(self, op: GraphOp, call: Call, choice: Choice) -> None:
        values: dict[tuple[str, str, int], str] = {}
        self.serial += 1
        serial = self.serial
        written: dict[tuple[str, int], str] = {}

        def named(value: Value) -> str:
            if value.role == "in":
                return self._at(op.inputs[value.slot][value.index], choice.place)
            return values.setdefault(key_of(value), f"@{serial}.{value.role}{value.slot}{value.index}")

        def launch(part: Part, how: Choice) -> None:
            declared = [
                (part.call.op.input(slot), i) for slot, specs in part.call.ins.items() for i in range(len(specs))
            ]
            keys = [
                None if slot is not None and slot.unread else named(value)
                for (slot, _), value in zip(declared, part.ins, strict=True)
            ]
            outputs, homes = list[Output](), Homes()
            slots = [slot for slot, specs in part.call.outs.items() for _ in specs]
            for slot_out, value in zip(slots, part.outs, strict=True):
                assert value.spec is not None
                if value.role == "out" and self._final(part, value, choice):
                    made = op.outputs.get(value.slot, [None])[value.index]
                    spec = call.outs[value.slot][value.index]
                    over = self._updates(op, part, slot_out, made, spec, choice)
                    if made is not None and (over[0] >= 0 or made.name not in op.input_arg_names):
                        outputs.append(self._output(made, spec, choice.place, homes, over))
                        values[("out", value.slot, value.index)] = outputs[-1].key
                        continue
                    written[(value.slot, value.index)] = named(value)
                outputs.append(Output(named(value), value.spec))
            self._launch(op, part.call.at(how.place), how, keys, outputs, homes)

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
    ) -> Over:
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
        later = choice.parts[choice.parts.index(part) + 1 :]
        return not any(key_of(v) == key_of(value) for p in later for v in p.outs)

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
        homes = Homes()
        for slot, specs in call.outs.items():
            declared = op.definition.output(slot)
            where = self.host if declared is not None and declared.on_host else place
            where = self.home if declared is not None and declared.run_place else where
            step.outs[slot] = []
            for made, spec in zip(op.outputs[slot], specs, strict=True):
                step.outs[slot].append(self._output(made, spec, where, homes))
                if op.definition.pure and made in self.known:  # an array may hold it: it is not written in place
                    self.known[made].borrowed = True
        for key in (*(k for keys in step.ins.values() for k in keys), *(o.key for s in step.outs.values() for o in s)):
            self._use(key)
        self.out.steps.append(step)
        for value, found in homes:
            self._home(value, found)
        if call.op.constant is not None:
            self._learn(op, call)
