"""Elements moved within a tensor, or left out: reverse, flip, roll, tril_triu."""

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


def _turned(x: e.Tensor, attr: str, axes: tuple[int, ...]) -> e.Tensor:
    if not axes:
        e.fail_attr(attr, "one axis or more")
    return e.flip(x, sorted({e.axis(attr, axis, x) for axis in axes}))


def _reverse_grad(maker: Any) -> None:
    """The operator itself turns the gradient around."""
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
    """Rows in reverse order are no sequences of X."""
    return _turned(x, "axis", axis)


@operator(
    "flip",
    Differentiation(rule=_reverse_grad),
    attrs=[Attr("dims", "ints", doc=_DOC)],
    dtypes={"X": ALL},
    doc="Out = X, its dims in dims in reverse order",
    source="Fluid flip_op.cc",
)
def flip(x: e.Tensor, *, dims: tuple[int, ...]) -> e.Tensor:
    """Fluid shares the LoD of X here, though not in reverse."""
    return _turned(x, "dims", dims)


# roll --------------------------------------------------------------------------------------------------------------


def _moved(x: e.Tensor, by: dict[int, int]) -> e.Tensor:
    """Each axis cut in two, whose parts change places."""
    (axis, shift), *rest = by.items()
    cut = -shift % x.dims[axis]
    parts = [e.slice_axis(x, axis, cut, x.dims[axis] - cut), e.slice_axis(x, axis, 0, cut)]
    return e.concat([_moved(part, dict(rest)) if rest else part for part in parts], axis)


@operator(
    "roll",
    attrs=[
        Attr("shifts", "ints", (), doc="how far each dim is rolled, towards its end"),
        Attr("dims", "ints", (), doc="the dims that are rolled; none, and one shift: X as one row"),
    ],
    dtypes={"X": ALL},
    doc="Out = X, each of dims rolled: what leaves it at one end comes in at the other",
    source="Fluid roll_op.cc",
)
def roll(x: e.Tensor, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> e.Tensor:
    """By any number of elements, either way."""
    axes = [e.axis("dims", axis, x) for axis in dims]
    if len(shifts) != len(dims) and (dims or len(shifts) != 1):
        e.fail_attr("shifts", f"{len(dims) or 1} numbers, one for each of dims")
    if not dims:
        return e.reshape(_moved(e.reshape(x, (-1,)), {0: shifts[0]}), x.dims) if shifts else x
    by = dict.fromkeys(axes, 0)
    for axis, shift in zip(axes, shifts, strict=True):
        by[axis] += shift
    return _moved(x, by)


@gradient(roll, metadata=("X",), doc="X@GRAD = Out@GRAD, rolled back")
def roll_grad(x: e.Tensor, dout: e.Tensor, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> e.Tensor:
    """Written: the derived one adds up padded parts."""
    return e.call("roll", {"X": dout}, {"shifts": [-shift for shift in shifts], "dims": dims})["Out"]


# tril_triu ---------------------------------------------------------------------------------------------------------


@operator(
    "tril_triu",
    inputs={"X": "[..., rows, columns]"},
    attrs=[
        Attr("diagonal", "int", 0, doc="the last diagonal that is kept; 0: the main one, positive: above it"),
        Attr("lower", "bool", doc="whether the triangle below it is kept, else the one above"),
    ],
    dtypes={"X": ALL},
    doc="Out = X on and below (lower) or above a diagonal of each matrix, else 0",
    source="Fluid tril_triu_op.cc",
)
def tril_triu(x: e.Tensor, *, diagonal: int, lower: bool) -> e.Tensor:
    """By the numbers of row and column."""
    if x.rank < 2:
        e.fail(e.slot(x), "rank 2 or more, a matrix or a batch of them")
    rows, columns = x.dims[-2:]
    right = e.iota((1, columns), 1) - e.iota((rows, 1), 0)
    return e.where(right <= diagonal if lower else right >= diagonal, x, 0)


@gradient(tril_triu, doc="X@GRAD = Out@GRAD where X was kept, else 0")
def tril_triu_grad(dout: e.Tensor, *, diagonal: int, lower: bool) -> e.Tensor:
    """Written: the derived one would take X for its dims."""
    return e.call("tril_triu", {"X": dout}, {"diagonal": diagonal, "lower": lower})["Out"]
