"""Other dims for the same elements: reshape, transpose, and the helper that declares such operators in pairs.

Fluid has each of them twice: under the name of 1.0, whose gradient reads the dims of X, and with a 2 behind it,
whose gradient reads XShape, so that X can be freed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL
from fluidlite.expr.calls import infer
from fluidlite.expr.declare import gradient, operator
from fluidlite.geometry.numbers import Number, numbers_of
from fluidlite.operators.inference import Inferred, all_agree, like, size
from fluidlite.program.op_call import Call, standing_for
from fluidlite.program.opdef import Attr, Slot, as_tensor, as_tensors
from fluidlite.program.operator_options import Aliasing, Inference
from fluidlite.tensor.tensor_spec import Dims, Spec

_X_SHAPE = Slot("XShape", intermediate=True, dispensable=True, content="dims (0, *dims of X) and X's LoD; no bytes")


def _infer_from_x_shape(call: Call) -> Inferred:
    """X@GRAD is as XShape says that X was."""
    return {"X@GRAD": like(call.spec("XShape"), call.dims("XShape")[1:])}


def register_pair(
    type: str,
    function: Callable[..., e.Tensor],
    back: Callable[..., e.Tensor],
    out: Callable[[Call], Spec],
    *,
    attrs: tuple[Attr, ...],
    doc: str,
    grad_doc: str,
    source: str,
    view: bool = True,
) -> None:
    """Declare ``type`` and ``type`` + "2", with their gradient operators.

    ``function`` makes Out of X, ``back(dout, dims, **attrs)`` X@GRAD, of the dims of X, and ``out(call)`` the spec of
    Out.
    ``view``: whether Out has the bytes of X.
    ``attrs``, ``doc``, ``grad_doc``, ``source``: of both operators.
    """

    @functools.wraps(function)
    def shaped(x: e.Tensor, **values: Any) -> tuple[e.Tensor, e.Tensor]:
        return function(x, **values), e.full((0, *x.dims), 0, "float32")

    def inferred(call: Call) -> Inferred:
        x, found = call.spec("X"), {"Out": out(call)}
        return {**found, "XShape": like(x, (0, *x.dims))} if call.op.output("XShape") else found

    def from_x(x: e.Tensor, dout: e.Tensor, **values: Any) -> e.Tensor:
        return back(dout, x.dims, **values)

    def from_shape(xshape: e.Tensor, dout: e.Tensor, **values: Any) -> e.Tensor:
        return back(dout, xshape.dims[1:], **values)

    seen, shared = ("Out", "X") if view else None, ("X@GRAD", "Out@GRAD") if view else None
    told = (Inference(inferred), Aliasing(view=seen))
    common: dict[str, Any] = {"attrs": attrs, "dtypes": {"X": ALL}, "doc": doc}
    first = operator(type, *told, source=source, **common)(function)
    gradient(first, Aliasing(view=shared), metadata=("X",), doc=grad_doc)(_taking(back, from_x))
    second = operator(f"{type}2", *told, outputs=("Out", _X_SHAPE), source=source, **common)(shaped)
    gradient(second, Inference(_infer_from_x_shape), Aliasing(view=shared), metadata=("XShape",), doc=grad_doc)(
        _taking(back, from_shape)
    )


def _taking(like: Callable[..., e.Tensor], function: Any) -> Callable[..., e.Tensor]:
    """A function of two tensors, which takes the attributes that another does."""
    attrs = [p for p in inspect.signature(like).parameters.values() if p.kind is p.KEYWORD_ONLY]
    operands = list(inspect.signature(function).parameters.values())[:2]
    function.__signature__ = inspect.Signature([*operands, *attrs])
    return function  # type: ignore[no-any-return]


def with_other_dims(x: e.Tensor) -> e.Tensor:
    """X under the dims of Out."""
    return e.reshape(x, e.results("Out")[0])


def with_dims(x: Spec, dims: Sequence[int]) -> Spec:
    """Return X's spec with other dims; sequences stay where the rows do, or may do so by what is known of them."""
    return like(x, dims) if all_agree(dims[:1], x.dims[:1]) and dims else Spec.of(dims, x.dtype)


# reshape -----------------------------------------------------------------------------------------------------------


def reshaped(call: Call, x: Dims, shape: Sequence[Number]) -> Dims:
    """Return the dims that ``shape`` gives X."""
    for i, d in enumerate(shape):
        if d == 0 and i >= len(x):
            call.fail_attr("shape", f"0 only where X has a dim; X is {call.shown('X')}")
        if d is not None and d < -1:
            call.fail_attr("shape", "dims of -1 or more")
    if list(shape).count(-1) > 1:
        call.fail_attr("shape", "at most one -1")
    dims = [-1 if d is None else x[i] if d == 0 else d for i, d in enumerate(shape)]
    if None in shape:
        return tuple(dims)
    # Dims of X that are unknown and copied stand on both sides, so what remains is known without them.
    # So do those of 0, where a dim is inferred: an empty batch is reshaped as any other.
    copied = {i for i, d in enumerate(shape) if d == 0 and (x[i] < 0 or (x[i] == 0 and -1 in shape))}
    total = size([d for i, d in enumerate(x) if i not in copied])
    rest = prod(d for i, d in enumerate(dims) if i not in copied and shape[i] != -1)
    if -1 not in shape:
        if total >= 0 and total != rest:
            call.fail_attr("shape", f"{total} elements, as many as X ({call.shown('X')}) has")
        return tuple(dims)
    if total >= 0:
        if total % rest if rest else total:
            call.fail_attr("shape", f"a divisor of the size of X ({call.shown('X')}) beside the -1")
        dims[list(shape).index(-1)] = total // rest if rest else 0
    return tuple(dims)


def _reshape_dims(call: Call) -> Dims:
    """Return the dims of Out.

    Programs are built on the dims above 0 that the attribute states, so a tensor that says otherwise is refused. -1
    and 0 state nothing beside a tensor: in Fluid's programs the tensor may say any dim for them.
    """
    x, stated = call.dims("X"), call.attr("shape")
    wanted, slot = numbers_of(call, "shape"), standing_for(call, "shape")
    if slot is None or not stated:
        if wanted is None:
            call.fail("Shape", "known dims, [rank of Out]", do="give shape too, with -1 for what Shape says")
        return reshaped(call, x, wanted)
    if wanted is None:
        wanted = (None,) * len(stated)
    do = "give shape as -1 where the tensor says the dim"
    if len(wanted) != len(stated):
        call.fail(slot, f"{len(stated)} dims, as shape states ({list(stated)})", list(wanted), do=do)
    dims = reshaped(call, x, [d if n is None and d > 0 else n for n, d in zip(wanted, stated, strict=True)])
    for i, (n, d) in enumerate(zip(dims, stated, strict=True)):
        if n >= 0 and d > 0 and n != d:
            call.fail(slot, f"{d} for dim {i} of Out, as shape states ({list(stated)})", list(wanted), do=do)
    return dims


register_pair(
    "reshape",
    with_other_dims,
    e.reshape,
    lambda call: with_dims(call.spec("X"), _reshape_dims(call)),
    attrs=(
        Attr(
            "shape",
            "ints",
            (),
            minimum=-1,
            doc="dims of Out; 0: as in X; one may be -1: what remains. Beside a tensor of dims, "
            "0 and -1 say nothing, and the others must be its",
            tensors=(as_tensors("ShapeTensor"), as_tensor("Shape")),
        ),
    ),
    doc="Out = X with other dims; the bytes are the same",
    grad_doc="X@GRAD = Out@GRAD with the dims of X",
    source="Fluid reshape_op.cc",
)

# transpose ---------------------------------------------------------------------------------------------------------


def _transpose(x: e.Tensor, *, axis: tuple[int, ...]) -> e.Tensor:
    if sorted(axis) != list(range(x.rank)):
        e.fail_attr("axis", f"a permutation of {list(range(x.rank))}, the dims of X ({e.shown(x)})")
    return e.transpose(x, axis)


def _transpose_back(dout: e.Tensor, dims: Sequence[e.Number], *, axis: tuple[int, ...]) -> e.Tensor:
    return e.transpose(dout, [axis.index(i) for i in range(dout.rank)])


def _transposed(call: Call) -> Spec:
    """Rows in another order of dims are no sequences of X."""
    found = infer(call)["Out"]
    assert isinstance(found, Spec)
    return found.with_(lod=())


register_pair(
    "transpose",
    _transpose,
    _transpose_back,
    _transposed,
    view=False,
    attrs=(Attr("axis", "ints", doc="which dim of X each dim of Out is"),),
    doc="Out = X with its dims in the order axis",
    grad_doc="X@GRAD = Out@GRAD with its dims in the inverse order",
    source="Fluid transpose_op.cc",
)
