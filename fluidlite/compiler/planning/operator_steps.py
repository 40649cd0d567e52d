"""Plans one operator: infers its call, selects its kernel, and adds the moves, launches and outputs that it needs."""

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
from fluidlite.compiler.planning.layout_choice import LayoutChoice, declared_layouts
from fluidlite.compiler.planning.move_minimization import Overrides
from fluidlite.compiler.planning.placement import Placement, SharedInput, WriteBacks
from fluidlite.compiler.planning.plan import Control, Output, PlanEntry
from fluidlite.compiler.selection.choice import Choice
from fluidlite.platform.device_registry import devices
from fluidlite.program.decompose import DecompositionPart, PartValue, value_key
from fluidlite.program.inference import check_inputs, inferred
from fluidlite.program.op_call import PLACEHOLDER, Call, with_location
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator import EMPTY
from fluidlite.program.registry import ops as registry
from fluidlite.program.variable_metadata import copy_operator
from fluidlite.tensor.layout import PLAIN
from fluidlite.tensor.tensor_spec import Spec


def _omitted_outputs(definition: OpDef, outs: Collection[str]) -> list[str]:
    """Required outputs that the program does not name: they are allocated all the same, as kernels may write them."""
    if definition.scalar is not None or definition.infer is None or definition.dynamic or definition.run is not None:
        return []  # the outputs of an elementwise expression are independent
    return [
        slot.name
        for slot in definition.outputs
        if not (slot.name in outs or slot.dispensable or slot.duplicable or slot.name in definition.must_alias)
    ]


def _declared_spec(value: GraphValue | None) -> Spec:
    if value is None or value.spec is None:
        name = value.name if value is not None else EMPTY
        raise ProgramError(f"the dims and dtype of its output {name!r} are not declared")
    return value.spec


class OperatorSteps(LayoutChoice):
    """Plans single operators: each adds any number of steps to the plan."""

    overrides: Overrides

    def _plan_operator(self, op: GraphOp) -> None:
        """Plan one operator; errors name it and the user's line."""
        outer = self.entry, self.entry_index
        self.entry, self.entry_index = PlanEntry(op, None, None), len(self.out.lines)
        self.out.lines.append(self.entry)
        definition = op.definition
        try:
            if definition.marker:
                self._check_fed(op)
            elif definition.run is not None:
                self._plan_control(op)
            else:
                self._plan_kernel(op)
        except ProgramError as exc:
            note = self._state_note(op)
            if note:
                exc = type(exc)(f"{exc}{note}")
            raise exc if str(op) in str(exc) else with_location(exc, str(op)) from None
        except (KernelNotFoundError, SupportsError) as exc:
            raise type(exc)(f"{exc}\n  At: {op.line}") from exc.__cause__
        except (PlaceError, DeviceUnavailable) as exc:  # of its device_guard
            raise type(exc)(f"{op}: {exc}") from None
        self.entry, self.entry_index = outer

    def _copy_before_overwrite(self, value: GraphValue) -> None:
        assert self.entry is not None
        current = self.entry.op.operator
        definition = registry.get(copy_operator(value.variable) if value.variable is not None else "assign")
        hints = {name: current.hints[name] for name in ("op_device",) if name in current.hints}  # not its other hints
        copy = GraphOp.derived_from(current, definition, {"X": [value]}, {}, hints)
        copied = GraphValue(f"{value.name}@{self.at}", value.spec, copy, None)
        copy.outputs["Out"] = [copied]
        self.last_reads[copied] = self.last_reads[value]
        self._plan_operator(copy)
        self.placements[value] = self.placements[copied]

    def _state_note(self, op: GraphOp) -> str:
        """Lines of an error message: the state that the operator reads and whose spec is not the declared one."""
        lines = ""
        for slot, values in op.inputs.items():
            for value in values:
                spec, _ = self.state.get(value.name, (None, None))
                declared = value.variable.spec if value.variable is not None else None
                if spec is not None and declared is not None and not declared.fits(spec):
                    lines += (
                        f"\n  {slot} is {value.name!r}: the scope holds {spec!r}, the program declares {declared!r}"
                    )
        return lines

    def _record_numbers(self, op: GraphOp, call: Call) -> None:
        """Record the numbers of outputs that follow from metadata alone."""
        constant = call.op.constant
        for slot, numbers in constant(call).items() if constant is not None and call.is_static else ():
            value = op.outputs[slot][0] if slot in op.outputs else None
            if numbers is not None and value is not None:
                self.numbers[value] = numbers

    def _call(self, op: GraphOp) -> Call:
        """The inferred call of an operator, cached in the operator."""
        ins: dict[str, tuple[Spec, ...]] = {}
        definition = op.definition
        for slot, values in op.inputs.items():
            specs_in = []
            for value in values:
                spec = self._placement(value).spec
                specs_in.append(spec if spec.layout is PLAIN else spec.with_(layout=PLAIN))
            if slot in definition.stated or slot in definition.tables:
                numbers = [self.numbers.get(value) for value in values]
                specs_in = [spec.with_(value=value) for spec, value in zip(specs_in, numbers, strict=True)]
            ins[slot] = tuple(specs_in)
        key = (self.place, *ins.values())
        if op.planned is not None and op.planned[0] == key:
            return op.planned[1]
        call = self._inferred(op, definition, ins)
        op.planned = key, call
        return call

    def _inferred(self, op: GraphOp, definition: OpDef, ins: Mapping[str, tuple[Spec, ...]]) -> Call:
        """Infer the outputs of a call; shared by equal calls of types that occur several times."""
        outs = {slot: (PLACEHOLDER,) * len(values) for slot, values in op.outputs.items() if any(values)}
        outs |= dict.fromkeys(_omitted_outputs(definition, outs), (PLACEHOLDER,))
        call, backward = Call(definition, ins, outs, op.attrs), op.operator.role != "forward"
        shared = op.type in self.repeated_types and definition.run is None
        shared = shared and definition.infer is not None and not definition.dynamic
        cached = self.inferred.get((call, backward)) if shared else None
        if cached is not None:
            return cached
        check_inputs(call)
        results = inferred(call) if definition.infer is not None else {}
        specs = {}
        for slot, placeholders in outs.items():
            result = results.get(slot)
            if result is None and (definition.dynamic or definition.infer is None):  # as the program declares them
                result = tuple(_declared_spec(value) for value in op.outputs[slot])
                if definition.run is not None:  # the run determines the LoD offsets
                    result = tuple(spec.with_(lod=(), lod_level=spec.lod_level) for spec in result)
            if result is None:
                raise ProgramError(f"its inference says nothing of output {slot}")
            specs[slot] = result
            if len(result) != len(placeholders):
                raise ProgramError(
                    f"output {slot} has {len(placeholders)} variables, its inference found {len(result)}"
                )
        call_with_outputs = call._alike(Call(definition, ins, specs, op.attrs, self.place, backward))
        if shared:
            self.inferred[call, backward] = call_with_outputs
        return call_with_outputs

    def _plan_kernel(self, op: GraphOp) -> None:
        """Select the kernel and the layouts of an operator, and add its launch."""
        call = self._call(op)
        definition = call.op
        device = op.operator.hints.get("op_device")
        target = devices.unit(device).place if device else self.place
        if definition.unmoved:
            self._check_unmoved(op, target)
        override = self.overrides.get(id(op))
        in_layout = self._call_in_layout(op, call, target) if override is None else None
        if in_layout is not None:
            choice = in_layout.choice
        else:
            choice = self._plain_choice(op, call, target) if override is None else override
        assert self.entry is not None
        self.entry.call, self.entry.choice = call, choice
        if choice.parts:
            self._plan_parts(op, call, choice)
            self._record_numbers(op, call)
            return
        keys: list[str | None] = []
        layouts = in_layout.layouts if in_layout is not None else declared_layouts(call, choice)
        for slot, values in op.inputs.items():
            declared = definition.input(slot) if slot in definition.non_kernel_slots else None
            for value in values:
                if declared is None:
                    keys.append(self._key_at(value, choice.place, layouts.get(slot, PLAIN)))
                else:
                    keys.append(None if declared.unread else self._key_at(value, self.host))
        placed = in_layout.call if in_layout is not None else self._call_with_layouts(op, call, layouts)
        outputs, write_backs = list[Output](), WriteBacks()
        for slot, specs in call.outs.items():
            for output, plain in zip(op.outputs.get(slot, [None]), specs, strict=True):
                spec = plain.with_(layout=layouts.get(slot) or PLAIN) if layouts else plain
                shared_input = self._shared_input(op, placed, slot, output, spec, choice)
                outputs.append(self._declare_output(output, spec, choice.place, write_backs, shared_input))
        self._add_launch(op, placed.at(choice.place), choice, keys, outputs, write_backs, in_layout is not None)
        self._record_numbers(op, call)

    def _plan_parts(self, op: GraphOp, call: Call, choice: Choice) -> None:
        """Add a launch for each part of a decomposition."""
        values: dict[tuple[str, str, int], str] = {}
        self.serial += 1
        serial = self.serial
        copied_outputs: dict[tuple[str, int], str] = {}

        def key_for(value: PartValue) -> str:
            if value.role == "in":
                return self._key_at(op.inputs[value.slot][value.index], choice.place)
            return values.setdefault(value_key(value), f"@{serial}.{value.role}{value.slot}{value.index}")

        def launch(part: DecompositionPart, part_choice: Choice) -> None:
            declared = [
                (part.call.op.input(slot), i) for slot, specs in part.call.ins.items() for i in range(len(specs))
            ]
            keys = [
                None if slot is not None and slot.unread else key_for(value)
                for (slot, _), value in zip(declared, part.ins, strict=True)
            ]
            outputs, write_backs = list[Output](), WriteBacks()
            slots = [slot for slot, specs in part.call.outs.items() for _ in specs]
            for slot_out, value in zip(slots, part.outs, strict=True):
                assert value.spec is not None
                if value.role == "out" and self._is_final(part, value, choice):
                    output = op.outputs.get(value.slot, [None])[value.index]
                    spec = call.outs[value.slot][value.index]
                    shared_input = self._updated_input(op, part, slot_out, output, spec, choice)
                    if output is not None and (shared_input[0] >= 0 or output.name not in op.input_arg_names):
                        outputs.append(self._declare_output(output, spec, choice.place, write_backs, shared_input))
                        values[("out", value.slot, value.index)] = outputs[-1].key
                        continue
                    copied_outputs[(value.slot, value.index)] = key_for(value)
                outputs.append(Output(key_for(value), value.spec))
            self._add_launch(op, part.call.at(part_choice.place), part_choice, keys, outputs, write_backs)

        for part, part_choice in zip(choice.parts, choice.part_choices, strict=True):
            launch(part, part_choice)
        for (slot, i), key in copied_outputs.items():  # an output that is also an input is written to another key
            out = op.outputs.get(slot, [None])[i]
            if out is not None:
                self.placements[out] = Placement(call.outs[slot][i], choice.place, key, {})
                if out.state is not None:
                    self._write_back(out, self.placements[out])

    def _updated_input(
        self, op: GraphOp, part: DecompositionPart, slot: str, output: GraphValue | None, spec: Spec, choice: Choice
    ) -> SharedInput:
        """The part's input that is the output's own variable, if it may be updated in place: no later part reads it."""
        input_slot = part.call.op.must_alias.get(slot)
        own = next((value for value in op.args if output is not None and value.name == output.name), None)
        if input_slot is None or not part.call.has(input_slot) or own is None:
            return -1, None
        position = part.call.index[input_slot]

        def is_own(value: PartValue) -> bool:
            return value.role == "in" and op.inputs[value.slot][value.index] is own

        later = choice.parts[choice.parts.index(part) + 1 :]
        reads = [is_own(value) for value in part.ins]
        if not reads[position] or sum(reads) > 1 or any(is_own(value) for p in later for value in p.ins):
            return -1, None
        placement = self.placements[own]
        if placement.borrowed or placement.spec.with_(lod=()) != spec.with_(lod=()):
            return -1, None
        if self.last_reads[own] > self.at:
            self._copy_before_overwrite(own)
        return position, placement

    def _is_final(self, part: DecompositionPart, value: PartValue, choice: Choice) -> bool:
        later = choice.parts[choice.parts.index(part) + 1 :]
        return not any(value_key(v) == value_key(value) for p in later for v in p.outs)

    def _check_fed(self, op: GraphOp) -> None:
        """Raise FeedError unless the outputs of a marker are fed; a marker adds no step."""
        for value in op.results:
            fed = self._feed_placement(value)
            if fed is None and value.variable is not None and not value.variable.is_data and not self.assume_state:
                raise FeedError(f"variable {value.name!r} is to be fed\n  Do: exe.run(feed={{{value.name!r}: array}})")

    def _plan_control(self, op: GraphOp) -> None:
        """Add the step of a control-flow or host-callback operator."""
        step = Control(op, self.entry_index)
        call = self._call(op)
        place = self.place
        for slot, values in op.inputs.items():
            declared = op.definition.input(slot)
            if declared is not None and declared.metadata_only:
                step.ins[slot] = []
                continue
            on_host = declared is not None and declared.on_host
            places = [self.host if on_host else self._placement(value).place for value in values]
            if declared is not None and declared.run_place:
                places = [self.place] * len(values)
            step.ins[slot] = [self._key_at(value, at) for value, at in zip(values, places, strict=True)]
            place = places[0] if places and slot == op.definition.inputs[0].name else place
        write_backs = WriteBacks()
        for slot, specs in call.outs.items():
            declared = op.definition.output(slot)
            output_place = self.host if declared is not None and declared.on_host else place
            output_place = self.place if declared is not None and declared.run_place else output_place
            step.outs[slot], step.places[slot] = [], output_place
            for output, spec in zip(op.outputs[slot], specs, strict=True):
                step.outs[slot].append(self._declare_output(output, spec, output_place, write_backs))
                if op.definition.pure and output in self.placements:  # an array may contain it: it is not overwritten
                    self.placements[output].borrowed = True
        for key in (*(k for keys in step.ins.values() for k in keys), *(o.key for s in step.outs.values() for o in s)):
            self._record_use(key)
        self.out.steps.append(step)
        for value, placement in write_backs:
            self._write_back(value, placement)
        self._record_numbers(op, call)
