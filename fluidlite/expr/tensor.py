"""The IR of expressions: tensors of a trace, each a primitive applied to tensors, with its dims and its dtype.

The primitives are a closed set, :data:`fluidlite.expr.primitives.TENSOR_PRIMITIVES`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, NoReturn, Union

from fluidlite.base.dtypes import ALL_INTS, FLOATS, HALVES, integer_limits
from fluidlite.base.errors import ProgramError
from fluidlite.base.overloads import Overloads
from fluidlite.codegen.expr import are_scalars, node
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.expr.number import FUNCTIONS, Condition, Number, Numeric, apply, number
from fluidlite.expr.primitives import TENSOR_PRIMITIVES
from fluidlite.expr.tracing import Requirement, current

Dims = tuple[Number, ...]
Params = tuple[Any, ...]


class Tensor(Overloads["Tensor", "Operand", "Tensor"]):
    """One immutable tensor of a trace.

    Attributes
    ----------
    op : str
        The name of the primitive.
    args : tuple of Tensor
    params : tuple
    dims : tuple of Number
        The index domain, stored explicitly and not derived from the operands.
    sizes : tuple of str
        The keys of the dims.
    dtype : str
        float16 and bfloat16 are storage types: primitives that compute need them widened to float32.
    """

    __slots__ = ("args", "dims", "dtype", "op", "params", "sizes")
    op: str
    args: tuple[Tensor, ...]
    params: Params
    dims: Dims
    sizes: tuple[str, ...]
    dtype: str

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.dims)

    @property
    def shape(self) -> Dims:
        """The dims, under NumPy's name."""
        return self.dims

    def __bool__(self) -> bool:
        raise ProgramError("a tensor has no truth value while an operator is traced; use where(condition, a, b)")

    def __repr__(self) -> str:
        what = f"{self.op}{list(self.params)}" if self.params else self.op
        return f"{what}({', '.join(arg.op for arg in self.args)}): {self.dtype}{list(self.dims)}"

    def arithmetic(self, function: str, *operands: Operand) -> Tensor:
        """Apply a scalar primitive elementwise."""
        return apply_scalar(function, *operands)

    compare = _compare = _arithmetic = arithmetic


Operand = Union[Tensor, Number, int, float, Any]


def tensor(op: str, args: Sequence[Tensor], params: Params, dims: Sequence[Numeric], dtype: str) -> Tensor:
    """Return the tensor of a primitive; the same object for equal arguments (hash consing).

    Raises ProgramError if the primitive computes and an operand has a half type.
    """
    numbers = tuple(map(number, dims))
    sizes = tuple([d.key for d in numbers])
    key = (op, tuple(map(id, args)), tuple(map(_key, params)), sizes, dtype)
    x = current().tensors.get(key)
    if x is None:
        primitive = TENSOR_PRIMITIVES.get(op)
        if primitive is None:
            refuse(f"{op!r} is no primitive; those are {', '.join(TENSOR_PRIMITIVES)}")
        if not primitive.moves and any(arg.dtype in HALVES for arg in args):
            refuse(f"{op} of half types; widen them first")
        x = object.__new__(Tensor)
        x.op, x.args, x.params, x.dims, x.dtype = op, tuple(args), params, numbers, dtype
        x.sizes = sizes
        current().tensors[key] = x
    return x


def _key(param: Any) -> Any:
    if isinstance(param, Number):
        return param.key
    if isinstance(param, tuple):
        return tuple(_key(each) for each in param)
    return (type(param).__name__, repr(param))


def same_dims(a: Sequence[Numeric], b: Sequence[Numeric]) -> bool:
    """Whether dims are equal in the current call; adds guards."""
    pairs = zip(map(number, a), map(number, b), strict=False)
    return len(a) == len(b) and all(x.key == y.key or current().assume(x == y) for x, y in pairs)


def need(condition: Condition | bool, slot: str, expected: str, do: str = "", numbers: Sequence[Numeric] = ()) -> None:
    """Require a condition in each call; it is checked as soon as the sizes of the call are known.

    Parameters
    ----------
    condition : Condition or bool
        What must hold. A comparison of sizes is evaluated in each call, a bool now.
    slot, expected, do : str
        Parts of the error: "``slot`` is ...; expected ``expected``. Do: ``do``".
    numbers : sequence of numbers
        Their values in the failing call replace ``{0}``, ``{1}``, ... in ``expected``.
    """
    _require(condition, slot, expected, do, numbers=tuple(map(number, numbers)))


def need_attr(condition: Condition | bool, name: str, expected: str, *numbers: Numeric) -> None:
    """Require an attribute to fit the operands; each call is checked as soon as its sizes are known.

    Parameters
    ----------
    condition : Condition or bool
        What must hold.
    name, expected : str
        Parts of the error. In ``expected``, ``{X}`` is replaced by the operand X of the call, ``{0}``, ``{1}``, ... by
        ``numbers``.
    *numbers : numbers
        Evaluated in the failing call.
    """
    _require(condition, name, expected, attr=True, numbers=tuple(map(number, numbers)))


def _require(condition: Condition | bool, name: str, expected: str, do: str = "", **more: Any) -> None:
    if not isinstance(condition, Condition):
        if condition:
            return
        condition = number(0) == number(1)
    current().requirements.append(Requirement(condition, name, expected, do, **more))


def slot_of(x: Tensor) -> str:
    """The name of a tensor in error messages: its slot, if it is an operand."""
    return str(x.params[0]) if x.op == "input" else "an operand"


def refuse(message: str) -> NoReturn:
    """Raise the ProgramError of a faulty expression."""
    raise ProgramError(message)


# Leaves and scalar functions


def symbol(slot: str, index: int, dims: Sequence[Numeric], dtype: str) -> Tensor:
    """The symbol of an operand."""
    return tensor("input", (), (slot, index), dims, dtype)


def constant(value: Numeric, dtype: str) -> Tensor:
    """A number as a tensor without dims; the dtype is no half type."""
    n = number(value)
    if dtype in HALVES:
        refuse(f"numbers are not made as {dtype}: expressions compute in float32")
    fraction = not n.whole and not (n.op == "const" and float(n.value).is_integer())
    if fraction and dtype not in FLOATS and dtype != "bool":
        refuse(f"{n} is a fraction beside {dtype} numbers; cast them to float32 first")
    if n.op == "const" and dtype in ALL_INTS:
        low, high = integer_limits(dtype)
        if not low <= n.value <= high:
            refuse(f"{n} is beyond {dtype} numbers, which go from {low} to {high}")
    return tensor("number", (), (n,), (), dtype)


def wide(x: Tensor) -> Tensor:
    """The tensor in its compute dtype: half types become float32."""
    return cast(x, "float32") if x.dtype in HALVES else x


def cast(x: Tensor, dtype: str) -> Tensor:
    """Convert the dtype: to an integer truncates, saturates, and turns NaN into 0; to bool is ``x != 0``."""
    if x.dtype == dtype:
        return x
    if x.op == "number" and dtype not in HALVES:
        return tensor("number", (), x.params, (), dtype)
    if x.op == "cast" and x.args[0].dtype in HALVES and x.args[0].dtype == dtype:
        return x.args[0]  # widening and narrowing again is the identity
    return tensor("cast", (x,), (), x.dims, dtype)


_ORDER = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")


def meet(dtypes: Sequence[str]) -> str:
    """The common compute dtype of dtypes (type promotion)."""
    return max(("float32" if dtype in HALVES else dtype for dtype in dtypes), key=_ORDER.index)


def apply_scalar(op: str, *operands: Operand) -> Tensor:
    """Apply a scalar primitive to tensors and numbers, which broadcast as in NumPy."""
    primitive = PRIMITIVES[op]
    tensors = [x for x in operands if isinstance(x, Tensor)]
    if not tensors:
        refuse(f"{op} of numbers alone; make one of them a tensor")
    args = _promote(primitive.kind, operands)
    dims = joint_dims([arg.dims for arg in args])
    dtype = args[-1].dtype
    if primitive.kind == "whole" and dtype not in FLOATS:
        return broadcast_to(args[0], dims)
    out = "bool" if primitive.kind in ("compare", "logical", "test") else dtype
    if primitive.kind != "whole" and op in FUNCTIONS and all(arg.op == "number" for arg in args):
        return tensor("number", (), (apply(op, *(arg.params[0] for arg in args)),), (), out)
    return tensor("map", [arg if arg.op == "number" else broadcast_to(arg, dims) for arg in args], (op,), dims, out)


def _promote(kind: str, operands: Sequence[Operand]) -> list[Tensor]:
    """The operands, cast to the dtypes in which a primitive computes."""
    if kind == "where":
        condition, *rest = operands
        if not isinstance(condition, Tensor):
            refuse("the condition of where is a number; it must be a tensor")
        branches = [x for x in rest if isinstance(x, Tensor)]
        dtype = meet([x.dtype for x in branches]) if branches else "float32"
        return [cast(condition, "bool"), *(_as_tensor(x, dtype) for x in rest)]
    if kind == "logical":
        return [_as_tensor(x, "bool") for x in operands]
    dtype = meet([x.dtype for x in operands if isinstance(x, Tensor)])
    if kind == "arithmetic" and dtype == "bool":
        dtype = "int32"
    if kind in ("float", "test") and dtype not in FLOATS:
        dtype = "float32"
    return [_as_tensor(x, dtype) for x in operands]


def _as_tensor(x: Operand, dtype: str) -> Tensor:
    return cast(x, dtype) if isinstance(x, Tensor) else constant(x, dtype)


def joint_dims(shapes: Sequence[Dims]) -> Dims:
    """The dims to which tensors broadcast as in NumPy; raises ProgramError if they do not."""
    rank = max(map(len, shapes))
    joint: list[Number] = []
    for axis in range(-rank, 0):
        sizes = [dims[axis] for dims in shapes if len(dims) >= -axis]
        size = sizes[0]
        for each in sizes[1:]:
            if each.key == size.key or each.key == "1" or current().is_assumed_equal(each, size):
                continue
            if size.key == "1" or bool(size == 1):
                size = each
            elif not bool(each == 1) and not current().assume(each == size):
                refuse(f"dims {list(map(list, shapes))} do not broadcast")
        joint.append(size)
    return tuple(joint)


def broadcast_to(x: Tensor, dims: Sequence[Numeric]) -> Tensor:
    """Broadcast a tensor along new leading axes and along axes of size 1."""
    sizes = tuple(number(d) for d in dims)
    if x.sizes == tuple([d.key for d in sizes]):
        return x
    if x.rank < len(sizes):
        lead = (number(1),) * (len(sizes) - x.rank)
        x = tensor("reshape", (x,), (), (*lead, *x.dims), x.dtype)
    spread = []
    for axis, (old, new) in enumerate(zip(x.dims, sizes, strict=True)):
        if old.key == new.key or current().is_assumed_equal(old, new):
            continue
        if old.key == "1" or bool(old == 1):
            spread.append(axis)
        elif not current().assume(old == new):
            refuse(f"{list(x.dims)} does not broadcast to {list(sizes)}")
    return tensor("broadcast", (x,), (tuple(spread),), sizes, x.dtype) if spread else x


def function(op: str, *operands: Operand) -> Any:
    """Apply a scalar primitive to tensors, to numbers only, or to the symbols of a scalar rule."""
    if are_scalars(operands):
        return node(op, *operands)
    if any(isinstance(x, Tensor) for x in operands):
        return apply_scalar(op, *operands)
    return apply(op, *(number(x) for x in operands))


def topological_order(results: Sequence[Tensor], ends: Container[Tensor] = ()) -> list[Tensor]:
    """The tensors and their subexpressions in topological order, operands first; ``ends`` are not descended into."""
    order: list[Tensor] = []
    waiting: list[Tensor] = []
    visited: set[Tensor] = set()
    stack: list[Tensor | None] = [*reversed(results)]  # None: the operands of the last waiting tensor are done
    while stack:
        x = stack.pop()
        if x is None:
            order.append(waiting.pop())
        elif x not in visited:
            visited.add(x)
            waiting.append(x)
            stack.append(None)
            if x not in ends:
                stack += reversed(x.args)
    return order


def substituted(x: Tensor, by: Mapping[Tensor, Tensor]) -> Tensor:
    """The tensor with subexpressions substituted."""
    done: dict[Tensor, Tensor] = dict(by)
    for each in topological_order([x]):
        if each not in done:
            args = tuple(done[arg] for arg in each.args)
            is_same = all(a is b for a, b in zip(args, each.args, strict=True))
            done[each] = each if is_same else tensor(each.op, args, each.params, each.dims, each.dtype)
    return done[x]
