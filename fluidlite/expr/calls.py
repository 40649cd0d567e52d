"""Calls of operators that are expressions: their trace, and their inferred outputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

from fluidlite.base.dtypes import HALVES, is_float
from fluidlite.base.errors import ProgramError, ShapeError
from fluidlite.base.lru_cache import LRUCache
from fluidlite.codegen.typed import number as typed_number
from fluidlite.expr.attributes import Refused
from fluidlite.expr.number import Numbers, offset_count, offsets_leaf, table_count, table_leaf, value_leaf
from fluidlite.expr.scalars import of_scalars
from fluidlite.expr.segments import table
from fluidlite.expr.tensor import Tensor, ordered
from fluidlite.expr.traced import Traced, Unmet, trace, values_of
from fluidlite.expr.tracing import Requirement
from fluidlite.program import codegen_registry as generators
from fluidlite.program.op_call import Call, once_of_operands
from fluidlite.program.opdef import OpDef
from fluidlite.tensor.tensor_spec import Dims, Spec

_MOST_KINDS, _MOST_TRACES = 256, 32
_traces: WeakKeyDictionary[OpDef, LRUCache[list[Traced]]] = WeakKeyDictionary()


class _CallFacts(NamedTuple):
    """What a call gives a trace."""

    operands: dict[str, list[tuple[Dims, str]]]
    results: dict[str, list[tuple[Dims, str]]]
    """The outputs of an operator that infers them itself; of others they follow from the trace."""
    kinds: list[tuple[Any, ...]]
    """How many operands and such results each slot has, and the rank and dtype of each; of those read as values which
    dims they have, and whether they are whole numbers.
    """
    floats: list[str]
    levels: list[tuple[str, int, int]]
    """The levels of LoD of the operands: slot, number within it, level."""
    values: dict[str, Any]


@once_of_operands
def leaves(call: Call) -> dict[str, Any]:
    """What the leaves are in a call: sizes, float attributes, offsets of LoDs, and numbers of slots read as values."""
    return _call_facts(call).values


def _call_facts(call: Call) -> _CallFacts:
    op, rule = call.op, call.op.expression
    values: dict[str, Any] = {name: float(call.attrs[name]) for name in op.floats if call.attrs[name] is not None}
    facts = _CallFacts({}, {}, [], list(values), [], values)
    inferred = call.outs if rule is not None and rule.inferred else {}
    for found, slots in ((facts.operands, call.ins), (facts.results, inferred)):
        for slot, specs in slots.items():
            if slot in op.stated or slot in op.tables:
                continue
            found[slot] = []
            facts.kinds.append((slot, len(specs), ""))
            for spec in specs:
                found[slot].append((spec.dims, spec.dtype))
                facts.kinds.append((slot, len(spec.dims), spec.dtype))
    values.update(values_of({**facts.operands, **facts.results}))
    for slot, specs in call.ins.items():
        for i, spec in enumerate(specs):
            for level in range(spec.lod_level):
                facts.levels.append((slot, i, level))
                offsets = spec.lod[level] if spec.lod else None  # while a program is built nobody knows them
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
            values[table_count(slot, i).value] = spec.size if spec.known else None
            values[table_leaf(slot, i).value] = spec.value
    return facts


def _name(slot: str, i: int, k: int) -> str:
    return f"{slot}.{i}#{k}"


def stated(call: Call) -> dict[str, tuple[Numbers, ...]]:
    """The numbers of slots read as values, by tensor; raises ShapeError if it is not known how many there are."""
    found = {}
    for slot in call.op.stated:
        for spec in call.ins.get(slot, ()):
            if not spec.known:
                call.fail(slot, "a known number of elements", do="declare its dims")
        if slot in call.ins:
            found[slot] = tuple(
                Numbers.of(
                    (value_leaf(_name(slot, i, k), not is_float(spec.dtype)) for k in range(spec.size)), spec.dims
                )
                for i, spec in enumerate(call.ins[slot])
            )
    return found


@once_of_operands
def traced_of(call: Call) -> Traced:
    """The trace of a call, one for all calls that answer its guards alike.

    Raises
    ------
    ShapeError
        If the call does not fulfil what the expression requires of its operands.
    """
    rule, facts = call.op.expression, _call_facts(call)
    floats, values = facts.floats, facts.values
    call.found[leaves] = values  # it keeps these alone: caches keep many calls
    if rule is not None:
        compute = rule.function
    else:
        assert call.op.scalar is not None
        compute = of_scalars(call.op, call.op.scalar)
    static = {name: value for name, value in call.attrs.items() if name not in floats} if floats else dict(call.attrs)
    key = repr((facts.kinds, facts.levels, static))
    cache = _traces.get(call.op)
    if cache is None:
        cache = _traces.setdefault(call.op, LRUCache(_MOST_KINDS, "traces", 16 << 20))
    known = cache.get(key, list)
    for found in known:
        if found.serves(values):
            break
    else:

        def function(symbols: Any, floating: Any) -> Mapping[str, Any]:
            tables = {s: tuple(table(s, i) for i in range(len(call.ins[s]))) for s in call.op.tables if s in call.ins}
            return compute({**symbols, **stated(call), **tables}, {**static, **floating})

        try:
            found = trace(function, facts.operands, floats, values, f"operator {call.op.type!r}", facts.results)
        except Refused as refused:
            _refuse(call, refused)
        except Unmet as unmet:
            _unmet(call, unmet.requirement, values)
        _check_reads(call.op, found)
        known.append(found)
        del known[:-_MOST_TRACES]
    failed = found.failed(values)
    if failed is not None:
        _unmet(call, failed, values)
    return found


def _unmet(call: Call, failed: Requirement, values: Mapping[str, Any]) -> NoReturn:
    expected = failed.expected
    if failed.attr or failed.numbers:
        numbers = [n.evaluate(values) for n in failed.numbers]
        shown = {slot: call.shown(slot) for slot in call.ins}
        expected = expected.format(*(-1 if n is None else n for n in numbers), **shown)
    if failed.attr:
        call.fail_attr(failed.name, expected)
    if call.has(failed.name):
        declared = call.op.input(failed.name)
        value = call.value(failed.name) if declared is not None and declared.value else None
        call.fail(failed.name, expected, got=value[0] if value and len(value) == 1 else value, do=failed.do)
    raise ShapeError(f"{failed.name}: expected {expected}")


def _refuse(call: Call, refused: Refused) -> NoReturn:
    if refused.kind == "dtype":
        call.fail_dtype(refused.name, refused.expected, do=refused.do)
    if refused.kind == "attr":
        call.fail_attr(refused.name, refused.expected, do=refused.do)
    call.fail(refused.name, refused.expected, do=refused.do)


def _check_reads(op: OpDef, traced: Traced) -> None:
    """Raise ProgramError if an expression reads an input that is declared unread."""
    for x in ordered([x for found in traced.outputs.values() for x in found]):
        declared = op.input(x.params[0]) if x.op == "input" else None
        if declared is not None and declared.unread:
            raise ProgramError(f"operator {op.type!r}: its expression reads {declared.name}, declared as metadata only")


def infer(call: Call) -> dict[str, Spec | list[Spec]]:
    """The outputs of a call: dims and dtypes by its trace, sequences where the rows are those of an input.

    Raises ShapeError and ProgramError as the expression says.
    """
    made, rule = traced_of(call), call.op.expression
    values = made.completed(leaves(call))
    assert rule is not None
    given = call.key_dtype
    half = given if given in HALVES else None  # what is computed of it in float32 is stored in that
    found: dict[str, Spec | list[Spec]] = {}
    for slot, results in made.outputs.items():
        specs = []
        for i, x in enumerate(results):
            dtype = rule.stored.get(slot, half if half is not None and x.dtype == "float32" else None) or x.dtype
            rows, dims = _with_rows(call, made, x), made.dims(slot, values, i)
            specs.append(rows.with_(dims=dims, dtype=dtype) if rows is not None else Spec.of(dims, dtype))
        found[slot] = specs[0] if len(specs) == 1 else specs
    return found


def _with_rows(call: Call, traced: Traced, x: Tensor) -> Spec | None:
    """The input with sequences whose rows are those of a result: it has the very same number of them."""
    if not x.dims:
        return None
    for slot, symbols in traced.inputs.items():
        for spec, mine in zip(call.ins[slot], symbols, strict=True):
            if spec.lod_level and mine.dims and mine.dims[0].key == x.dims[0].key:
                return spec
    return None


def numbers(call: Call) -> dict[str, tuple[float, ...] | None]:
    """The numbers that each output holds, where sizes and attributes alone say them; None where they are not known."""
    values = leaves(call)
    return {slot: _numbers(found[0], values) for slot, found in traced_of(call).outputs.items()}


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
    """Whether the expression of a call raises where an index is out of range."""
    return call.of_tensors and traced_of(call).checks_indices


def has_steps(call: Call) -> bool:
    """Whether the expression of a call runs another one step by step."""
    return call.of_tensors and traced_of(call).has_steps


generators.checks_indices = checks_indices
generators.has_steps = has_steps
