"""Reordering and masking elements: reverse, flip, roll, tril_triu."""

from __future__ import annotations

from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL
from fluidlite.expr.calls import infer
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.inference import without_lod
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Differentiation, Inference

# reverse and flip --------------------------------------------------------------------------------------------------


def _reversed(x: e.Tensor, attr: str, axes: tuple[int, ...]) -> e.Tensor:
    if not axes:
        e.fail_attr(attr, "one axis or more")
    return e.flip(x, sorted({e.axis(attr, axis, x) for axis in axes}))


def _reverse_grad(maker: Any) -> None:
    """The gradient is the operator itself, applied to Out@GRAD."""
    type, attrs = maker.operator.type, maker.operator.attrs
    maker.op(type, {"X": maker.output_grad("Out")}, {"Out": maker.input_grad("X")}, dict(attrs))


_DOC = "the dims whose order is reversed; negative ones count from the end"


@operator(
    "reverse",
    Differentiation(rule=_reverse_grad),
    Inference(without_lod(infer)),
    attrs=[Attr("axis", "ints", doc=_DOC)],
    dtypes={"X": ALL},
    doc="Out = X, its dims in axis in reverse order",
    source="Fluid reverse_op.cc",
)
def reverse(x: e.Tensor, *, axis: tuple[int, ...]) -> e.Tensor:
    """Out has no LoD: reversed rows do not form the sequences of X."""
    return _reversed(x, "axis", axis)


@operator(
    "flip",
    Differentiation(rule=_reverse_grad),
    attrs=[Attr("dims", "ints", doc=_DOC)],
    dtypes={"X": ALL},
    doc="Out = X, its dims in dims in reverse order",
    source="Fluid flip_op.cc",
)
def flip(x: e.Tensor, *, dims: tuple[int, ...]) -> e.Tensor:
    """As in Fluid, Out has the LoD of X, unlike that of reverse."""
    return _reversed(x, "dims", dims)


# roll --------------------------------------------------------------------------------------------------------------


def _rolled(x: e.Tensor, shifts: dict[int, int]) -> e.Tensor:
    """Cut each axis in two parts and exchange them."""
    (axis, shift), *remaining = shifts.items()
    split = -shift % x.dims[axis]
    parts = [e.slice_axis(x, axis, split, x.dims[axis] - split), e.slice_axis(x, axis, 0, split)]
    return e.concat([_rolled(part, dict(remaining)) if remaining else part for part in parts], axis)


@operator(
    "roll",
    attrs=[
        Attr("shifts", "ints", (), doc="how far each dim is rolled, towards its end"),
        Attr("dims", "ints", (), doc="the dims that are rolled; none, and one shift: X as one row"),
    ],
    dtypes={"X": ALL},
    doc="Out = X, rolled circularly along each of dims",
    source="Fluid roll_op.cc",
)
def roll(x: e.Tensor, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> e.Tensor:
    """Roll by any number of elements in either direction."""
    axes = [e.axis("dims", axis, x) for axis in dims]
    if len(shifts) != len(dims) and (dims or len(shifts) != 1):
        e.fail_attr("shifts", f"{len(dims) or 1} numbers, one for each of dims")
    if not dims:
        return e.reshape(_rolled(e.reshape(x, (-1,)), {0: shifts[0]}), x.dims) if shifts else x
    shift_by_axis = dict.fromkeys(axes, 0)
    for axis, shift in zip(axes, shifts, strict=True):
        shift_by_axis[axis] += shift
    return _rolled(x, shift_by_axis)


@gradient(roll, metadata=("X",), doc="X@GRAD = Out@GRAD, rolled back")
def roll_grad(x: e.Tensor, dout: e.Tensor, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> e.Tensor:
    """Hand-written: the derived gradient adds padded slices."""
    return e.call("roll", {"X": dout}, {"shifts": [-shift for shift in shifts], "dims": dims})["Out"]


# tril_triu ---------------------------------------------------------------------------------------------------------


@operator(
    "tril_triu",
    inputs={"X": "[..., rows, columns]"},
    attrs=[
        Attr("diagonal", "int", 0, doc="the last diagonal that stays; 0: the main one, positive: above it"),
        Attr("lower", "bool", doc="whether the triangle below it stays, else the one above"),
    ],
    dtypes={"X": ALL},
    doc="Out = X on and below (lower) or above a diagonal of each matrix, else 0",
    source="Fluid tril_triu_op.cc",
)
def tril_triu(x: e.Tensor, *, diagonal: int, lower: bool) -> e.Tensor:
    """Compare row and column indices."""
    if x.rank < 2:
        e.fail(e.slot(x), "rank 2 or more, a matrix or a batch of them")
    rows, columns = x.dims[-2:]
    diagonal_index = e.iota((1, columns), 1) - e.iota((rows, 1), 0)
    return e.where(diagonal_index <= diagonal if lower else diagonal_index >= diagonal, x, 0)


@gradient(tril_triu, doc="X@GRAD = Out@GRAD in the triangle, else 0")
def tril_triu_grad(dout: e.Tensor, *, diagonal: int, lower: bool) -> e.Tensor:
    """Hand-written: the derived gradient reads X for its dims."""
    return e.call("tril_triu", {"X": dout}, {"diagonal": diagonal, "lower": lower})["Out"]
