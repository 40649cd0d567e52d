"""Epilogue fusion: a matmul or a convolution computes the elementwise operator that reads its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fluidlite.base.errors import FluidError
from fluidlite.codegen.elementwise_form import elementwise_form_of
from fluidlite.codegen.epilogue import ACCUMULATE, epilogue_mismatch, product_with
from fluidlite.codegen.fused_code import OUTSIDE, PartSource
from fluidlite.compiler.ir.fused import FusedPart, FusedStructure, fused_op
from fluidlite.compiler.ir.graph import Graph, unit_of
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.passes.fuse_dims import GenericDims, generic_dims
from fluidlite.compiler.passes.fused_group import alias_pairs, lines_of, original_operators
from fluidlite.compiler.selection.kernel_selection import select_kernel
from fluidlite.compiler.selection.refusals import capability_refusal, device_veto, kernel_refusal
from fluidlite.program.contents import Attributes
from fluidlite.program.epilogue import ELEMENTWISE_PREFIX, product_call, then_call
from fluidlite.program.kernel_registry import Kernel, kernels
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator import FUSED_OPERATORS
from fluidlite.program.registry import ops


class FuseEpilogues(GraphPass):
    """A matmul or convolution computes the elementwise operator that is the only reader of its result.

    The kernel of its place decides which expressions it supports: a GEMM with beta supports sums, a generated kernel
    any expression. A momentum update becomes a matmul that accumulates into the velocity, followed by a plain step.
    """

    phase = "fuse"

    def do_pass(self, graph: Graph) -> None:
        """Process the products in reverse order: of two products in one sum, the later accumulates into the earlier."""
        types_with_epilogue = {kernel.op for kernel in kernels if kernel.epilogue}
        products = [op for op in graph.ops if op.type in types_with_epilogue]
        if not products:
            return
        dims = generic_dims(graph)
        for op in reversed(products):
            _EpilogueFusion(graph, dims, op).fuse()


class _Epilogue(NamedTuple):
    """An elementwise operator with one value in each slot."""

    definition: OpDef
    inputs: Mapping[str, GraphValue]
    outputs: Mapping[str, GraphValue]
    attrs: Mapping[str, object]


def _epilogue_of(op: GraphOp) -> _Epilogue | None:
    """An operator in elementwise form; None if it has none."""
    own = op.definition
    if "op_library" in op.operator.hints or own.random or own.host_only or own.may_act:
        return None
    outputs = {slot: values[0] for slot, values in op.outputs.items() if values[0] is not None}
    if {*map(len, op.outputs.values())} != {1}:
        return None
    if own.scalar is not None and {*map(len, op.inputs.values())} == {1}:
        return _Epilogue(own, {slot: values[0] for slot, values in op.inputs.items()}, outputs, op.attrs)
    form = elementwise_form_of(own, len(op.args))
    if form is None or own.type == "assign" or len(op.inputs) != 1:
        return None
    (slot,) = op.inputs
    if len(form.inputs) != len(op.args) or form.input(f"{slot}[0]") is None:
        return None
    sources = tuple((f"{slot}[{k}]", PartSource(OUTSIDE, f"X{k}")) for k in range(len(op.args)))
    part = FusedPart(form, tuple((attr.name, op.attrs[attr.name]) for attr in form.attrs), sources, tuple(outputs))
    stored = tuple(PartSource(0, each) for each in outputs)
    definition = fused_op(FusedStructure((part,), (True,) * len(op.args), (), stored))
    results = {f"Out{k}": value for k, value in enumerate(outputs.values())}
    return _Epilogue(definition, {f"X{k}": value for k, value in enumerate(op.args)}, results, {})


class _EpilogueFusion:
    """Fuses one product with its reader."""

    def __init__(self, graph: Graph, dims: GenericDims, op: GraphOp) -> None:
        self.graph, self.dims, self.op = graph, dims, op
        self.operator = op.operator
        self.unit = unit_of(graph, op)

    def fuse(self) -> None:
        """Fuse the product with its only reader, if a kernel supports it."""
        results = self.op.results
        if len(results) != 1 or results[0].state is not None or self.graph.is_result(results[0]):
            return
        (value,) = results
        readers = self.graph.readers(value)
        if len(readers) != 1 or readers[0].args.count(value) != 1:
            return
        (reader,) = readers
        if reader.hints.get("op_device") != self.op.operator.hints.get("op_device"):
            return
        epilogue = _epilogue_of(reader)
        if epilogue is None or not self._can_be_delayed(reader):
            return
        read_slot = next(slot for slot, each in epilogue.inputs.items() if each is value)
        declared = epilogue.definition.input(read_slot)
        if declared is None or declared.unread or read_slot in epilogue.definition.must_alias.values():
            return
        fused = self._fused_operator(epilogue, read_slot, value)
        if fused is not None:
            self._replace(reader, [fused])
        elif reader.type == "momentum":
            self._fuse_momentum(reader, value)

    def _can_be_delayed(self, reader: GraphOp) -> bool:
        """Whether the product may run at the position of its reader: no operator between writes its operands."""
        names = {value.name for value in self.op.args}
        ops = self.graph.ops
        between = ops[ops.index(self.op) + 1 : ops.index(reader)]
        return names.isdisjoint([value.name for op in between for value in op.results])

    # The fused operator

    def _fused_operator(self, epilogue: _Epilogue, read: str, value: GraphValue) -> GraphOp | None:
        """The product with the reader as its epilogue; None if no kernel supports it."""
        reader_op, attrs = epilogue.definition, epilogue.attrs
        (out,) = [slot for slot, values in self.op.outputs.items() if value in values]
        reads = [slot for slot in epilogue.inputs if slot != read]
        specs = self.dims.specs(epilogue.inputs)
        outs = self.dims.specs(epilogue.outputs)
        if specs is None or outs is None:
            return None
        inputs = {slot: f"With{k}" for k, slot in enumerate(reads)}
        outputs = {slot: f"Out{k}" for k, slot in enumerate(epilogue.outputs)}
        must = tuple(
            (outputs[o], inputs[i])
            for o, i in reader_op.must_alias.items()
            if o in outputs and i in inputs and epilogue.inputs[i].name == epilogue.outputs[o].name
        )
        operands = {value.name for value in self.op.args}
        if any(epilogue.inputs[slot].name in operands for slot, name in inputs.items() if name in dict(must).values()):
            return None  # the product would read it while it is overwritten
        may = alias_pairs(
            {outputs[slot]: each for slot, each in epilogue.outputs.items() if outputs[slot] not in dict(must)},
            {inputs[slot]: epilogue.inputs[slot] for slot in reads if epilogue.inputs[slot].name not in operands},
            dict(must).values(),
            self.dims,
            self._ends,
        )
        definition = product_with(
            self.operator.definition,
            out,
            reader_op,
            read,
            reads,
            list(epilogue.outputs),
            must,
            tuple(may.items()),
        )
        all_attrs = {**self.op.attrs, **{ELEMENTWISE_PREFIX + name: value for name, value in attrs.items()}}
        all_attrs = {attr.name: all_attrs[attr.name] for attr in definition.attrs}
        product = self.dims.slot_specs(self.op.inputs)
        if product is None:
            return None
        ins = product | {inputs[slot]: specs[slot] for slot in reads}
        call = Call(definition, ins, {outputs[slot]: spec for slot, spec in outs.items()}, all_attrs, self.unit.place)
        spec = self.dims.spec(value)
        if spec is not None:  # otherwise it is inferred
            call.cache[product_call] = Call(self.op.definition, product, {out: (spec,)}, self.op.attrs, call.place)
        kernel = self._supporting_kernel(call)
        if kernel is None:
            return None
        values = {
            **{slot: list(vs) for slot, vs in self.op.inputs.items()},
            **{inputs[slot]: [epilogue.inputs[slot]] for slot in reads},
        }
        fused = GraphOp.derived_from(self.operator, definition, values, all_attrs, {})
        fused.outputs = {outputs[slot]: [each] for slot, each in epilogue.outputs.items()}
        reason = kernel_refusal(kernel, fused.call(self.unit.place), self.unit)  # with unknown dims
        return fused if reason is None else None

    def _ends(self, source: GraphValue, value: GraphValue) -> bool:
        """Whether an input has no other readers, or is the state that an output overwrites."""
        return source.state == value.state if source.state is not None else len(self.graph.readers(source)) <= 1

    def _supporting_kernel(self, call: Call) -> Kernel | None:
        """The kernel of the plain product, if it supports the fused call; else None."""
        place = self.unit.place
        try:
            if epilogue_mismatch(call) is not None:
                return None
            plain = select_kernel(self.op.call(place), place, self.graph.policy)
        except FluidError:  # wrong dims, or no kernel here: the planner raises the error
            return None
        kernel = plain.kernel
        if kernel is None or not kernel.epilogue or plain.place != place:
            return None
        reason = kernel_refusal(kernel, call, self.unit)
        reason = reason or capability_refusal(plain.capability, call, self.unit)
        if reason is None and plain.capability:
            reason = device_veto(then_call(call), self.unit)
        return kernel if reason is None else None

    def _replace(self, reader: GraphOp, ops: list[GraphOp]) -> None:
        """Replace the product and its reader by operators at the position of the reader."""
        both = self.operator, reader.operator
        first = ops[0].operator
        first.line, first.id, first.role = lines_of(both), reader.operator.id, reader.operator.role
        device = {name: value for name, value in both[1].hints.items() if name == "op_device"}
        first._hints = Attributes({**first.hints, **device, FUSED_OPERATORS: original_operators(both)})
        self.graph.exchange((self.op, reader), ops)

    # Momentum

    def _fuse_momentum(self, reader: GraphOp, grad: GraphValue) -> None:
        """Let the product accumulate into the velocity, followed by the update of the parameter."""
        attrs, outs = reader.attrs, reader.outputs
        velocity, updated = reader.inputs["Velocity"][0], outs["VelocityOut"][0]
        param = outs["ParamOut"][0]
        if attrs["use_nesterov"] or attrs["regularization_method"] or updated is None or param is None:
            return
        if velocity.name != updated.name or velocity.spec != grad.spec:
            return
        epilogue = _Epilogue(ACCUMULATE, {"X": velocity, "Product": grad}, {"Out": updated}, {"scale": attrs["mu"]})
        fused = self._fused_operator(epilogue, "Product", grad)
        if fused is None:
            return
        inputs = {"Param": reader.inputs["Param"], "Grad": [updated], "LearningRate": reader.inputs["LearningRate"]}
        step = GraphOp.derived_from(reader.operator, ops.get("sgd"), inputs, {}, reader.hints)
        step.outputs = {"ParamOut": [param]}
        self._replace(reader, [fused, step])
