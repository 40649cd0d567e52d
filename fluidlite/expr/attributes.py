"""What an expression refuses of a call, and attributes of which it makes axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.number import Number, Numeric, number
from fluidlite.expr.tensor import Tensor, need, refuse, wide
from fluidlite.expr.tracing import current


class Refused(Exception):
    """A call that an expression does not take: ``kind`` is ``"slot"``, ``"dtype"`` or ``"attr"``."""

    def __init__(self, kind: str, name: str, expected: str, do: str = "") -> None:
        super().__init__(f"{name}: expected {expected}")
        self.kind, self.name, self.expected, self.do = kind, name, expected, do


def fail(slot: str, expected: str, do: str = "") -> NoReturn:
    """Refuse an operand: ``slot`` is ...; expected ``expected``. Do: ``do``. The user gets a ShapeError."""
    raise Refused("slot", slot, expected, do)


def fail_dtype(slot: str, expected: str, do: str = "") -> NoReturn:
    """Refuse an operand's dtype. The user gets a DtypeError."""
    raise Refused("dtype", slot, expected, do)


def fail_attr(name: str, expected: str, do: str = "") -> NoReturn:
    """Refuse an attribute, which does not suit the operands. The user gets an AttributeValueError."""
    raise Refused("attr", name, expected, do)


def same_dtype(x: Tensor, like: Tensor) -> None:
    """Require an operand to have the dtype of another."""
    if x.dtype != like.dtype:
        fail_dtype(slot(x), f"{like.dtype}, as {slot(like)}", "cast one of them with layers.cast")


def vector(x: Tensor, length: Numeric, what: str) -> None:
    """Require an operand of one dim, of so many elements: ``what`` they are."""
    if x.rank != 1:
        found = known(length)
        fail(slot(x), f"[{'n' if found is None else found}], {what}")
    need(x.dims[0] == length, slot(x), f"[{{0}}], {what}", numbers=(length,))


def same_sizes(x: Tensor, dims: Sequence[Number], what: str) -> None:
    """Require an operand to have dims: ``what`` they are."""
    text = f"[{', '.join(f'{{{k}}}' for k in range(len(dims)))}], {what}"
    if x.rank != len(dims):
        fail(slot(x), text.format(*(-1 if known(d) is None else known(d) for d in dims)))
    for mine, wanted in zip(x.dims, dims, strict=True):
        need(mine == wanted, slot(x), text, numbers=tuple(dims))


def slot(x: Tensor) -> str:
    """The slot of an operand."""
    return str(x.params[0])


def axis(name: str, value: int, x: Tensor) -> int:
    """An attribute that is an axis of an operand, counted from 0."""
    if not -x.rank <= value < x.rank:
        fail_attr(name, f"an axis in [{-x.rank}, {x.rank}) of {slot(x)}, which is {shown(x)}")
    return value % x.rank


def axes(name: str, values: Sequence[int], x: Tensor) -> tuple[int, ...]:
    """An attribute of one or more different axes of an operand, counted from 0, in order."""
    found = sorted({axis(name, value, x) for value in values})
    if len(found) != len(values) or not found:
        fail_attr(name, "one or more different dims")
    return tuple(found)


def per_dim(name: str, values: Sequence[int], spatial: int, minimum: int = 1) -> tuple[int, ...]:
    """An attribute that has a number of ``minimum`` or more for each spatial dim."""
    if len(values) != spatial or min(values, default=minimum) < minimum:
        fail_attr(name, f"{spatial} numbers of {minimum} or more, one for each spatial dim")
    return tuple(values)


def agree(a: Numeric, b: Numeric) -> bool:
    """Whether two sizes are equal, as far as they are known: the trace stands for calls that answer alike.

    What is refused where they are not may so name the sizes of the call at hand.
    """
    first, second = number(a), number(b)
    return first.key == second.key or current().assume(first == second)


def all_agree(a: Sequence[Numeric], b: Sequence[Numeric]) -> bool:
    """Whether dims are as many, and agree one by one."""
    return len(a) == len(b) and all(agree(x, y) for x, y in zip(a, b, strict=True))


def need_dims(x: Tensor, dims: Sequence[Number], slot: str, of: str) -> None:
    """Require an operand to have the dims of another one; sizes are checked for each call, once they are known.

    Parameters
    ----------
    x : Tensor
    dims : sequence of Number
    slot, of : str
        What the error says: ``slot`` is ...; expected ``dims``, those of ``of``.
    """
    if x.rank != len(dims):
        fail(slot, f"{shown_dims(dims)}, the dims of {of}")
    expected = f"[{', '.join(f'{{{k}}}' for k in range(len(dims)))}], the dims of {of}"
    for mine, theirs in zip(x.dims, dims, strict=True):
        if mine.key != theirs.key:
            need(mine == theirs, slot, expected, numbers=dims)


def need_dtype(x: Tensor, like: Sequence[Tensor], slot: str) -> None:
    """Require a gradient to have the dtype of one of some tensors; half types are computed in float32."""
    floats = {wide(each).dtype: each.dtype for each in like if each.dtype in ALL_FLOATS}
    if floats and wide(x).dtype not in floats:
        fail_dtype(slot, " or ".join(dict.fromkeys(floats.values())), "cast it with layers.cast")


def shown(x: Tensor) -> str:
    """An operand as errors show it."""
    return f"{x.dtype}{shown_dims(x.dims)}"


def shown_dims(dims: Sequence[Number]) -> list[int]:
    """Dims as errors show them: -1 where they are not known."""
    found = (d.evaluate(current().values) for d in dims)
    return [-1 if d is None else int(d) for d in found]


def known(n: Any) -> int | None:
    """What a number is in the call at hand; None while it is not known. A guard does not follow: use it in errors."""
    found = n.evaluate(current().values) if hasattr(n, "evaluate") else n
    return None if found is None else int(found)


def exactly(n: Any) -> int:
    """The integer that a number is in the call at hand; the trace serves calls in which it is the same.

    Raises
    ------
    ProgramError
        If it is not known.
    """
    found = known(n)
    if found is None or not bool(number(n) == found):
        refuse(f"{n} is not known")
    return found


def results(slot: str) -> Sequence[tuple[Number, ...]]:
    """The dims of each output of a slot, of an operator that is declared with an inference of its own."""
    return [dims for dims, _ in current().results[slot]]


def result_dtype(slot: str) -> str:
    """The dtype of the output of a slot, of an operator that is declared with an inference of its own."""
    return current().results[slot][0][1]
