"""Fused operators: one operator, made on the fly, that computes what several do.

Its expression is that of the operators put together, of which kernels are generated as of any other. It has a
decomposition into what it was made of, for calls for which there is no such kernel. Where the operators compute the
same elements, one by one, a scalar rule may stand for the expression: a product computes it where it is stored.
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
from fluidlite.codegen.fused_code import NUMBER, OUTSIDE, Number, PartCode, Source, merge
from fluidlite.codegen.lower import typed_of
from fluidlite.codegen.typed import Typed
from fluidlite.expr.called import meaning
from fluidlite.expr.tensor import Tensor, cast
from fluidlite.expr.views import full
from fluidlite.program.inference import check_inputs
from fluidlite.program.layout_rewrite import Relaid, relaid_call
from fluidlite.program.op_call import PLACEHOLDER, Call, once
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.registry import ops
from fluidlite.program.rules import ExpressionRule, ScalarRule
from fluidlite.tensor.layout import Layout
from fluidlite.tensor.tensor_spec import Dims, Spec, specs_of

Value = TypeVar("Value")


RUNTIME = object()
"""What stands for a float attribute whose number is an argument of kernels."""


class Part(NamedTuple):
    """One of the operators that a fused one is made of.

    ``attrs``: names and values in the definition's order; a float that is an argument of kernels is RUNTIME, and
    an attribute of the fused operator.
    ``sources``: what each input slot is given, metadata too.
    ``dtypes``: as what each of these is stored; (): as they are computed.
    """

    op: OpDef
    attrs: tuple[tuple[str, Any], ...]
    sources: tuple[tuple[str, Source], ...]
    outs: tuple[str, ...]
    dtypes: tuple[str, ...] = ()

    def operands(self, values: Mapping[Source, Value]) -> dict[str, tuple[Value, ...]]:
        """What it is given, by its slots: those of a slot that takes several are named ``X[0]``, ``X[1]``, ..."""
        found: dict[str, tuple[Value, ...]] = {}
        for name, source in self.sources:
            slot = name if self.op.input(name) is not None else name.partition("[")[0]
            found[slot] = (*found.get(slot, ()), values[source])
        return found


@dataclass(frozen=True)
class Structure:
    """What a fused operator is, whatever its variables, sizes and float attributes.

    ``parts``: in an order in which they can run.
    ``reads``: for each input (``X0``, ``X1``, ...) whether a part reads it; else its dims alone count.
    ``outputs``: which values are stored, as ``Out0``, ``Out1``, ...
    ``must_alias``, ``may_alias``: pairs of output slot and input slot.
    """

    parts: tuple[Part, ...]
    reads: tuple[bool, ...]
    numbers: tuple[Number, ...]
    outputs: tuple[Source, ...]
    must_alias: tuple[tuple[str, str], ...] = ()
    may_alias: tuple[tuple[str, str], ...] = ()

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Tells structures apart: 1, 1.0 and True are different attributes."""
        parts = [
            (id(p.op), tuple([(name, type(v).__name__, v) for name, v in p.attrs]), p.sources, p.outs, p.dtypes)
            for p in self.parts
        ]
        numbers = tuple(map(repr, self.numbers))
        return (tuple(parts), self.reads, numbers, self.outputs, self.must_alias, self.may_alias)


_fused_ops: WeakValueDictionary[tuple[Any, ...], OpDef] = WeakValueDictionary()
_known: WeakKeyDictionary[OpDef, _FusedOp] = WeakKeyDictionary()
_lock = new_lock()


def fused_op(structure: Structure) -> OpDef:
    """Return the operator of a structure; while it is in use, the same structure gives the same one."""
    with _lock:
        found = _fused_ops.get(structure.key)
        if found is None:
            made = _FusedOp(structure)
            found = _fused_ops[structure.key] = made.definition()
            _known[found] = made
    return found


def runtime_attrs(op: OpDef, attrs: Mapping[str, Any]) -> dict[str, float]:
    """The float attributes that an operator's expression takes as arguments of kernels."""
    floats = {
        attr.name: attrs[attr.name]
        for attr in op.attrs
        if attr.type == "float" and not attr.static and attrs[attr.name] is not None
    }
    if op.scalar is None or op.scalar.code is not None:
        return floats
    asked = {name.rstrip("_") for name in parameters(op.scalar.function)[1]}
    return {name: value for name, value in floats.items() if name.rstrip("_") in asked}


class _Walk(NamedTuple):
    """A fused call as the calls of its parts."""

    calls: tuple[Call, ...]
    specs: Mapping[Source, Spec]


class _FusedOp:
    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.slots = tuple([f"X{k}" for k in range(len(structure.reads))])
        self.outs = {f"Out{k}": source for k, source in enumerate(structure.outputs)}
        self.walks: LRUCache[_Walk] = LRUCache(64, "parts of fused calls", 1 << 20)

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
            scalar=scalar if all([op.scalar is not None and op not in _known for op in operators]) else None,
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

    def walk(self, call: Call) -> _Walk:
        """Infer part by part."""
        key = (tuple(call.ins.items()), call.training, tuple(call.attrs.items()))
        return self.walks.get(key, lambda: self._walk(call))

    def _walk(self, call: Call) -> _Walk:
        specs = {Source(OUTSIDE, slot): each[0] for slot, each in call.ins.items()}
        for k, constant in enumerate(self.structure.numbers):
            specs[Source(NUMBER, str(k))] = Spec.of(constant.dims, constant.dtype)
        calls = []
        for index, part in enumerate(self.structure.parts):
            ins = part.operands(specs)
            asked = Call(part.op, ins, dict.fromkeys(part.outs, (PLACEHOLDER,)), self._attrs(index, call.attrs))
            assert part.op.infer is not None
            try:
                check_inputs(asked)
                found = part.op.infer(asked)
            except ProgramError as exc:
                raise type(exc)(f"its {part.op.type}: {exc}") from None
            outs = {}
            for slot in part.outs:
                result = found[slot]
                outs[slot] = specs_of(result)
                specs[Source(index, slot)] = outs[slot][0]
            calls.append(Call(part.op, ins, outs, asked.attrs, None, call.training))
        return _Walk(tuple(calls), specs)

    def _attrs(self, index: int, attrs: Mapping[str, Any]) -> dict[str, Any]:
        given = self.structure.parts[index].attrs
        return {name: attrs[f"{index}.{name}"] if value is RUNTIME else value for name, value in given}

    def tensors(self, inputs: Mapping[str, Sequence[Tensor]], attrs: Mapping[str, Any]) -> dict[str, Tensor]:
        """The expression of all parts: each computes of what others make, rounded as these would store it.

        Raises ProgramError if a part is no function of tensors.
        """
        values = {Source(OUTSIDE, slot): found[0] for slot, found in inputs.items() if found}
        for k, constant in enumerate(self.structure.numbers):
            value = attrs[f"number.{k}"] if constant.value is None else constant.value
            values[Source(NUMBER, str(k))] = full(constant.dims, value, constant.dtype)
        for index, part in enumerate(self.structure.parts):
            operands, nested = part.operands(values), _known.get(part.op)
            told = self._attrs(index, attrs)
            if nested is not None:
                outputs: Mapping[str, Tensor] = nested.tensors(operands, told)
            else:
                op = ops.find(part.op.type) or part.op
                if part.op.input("X[0]") is not None:  # an elementwise form has a slot for each of several operands
                    operands = {"X": tuple(x for found in operands.values() for x in found)}
                outputs = meaning(op, operands, told, draws=True)
            dtypes = part.dtypes or tuple(outputs[slot].dtype for slot in part.outs)
            values |= {Source(index, s): cast(outputs[s], d) for s, d in zip(part.outs, dtypes, strict=True)}
        return {slot: values[source] for slot, source in self.outs.items()}

    # What the definition says

    def infer(self, call: Call) -> dict[str, Spec]:
        specs = self.walk(call).specs
        return {slot: specs[source] for slot, source in self.outs.items() if call.has(slot)}

    def code(self, call: Call) -> Typed:
        walk = self.walk(call)
        parts = [
            PartCode(typed_of(each), dict(part.sources))
            for each, part in zip(walk.calls, self.structure.parts, strict=True)
        ]
        wanted = [(slot, source) for slot, source in self.outs.items() if call.has(slot)]
        return merge(parts, self.structure.numbers, wanted)

    def domain(self, call: Call) -> Domain:
        """The elements that all parts work on, and where operands lie among them, as each part says.

        Raises ProgramError if the parts do not work on the same elements.
        """
        found = _domain_of_parts(call)
        if isinstance(found, str):
            raise ProgramError(found)
        return found

    def supports(self, call: Call) -> str | None:
        """Why the parts of a call do not work on the same elements; None where they do, or dims are not known yet."""
        if not call.known:
            return None
        found = _domain_of_parts(call)
        return found if isinstance(found, str) else None

    def domain_of_parts(self, call: Call) -> Domain | str:
        """The index domain of a call, or why it does not fit one kernel."""
        places: dict[Source, Dims] = {}
        dims: Dims | None = None
        added_up: dict[Source, tuple[int, ...]] = {}
        for index, (each, part) in enumerate(zip(self.walk(call).calls, self.structure.parts, strict=True)):
            rule = each.op.scalar
            reason = rule.refuse(each) if rule is not None else None
            if reason is not None:
                return f"{part.op.type}: {reason}"
            try:
                mine = domain_of(each)
            except ProgramError as exc:
                return f"{part.op.type}: {exc}"
            if dims is not None and mine.dims != dims:
                return f"{part.op.type} works on {list(mine.dims)}, the others on {list(dims)}"
            if added_up and any(source in added_up for _, source in part.sources):
                return f"{part.op.type} reads a sum of elements"
            for slot, axes in mine.sums.items():
                added_up[Source(index, slot)] = axes
            dims = mine.dims
            links = [(source, mine.placed[slot]) for slot, source in part.sources if slot in mine.placed]
            links += [(Source(index, slot), mine.placed[slot]) for slot in part.outs]
            for source, where in links:
                if source.part != NUMBER and places.setdefault(source, where) != where:
                    return f"{part.op.type} reads a value at other dims than another"
        if added_up and len(self.outs) > 1:
            return "a sum beside other results would be a kernel of its own, and compute what leads to both again"
        assert dims is not None
        placed = {source.slot: where for source, where in places.items() if source.part == OUTSIDE}
        placed.update({slot: places[source] for slot, source in self.outs.items()})
        return Domain(dims, placed, {slot: added_up[each] for slot, each in self.outs.items() if each in added_up})

    def in_layout(self, call: Call, layout: Layout) -> Relaid | None:
        """The operator on memory in a layout, if all of its parts can be said there, and values lie alike in them."""
        parts: list[Part] = []
        lies: dict[Source, bool] = {}
        for each, part in zip(self.walk(call).calls, self.structure.parts, strict=True):
            found = relaid_call(each, layout)
            if found is None or (found[0].op is not part.op and part.op not in _known):
                return None
            laid, slots = found
            links = [*part.sources, *((slot, Source(len(parts), slot)) for slot in part.outs)]
            if any(lies.setdefault(source, slot in slots) != (slot in slots) for slot, source in links):
                return None
            attrs = tuple((name, value if value is RUNTIME else laid.attrs[name]) for name, value in part.attrs)
            parts.append(part._replace(op=laid.op, attrs=attrs))
        order = layout.permutation or ()
        numbers = tuple(
            each._replace(dims=tuple(each.dims[axis] for axis in order)) if len(each.dims) == len(order) else each
            for each in self.structure.numbers
        )
        made = fused_op(replace(self.structure, parts=tuple(parts), numbers=numbers))
        there = {s for s in self.slots if lies.get(Source(OUTSIDE, s))} | {s for s, o in self.outs.items() if lies[o]}
        return Relaid(made, call.attrs, frozenset(slot for slot in there if call.has(slot)))

    def decompose(self, call: Call, build: Any) -> None:
        """Say it with what it was made of."""
        names = {source: slot for slot, source in self.outs.items() if call.has(slot)}
        values: dict[Source, Any] = {Source(OUTSIDE, slot): build.input(slot) for slot in self.slots}
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
            made = {}
            for slot in part.outs:
                name = names.get(Source(index, slot))
                made[slot] = build.output(name) if name is not None else build.temp()
                values[Source(index, slot)] = made[slot]
            inputs: dict[str, list[Any]] = {}
            for slot, source in part.sources:
                inputs.setdefault(slot.partition("[")[0], []).append(values[source])
            registered = ops.find(part.op.type)  # an elementwise form stands for the operator that is registered
            build(registered or part.op, inputs, made, self._attrs(index, call.attrs))


@once
def _domain_of_parts(call: Call) -> Domain | str:
    """The index domain of a fused call, or why it does not fit one kernel; choosing and preparing both ask."""
    return _known[call.op].domain_of_parts(call)


def fused_type(types: Sequence[str]) -> str:
    """The name of a fused operator: what it was made of, in short."""
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
