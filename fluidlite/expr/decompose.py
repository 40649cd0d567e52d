"""An expression said with operators, one primitive at a time: for places that have no kernel for the whole of it.

What is elementwise becomes one operator as far as it reaches; every other primitive is an operator of Fluid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from fluidlite.base.dtypes import ALL_FLOATS, FLOATS
from fluidlite.base.errors import ProgramError
from fluidlite.base.lru_cache import LRUCache
from fluidlite.codegen.expr import Expr
from fluidlite.codegen.typed import evaluate
from fluidlite.expr.calls import leaves, stated, traced_of
from fluidlite.expr.constants import table_of, tables
from fluidlite.expr.elementwise import definition, slots
from fluidlite.expr.lowering import dims_of, lowered
from fluidlite.expr.number import Number, Numbers, attribute, number
from fluidlite.expr.primitive_calls import PrimitiveWriter
from fluidlite.expr.primitives import TENSOR_PRIMITIVES
from fluidlite.expr.segments import table
from fluidlite.expr.tensor import Tensor, cast, ordered, symbol
from fluidlite.expr.traced import check_indices
from fluidlite.expr.tracing import tracing
from fluidlite.program.decompose import Build, Value
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.rules import ExpressionRule

ELEMENTWISE = frozenset({"map", "cast", "stop", "broadcast", "number"})
MOST_OPERANDS = 12
"""Tensors that one elementwise operator reads."""
MAX_LITERAL = 32
"""Larger integers are arguments of a kernel: most are sizes, and batches of sequences have ever new ones."""
MAX_EXACT_INTEGER = 1 << 53
"""Where float64, in which arguments are said, no longer has all integers."""
_definitions: LRUCache[OpDef] = LRUCache(1024, "decompositions", 16 << 20)


def decompose(call: Call, build: Build) -> str | None:
    """Write the operators that say a call of an expression; or return why none can."""
    rule = call.op.expression
    assert rule is not None
    if not call.known:
        return "its dims are not known"
    values = leaves(call)
    floats = [name for name in call.attrs if isinstance(values.get(name), float)]
    results = {
        slot: [(tuple(map(number, spec.dims)), spec.dtype) for spec in specs] for slot, specs in call.outs.items()
    }
    with tracing(values, results, build):
        traced = traced_of(call)
        # what is as simple for all sizes, or takes long: each batch has other sequences
        kept = traced.has_steps or (
            not traced.calls and {x.op for x in traced.every} <= ELEMENTWISE | {"input", "reshape"}
        )
        made: Mapping[str, Any] = traced.outputs if kept else _traced_here(call, rule, values, floats)
        wanted = []
        for slot, specs in call.outs.items():
            found = made[slot] if isinstance(made[slot], (tuple, list)) else (made[slot],)
            wanted += [(slot, i, cast(x, spec.dtype)) for i, (x, spec) in enumerate(zip(found, specs, strict=True))]
        simple = lowered([x for _, _, x in wanted])
        writer = _Writer(build, values, not check_indices(ordered([x for _, _, x in wanted])), tables(simple))
        unknown = next(filter(_is_unknown, ordered(simple)), None)
        if unknown is not None:
            return f"no operator computes {unknown.op}"
        writer.write([(x, build.output(slot, i)) for (slot, i, _), x in zip(wanted, simple, strict=True)])
    if any(part.call.op is call.op and id(part) not in writer.calls for part in build.parts):
        return "it is what expressions are decomposed into"
    return None


def _traced_here(call: Call, rule: ExpressionRule, values: dict[str, Any], floats: Sequence[str]) -> Mapping[str, Any]:
    """The expression at the sizes of a call, with calls of operators in it."""
    given: dict[str, Any] = {
        slot: tuple(symbol(slot, i, [number(d) for d in spec.dims], spec.dtype) for i, spec in enumerate(specs))
        for slot, specs in call.ins.items()
    } | {
        slot: tuple(Numbers.of((_known(n, values) for n in each), each.dims) for each in found)
        for slot, found in stated(call).items()
    }
    given |= {slot: tuple(table(slot, i) for i in range(call.count(slot))) for slot in call.op.tables if call.has(slot)}
    return rule.function(given, {**call.attrs, **{name: attribute(name) for name in floats}})


def _is_unknown(x: Tensor) -> bool:
    """Whether no operator computes a primitive."""
    return (x.op not in ELEMENTWISE and x.op not in OPERATORS) or (x.op == "scan" and x.params[0] != "sum")


def _is_same_call(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are made by one call of an operator, as slots of it."""
    alike = x.op == y.op == "call" and x.params[1:] == y.params[1:] and 0 not in dims_of(x)
    return alike and all(a is b for a, b in zip(x.args, y.args, strict=True))


def _known(n: Number, values: dict[str, Any]) -> Number:
    """A number that an operand holds, as a constant if it is known."""
    found = n.evaluate(values)
    return n if found is None else number(found)


class _Writer(PrimitiveWriter):
    """Writes operators; ``in_place``: nothing of the call fails after a variable is updated in place."""

    def __init__(self, build: Build, values: dict[str, Any], in_place: bool, tables: set[Tensor]) -> None:
        super().__init__(build, values)
        self.in_place, self.tables = in_place, tables

    def value(self, x: Tensor) -> Value:
        """What holds a tensor; its operators are written first."""
        pending = [x]
        while pending:
            one = pending[-1]
            if one in self.known:
                pending.pop()
                continue
            missing = [arg for arg in self._operands(one) if arg not in self.known]
            if missing:
                pending += missing
                continue
            self.known[one] = self._written(one, None)
            pending.pop()
        return self.known[x]

    def write(self, outputs: Sequence[tuple[Tensor, Value]]) -> None:
        """Write outputs: those that others are made of first, and by one operator what is elementwise of known tensors.

        So no tensor that an output updates in place is read after it, if that can be.
        """
        order = {x: k for k, x in enumerate(ordered([x for x, _ in outputs]))}
        pending = sorted(outputs, key=lambda each: order[each[0]])
        self.results = {x: target for x, target in reversed(pending) if x.op == "step_result"}
        while pending:
            x, target = pending.pop(0)
            for arg in self._operands(x):
                self.value(arg)
            if x.op == "step_result" and x not in self.known:
                self.known[x] = self._written(x, target)
            if self.known.get(x) is target:
                continue
            if x in self.known or x.op == "input":
                self.build("assign", {"X": self.value(x)}, {"Out": target})
                continue
            group = self._alike(x, target, pending)
            pending = [each for each in pending if all(each[1] is not value for _, value in group)]
            if x.op == "call" and 0 not in dims_of(x):
                self._called(group)
            elif len(group) == 1:
                self._written(x, target)
            else:
                self._elementwise([each for each, _ in group], dims_of(x), [each for _, each in group])
            self.known.update(group)

    def _alike(self, x: Tensor, target: Value, pending: Sequence[tuple[Tensor, Value]]) -> list[tuple[Tensor, Value]]:
        """An output, and those that one operator computes with it."""
        if x.op == "call" and 0 not in dims_of(x):
            slots = [each for each in pending if each[0] is not x and _is_same_call(each[0], x)]
            return [(x, target), *slots]
        group, leaves = [(x, target)], dict.fromkeys(self._operands(x))
        if not leaves or not self._is_elementwise(x):
            return group
        for each, other in pending:
            more = self._operands(each)
            fits = self._is_elementwise(each) and dims_of(each) == dims_of(x) and each not in self.known and more
            if not fits or any(each is one for one, _ in group):
                continue
            known = all(arg in self.known or arg.op == "input" for arg in more)
            if known and len(leaves | dict.fromkeys(more)) <= MOST_OPERANDS:
                group.append((each, other))
                leaves |= dict.fromkeys(more)
        for arg in leaves:
            self.value(arg)
        return group

    def _operands(self, x: Tensor) -> list[Tensor]:
        """The tensors that the operator which makes ``x`` reads."""
        if not prod(dims_of(x)) or x.op == "input" or x in self.tables:
            return []
        summed = self._summed(x)
        if summed is not None:
            return self._leaves(summed)
        if x.op in ("segment_of", "step_table"):
            return []  # of offsets that are known
        if x.op == "steps":
            return [arg for arg in x.args if arg.op != "offsets"]
        if x.op == "call":
            return list(x.args)
        if not self._is_elementwise(x):
            return [arg for arg in x.args if arg.op != "number"]
        return self._leaves(x)

    def _is_elementwise(self, x: Tensor) -> bool:
        """Whether one operator computes a tensor together with what is elementwise around it."""
        return x.op in ELEMENTWISE and x not in self.tables

    def _summed(self, x: Tensor) -> Tensor | None:
        """The elementwise part that one operator computes and adds up, if ``x`` is a sum of one."""
        if x.op != "reduce" or x.params[0] != "sum" or x.dtype not in FLOATS:
            return None
        (arg,) = x.args
        if arg.op != "map" or arg in self.known or arg in self.tables:
            return None
        dims = dims_of(arg)
        return arg if any(dims_of(leaf) == dims for leaf in self._leaves(arg)) else None

    def _leaves(self, x: Tensor) -> list[Tensor]:
        """What an elementwise part of an expression begins with: each with its dims or 1, or without the first dims."""
        found: dict[Tensor, None] = {}
        seen: set[Tensor] = set()
        pending = list(x.args)
        while pending:
            one = pending.pop()
            if one in seen or one.op == "number":
                continue
            seen.add(one)
            within = self._is_elementwise(one) or self._is_spread(one)
            if within and one not in self.known and len(found) + len(pending) < MOST_OPERANDS:
                pending += one.args
            else:
                found[one] = None
        return list(found)

    def _is_spread(self, x: Tensor) -> bool:
        """Whether a reshape does what broadcasting does: it puts 1s before the dims of a tensor, or of one number.

        What is computed of fewer dims is made first, not once for each element.
        """
        if x.op != "reshape":
            return False
        (source,), dims = x.args, dims_of(x)
        given = dims_of(source)
        made = source in self.known or not self._is_elementwise(source)
        return prod(dims) == 1 or (made and len(given) <= len(dims) and dims == (1,) * (len(dims) - len(given)) + given)

    def _written(self, x: Tensor, target: Value | None) -> Value:
        if x.op == "input":
            return self.build.input(*x.params)
        if not prod(dims_of(x)):
            attrs = {"shape": list(dims_of(x)), "value": 0.0, "dtype": x.dtype}
            return self.apply("fill_constant", {}, target, attrs)
        if x in self.tables:
            return self.apply("assign_value", {}, target, table_of(x))
        summed = x if x.op in ELEMENTWISE else self._summed(x)
        if summed is not None:
            return self._elementwise([summed], dims_of(x), [target])
        return OPERATORS[x.op](self, x, target)

    # Elementwise parts

    def _elementwise(self, several: Sequence[Tensor], dims: Sequence[int], targets: Sequence[Value | None]) -> Value:
        """Outputs are the tensors, or the sums of them along the dims that are 1 in ``dims``."""
        operands = list(dict.fromkeys(leaf for x in several for leaf in self._leaves(x)))
        if not operands:  # numbers alone
            return self._filled(several[0], targets[0])
        numbers: list[float] = []
        text, expressions = self._scalars(several, operands, numbers)
        dtypes, made = tuple(x.dtype for x in several), slots(len(several))
        updated = tuple(
            (slot, f"A{k}")
            for slot, target in zip(made, targets, strict=True)
            for k, arg in enumerate(operands)
            if self._updates(target, arg)
        )
        key = (text, tuple(arg.dtype for arg in operands), dtypes, updated)
        op = _definitions.get(key, lambda: definition(expressions, len(operands), len(numbers), dtypes, updated))
        attrs: dict[str, Any] = {f"n{k}": value for k, value in enumerate(numbers)}
        attrs["dims"] = list(dims)
        inputs = {f"A{k}": self.known[arg] for k, arg in enumerate(operands)}
        found: Value = self.build(op, inputs, dict(zip(made, targets, strict=True)), attrs)
        return found

    def _updates(self, target: Value | None, x: Tensor) -> bool:
        """Whether a target is an output of the call that is the variable of an operand, updated in place."""
        if not self.in_place or target is None or target.role != "out" or x.op != "input":
            return False
        call = self.build.call
        return (
            call.op.must_alias.get(target.slot) == x.params[0] and call.spec(x.params[0]) == call.outs[target.slot][0]
        )

    def _filled(self, x: Tensor, target: Value | None) -> Value:
        numbers: list[float] = []
        _, (expression,) = self._scalars([x], (), numbers)
        value = evaluate(expression, {f"n{k}": n for k, n in enumerate(numbers)})
        attrs: dict[str, Any] = {"shape": list(dims_of(x)), "dtype": x.dtype, "value": 0.0}
        if x.dtype in ALL_FLOATS:
            attrs["value"] = float(value)
        else:
            attrs["str_value"] = str(int(value))
        return self.apply("fill_constant", {}, target, attrs)

    def _scalars(
        self, several: Sequence[Tensor], operands: Sequence[Tensor], numbers: list[float]
    ) -> tuple[str, tuple[Expr, ...]]:
        """The scalar expressions of an elementwise part, and a text that is equal for equal ones."""
        leaves_of = {arg: Expr("input", (), f"A{k}") for k, arg in enumerate(operands)}
        done: dict[Tensor, Expr] = {}
        words: dict[Tensor, str] = {}
        lines = []
        order = ordered(several, leaves_of)
        for one in order:
            if one in leaves_of:
                done[one], words[one] = leaves_of[one], leaves_of[one].value
                continue
            if one.op == "number":
                done[one], words[one] = self._constant(one, numbers)
                continue
            if one.op in ("broadcast", "stop", "reshape"):
                done[one], words[one] = done[one.args[0]], words[one.args[0]]
                continue
            args = tuple(done[arg] for arg in one.args)
            done[one] = Expr(one.params[0], args) if one.op == "map" else Expr("cast", args, one.dtype)
            words[one] = f"v{len(words)}"
            said = ",".join(words[arg] for arg in one.args)
            lines.append(f"{words[one]}={one.op}{one.params if one.op == 'map' else ''}({said}):{one.dtype}")
        return ";".join([*lines, *(words[x] for x in several)]), tuple(done[x] for x in several)

    def _constant(self, x: Tensor, numbers: list[float]) -> tuple[Expr, str]:
        """A number of its own dtype: floats are arguments, of which the kernel does not depend; so are most sizes."""
        value = self.number(x.params[0])
        if value is None:
            raise ProgramError(f"{x.params[0].key} is a number that only the run knows")
        if x.dtype not in FLOATS:
            value = bool(value) if x.dtype == "bool" else int(value)
            if x.dtype != "int64" or not MAX_LITERAL < abs(value) < MAX_EXACT_INTEGER:
                return Expr("const", (), value), f"{x.dtype} {value}"
        numbers.append(float(value))
        name = f"n{len(numbers) - 1}"
        return Expr("cast", (Expr("param", (), name),), x.dtype), f"{x.dtype} {name}"


OPERATORS: dict[str, Callable[[_Writer, Tensor, Value | None], Value]] = {
    **{op: getattr(_Writer, f"_{op}") for op in TENSOR_PRIMITIVES if hasattr(_Writer, f"_{op}")},
    "input": lambda writer, x, target: writer.build.input(*x.params),
    "call": lambda writer, x, target: writer._called([(x, target)]),
}
"""By primitive: what writes the operator that is it."""
