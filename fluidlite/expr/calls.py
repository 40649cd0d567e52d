"""Calls of operators that are expressions: their trace, and their inferred outputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import prod
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from fluidlite.base.bounded import Bounded
from fluidlite.base.dtypes import HALVES, is_float
from fluidlite.base.errors import ProgramError, ShapeError
from fluidlite.codegen.typed import number as typed_number
from fluidlite.expr.attributes import Refused
from fluidlite.expr.number import Numbers, offset_count, offsets_leaf, value_leaf
from fluidlite.expr.tensor import Tensor, ordered
from fluidlite.expr.traced import Traced, Unmet, trace, values_of
from fluidlite.expr.tracing import Requirement
from fluidlite.framework import generators
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import OpDef
from fluidlite.framework.spec import Spec

_MOST_KINDS, _MOST_TRACES = 256, 32
_traces: WeakKeyDictionary[OpDef, Bounded[list[Traced]]] = WeakKeyDictionary()


def traced_of(call: Call) -> Traced:
    """The trace of a call, one for all calls that answer its guards alike.

    Raises
    ------
    ShapeError
        If the call does not fulfil what the expression requires of its operands.
    """
    return call.once("traced", _traced)


def leaves(call: Call) -> dict[str, Any]:
    """What the leaves are in a call: sizes, float attributes, offsets of LoDs, and numbers of slots read as values."""
    found = values_of({**_operands(call), **_results(call)}, {name: float(call.attr(name)) for name in _floats(call)})
    for slot, i, level in _levels(call):
        spec = call.spec(slot, i)
        offsets = spec.lod[level] if spec.lod else None  # while a program is built nobody knows them
        found[offset_count(slot, i, level).value] = None if offsets is None else len(offsets)
        found[offsets_leaf(slot, i, level).value] = offsets
    for slot in _stated(call):
        for i, spec in enumerate(call.ins[slot]):
            numbers = spec.value or (None,) * spec.size
            found.update({_name(slot, i, k): n for k, n in enumerate(numbers)})
    return found


def _levels(call: Call) -> list[tuple[str, int, int]]:
    """The levels of LoD of the operands: slot, number within it, level."""
    return [(slot, i, level) for slot, specs in call.ins.items() for i, spec in enumerate(specs)
            for level in range(spec.lod_level)]  # fmt: skip


def _name(slot: str, i: int, k: int) -> str:
    return f"{slot}.{i}#{k}"


def _stated(call: Call) -> list[str]:
    """The input slots that are read as values."""
    return [slot.name for slot in call.op.inputs if slot.value and call.has(slot.name)]


def stated(call: Call) -> dict[str, tuple[Numbers, ...]]:
    """The numbers of slots read as values, those of each tensor.

    Raises
    ------
    ShapeError
        If it is not known how many there are.
    """
    found = {}
    for slot in _stated(call):
        for spec in call.ins[slot]:
            if not spec.known:
                call.fail(slot, "a known number of elements", do="declare its dims")
        found[slot] = tuple(
            Numbers.of((value_leaf(_name(slot, i, k), not is_float(spec.dtype)) for k in range(spec.size)), spec.dims)
            for i, spec in enumerate(call.ins[slot])
        )
    return found


def _operands(call: Call) -> dict[str, list[tuple[tuple[int, ...], str]]]:
    values = set(_stated(call))
    return {slot: [(spec.dims, spec.dtype) for spec in specs] for slot, specs in call.ins.items() if slot not in values}


def _results(call: Call) -> dict[str, list[tuple[tuple[int, ...], str]]]:
    """The outputs of an operator that infers them itself; of others they follow from the trace."""
    if call.op.expression is None or not call.op.expression.inferred:
        return {}
    return {slot: [(spec.dims, spec.dtype) for spec in specs] for slot, specs in call.outs.items()}


def _floats(call: Call) -> list[str]:
    return [a.name for a in call.op.attrs if a.type == "float" and not a.static and call.attrs[a.name] is not None]


def _traced(call: Call) -> Traced:
    rule, operands, values, floats = call.op.expression, _operands(call), leaves(call), _floats(call)
    assert rule is not None
    static = {name: value for name, value in call.attrs.items() if name not in floats}
    results = _results(call)
    kinds = tuple((slot, tuple((len(dims), dtype) for dims, dtype in given))
                  for slot, given in (*operands.items(), *results.items()))  # fmt: skip
    numbers = stated(call)
    lengths = tuple((slot, tuple((each.dims, *(n.whole for n in each[:1])) for each in found))
                    for slot, found in numbers.items())  # fmt: skip
    key = (kinds, lengths, tuple(_levels(call)), tuple((name, repr(value)) for name, value in static.items()))
    cache = _traces.get(call.op) or _traces.setdefault(call.op, Bounded(_MOST_KINDS, "traces", 16 << 20))
    known = cache.get(key, list)
    found = next((each for each in known if each.serves(values)), None)
    if found is None:

        def function(given: Any, floating: Any) -> Mapping[str, Any]:
            return rule.function({**given, **numbers}, {**static, **floating})

        try:
            found = trace(function, operands, floats, values, f"operator {call.op.type!r}", results)
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
        shown = {slot: call.shown(slot) for slot in call.ins if slot.isidentifier()}
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


def _check_reads(op: OpDef, made: Traced) -> None:
    """Raise ProgramError if an expression reads an input that is declared unread."""
    for x in ordered([x for found in made.outputs.values() for x in found]):
        declared = op.input(x.params[0]) if x.op == "input" else None
        if declared is not None and declared.unread:
            raise ProgramError(f"operator {op.type!r}: its expression reads {declared.name}, declared as metadata only")


def infer(call: Call) -> dict[str, Spec | list[Spec]]:
    """The outputs of a call: dims and dtypes by its trace, sequences where the rows are those of an input.

    Raises
    ------
    ShapeError, ProgramError
        As the expression says.
    """
    made, rule = traced_of(call), call.op.expression
    values = made.completed(leaves(call))
    assert rule is not None
    found: dict[str, Spec | list[Spec]] = {}
    for slot, results in made.outputs.items():
        specs = []
        for i, x in enumerate(results):
            dtype = (rule.stored[slot] or x.dtype) if slot in rule.stored else _stored(call, x.dtype)
            rows, dims = _with_rows(call, made, x), made.dims(slot, values, i)
            specs.append(rows.with_(dims=dims, dtype=dtype) if rows is not None else Spec.of(dims, dtype))
        found[slot] = specs[0] if len(specs) == 1 else specs
    return found


def _stored(call: Call, dtype: str) -> str:
    """float32 that was computed of a half type is stored in that."""
    given = call.key_dtype
    return given if dtype == "float32" and given in HALVES else dtype


def _with_rows(call: Call, made: Traced, x: Tensor) -> Spec | None:
    """The input with sequences whose rows are those of a result: it has the very same number of them."""
    if not x.dims:
        return None
    for slot, symbols in made.inputs.items():
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
    return call.op.expression is not None and traced_of(call).checks_indices


generators.checks_indices = checks_indices
