"""Tensors of a trace: each is a primitive of others, with its dims and its dtype.

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
        A primitive.
    args : tuple of Tensor
    params : tuple
    dims : tuple of Number
        The index domain; operands never decide it.
    sizes : tuple of str
        The dims, as what tells them apart.
    dtype : str
        float16 and bfloat16 stand for stored numbers: what computes widens them to float32 first.
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
        """The tensor of a scalar primitive, element by element."""
        return mapped(function, *operands)

    compare = _compare = _arithmetic = arithmetic


Operand = Union[Tensor, Number, int, float, Any]


def tensor(op: str, args: Sequence[Tensor], params: Params, dims: Sequence[Numeric], dtype: str) -> Tensor:
    """The tensor of these facts; the same object for the same facts.

    Raises ProgramError if it computes of half types, which nobody has widened.
    """
    numbers = tuple(map(number, dims))
    sizes = tuple([d.key for d in numbers])
    key = (op, tuple(map(id, args)), tuple(map(_key, params)), sizes, dtype)
    found = current().tensors.get(key)
    if found is None:
        primitive = TENSOR_PRIMITIVES.get(op)
        if primitive is None:
            refuse(f"{op!r} is no primitive; those are {', '.join(TENSOR_PRIMITIVES)}")
        if not primitive.moves and any(arg.dtype in HALVES for arg in args):
            refuse(f"{op} of half types; widen them first")
        found = object.__new__(Tensor)
        found.op, found.args, found.params, found.dims, found.dtype = op, tuple(args), params, numbers, dtype
        found.sizes = sizes
        current().tensors[key] = found
    return found


def _key(param: Any) -> Any:
    if isinstance(param, Number):
        return param.key
    if isinstance(param, tuple):
        return tuple(_key(each) for each in param)
    return (type(param).__name__, repr(param))


def same_dims(a: Sequence[Numeric], b: Sequence[Numeric]) -> bool:
    """Whether dims are equal for the sizes at hand, which then guard the trace."""
    pairs = zip(map(number, a), map(number, b), strict=False)
    return len(a) == len(b) and all(x.key == y.key or current().assume(x == y) for x, y in pairs)


def need(condition: Condition | bool, slot: str, expected: str, do: str = "", numbers: Sequence[Numeric] = ()) -> None:
    """Require something of a call; it is checked for each, as soon as its sizes are known.

    Parameters
    ----------
    condition : Condition or bool
        What must hold. A comparison of sizes is looked at in each call; anything else is decided now.
    slot, expected, do : str
        What the error says: ``slot`` is ...; expected ``expected``. Do: ``do``.
    numbers : sequence of numbers
        What stands for ``{0}``, ``{1}``, ... in ``expected``: sizes of the call that fails.
    """
    _require(condition, slot, expected, do, numbers=tuple(map(number, numbers)))


def need_attr(condition: Condition | bool, name: str, expected: str, *numbers: Numeric) -> None:
    """Require an attribute to suit the operands; it is checked for each call, as soon as its sizes are known.

    Parameters
    ----------
    condition : Condition or bool
        What must hold.
    name, expected : str
        What the error says. In ``expected``, ``{X}`` stands for the operand X of the call, ``{0}``, ``{1}``, ... for
        ``numbers``.
    *numbers : numbers
        Of the call that fails.
    """
    _require(condition, name, expected, attr=True, numbers=tuple(map(number, numbers)))


def _require(condition: Condition | bool, name: str, expected: str, do: str = "", **more: Any) -> None:
    if not isinstance(condition, Condition):
        if condition:
            return
        condition = number(0) == number(1)
    current().requirements.append(Requirement(condition, name, expected, do, **more))


def slot_of(x: Tensor) -> str:
    """What errors call a tensor: its slot, if it is an operand."""
    return str(x.params[0]) if x.op == "input" else "an operand"


def refuse(message: str) -> NoReturn:
    """Raise what a faulty expression raises while it is traced."""
    raise ProgramError(message)


# Leaves and scalar functions


def symbol(slot: str, index: int, dims: Sequence[Numeric], dtype: str) -> Tensor:
    """An operand."""
    return tensor("input", (), (slot, index), dims, dtype)


def constant(value: Numeric, dtype: str) -> Tensor:
    """A number as a tensor without dims, of a dtype that computes."""
    found = number(value)
    if dtype in HALVES:
        refuse(f"numbers are not made as {dtype}: expressions compute in float32")
    fraction = not found.whole and not (found.op == "const" and float(found.value).is_integer())
    if fraction and dtype not in FLOATS and dtype != "bool":
        refuse(f"{found} is a fraction beside {dtype} numbers; cast them to float32 first")
    if found.op == "const" and dtype in ALL_INTS:
        low, high = integer_limits(dtype)
        if not low <= found.value <= high:
            refuse(f"{found} is beyond {dtype} numbers, which go from {low} to {high}")
    return tensor("number", (), (found,), (), dtype)


def wide(x: Tensor) -> Tensor:
    """The tensor in the dtype in which one computes: half types become float32."""
    return cast(x, "float32") if x.dtype in HALVES else x


def cast(x: Tensor, dtype: str) -> Tensor:
    """Convert: to an integer truncates, saturates, and makes 0 of NaN; to bool is ``x != 0``."""
    if x.dtype == dtype:
        return x
    if x.op == "number" and dtype not in HALVES:
        return tensor("number", (), x.params, (), dtype)
    if x.op == "cast" and x.args[0].dtype in HALVES and x.args[0].dtype == dtype:
        return x.args[0]  # it was widened, which changes nothing
    return tensor("cast", (x,), (), x.dims, dtype)


_ORDER = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")


def meet(dtypes: Sequence[str]) -> str:
    """The dtype in which tensors of these dtypes compute together."""
    return max(("float32" if dtype in HALVES else dtype for dtype in dtypes), key=_ORDER.index)


def mapped(op: str, *operands: Operand) -> Tensor:
    """A scalar primitive of tensors and numbers, which broadcast as NumPy's do."""
    primitive = PRIMITIVES[op]
    tensors = [x for x in operands if isinstance(x, Tensor)]
    if not tensors:
        refuse(f"{op} of numbers alone; make one of them a tensor")
    args = _typed(primitive.kind, operands)
    dims = joint_dims([arg.dims for arg in args])
    dtype = args[-1].dtype
    if primitive.kind == "whole" and dtype not in FLOATS:
        return broadcast_to(args[0], dims)
    out = "bool" if primitive.kind in ("compare", "logical", "test") else dtype
    if primitive.kind != "whole" and op in FUNCTIONS and all(arg.op == "number" for arg in args):
        return tensor("number", (), (apply(op, *(arg.params[0] for arg in args)),), (), out)
    return tensor("map", [arg if arg.op == "number" else broadcast_to(arg, dims) for arg in args], (op,), dims, out)


def _typed(kind: str, operands: Sequence[Operand]) -> list[Tensor]:
    """The operands in the dtypes in which a primitive computes them."""
    if kind == "where":
        condition, *rest = operands
        if not isinstance(condition, Tensor):
            refuse("the condition of where is a number; it must be a tensor")
        chosen = [x for x in rest if isinstance(x, Tensor)]
        dtype = meet([x.dtype for x in chosen]) if chosen else "float32"
        return [cast(condition, "bool"), *(_as(x, dtype) for x in rest)]
    if kind == "logical":
        return [_as(x, "bool") for x in operands]
    dtype = meet([x.dtype for x in operands if isinstance(x, Tensor)])
    if kind == "arithmetic" and dtype == "bool":
        dtype = "int32"
    if kind in ("float", "test") and dtype not in FLOATS:
        dtype = "float32"
    return [_as(x, dtype) for x in operands]


def _as(x: Operand, dtype: str) -> Tensor:
    return cast(x, dtype) if isinstance(x, Tensor) else constant(x, dtype)


def joint_dims(shapes: Sequence[Dims]) -> Dims:
    """The dims to which tensors broadcast as NumPy's do; two that differ, neither being 1, are refused."""
    rank = max(map(len, shapes))
    found: list[Number] = []
    for axis in range(-rank, 0):
        sizes = [dims[axis] for dims in shapes if len(dims) >= -axis]
        kept = sizes[0]
        for each in sizes[1:]:
            if each.key == kept.key or each.key == "1" or current().assumed(each, kept):
                continue
            if kept.key == "1" or bool(kept == 1):
                kept = each
            elif not bool(each == 1) and not current().assume(each == kept):
                refuse(f"dims {list(map(list, shapes))} do not broadcast")
        found.append(kept)
    return tuple(found)


def broadcast_to(x: Tensor, dims: Sequence[Numeric]) -> Tensor:
    """The tensor repeated along new leading axes and along those in which it has 1."""
    sizes = tuple(number(d) for d in dims)
    if x.sizes == tuple([d.key for d in sizes]):
        return x
    if x.rank < len(sizes):
        lead = (number(1),) * (len(sizes) - x.rank)
        x = tensor("reshape", (x,), (), (*lead, *x.dims), x.dtype)
    spread = []
    for axis, (mine, wanted) in enumerate(zip(x.dims, sizes, strict=True)):
        if mine.key == wanted.key or current().assumed(mine, wanted):
            continue
        if mine.key == "1" or bool(mine == 1):
            spread.append(axis)
        elif not current().assume(mine == wanted):
            refuse(f"{list(x.dims)} does not broadcast to {list(sizes)}")
    return tensor("broadcast", (x,), (tuple(spread),), sizes, x.dtype) if spread else x


def function(op: str, *operands: Operand) -> Any:
    """A scalar primitive of tensors, of numbers alone, or of the symbols of a scalar rule."""
    if are_scalars(operands):
        return node(op, *operands)
    if any(isinstance(x, Tensor) for x in operands):
        return mapped(op, *operands)
    return apply(op, *(number(x) for x in operands))


def ordered(results: Sequence[Tensor], ends: Container[Tensor] = ()) -> list[Tensor]:
    """All that tensors are made of, as far as ``ends``, and they, operands first."""
    order: list[Tensor] = []
    waiting: list[Tensor] = []
    seen: set[Tensor] = set()
    stack: list[Tensor | None] = [*reversed(results)]  # None: the operands of the last that waits are in order
    while stack:
        x = stack.pop()
        if x is None:
            order.append(waiting.pop())
        elif x not in seen:
            seen.add(x)
            waiting.append(x)
            stack.append(None)
            if x not in ends:
                stack += reversed(x.args)
    return order


def replaced(x: Tensor, by: Mapping[Tensor, Tensor]) -> Tensor:
    """A tensor with others put in for some that it is made of."""
    done: dict[Tensor, Tensor] = dict(by)
    for each in ordered([x]):
        if each not in done:
            args = tuple(done[arg] for arg in each.args)
            same = all(a is b for a, b in zip(args, each.args, strict=True))
            done[each] = each if same else tensor(each.op, args, each.params, each.dims, each.dtype)
    return done[x]
