"""Fused operators: an operator, defined at compile time, that computes a group of operators.

Its expression is the composition of the group's expressions; kernels are generated from it as from any expression. It
decomposes into the group for calls that have no such kernel. Where the group computes the same elements, elementwise,
it also has a scalar rule: a matmul can compute it as its epilogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, NoReturn, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from fluidlite.base.errors import ProgramError
from fluidlite.base.fork import new_lock
from fluidlite.base.lru_cache import LRUCache
from fluidlite.codegen.domain import Domain, domain_of
from fluidlite.codegen.expr import parameters
from fluidlite.codegen.fused_code import NUMBER, OUTSIDE, FusedConstant, PartCode, PartSource, merge
from fluidlite.codegen.lower import typed_of
from fluidlite.codegen.typed import Typed
from fluidlite.expr.called import inlined_outputs
from fluidlite.expr.tensor import Tensor, cast
from fluidlite.expr.views import full
from fluidlite.program.inference import check_inputs
from fluidlite.program.layout_rewrite import LayoutRewrite, call_in_layout
from fluidlite.program.op_call import PLACEHOLDER, Call, cached_in_call
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.registry import ops
from fluidlite.program.rules import ExpressionRule, ScalarRule
from fluidlite.tensor.layout import Layout
from fluidlite.tensor.tensor_spec import Dims, Spec, specs_of

Value = TypeVar("Value")


RUNTIME = object()
"""Placeholder of a float attribute whose number is an argument of kernels."""


class FusedPart(NamedTuple):
    """One operator of a fused operator.

    ``attrs``: names and values in the definition's order; a float that is an argument of kernels is RUNTIME here, and
    an attribute of the fused operator.
    ``sources``: the source of each input slot, also of slots that are read for their metadata alone.
    ``outs``: its output slots; ``dtypes``: the dtypes in which these are stored, () if as computed.
    """

    op: OpDef
    attrs: tuple[tuple[str, Any], ...]
    sources: tuple[tuple[str, PartSource], ...]
    outs: tuple[str, ...]
    dtypes: tuple[str, ...] = ()

    def operands(self, values: Mapping[PartSource, Value]) -> dict[str, tuple[Value, ...]]:
        """Its operands by slot; the sources of a slot with several operands are named ``X[0]``, ``X[1]``, ..."""
        operands: dict[str, tuple[Value, ...]] = {}
        for name, source in self.sources:
            slot = name if self.op.input(name) is not None else name.partition("[")[0]
            operands[slot] = (*operands.get(slot, ()), values[source])
        return operands


@dataclass(frozen=True)
class FusedStructure:
    """The definition of a fused operator, independent of variables, sizes and float attributes.

    ``parts``: its operators in topological order.
    ``reads``: for each input (``X0``, ``X1``, ...) whether a part reads its elements; else only its dims are used.
    ``outputs``: the values that are materialized, as ``Out0``, ``Out1``, ...
    ``must_alias``, ``may_alias``: pairs of output slot and input slot.
    """

    parts: tuple[FusedPart, ...]
    reads: tuple[bool, ...]
    numbers: tuple[FusedConstant, ...]
    outputs: tuple[PartSource, ...]
    must_alias: tuple[tuple[str, str], ...] = ()
    may_alias: tuple[tuple[str, str], ...] = ()

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """The key of the operator cache: 1, 1.0 and True are different attributes."""
        parts = [
            (id(p.op), tuple([(name, type(v).__name__, v) for name, v in p.attrs]), p.sources, p.outs, p.dtypes)
            for p in self.parts
        ]
        numbers = tuple(map(repr, self.numbers))
        return (tuple(parts), self.reads, numbers, self.outputs, self.must_alias, self.may_alias)


_definitions: WeakValueDictionary[tuple[Any, ...], OpDef] = WeakValueDictionary()
_fused_ops: WeakKeyDictionary[OpDef, _FusedOp] = WeakKeyDictionary()
_lock = new_lock()


def fused_op(structure: FusedStructure) -> OpDef:
    """Return the operator of a structure; equal structures share one operator as long as it is in use."""
    with _lock:
        definition = _definitions.get(structure.key)
        if definition is None:
            fused = _FusedOp(structure)
            definition = _definitions[structure.key] = fused.definition()
            _fused_ops[definition] = fused
    return definition


def runtime_attrs(op: OpDef, attrs: Mapping[str, Any]) -> dict[str, float]:
    """The float attributes that an operator's expression takes as arguments of kernels."""
    floats = {
        attr.name: attrs[attr.name]
        for attr in op.attrs
        if attr.type == "float" and not attr.static and attrs[attr.name] is not None
    }
    if op.scalar is None or op.scalar.code is not None:
        return floats
    parameter_names = {name.rstrip("_") for name in parameters(op.scalar.function)[1]}
    return {name: value for name, value in floats.items() if name.rstrip("_") in parameter_names}


class _PartCalls(NamedTuple):
    """The calls of the parts of a fused call, and the specs of all values."""

    calls: tuple[Call, ...]
    specs: Mapping[PartSource, Spec]


class _FusedOp:
    """One fused operator: its definition, and the functions to which the definition refers."""

    def __init__(self, structure: FusedStructure) -> None:
        self.structure = structure
        self.slots = tuple([f"X{k}" for k in range(len(structure.reads))])
        self.outs = {f"Out{k}": source for k, source in enumerate(structure.outputs)}
        self.part_calls_cache: LRUCache[_PartCalls] = LRUCache(64, "parts of fused calls", 1 << 20)

    def definition(self) -> OpDef:
        structure = self.structure
        attrs = [
            Attr(f"{index}.{attr.name}", "float")
            for index, part in enumerate(structure.parts)
            for attr, (_, value) in zip(part.op.attrs, part.attrs, strict=True)
            if value is RUNTIME
        ]
        attrs += [Attr(f"number.{k}", "float") for k, each in enumerate(structure.numbers) if each.value is None]
        inputs = [Slot(s, metadata_only=not r) for s, r in zip(self.slots, structure.reads, strict=True)]
        operators = [part.op for part in structure.parts]
        scalar = ScalarRule(_untraced, tuple(self.outs), self.supports, code=self.code, domain=self.domain)
        count = sum([(op.expression.operators if op.expression is not None else 0) or 1 for op in operators])
        return OpDef(
            fused_type([op.type for op in operators]),
            tuple(inputs),
            tuple(map(Slot, self.outs)),
            tuple(attrs),
            infer=self.infer,
            scalar=scalar if all([op.scalar is not None and op not in _fused_ops for op in operators]) else None,
            expression=ExpressionRule(self.tensors, operators=count),
            decompose=self.decompose,
            may_alias=dict(structure.may_alias),
            must_alias=dict(structure.must_alias),
            random=any([part.op.random and part.op.draws(dict(part.attrs)) for part in structure.parts]),
            in_layout=self.in_layout,
            doc="; ".join([op.doc or op.type for op in operators]),
            origin="made by fusion",
        )

    # The parts of a call

    def part_calls(self, call: Call) -> _PartCalls:
        """Infer the calls of the parts, cached."""
        key = (tuple(call.ins.items()), call.training, tuple(call.attrs.items()))
        return self.part_calls_cache.get(key, lambda: self._infer_parts(call))

    def _infer_parts(self, call: Call) -> _PartCalls:
        specs = {PartSource(OUTSIDE, slot): each[0] for slot, each in call.ins.items()}
        for k, constant in enumerate(self.structure.numbers):
            specs[PartSource(NUMBER, str(k))] = Spec.of(constant.dims, constant.dtype)
        calls = []
        for index, part in enumerate(self.structure.parts):
            ins = part.operands(specs)
            part_call = Call(part.op, ins, dict.fromkeys(part.outs, (PLACEHOLDER,)), self._attrs(index, call.attrs))
            assert part.op.infer is not None
            try:
                check_inputs(part_call)
                results = part.op.infer(part_call)
            except ProgramError as exc:
                raise type(exc)(f"its {part.op.type}: {exc}") from None
            outs = {}
            for slot in part.outs:
                output_specs = results[slot]
                outs[slot] = specs_of(output_specs)
                specs[PartSource(index, slot)] = outs[slot][0]
            calls.append(Call(part.op, ins, outs, part_call.attrs, None, call.training))
        return _PartCalls(tuple(calls), specs)

    def _attrs(self, index: int, attrs: Mapping[str, Any]) -> dict[str, Any]:
        part_attrs = self.structure.parts[index].attrs
        return {name: attrs[f"{index}.{name}"] if value is RUNTIME else value for name, value in part_attrs}

    def tensors(self, inputs: Mapping[str, Sequence[Tensor]], attrs: Mapping[str, Any]) -> dict[str, Tensor]:
        """The composed expression of all parts; values between parts are rounded to their stored dtypes.

        Raises ProgramError if a part has no expression.
        """
        values = {PartSource(OUTSIDE, slot): tensors[0] for slot, tensors in inputs.items() if tensors}
        for k, constant in enumerate(self.structure.numbers):
            value = attrs[f"number.{k}"] if constant.value is None else constant.value
            values[PartSource(NUMBER, str(k))] = full(constant.dims, value, constant.dtype)
        for index, part in enumerate(self.structure.parts):
            operands, nested = part.operands(values), _fused_ops.get(part.op)
            attributes = self._attrs(index, attrs)
            if nested is not None:
                outputs: Mapping[str, Tensor] = nested.tensors(operands, attributes)
            else:
                op = ops.find(part.op.type) or part.op
                if part.op.input("X[0]") is not None:  # an elementwise form has one slot for each operand
                    operands = {"X": tuple(x for tensors in operands.values() for x in tensors)}
                outputs = inlined_outputs(op, operands, attributes, draws=True)
            dtypes = part.dtypes or tuple(outputs[slot].dtype for slot in part.outs)
            values |= {PartSource(index, s): cast(outputs[s], d) for s, d in zip(part.outs, dtypes, strict=True)}
        return {slot: values[source] for slot, source in self.outs.items()}

    # Functions of the definition

    def infer(self, call: Call) -> dict[str, Spec]:
        specs = self.part_calls(call).specs
        return {slot: specs[source] for slot, source in self.outs.items() if call.has(slot)}

    def code(self, call: Call) -> Typed:
        part_calls = self.part_calls(call)
        parts = [
            PartCode(typed_of(each), dict(part.sources))
            for each, part in zip(part_calls.calls, self.structure.parts, strict=True)
        ]
        outputs = [(slot, source) for slot, source in self.outs.items() if call.has(slot)]
        return merge(parts, self.structure.numbers, outputs)

    def domain(self, call: Call) -> Domain:
        """The index domain of all parts, and the axes of each operand in it.

        Raises ProgramError if the parts have different domains.
        """
        domain = _domain_of_parts(call)
        if isinstance(domain, str):
            raise ProgramError(domain)
        return domain

    def supports(self, call: Call) -> str | None:
        """Why the parts of a call have different domains; None if they have one, or dims are not known yet."""
        if not call.is_static:
            return None
        domain = _domain_of_parts(call)
        return domain if isinstance(domain, str) else None

    def domain_of_parts(self, call: Call) -> Domain | str:
        """The index domain of a call, or why one kernel cannot compute its parts."""
        positions: dict[PartSource, Dims] = {}
        dims: Dims | None = None
        summed_axes: dict[PartSource, tuple[int, ...]] = {}
        for index, (each, part) in enumerate(zip(self.part_calls(call).calls, self.structure.parts, strict=True)):
            rule = each.op.scalar
            reason = rule.refuse(each) if rule is not None else None
            if reason is not None:
                return f"{part.op.type}: {reason}"
            try:
                domain = domain_of(each)
            except ProgramError as exc:
                return f"{part.op.type}: {exc}"
            if dims is not None and domain.dims != dims:
                return f"{part.op.type} works on {list(domain.dims)}, the others on {list(dims)}"
            if summed_axes and any(source in summed_axes for _, source in part.sources):
                return f"{part.op.type} reads a sum of elements"
            for slot, axes in domain.sums.items():
                summed_axes[PartSource(index, slot)] = axes
            dims = domain.dims
            operands = [(source, domain.placed[slot]) for slot, source in part.sources if slot in domain.placed]
            operands += [(PartSource(index, slot), domain.placed[slot]) for slot in part.outs]
            for source, position in operands:
                if source.part != NUMBER and positions.setdefault(source, position) != position:
                    return f"{part.op.type} reads a value along other axes than another operator"
        if summed_axes and len(self.outs) > 1:
            return "a sum and other results would be separate kernels, which compute their common operands twice"
        assert dims is not None
        placed = {source.slot: position for source, position in positions.items() if source.part == OUTSIDE}
        placed.update({slot: positions[source] for slot, source in self.outs.items()})
        sums = {slot: summed_axes[each] for slot, each in self.outs.items() if each in summed_axes}
        return Domain(dims, placed, sums)

    def in_layout(self, call: Call, layout: Layout) -> LayoutRewrite | None:
        """The operator on tensors in a layout; None unless all parts have a form there and agree on values' layouts."""
        parts: list[FusedPart] = []
        has_layout: dict[PartSource, bool] = {}
        for each, part in zip(self.part_calls(call).calls, self.structure.parts, strict=True):
            rewrite = call_in_layout(each, layout)
            if rewrite is None or (rewrite[0].op is not part.op and part.op not in _fused_ops):
                return None
            part_call, slots = rewrite
            operands = [*part.sources, *((slot, PartSource(len(parts), slot)) for slot in part.outs)]
            if any(has_layout.setdefault(source, slot in slots) != (slot in slots) for slot, source in operands):
                return None
            attrs = tuple((name, value if value is RUNTIME else part_call.attrs[name]) for name, value in part.attrs)
            parts.append(part._replace(op=part_call.op, attrs=attrs))
        axes = layout.permutation or ()
        numbers = tuple(
            each._replace(dims=tuple(each.dims[axis] for axis in axes)) if len(each.dims) == len(axes) else each
            for each in self.structure.numbers
        )
        definition = fused_op(replace(self.structure, parts=tuple(parts), numbers=numbers))
        layout_slots = {s for s in self.slots if has_layout.get(PartSource(OUTSIDE, s))}
        layout_slots |= {slot for slot, source in self.outs.items() if has_layout[source]}
        return LayoutRewrite(definition, call.attrs, frozenset(slot for slot in layout_slots if call.has(slot)))

    def decompose(self, call: Call, build: Any) -> None:
        """Build the decomposition: the operators of the group."""
        names = {source: slot for slot, source in self.outs.items() if call.has(slot)}
        values: dict[PartSource, Any] = {PartSource(OUTSIDE, slot): build.input(slot) for slot in self.slots}
        for index, part in enumerate(self.structure.parts):
            for _, source in part.sources:
                if source.part == NUMBER and source not in values:
                    constant = self.structure.numbers[int(source.slot)]
                    value = call.attrs[f"number.{source.slot}"] if constant.value is None else constant.value
                    values[source] = build(
                        "fill_constant",
                        {},
                        {"Out": None},
                        {"shape": constant.dims, "dtype": constant.dtype, "value": float(value)},
                    )
            outputs = {}
            for slot in part.outs:
                name = names.get(PartSource(index, slot))
                outputs[slot] = build.output(name) if name is not None else build.temp()
                values[PartSource(index, slot)] = outputs[slot]
            inputs: dict[str, list[Any]] = {}
            for slot, source in part.sources:
                inputs.setdefault(slot.partition("[")[0], []).append(values[source])
            registered = ops.find(part.op.type)  # an elementwise form is replaced by its registered operator
            build(registered or part.op, inputs, outputs, self._attrs(index, call.attrs))


@cached_in_call
def _domain_of_parts(call: Call) -> Domain | str:
    """The index domain of a fused call, or why one kernel cannot compute it; cached with the call."""
    return _fused_ops[call.op].domain_of_parts(call)


def fused_type(types: Sequence[str]) -> str:
    """The type of a fused operator: the types of its parts, shortened."""
    short = [name.removeprefix("fused.").removeprefix("elementwise_") for name in types]
    runs: list[list[Any]] = []
    for name in short:
        if runs and runs[-1][0] == name:
            runs[-1][1] += 1
        else:
            runs.append([name, 1])
    words = [name + (f"_x{count}" if count > 1 else "") for name, count in runs]
    if len(words) > 6:
        words = [*words[:5], f"{len(types) - sum(count for _, count in runs[:5])}_more"]
    return "fused." + "_".join(words)


def _untraced(**attrs: Any) -> NoReturn:
    raise ProgramError("a fused operator's expression is typed part by part")
