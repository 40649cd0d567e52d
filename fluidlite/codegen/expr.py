"""The IR of scalar expressions: an elementwise operator is a function of symbols; tracing it yields a graph.

``maximum(x, 0.0)`` on a symbol makes a node. Numbers and float attributes are weakly typed: they take the dtype of
the inputs. Equal expressions become one value when they are typed (:mod:`fluidlite.codegen.typed`).
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Union

from fluidlite.base.errors import RegistryError
from fluidlite.base.overloads import Overloads
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.rules import ScalarRule


class Expr(Overloads["Expr", "Operand", "Expr"]):
    """One immutable node: the name of a primitive, its operands, and a value for leaves and casts.

    ``op``: ``"input"`` (value: slot), ``"param"`` (value: attribute), ``"const"`` (value: number), ``"uniform"`` and
    ``"gaussian"`` (value: number of the sub-stream), ``"cast"`` (value: dtype), ``"like"`` (its first operand, with the
    dims of the second, which is not read), or a primitive.
    """

    __slots__ = ("args", "op", "value")
    op: str
    args: tuple[Expr, ...]
    value: Any

    def __init__(self, op: str, args: tuple[Expr, ...] = (), value: Any = None) -> None:
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "value", value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("an expression is immutable")

    def __bool__(self) -> bool:
        raise TypeError("a symbol has no truth value while an expression is traced; use where(condition, a, b)")

    def __repr__(self) -> str:
        if not self.args:
            return f"{self.op}({self.value!r})"
        extra = "" if self.value is None else f", {self.value!r}"
        return f"{self.op}({', '.join(map(repr, self.args))}{extra})"

    def arithmetic(self, function: str, *operands: Operand) -> Expr:
        """The node of a primitive."""
        return node(function, *operands)

    compare = _compare = _arithmetic = arithmetic


Operand = Union[Expr, int, float, bool]
_state = threading.local()


def constant(value: Any) -> Expr:
    """The node of a number, which is weakly typed; nodes are returned as they are."""
    if isinstance(value, Expr):
        return value
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"{value!r} is neither a symbol nor a number")
    return Expr("const", (), value)


def node(op: str, *args: Any, value: Any = None) -> Expr:
    """The node of a primitive of symbols and numbers."""
    return Expr(op, tuple(map(constant, args)), value)


def are_scalars(operands: Iterable[Any]) -> bool:
    """Whether operands belong to a scalar rule: one is a symbol, or a scalar rule is being traced."""
    return getattr(_state, "tracing", False) or any(isinstance(x, Expr) for x in operands)


def uniform() -> Expr:
    """A random number in [0, 1) for each element; each use in an expression draws from its own sub-stream."""
    return Expr("uniform", (), _next_stream())


def gaussian() -> Expr:
    """A random number of mean 0 and standard deviation 1 for each element."""
    return Expr("gaussian", (), _next_stream())


def _next_stream() -> int:
    streams: int = getattr(_state, "streams", 0)
    _state.streams = streams + 1
    return streams


@dataclass(frozen=True)
class ScalarTrace:
    """The graph of a scalar rule: an expression for each output slot."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    expressions: tuple[Expr, ...]


def snake(slot: str) -> str:
    """The parameter name of a slot: ``LearningRate`` is ``learning_rate``, ``Out@GRAD`` is ``dout``."""
    if slot.endswith(GRAD):
        return "d" + snake(slot.removesuffix(GRAD))
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", slot).lower()


def parameters(function: Any, every: Iterable[str] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a rule's positional parameters (slots) and of its keyword-only ones (attributes).

    ``every``: the names of all attributes, which ``**attrs`` takes.
    """
    slots: list[str] = []
    attrs: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            attrs = [*every]
        else:
            (attrs if parameter.kind is parameter.KEYWORD_ONLY else slots).append(parameter.name)
    return tuple(slots), tuple(attrs)


def slots_of(names: Iterable[str], slots: Iterable[str], what: str) -> tuple[str, ...]:
    """The slots of parameter names; raises RegistryError for an unknown name."""
    by_name = {snake(slot): slot for slot in slots}
    matches = []
    for name in names:
        slot = by_name.get(name) or by_name.get(name.rstrip("_"))
        if slot is None:
            raise RegistryError(f"{what}: parameter {name!r} names no slot; known are {', '.join(sorted(by_name))}")
        matches.append(slot)
    return tuple(matches)


def scalar_reads(op: OpDef) -> tuple[str, ...]:
    """The input slots whose elements an operator's expression reads."""
    if op.scalar is None:
        return ()
    names, _ = parameters(op.scalar.function)
    return slots_of(names, [slot.name for slot in op.inputs], f"operator {op.type!r}")


def trace(rule: ScalarRule, op: OpDef, attrs: Mapping[str, Any], present: Container[str] | None = None) -> ScalarTrace:
    """Call the rule's function on symbols. Float attributes become parameters; static and other ones are constants.

    A dispensable slot that is not in ``present`` is None.
    """
    names, keywords = parameters(rule.function)
    slots = slots_of(names, [slot.name for slot in op.inputs], f"operator {op.type!r}")
    absent = {slot.name for slot in op.inputs if slot.dispensable and present is not None and slot.name not in present}
    arguments: dict[str, Any] = {}
    for name in keywords:
        attr = op.attr(name) or op.attr(name.rstrip("_"))  # "lambda" is a keyword of Python: the parameter is "lambda_"
        if attr is None:
            raise RegistryError(f"operator {op.type!r}: its expression asks for {name!r}, which is no attribute of it")
        value = attrs[attr.name]
        symbol = attr.type == "float" and not attr.static and value is not None
        arguments[name] = Expr("param", (), attr.name) if symbol else value
    _state.streams, _state.tracing = 0, True
    try:
        result = rule.function(*[None if slot in absent else Expr("input", (), slot) for slot in slots], **arguments)
    finally:
        _state.tracing = False
    if isinstance(result, Mapping):
        by_slot = {slot if slot in rule.outputs else slot + GRAD: value for slot, value in result.items()}
        outputs = tuple(filter(by_slot.__contains__, rule.outputs))
        values = tuple(map(by_slot.__getitem__, outputs))
    else:
        values = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        outputs = rule.outputs
    if len(values) != len(outputs):
        raise RegistryError(
            f"operator {op.type!r}: its expression returns {len(values)} values for {len(outputs)} outputs"
        )
    read = tuple([slot for slot in slots if slot not in absent])
    return ScalarTrace(read, outputs, tuple(map(constant, values)))
