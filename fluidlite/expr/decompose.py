"""Decomposes an expression into operators, one for each primitive: for places without a kernel for the expression.

Connected elementwise primitives become one operator; every other primitive becomes an operator of Fluid.
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
from fluidlite.expr.calls import leaves, traced_of, value_numbers
from fluidlite.expr.constants import table_of, tables
from fluidlite.expr.elementwise import definition, slots
from fluidlite.expr.lowering import dims_of, lowered
from fluidlite.expr.number import Number, Numbers, attribute, number
from fluidlite.expr.primitive_calls import PrimitiveWriter
from fluidlite.expr.primitives import TENSOR_PRIMITIVES
from fluidlite.expr.segments import table
from fluidlite.expr.tensor import Tensor, cast, symbol, topological_order
from fluidlite.expr.traced import check_indices
from fluidlite.expr.tracing import tracing
from fluidlite.program.decompose import Build, PartValue
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.rules import ExpressionRule

ELEMENTWISE = frozenset({"map", "cast", "stop", "broadcast", "number"})
MAX_OPERANDS = 12
"""The maximum number of tensors that one elementwise operator reads."""
MAX_LITERAL = 32
"""Larger integers are arguments of a kernel, not literals: most are sizes, which batches of sequences change."""
MAX_EXACT_INTEGER = 1 << 53
"""float64, the type of kernel arguments, represents all integers only up to this one."""
_definitions: LRUCache[OpDef] = LRUCache(1024, "decompositions", 16 << 20)


def decompose(call: Call, build: Build) -> str | None:
    """Write the operators that compute a call of an expression; or return the reason why none can."""
    rule = call.op.expression
    assert rule is not None
    if not call.is_static:
        return "its dims are not known"
    values = leaves(call)
    floats = [name for name in call.attrs if isinstance(values.get(name), float)]
    results = {
        slot: [(tuple(map(number, spec.dims)), spec.dtype) for spec in specs] for slot, specs in call.outs.items()
    }
    with tracing(values, results, build):
        traced = traced_of(call)
        # the trace is reused if it is equally simple for all sizes, or slow to make: sequences differ in each batch
        is_reused = traced.has_steps or (
            not traced.calls and {x.op for x in traced.every} <= ELEMENTWISE | {"input", "reshape"}
        )
        by_slot: Mapping[str, Any] = traced.outputs if is_reused else _trace_call(call, rule, values, floats)
        outputs = []
        for slot, specs in call.outs.items():
            tensors = by_slot[slot] if isinstance(by_slot[slot], (tuple, list)) else (by_slot[slot],)
            outputs += [(slot, i, cast(x, spec.dtype)) for i, (x, spec) in enumerate(zip(tensors, specs, strict=True))]
        simple = lowered([x for _, _, x in outputs])
        writer = _CallWriter(
            build, values, not check_indices(topological_order([x for _, _, x in outputs])), tables(simple)
        )
        unknown = next(filter(_is_unknown, topological_order(simple)), None)
        if unknown is not None:
            return f"no operator computes {unknown.op}"
        writer.write([(x, build.output(slot, i)) for (slot, i, _), x in zip(outputs, simple, strict=True)])
    if any(part.call.op is call.op and id(part) not in writer.calls for part in build.parts):
        return "it is what expressions are decomposed into"
    return None


def _trace_call(call: Call, rule: ExpressionRule, values: dict[str, Any], floats: Sequence[str]) -> Mapping[str, Any]:
    """Trace the expression for the sizes of a call; calls of operators stay calls."""
    inputs: dict[str, Any] = {
        slot: tuple(symbol(slot, i, [number(d) for d in spec.dims], spec.dtype) for i, spec in enumerate(specs))
        for slot, specs in call.ins.items()
    } | {
        slot: tuple(Numbers.of((_fold(n, values) for n in row), row.dims) for row in tensors)
        for slot, tensors in value_numbers(call).items()
    }
    inputs |= {
        slot: tuple(table(slot, i) for i in range(call.count(slot))) for slot in call.op.tables if call.has(slot)
    }
    return rule.function(inputs, {**call.attrs, **{name: attribute(name) for name in floats}})


def _is_unknown(x: Tensor) -> bool:
    """Whether no operator computes a primitive."""
    return (x.op not in ELEMENTWISE and x.op not in OPERATORS) or (x.op == "scan" and x.params[0] != "sum")


def _is_same_call(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are output slots of one call of an operator."""
    same_operator = x.op == y.op == "call" and x.params[1:] == y.params[1:] and 0 not in dims_of(x)
    return same_operator and all(a is b for a, b in zip(x.args, y.args, strict=True))


def _fold(n: Number, values: dict[str, Any]) -> Number:
    """A number read from an operand, as a constant if its value is known."""
    value = n.evaluate(values)
    return n if value is None else number(value)


class _CallWriter(PrimitiveWriter):
    """Emits the operators of a call; ``in_place``: no operator of it can fail after an in-place update."""

    def __init__(self, build: Build, values: dict[str, Any], in_place: bool, tables: set[Tensor]) -> None:
        super().__init__(build, values)
        self.in_place, self.tables = in_place, tables

    def value(self, x: Tensor) -> PartValue:
        """The value of a tensor; its operators are emitted first."""
        pending = [x]
        while pending:
            tensor = pending[-1]
            if tensor in self.written:
                pending.pop()
                continue
            missing = [arg for arg in self._operands(tensor) if arg not in self.written]
            if missing:
                pending += missing
                continue
            self.written[tensor] = self._emit(tensor, None)
            pending.pop()
        return self.written[x]

    def write(self, outputs: Sequence[tuple[Tensor, PartValue]]) -> None:
        """Emit the outputs, operands first; elementwise outputs of the same operands share one operator.

        Where possible, no operator reads a tensor after an output has updated it in place.
        """
        order = {x: k for k, x in enumerate(topological_order([x for x, _ in outputs]))}
        pending = sorted(outputs, key=lambda each: order[each[0]])
        self.step_targets = {x: target for x, target in reversed(pending) if x.op == "step_result"}
        while pending:
            x, target = pending.pop(0)
            for arg in self._operands(x):
                self.value(arg)
            if x.op == "step_result" and x not in self.written:
                self.written[x] = self._emit(x, target)
            if self.written.get(x) is target:
                continue
            if x in self.written or x.op == "input":
                self.build("assign", {"X": self.value(x)}, {"Out": target})
                continue
            group = self._group(x, target, pending)
            pending = [each for each in pending if all(each[1] is not value for _, value in group)]
            if x.op == "call" and 0 not in dims_of(x):
                self._emit_call(group)
            elif len(group) == 1:
                self._emit(x, target)
            else:
                self._elementwise([each for each, _ in group], dims_of(x), [each for _, each in group])
            self.written.update(group)

    def _group(
        self, x: Tensor, target: PartValue, pending: Sequence[tuple[Tensor, PartValue]]
    ) -> list[tuple[Tensor, PartValue]]:
        """An output, and the pending outputs that one operator computes together with it."""
        if x.op == "call" and 0 not in dims_of(x):
            same_call = [each for each in pending if each[0] is not x and _is_same_call(each[0], x)]
            return [(x, target), *same_call]
        group, leaves = [(x, target)], dict.fromkeys(self._operands(x))
        if not leaves or not self._is_elementwise(x):
            return group
        for each, other in pending:
            more = self._operands(each)
            fits = self._is_elementwise(each) and dims_of(each) == dims_of(x) and each not in self.written and more
            if not fits or any(each is member for member, _ in group):
                continue
            available = all(arg in self.written or arg.op == "input" for arg in more)
            if available and len(leaves | dict.fromkeys(more)) <= MAX_OPERANDS:
                group.append((each, other))
                leaves |= dict.fromkeys(more)
        for arg in leaves:
            self.value(arg)
        return group

    def _operands(self, x: Tensor) -> list[Tensor]:
        """The tensors that the operator of ``x`` reads."""
        if not prod(dims_of(x)) or x.op == "input" or x in self.tables:
            return []
        summand = self._summand(x)
        if summand is not None:
            return self._leaves(summand)
        if x.op in ("segment_of", "step_table"):
            return []  # a constant: the offsets are known
        if x.op == "steps":
            return [arg for arg in x.args if arg.op != "offsets"]
        if x.op == "call":
            return list(x.args)
        if not self._is_elementwise(x):
            return [arg for arg in x.args if arg.op != "number"]
        return self._leaves(x)

    def _is_elementwise(self, x: Tensor) -> bool:
        """Whether a tensor is computed inside an elementwise operator."""
        return x.op in ELEMENTWISE and x not in self.tables

    def _summand(self, x: Tensor) -> Tensor | None:
        """The elementwise operand of the sum ``x`` if one operator computes both, else None."""
        if x.op != "reduce" or x.params[0] != "sum" or x.dtype not in FLOATS:
            return None
        (arg,) = x.args
        if arg.op != "map" or arg in self.written or arg in self.tables:
            return None
        dims = dims_of(arg)
        return arg if any(dims_of(leaf) == dims for leaf in self._leaves(arg)) else None

    def _leaves(self, x: Tensor) -> list[Tensor]:
        """The operands of the elementwise operator of ``x``: they broadcast to its dims."""
        leaves: dict[Tensor, None] = {}
        visited: set[Tensor] = set()
        pending = list(x.args)
        while pending:
            tensor = pending.pop()
            if tensor in visited or tensor.op == "number":
                continue
            visited.add(tensor)
            is_inside = self._is_elementwise(tensor) or self._is_spread(tensor)
            if is_inside and tensor not in self.written and len(leaves) + len(pending) < MAX_OPERANDS:
                pending += tensor.args
            else:
                leaves[tensor] = None
        return list(leaves)

    def _is_spread(self, x: Tensor) -> bool:
        """Whether a reshape only adds leading dims of 1, as broadcasting does, or has one element.

        An elementwise source with fewer dims is computed before, not once for each element of the result.
        """
        if x.op != "reshape":
            return False
        (source,), dims = x.args, dims_of(x)
        tail = dims_of(source)
        is_leaf = source in self.written or not self._is_elementwise(source)
        return prod(dims) == 1 or (is_leaf and len(tail) <= len(dims) and dims == (1,) * (len(dims) - len(tail)) + tail)

    def _emit(self, x: Tensor, target: PartValue | None) -> PartValue:
        if x.op == "input":
            return self.build.input(*x.params)
        if not prod(dims_of(x)):
            attrs = {"shape": list(dims_of(x)), "value": 0.0, "dtype": x.dtype}
            return self.apply("fill_constant", {}, target, attrs)
        if x in self.tables:
            return self.apply("assign_value", {}, target, table_of(x))
        part = x if x.op in ELEMENTWISE else self._summand(x)
        if part is not None:
            return self._elementwise([part], dims_of(x), [target])
        return OPERATORS[x.op](self, x, target)

    # Elementwise parts

    def _elementwise(
        self, tensors: Sequence[Tensor], dims: Sequence[int], targets: Sequence[PartValue | None]
    ) -> PartValue:
        """Emit an elementwise operator of the tensors, or of their sums along the dims that are 1 in ``dims``."""
        operands = list(dict.fromkeys(leaf for x in tensors for leaf in self._leaves(x)))
        if not operands:  # numbers alone
            return self._fill(tensors[0], targets[0])
        numbers: list[float] = []
        text, expressions = self._scalars(tensors, operands, numbers)
        dtypes, outputs = tuple(x.dtype for x in tensors), slots(len(tensors))
        updated = tuple(
            (slot, f"A{k}")
            for slot, target in zip(outputs, targets, strict=True)
            for k, arg in enumerate(operands)
            if self._is_in_place(target, arg)
        )
        key = (text, tuple(arg.dtype for arg in operands), dtypes, updated)
        op = _definitions.get(key, lambda: definition(expressions, len(operands), len(numbers), dtypes, updated))
        attrs: dict[str, Any] = {f"n{k}": value for k, value in enumerate(numbers)}
        attrs["dims"] = list(dims)
        inputs = {f"A{k}": self.written[arg] for k, arg in enumerate(operands)}
        result: PartValue = self.build(op, inputs, dict(zip(outputs, targets, strict=True)), attrs)
        return result

    def _is_in_place(self, target: PartValue | None, x: Tensor) -> bool:
        """Whether a target is an output that the call updates in place, and ``x`` is that operand."""
        if not self.in_place or target is None or target.role != "out" or x.op != "input":
            return False
        call = self.build.call
        return (
            call.op.must_alias.get(target.slot) == x.params[0] and call.spec(x.params[0]) == call.outs[target.slot][0]
        )

    def _fill(self, x: Tensor, target: PartValue | None) -> PartValue:
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
        self, tensors: Sequence[Tensor], operands: Sequence[Tensor], numbers: list[float]
    ) -> tuple[str, tuple[Expr, ...]]:
        """The scalar expressions of an elementwise part, and a text that is its cache key."""
        leaves_of = {arg: Expr("input", (), f"A{k}") for k, arg in enumerate(operands)}
        done: dict[Tensor, Expr] = {}
        names: dict[Tensor, str] = {}
        lines = []
        order = topological_order(tensors, leaves_of)
        for node in order:
            if node in leaves_of:
                done[node], names[node] = leaves_of[node], leaves_of[node].value
                continue
            if node.op == "number":
                done[node], names[node] = self._constant(node, numbers)
                continue
            if node.op in ("broadcast", "stop", "reshape"):
                done[node], names[node] = done[node.args[0]], names[node.args[0]]
                continue
            args = tuple(done[arg] for arg in node.args)
            done[node] = Expr(node.params[0], args) if node.op == "map" else Expr("cast", args, node.dtype)
            names[node] = f"v{len(names)}"
            args_text = ",".join(names[arg] for arg in node.args)
            lines.append(f"{names[node]}={node.op}{node.params if node.op == 'map' else ''}({args_text}):{node.dtype}")
        return ";".join([*lines, *(names[x] for x in tensors)]), tuple(done[x] for x in tensors)

    def _constant(self, x: Tensor, numbers: list[float]) -> tuple[Expr, str]:
        """A number in its dtype, and its text: floats and most sizes are kernel arguments, so kernels are reused."""
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


OPERATORS: dict[str, Callable[[_CallWriter, Tensor, PartValue | None], PartValue]] = {
    **{op: getattr(_CallWriter, f"_{op}") for op in TENSOR_PRIMITIVES if hasattr(_CallWriter, f"_{op}")},
    "input": lambda writer, x, target: writer.build.input(*x.params),
    "call": lambda writer, x, target: writer._emit_call([(x, target)]),
}
"""By primitive: the function that emits its operator."""
