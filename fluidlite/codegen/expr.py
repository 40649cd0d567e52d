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
from fluidlite.framework.opdef import GRAD, OpDef, ScalarRule


class Expr:
    """One immutable node: a primitive's name, its operands, and a value where the node holds one.

    Attributes
    ----------
    op : str
        ``"input"`` (value: slot), ``"param"`` (value: attribute), ``"const"`` (value: number), ``"uniform"`` and
        ``"gaussian"`` (value: number of the sub-stream), ``"cast"`` (value: dtype), or a primitive.
    args : tuple of Expr
    value : object
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

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        if not self.args:
            return f"{self.op}({self.value!r})"
        extra = "" if self.value is None else f", {self.value!r}"
        return f"{self.op}({', '.join(map(repr, self.args))}{extra})"

    def __add__(self, other: Operand) -> Expr:
        return _node("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return _node("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return _node("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return _node("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return _node("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return _node("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return _node("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return _node("div", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return _node("floordiv", self, other)

    def __rfloordiv__(self, other: Operand) -> Expr:
        return _node("floordiv", other, self)

    def __mod__(self, other: Operand) -> Expr:
        return _node("mod", self, other)

    def __rmod__(self, other: Operand) -> Expr:
        return _node("mod", other, self)

    def __pow__(self, other: Operand) -> Expr:
        return pow_(self, other)

    def __rpow__(self, other: Operand) -> Expr:
        return pow_(other, self)

    def __neg__(self) -> Expr:
        return _node("neg", self)

    def __pos__(self) -> Expr:
        return self

    def __abs__(self) -> Expr:
        return _node("abs", self)

    def __lt__(self, other: Operand) -> Expr:
        return _node("less", self, other)

    def __le__(self, other: Operand) -> Expr:
        return _node("less_equal", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return _node("greater", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return _node("greater_equal", self, other)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return _node("equal", self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return _node("not_equal", self, other)


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


def _node(op: str, *args: Any, value: Any = None) -> Expr:
    return Expr(op, tuple(constant(arg) for arg in args), value)


def like(x: Operand, value: Operand = 0.0) -> Expr:
    """``value`` for every element of ``x``, whose bytes are not read."""
    return constant(value)


def zeros(x: Operand = 0) -> Expr:
    """Zero for every element of ``x``, whose bytes are not read."""
    return constant(0)


def maximum(x: Operand, y: Operand) -> Expr:
    """The larger; NaN if either is NaN."""
    return _node("maximum", x, y)


def minimum(x: Operand, y: Operand) -> Expr:
    """The smaller; NaN if either is NaN."""
    return _node("minimum", x, y)


def where(condition: Operand, x: Operand, y: Operand) -> Expr:
    """``x`` where the condition holds, else ``y``."""
    return _node("where", condition, x, y)


def exp(x: Operand) -> Expr:
    """Exponential function."""
    return _node("exp", x)


def expm1(x: Operand) -> Expr:
    """``exp(x) - 1``, exact near 0."""
    return _node("expm1", x)


def log(x: Operand) -> Expr:
    """Natural logarithm."""
    return _node("log", x)


def log1p(x: Operand) -> Expr:
    """``log(1 + x)``, exact near 0."""
    return _node("log1p", x)


def sqrt(x: Operand) -> Expr:
    """Square root."""
    return _node("sqrt", x)


def rsqrt(x: Operand) -> Expr:
    """``1 / sqrt(x)``."""
    return _node("div", 1, _node("sqrt", x))


def tanh(x: Operand) -> Expr:
    """Hyperbolic tangent."""
    return _node("tanh", x)


def sigmoid(x: Operand) -> Expr:
    """``1 / (1 + exp(-x))``."""
    return 1 / (1 + exp(-constant(x)))


def sin(x: Operand) -> Expr:
    """Sine."""
    return _node("sin", x)


def cos(x: Operand) -> Expr:
    """Cosine."""
    return _node("cos", x)


def asin(x: Operand) -> Expr:
    """Inverse sine."""
    return _node("asin", x)


def acos(x: Operand) -> Expr:
    """Inverse cosine."""
    return _node("acos", x)


def atan(x: Operand) -> Expr:
    """Inverse tangent."""
    return _node("atan", x)


def sinh(x: Operand) -> Expr:
    """Hyperbolic sine."""
    return _node("sinh", x)


def cosh(x: Operand) -> Expr:
    """Hyperbolic cosine."""
    return _node("cosh", x)


def erf(x: Operand) -> Expr:
    """The error function."""
    return _node("erf", x)


def floor(x: Operand) -> Expr:
    """Largest whole number not above ``x``."""
    return _node("floor", x)


def ceil(x: Operand) -> Expr:
    """Smallest whole number not below ``x``."""
    return _node("ceil", x)


def round_(x: Operand) -> Expr:
    """Nearest whole number; halves go away from zero."""
    return _node("round", x)


def abs_(x: Operand) -> Expr:
    """Absolute value."""
    return _node("abs", x)


def sign(x: Operand) -> Expr:
    """-1, 0 or 1; NaN of NaN."""
    return _node("sign", x)


def pow_(x: Operand, y: Operand) -> Expr:
    """``x`` to the power ``y``; squares and square roots that are known become products and roots."""
    if isinstance(y, (int, float)) and not isinstance(y, bool) and isinstance(x, Expr):
        if y == 1:
            return x
        if y == 2:
            return x * x
    return _node("pow", x, y)


def floordiv(x: Operand, y: Operand) -> Expr:
    """``floor(x / y)``; integers by 0 give 0."""
    return _node("floordiv", x, y)


def mod(x: Operand, y: Operand) -> Expr:
    """Remainder with the divisor's sign; integers by 0 give 0."""
    return _node("mod", x, y)


def logical_and(x: Operand, y: Operand) -> Expr:
    """Both are not zero."""
    return _node("logical_and", x, y)


def logical_or(x: Operand, y: Operand) -> Expr:
    """At least one is not zero."""
    return _node("logical_or", x, y)


def logical_not(x: Operand) -> Expr:
    """It is zero."""
    return _node("logical_not", x)


def logical_xor(x: Operand, y: Operand) -> Expr:
    """Exactly one is not zero."""
    return _node("logical_xor", x, y)


def equal(x: Operand, y: Operand) -> Expr:
    """``x == y``."""
    return _node("equal", x, y)


def not_equal(x: Operand, y: Operand) -> Expr:
    """``x != y``; true if either is NaN."""
    return _node("not_equal", x, y)


def isnan(x: Operand) -> Expr:
    """It is NaN."""
    return _node("isnan", x)


def isinf(x: Operand) -> Expr:
    """It is plus or minus infinity."""
    return _node("isinf", x)


def isfinite(x: Operand) -> Expr:
    """It is neither NaN nor infinite."""
    return _node("isfinite", x)


def cast(x: Operand, dtype: str) -> Expr:
    """Convert: to an integer truncates, saturates, and makes 0 of NaN; to bool is ``x != 0``."""
    return _node("cast", x, value=dtype)


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
    given = inspect.signature(function).parameters.values()
    attrs = tuple(p.name for p in given if p.kind is p.KEYWORD_ONLY)
    return tuple(p.name for p in given if p.kind is not p.KEYWORD_ONLY), attrs


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
    return slots_of(names, (slot.name for slot in op.inputs), f"operator {op.type!r}")


def trace(rule: ScalarRule, op: OpDef, attrs: Mapping[str, Any], present: Container[str] | None = None) -> Traced:
    """Call the rule's function on symbols. Float attributes become parameters, static and others Python constants.

    A slot that may be left out, and is not among those ``present``, is None.
    """
    names, keywords = parameters(rule.function)
    slots = slots_of(names, (slot.name for slot in op.inputs), f"operator {op.type!r}")
    absent = {slot.name for slot in op.inputs if slot.dispensable and present is not None and slot.name not in present}
    given: dict[str, Any] = {}
    for name in keywords:
        attr = op.attr(name) or op.attr(name.rstrip("_"))  # "lambda" is no name for a parameter: "lambda_" is
        if attr is None:
            raise RegistryError(f"operator {op.type!r}: its expression asks for {name!r}, which is no attribute of it")
        value = attrs[attr.name]
        symbol = attr.type == "float" and not attr.static and value is not None
        given[name] = Expr("param", (), attr.name) if symbol else value
    _state.streams = 0
    result = rule.function(*(None if slot in absent else Expr("input", (), slot) for slot in slots), **given)
    if isinstance(result, Mapping):
        by_slot = {slot if slot in rule.outputs else slot + GRAD: value for slot, value in result.items()}
        outputs = tuple(slot for slot in rule.outputs if slot in by_slot)
        values = tuple(by_slot[slot] for slot in outputs)
    else:
        values = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        outputs = rule.outputs
    if len(values) != len(outputs):
        raise RegistryError(
            f"operator {op.type!r}: its expression returns {len(values)} values for {len(outputs)} outputs"
        )
    read = tuple(slot for slot in slots if slot not in absent)
    return Traced(read, outputs, tuple(constant(value) for value in values))
