"""Checks of operands and attributes in an expression, and attributes that are axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.number import Number, Numeric, number
from fluidlite.expr.tensor import Tensor, need, refuse, wide
from fluidlite.expr.tracing import current


class RefusedCall(Exception):
    """An expression refuses a call: ``kind`` is ``"slot"``, ``"dtype"`` or ``"attr"``."""

    def __init__(self, kind: str, name: str, expected: str, do: str = "") -> None:
        super().__init__(f"{name}: expected {expected}")
        self.kind, self.name, self.expected, self.do = kind, name, expected, do


def fail(slot: str, expected: str, do: str = "") -> NoReturn:
    """Refuse an operand, with the message "``slot`` is ...; expected ``expected``. Do: ``do``"; raises a ShapeError."""
    raise RefusedCall("slot", slot, expected, do)


def fail_dtype(slot: str, expected: str, do: str = "") -> NoReturn:
    """Refuse the dtype of an operand; raises a DtypeError."""
    raise RefusedCall("dtype", slot, expected, do)


def fail_attr(name: str, expected: str, do: str = "") -> NoReturn:
    """Refuse an attribute that does not fit the operands; raises an AttributeValueError."""
    raise RefusedCall("attr", name, expected, do)


def same_dtype(x: Tensor, like: Tensor) -> None:
    """Require an operand to have the dtype of another."""
    if x.dtype != like.dtype:
        fail_dtype(slot(x), f"{like.dtype}, as {slot(like)}", "cast one of them with layers.cast")


def vector(x: Tensor, length: Numeric, what: str) -> None:
    """Require an operand to have one dim of ``length`` elements; ``what`` describes them in the error."""
    if x.rank != 1:
        size = static_value(length)
        fail(slot(x), f"[{'n' if size is None else size}], {what}")
    need(x.dims[0] == length, slot(x), f"[{{0}}], {what}", numbers=(length,))


def same_sizes(x: Tensor, dims: Sequence[Number], what: str) -> None:
    """Require an operand to have dims; ``what`` describes them in the error."""
    _need_sizes(x, dims, slot(x), what)


def slot(x: Tensor) -> str:
    """The slot name of an operand."""
    return str(x.params[0])


def axis(name: str, value: int, x: Tensor) -> int:
    """Check an attribute that is an axis of an operand; returns it counted from 0."""
    if not -x.rank <= value < x.rank:
        fail_attr(name, f"an axis in [{-x.rank}, {x.rank}) of {slot(x)}, which is {describe(x)}")
    return value % x.rank


def axes(name: str, values: Sequence[int], x: Tensor) -> tuple[int, ...]:
    """Check an attribute of one or more distinct axes of an operand; returns them counted from 0, sorted."""
    distinct = sorted({axis(name, value, x) for value in values})
    if len(distinct) != len(values) or not distinct:
        fail_attr(name, "one or more different dims")
    return tuple(distinct)


def per_dim(name: str, values: Sequence[int], spatial: int, minimum: int = 1) -> tuple[int, ...]:
    """Check an attribute that has a number of at least ``minimum`` for each spatial dim."""
    if len(values) != spatial or min(values, default=minimum) < minimum:
        fail_attr(name, f"{spatial} numbers of {minimum} or more, one for each spatial dim")
    return tuple(values)


def agree(a: Numeric, b: Numeric) -> bool:
    """Whether two sizes are equal, or either is unknown; adds a guard.

    An error in the other branch may therefore show the sizes of the current call.
    """
    first, second = number(a), number(b)
    return first.key == second.key or current().assume(first == second)


def all_agree(a: Sequence[Numeric], b: Sequence[Numeric]) -> bool:
    """Whether dims have the same number of axes and :func:`agree` in each."""
    return len(a) == len(b) and all(agree(x, y) for x, y in zip(a, b, strict=True))


def need_dims(x: Tensor, dims: Sequence[Number], slot: str, of: str) -> None:
    """Require an operand to have the dims of another one; each call is checked as soon as its sizes are known.

    Parameters
    ----------
    x : Tensor
    dims : sequence of Number
    slot, of : str
        Parts of the error: "``slot`` is ...; expected ``dims``, the dims of ``of``".
    """
    _need_sizes(x, dims, slot, f"the dims of {of}")


def _need_sizes(x: Tensor, dims: Sequence[Number], slot: str, what: str) -> None:
    if x.rank != len(dims):
        fail(slot, f"{describe_dims(dims)}, {what}")
    expected = f"[{', '.join(f'{{{k}}}' for k in range(len(dims)))}], {what}"
    for size, other in zip(x.dims, dims, strict=True):
        if size.key != other.key:
            need(size == other, slot, expected, numbers=dims)


def need_dtype(x: Tensor, like: Sequence[Tensor], slot: str) -> None:
    """Require a gradient to have the dtype of one of the tensors ``like``; half types compute in float32."""
    floats = {wide(each).dtype: each.dtype for each in like if each.dtype in ALL_FLOATS}
    if floats and wide(x).dtype not in floats:
        fail_dtype(slot, " or ".join(dict.fromkeys(floats.values())), "cast it with layers.cast")


def describe(x: Tensor) -> str:
    """The dtype and dims of an operand, as error messages show them."""
    return f"{x.dtype}{describe_dims(x.dims)}"


def describe_dims(dims: Sequence[Number]) -> list[int]:
    """Dims as error messages show them: -1 where unknown."""
    values = (d.evaluate(current().values) for d in dims)
    return [-1 if d is None else int(d) for d in values]


def static_value(n: Any) -> int | None:
    """The value of a number in the current call; None if unknown. It adds no guard: use it in error messages only."""
    value = n.evaluate(current().values) if hasattr(n, "evaluate") else n
    return None if value is None else int(value)


def exactly(n: Any) -> int:
    """The value of a number in the current call, with a guard: the trace is valid for calls with the same value.

    Raises
    ------
    ProgramError
        If it is unknown.
    """
    value = static_value(n)
    if value is None or not bool(number(n) == value):
        refuse(f"{n} is not known")
    return value


def results(slot: str) -> Sequence[tuple[Number, ...]]:
    """The dims of each output of a slot, for an operator with an inference of its own."""
    return [dims for dims, _ in current().results[slot]]


def result_dtype(slot: str) -> str:
    """The dtype of the output of a slot, for an operator with an inference of its own."""
    return current().results[slot][0][1]
