"""Scalar expressions: an elementwise operator is a function of symbols, and tracing it gives a graph.

``maximum(x, 0.0)`` on a symbol makes a node. Numbers and float attributes have no type of their own; they
take the inputs'. Two expressions that read alike are one value once typed (:mod:`fluidlite.codegen.typed`).
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
    """One immutable node: a primitive's name, its operands, and a value where the node holds one.

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
    """A number; it takes the dtype of what it meets."""
    if isinstance(value, Expr):
        return value
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"{value!r} is neither a symbol nor a number")
    return Expr("const", (), value)


def node(op: str, *args: Any, value: Any = None) -> Expr:
    """A primitive of symbols and numbers."""
    return Expr(op, tuple(map(constant, args)), value)


def are_scalars(operands: Iterable[Any]) -> bool:
    """Whether a function of these is one of scalars: one is a symbol, or a scalar rule is being traced."""
    return getattr(_state, "tracing", False) or any(isinstance(x, Expr) for x in operands)


def uniform() -> Expr:
    """A random number in [0, 1), one an element; each use in an expression draws from its own sub-stream."""
    return Expr("uniform", (), _next_stream())


def gaussian() -> Expr:
    """A random number of mean 0 and deviation 1, one an element."""
    return Expr("gaussian", (), _next_stream())


def _next_stream() -> int:
    streams: int = getattr(_state, "streams", 0)
    _state.streams = streams + 1
    return streams


@dataclass(frozen=True)
class Traced:
    """The graph of one scalar rule: per output slot its expression."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    expressions: tuple[Expr, ...]


def snake(slot: str) -> str:
    """The parameter name of a slot: ``LearningRate`` is ``learning_rate``, ``Out@GRAD`` is ``dout``."""
    if slot.endswith(GRAD):
        return "d" + snake(slot.removesuffix(GRAD))
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", slot).lower()


def parameters(function: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of a rule's positional parameters (slots) and of its keyword-only ones (attributes)."""
    slots: list[str] = []
    attrs: list[str] = []
    for given in inspect.signature(function).parameters.values():
        (attrs if given.kind is given.KEYWORD_ONLY else slots).append(given.name)
    return tuple(slots), tuple(attrs)


def slots_of(names: Iterable[str], slots: Iterable[str], what: str) -> tuple[str, ...]:
    """Slots that the parameter names stand for; an unknown one is a RegistryError."""
    known = {snake(slot): slot for slot in slots}
    found = []
    for name in names:
        slot = known.get(name) or known.get(name.rstrip("_"))
        if slot is None:
            raise RegistryError(f"{what}: parameter {name!r} names no slot; known are {', '.join(sorted(known))}")
        found.append(slot)
    return tuple(found)


def scalar_reads(op: OpDef) -> tuple[str, ...]:
    """The input slots whose bytes an operator's expression reads."""
    if op.scalar is None:
        return ()
    names, _ = parameters(op.scalar.function)
    return slots_of(names, [slot.name for slot in op.inputs], f"operator {op.type!r}")


def trace(rule: ScalarRule, op: OpDef, attrs: Mapping[str, Any], present: Container[str] | None = None) -> Traced:
    """Call the rule's function on symbols. Float attributes become parameters, static and others Python constants.

    A slot that may be left out, and is not among those ``present``, is None.
    """
    names, keywords = parameters(rule.function)
    slots = slots_of(names, [slot.name for slot in op.inputs], f"operator {op.type!r}")
    absent = {slot.name for slot in op.inputs if slot.dispensable and present is not None and slot.name not in present}
    given: dict[str, Any] = {}
    for name in keywords:
        attr = op.attr(name) or op.attr(name.rstrip("_"))  # "lambda" is no name for a parameter: "lambda_" is
        if attr is None:
            raise RegistryError(f"operator {op.type!r}: its expression asks for {name!r}, which is no attribute of it")
        value = attrs[attr.name]
        symbol = attr.type == "float" and not attr.static and value is not None
        given[name] = Expr("param", (), attr.name) if symbol else value
    _state.streams, _state.tracing = 0, True
    try:
        result = rule.function(*[None if slot in absent else Expr("input", (), slot) for slot in slots], **given)
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
    return Traced(read, outputs, tuple(map(constant, values)))
