"""Traces of operator calls (cached), and shape and dtype inference by them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

from fluidlite.base.dtypes import HALVES, is_float
from fluidlite.base.errors import ProgramError, ShapeError
from fluidlite.base.lru_cache import LRUCache
from fluidlite.codegen.typed import converted_number as typed_number
from fluidlite.expr.attributes import RefusedCall
from fluidlite.expr.number import Numbers, offset_count, offsets_leaf, table_count, table_leaf, value_leaf
from fluidlite.expr.scalars import of_scalars
from fluidlite.expr.segments import table
from fluidlite.expr.tensor import Tensor, topological_order
from fluidlite.expr.traced import Traced, Unmet, trace, values_of
from fluidlite.expr.tracing import Requirement
from fluidlite.program import codegen_registry as generators
from fluidlite.program.op_call import Call, cached_by_operands
from fluidlite.program.opdef import OpDef
from fluidlite.tensor.tensor_spec import Dims, Spec

_MAX_KINDS, _MAX_TRACES = 256, 32
"""The numbers of cached call kinds of an operator, and of traces of a kind, which differ in their guards."""
_traces: WeakKeyDictionary[OpDef, LRUCache[list[Traced]]] = WeakKeyDictionary()


class _CallFacts(NamedTuple):
    """The facts of a call that a trace depends on."""

    operands: dict[str, list[tuple[Dims, str]]]
    results: dict[str, list[tuple[Dims, str]]]
    """The outputs of an operator with its own inference; those of other operators follow from the trace."""
    kinds: list[tuple[Any, ...]]
    """For each slot the number of operands or results, and the rank and dtype of each; for inputs that are read as
    values their dims, and whether they hold integers.
    """
    floats: list[str]
    levels: list[tuple[str, int, int]]
    """The levels of LoD of the operands: slot, index within the slot, level."""
    values: dict[str, Any]


@cached_by_operands
def leaves(call: Call) -> dict[str, Any]:
    """The leaves of a call: sizes, float attributes, offsets of LoDs, and elements of slots read as values."""
    return _call_facts(call).values


def _call_facts(call: Call) -> _CallFacts:
    op, rule = call.op, call.op.expression
    values: dict[str, Any] = {name: float(call.attrs[name]) for name in op.floats if call.attrs[name] is not None}
    facts = _CallFacts({}, {}, [], list(values), [], values)
    inferred = call.outs if rule is not None and rule.inferred else {}
    for rows, slots in ((facts.operands, call.ins), (facts.results, inferred)):
        for slot, specs in slots.items():
            if slot in op.stated or slot in op.tables:
                continue
            rows[slot] = []
            facts.kinds.append((slot, len(specs), ""))
            for spec in specs:
                rows[slot].append((spec.dims, spec.dtype))
                facts.kinds.append((slot, len(spec.dims), spec.dtype))
    values.update(values_of({**facts.operands, **facts.results}))
    for slot, specs in call.ins.items():
        for i, spec in enumerate(specs):
            for level in range(spec.lod_level):
                facts.levels.append((slot, i, level))
                offsets = spec.lod[level] if spec.lod else None  # unknown while a program is built
                values[offset_count(slot, i, level).value] = None if offsets is None else len(offsets)
                values[offsets_leaf(slot, i, level).value] = offsets
    for slot in op.stated:
        for i, spec in enumerate(call.ins.get(slot, ())):
            facts.kinds.append((slot, spec.dims, not is_float(spec.dtype)))
            numbers = spec.value or (None,) * spec.size
            values.update({_name(slot, i, k): n for k, n in enumerate(numbers)})
    for slot in op.tables:
        for i, spec in enumerate(call.ins.get(slot, ())):
            facts.kinds.append((slot, i))
            values[table_count(slot, i).value] = spec.size if spec.is_static else None
            values[table_leaf(slot, i).value] = spec.value
    return facts


def _name(slot: str, i: int, k: int) -> str:
    return f"{slot}.{i}#{k}"


def value_numbers(call: Call) -> dict[str, tuple[Numbers, ...]]:
    """The elements of slots read as values, by tensor; raises ShapeError if their number is unknown."""
    numbers = {}
    for slot in call.op.stated:
        for spec in call.ins.get(slot, ()):
            if not spec.is_static:
                call.fail(slot, "a known number of elements", do="declare its dims")
        if slot in call.ins:
            numbers[slot] = tuple(
                Numbers.of(
                    (value_leaf(_name(slot, i, k), not is_float(spec.dtype)) for k in range(spec.size)), spec.dims
                )
                for i, spec in enumerate(call.ins[slot])
            )
    return numbers


@cached_by_operands
def traced_of(call: Call) -> Traced:
    """The trace of a call; calls in which all its guards have the same truth share it.

    Raises
    ------
    ShapeError
        If the call does not meet a requirement of the expression.
    """
    rule, facts = call.op.expression, _call_facts(call)
    floats, values = facts.floats, facts.values
    call.cache[leaves] = values  # only these, not all facts: caches hold many calls
    if rule is not None:
        compute = rule.function
    else:
        assert call.op.scalar is not None
        compute = of_scalars(call.op, call.op.scalar)
    static = {name: value for name, value in call.attrs.items() if name not in floats} if floats else dict(call.attrs)
    key = repr((facts.kinds, facts.levels, static))
    cache = _traces.get(call.op)
    if cache is None:
        cache = _traces.setdefault(call.op, LRUCache(_MAX_KINDS, "traces", 16 << 20))
    traces = cache.get(key, list)
    for traced in traces:
        if traced.serves(values):
            break
    else:

        def function(symbols: Any, floating: Any) -> Mapping[str, Any]:
            tables = {s: tuple(table(s, i) for i in range(len(call.ins[s]))) for s in call.op.tables if s in call.ins}
            return compute({**symbols, **value_numbers(call), **tables}, {**static, **floating})

        try:
            traced = trace(function, facts.operands, floats, values, f"operator {call.op.type!r}", facts.results)
        except RefusedCall as refused:
            _refuse(call, refused)
        except Unmet as unmet:
            _fail(call, unmet.requirement, values)
        _check_reads(call.op, traced)
        traces.append(traced)
        del traces[:-_MAX_TRACES]
    requirement = traced.failed_requirement(values)
    if requirement is not None:
        _fail(call, requirement, values)
    return traced


def _fail(call: Call, requirement: Requirement, values: Mapping[str, Any]) -> NoReturn:
    expected = requirement.expected
    if requirement.attr or requirement.numbers:
        numbers = [n.evaluate(values) for n in requirement.numbers]
        operands = {slot: call.describe(slot) for slot in call.ins}
        expected = expected.format(*(-1 if n is None else n for n in numbers), **operands)
    if requirement.attr:
        call.fail_attr(requirement.name, expected)
    if call.has(requirement.name):
        declared = call.op.input(requirement.name)
        value = call.value(requirement.name) if declared is not None and declared.value else None
        call.fail(requirement.name, expected, got=value[0] if value and len(value) == 1 else value, do=requirement.do)
    raise ShapeError(f"{requirement.name}: expected {expected}")


def _refuse(call: Call, refused: RefusedCall) -> NoReturn:
    if refused.kind == "dtype":
        call.fail_dtype(refused.name, refused.expected, do=refused.do)
    if refused.kind == "attr":
        call.fail_attr(refused.name, refused.expected, do=refused.do)
    call.fail(refused.name, refused.expected, do=refused.do)


def _check_reads(op: OpDef, traced: Traced) -> None:
    """Raise ProgramError if an expression reads an input that is declared as metadata only."""
    for x in topological_order([x for row in traced.outputs.values() for x in row]):
        declared = op.input(x.params[0]) if x.op == "input" else None
        if declared is not None and declared.unread:
            raise ProgramError(f"operator {op.type!r}: its expression reads {declared.name}, declared as metadata only")


def infer(call: Call) -> dict[str, Spec | list[Spec]]:
    """Infer the outputs of a call: dims and dtypes by its trace, the LoD from an input with the same rows.

    Raises the ShapeError or ProgramError of the expression.
    """
    traced, rule = traced_of(call), call.op.expression
    values = traced.completed_values(leaves(call))
    assert rule is not None
    key_dtype = call.key_dtype
    half = key_dtype if key_dtype in HALVES else None  # results computed from it in float32 are stored in it
    outputs: dict[str, Spec | list[Spec]] = {}
    for slot, results in traced.outputs.items():
        specs = []
        for i, x in enumerate(results):
            dtype = rule.stored.get(slot, half if half is not None and x.dtype == "float32" else None) or x.dtype
            rows, dims = _lod_source(call, traced, x), traced.dims(slot, values, i)
            specs.append(rows.with_(dims=dims, dtype=dtype) if rows is not None else Spec.of(dims, dtype))
        outputs[slot] = specs[0] if len(specs) == 1 else specs
    return outputs


def _lod_source(call: Call, traced: Traced, x: Tensor) -> Spec | None:
    """The input with a LoD that has the same symbolic number of rows as a result, else None."""
    if not x.dims:
        return None
    for slot, symbols in traced.inputs.items():
        for spec, symbol in zip(call.ins[slot], symbols, strict=True):
            if spec.lod_level and symbol.dims and symbol.dims[0].key == x.dims[0].key:
                return spec
    return None


def numbers(call: Call) -> dict[str, tuple[float, ...] | None]:
    """The elements of each output that depends on sizes and attributes only; None where they are unknown."""
    values = leaves(call)
    return {slot: _numbers(tensors[0], values) for slot, tensors in traced_of(call).outputs.items()}


def _numbers(x: Tensor, values: Mapping[str, Any]) -> tuple[float, ...] | None:
    if x.op == "number":
        value = x.params[0].evaluate(values)
        return None if value is None else (typed_number(value, x.dtype),)
    count, parts = [d.evaluate(values) for d in x.dims], [_numbers(arg, values) for arg in x.args]
    if None in parts or None in count or x.op not in ("broadcast", "reshape", "concat"):
        return () if 0 in count else None
    joined = tuple(itertools.chain.from_iterable(part for part in parts if part is not None))
    return joined * prod(count) if x.op == "broadcast" and len(joined) == 1 else joined


def checks_indices(call: Call) -> bool:
    """Whether the expression of a call raises for an index out of range."""
    return call.of_tensors and traced_of(call).checks_indices


def has_steps(call: Call) -> bool:
    """Whether the expression of a call contains ``steps``."""
    return call.of_tensors and traced_of(call).has_steps


generators.checks_indices = checks_indices
generators.has_steps = has_steps
