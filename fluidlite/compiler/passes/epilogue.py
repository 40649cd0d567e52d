"""Epilogues: what is computed of each element of a product is computed where the product is stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from fluidlite.base.errors import FluidError
from fluidlite.codegen.elementwise_form import elementwise_form_of
from fluidlite.codegen.epilogue import ACCUMULATE, product_with, unfit
from fluidlite.codegen.fused_code import OUTSIDE, Source
from fluidlite.compiler.ir.fused import FusedPart, FusedStructure, fused_op
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.passes.fuse_dims import GenericDims, generic_dims
from fluidlite.compiler.passes.joined import lines_of, made_of
from fluidlite.compiler.selection.kernel_selection import choose
from fluidlite.compiler.selection.refusals import capability_refusal, device_veto, refuse
from fluidlite.platform.device_registry import Unit, devices
from fluidlite.program.contents import Attributes
from fluidlite.program.epilogue import THEN, product_call, then_call
from fluidlite.program.kernel_registry import Kernel, kernels
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator import MADE_OF
from fluidlite.program.registry import ops


class FuseEpilogues(GraphPass):
    """A product takes over the elementwise operator that alone reads its result, if its kernel on the place can.

    Which expressions a library takes is its own to say: one that adds to what is there takes sums, one that is
    generated takes any. A step with momentum becomes a product that adds to the velocity, and what follows it.
    """

    phase = "fuse"

    def do_pass(self, graph: Graph) -> None:
        """Go through the products, last ones first: of two in one sum, the later adds to the earlier."""
        able = {kernel.op for kernel in kernels if kernel.epilogue}
        products = [op for op in graph.ops if op.type in able]
        if not products:
            return
        dims = generic_dims(graph)
        for op in reversed(products):
            _Joint(graph, dims, op).join()


class _Then(NamedTuple):
    """An elementwise operator whose slots take one value each."""

    definition: OpDef
    inputs: Mapping[str, GraphValue]
    outputs: Mapping[str, GraphValue]
    attrs: Mapping[str, object]


def _then_of(op: GraphOp) -> _Then | None:
    """An operator as an elementwise one, or None."""
    own = op.definition
    if "op_library" in op.operator.hints or own.random or own.host_only or own.may_act:
        return None
    outputs = {slot: values[0] for slot, values in op.outputs.items() if values[0] is not None}
    if {*map(len, op.outputs.values())} != {1}:
        return None
    if own.scalar is not None and {*map(len, op.inputs.values())} == {1}:
        return _Then(own, {slot: values[0] for slot, values in op.inputs.items()}, outputs, op.attrs)
    form = elementwise_form_of(own, len(op.args))
    if form is None or own.type == "assign" or len(op.inputs) != 1:
        return None
    (slot,) = op.inputs
    if len(form.inputs) != len(op.args) or form.input(f"{slot}[0]") is None:
        return None
    sources = tuple((f"{slot}[{k}]", Source(OUTSIDE, f"X{k}")) for k in range(len(op.args)))
    part = FusedPart(form, tuple((attr.name, op.attrs[attr.name]) for attr in form.attrs), sources, tuple(outputs))
    stored = tuple(Source(0, each) for each in outputs)
    definition = fused_op(FusedStructure((part,), (True,) * len(op.args), (), stored))
    made = {f"Out{k}": value for k, value in enumerate(outputs.values())}
    return _Then(definition, {f"X{k}": value for k, value in enumerate(op.args)}, made, {})


class _Joint:
    """One product, and what reads it."""

    def __init__(self, graph: Graph, dims: GenericDims, op: GraphOp) -> None:
        self.graph, self.dims, self.op = graph, dims, op
        self.operator = op.operator
        self.unit: Unit = devices.unit(op.operator.hints.get("op_device") or graph.place)

    def join(self) -> None:
        """Take over what can be taken over."""
        made = self.op.results
        if len(made) != 1 or made[0].state is not None or self.graph.is_result(made[0]):
            return
        (value,) = made
        readers = self.graph.readers(value)
        if len(readers) != 1 or readers[0].args.count(value) != 1:
            return
        (reader,) = readers
        if reader.hints.get("op_device") != self.op.operator.hints.get("op_device"):
            return
        then = _then_of(reader)
        if then is None or not self._may_wait(reader):
            return
        given = next(slot for slot, each in then.inputs.items() if each is value)
        declared = then.definition.input(given)
        if declared is None or declared.unread or given in then.definition.must_alias.values():
            return
        whole = self._whole(then, given, value)
        if whole is not None:
            self._put(reader, [whole])
        elif reader.type == "momentum":
            self._step(reader, value)

    def _may_wait(self, reader: GraphOp) -> bool:
        """Whether the product may run as late as its reader: nothing between writes a variable that it reads."""
        names = {value.name for value in self.op.args}
        ops = self.graph.ops
        between = ops[ops.index(self.op) + 1 : ops.index(reader)]
        return names.isdisjoint([value.name for op in between for value in op.results])

    # The operator

    def _whole(self, then: _Then, read: str, value: GraphValue) -> GraphOp | None:
        """The product with an operator behind it; None if no kernel takes it."""
        definition, attrs = then.definition, then.attrs
        (out,) = [slot for slot, values in self.op.outputs.items() if value in values]
        reads = [slot for slot in then.inputs if slot != read]
        specs = self.dims.specs(then.inputs)
        outs = self.dims.specs(then.outputs)
        if specs is None or outs is None:
            return None
        inputs = {slot: f"With{k}" for k, slot in enumerate(reads)}
        outputs = {slot: f"Out{k}" for k, slot in enumerate(then.outputs)}
        must = tuple(
            (outputs[o], inputs[i])
            for o, i in definition.must_alias.items()
            if o in outputs and i in inputs and then.inputs[i].name == then.outputs[o].name
        )
        operands = {value.name for value in self.op.args}
        if any(then.inputs[slot].name in operands for slot, whole in inputs.items() if whole in dict(must).values()):
            return None  # it would be overwritten while the product reads it
        made = product_with(
            self.operator.definition,
            out,
            definition,
            read,
            reads,
            list(then.outputs),
            must,
            self._may_share(then, inputs, outputs, must, operands),
        )
        all_attrs = {**self.op.attrs, **{THEN + name: value for name, value in attrs.items()}}
        all_attrs = {attr.name: all_attrs[attr.name] for attr in made.attrs}
        product = self.dims.grouped(self.op.inputs)
        if product is None:
            return None
        ins = product | {inputs[slot]: specs[slot] for slot in reads}
        call = Call(made, ins, {outputs[slot]: spec for slot, spec in outs.items()}, all_attrs, self.unit.place)
        spec = self.dims.spec(value)
        if spec is not None:  # else it is inferred
            call.found[product_call] = Call(self.op.definition, product, {out: (spec,)}, self.op.attrs, call.place)
        kernel = self._kernel_of(call)
        if kernel is None:
            return None
        values = {
            **{slot: list(vs) for slot, vs in self.op.inputs.items()},
            **{inputs[slot]: [then.inputs[slot]] for slot in reads},
        }
        whole = GraphOp.derived_from(self.operator, made, values, all_attrs, {})
        whole.outputs = {outputs[slot]: [each] for slot, each in then.outputs.items()}
        return whole if refuse(kernel, whole.call(self.unit.place), self.unit) is None else None  # in any run

    def _may_share(
        self,
        then: _Then,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        must: Sequence[tuple[str, str]],
        operands: Collection[str],
    ) -> tuple[tuple[str, str], ...]:
        """Pair outputs with inputs of equal dims and dtype; those that nothing else reads first."""
        taken, found = {given for _, given in must}, []
        for slot, value in then.outputs.items():
            if any(outputs[slot] == out for out, _ in must):
                continue
            fits = [
                (value.state != each.state if each.state is not None else len(self.graph.readers(each)) > 1, name)
                for given, name in inputs.items()
                if name not in taken
                and (each := then.inputs[given]).spec == value.spec
                and self.dims.dims(each) == self.dims.dims(value)
                and each.name not in operands
            ]
            if fits:
                taken.add(min(fits)[1])
                found.append((outputs[slot], min(fits)[1]))
        return tuple(found)

    def _kernel_of(self, call: Call) -> Kernel | None:
        """The kernel that would compute the product, if it takes the whole."""
        place = self.unit.place
        try:
            if unfit(call) is not None:
                return None
            plain = choose(self.op.call(place), place, self.graph.policy)
        except FluidError:  # its dims fit nothing known, or it cannot run here: it says so when it is planned
            return None
        kernel = plain.kernel
        if kernel is None or not kernel.epilogue or plain.place != place:
            return None
        reason = refuse(kernel, call, self.unit)
        reason = reason or capability_refusal(plain.capability, call, self.unit)
        if reason is None and plain.capability:
            reason = device_veto(then_call(call), self.unit)
        return kernel if reason is None else None

    def _put(self, reader: GraphOp, ops: list[GraphOp]) -> None:
        """Put operators where the reader was; the product goes."""
        both = self.operator, reader.operator
        first = ops[0].operator
        first.line, first.id, first.role = lines_of(both), reader.operator.id, reader.operator.role
        device = {name: value for name, value in both[1].hints.items() if name == "op_device"}
        first._hints = Attributes({**first.hints, **device, MADE_OF: made_of(both)})
        self.graph.exchange((self.op, reader), ops)

    # Momentum

    def _step(self, reader: GraphOp, grad: GraphValue) -> None:
        """Let a product add to the velocity, and take the step after it."""
        attrs, outs = reader.attrs, reader.outputs
        velocity, speed = reader.inputs["Velocity"][0], outs["VelocityOut"][0]
        param = outs["ParamOut"][0]
        if attrs["use_nesterov"] or attrs["regularization_method"] or speed is None or param is None:
            return
        if velocity.name != speed.name or velocity.spec != grad.spec:
            return
        then = _Then(ACCUMULATE, {"X": velocity, "Given": grad}, {"Out": speed}, {"scale": attrs["mu"]})
        whole = self._whole(then, "Given", grad)
        if whole is None:
            return
        inputs = {"Param": reader.inputs["Param"], "Grad": [speed], "LearningRate": reader.inputs["LearningRate"]}
        step = GraphOp.derived_from(reader.operator, ops.get("sgd"), inputs, {}, reader.hints)
        step.outputs = {"ParamOut": [param]}
        self._put(reader, [whole, step])
