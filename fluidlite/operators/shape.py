"""reshape and transpose, and the helper that declares operators that only change dims.

Fluid has two versions of each: ``reshape``, whose gradient reads the dims of X, and ``reshape2``, whose gradient reads
XShape, so that X can be freed.
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
from fluidlite.geometry.numbers import OptionalInt, numbers_of
from fluidlite.operators.inference import Inferred, all_dims_compatible, size, spec_like
from fluidlite.program.op_call import Call, slot_of_attribute
from fluidlite.program.opdef import Attr, Slot, as_tensor, as_tensors
from fluidlite.program.operator_options import Aliasing, Inference
from fluidlite.tensor.tensor_spec import Dims, Spec

_X_SHAPE = Slot("XShape", intermediate=True, dispensable=True, content="dims (0, *dims of X) and X's LoD; no bytes")


def _infer_from_x_shape(call: Call) -> Inferred:
    """X@GRAD has the dims of X that XShape holds."""
    return {"X@GRAD": spec_like(call.spec("XShape"), call.dims("XShape")[1:])}


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

    ``function`` computes Out from X, ``back(dout, dims, **attrs)`` X@GRAD given the dims of X, and ``out(call)`` the
    spec of Out.
    ``view``: whether Out is a view of X.
    ``attrs``, ``doc``, ``grad_doc``, ``source``: of both operators.
    """

    @functools.wraps(function)
    def with_x_shape(x: e.Tensor, **values: Any) -> tuple[e.Tensor, e.Tensor]:
        return function(x, **values), e.full((0, *x.dims), 0, "float32")

    def infer_pair(call: Call) -> Inferred:
        x, specs = call.spec("X"), {"Out": out(call)}
        return {**specs, "XShape": spec_like(x, (0, *x.dims))} if call.op.output("XShape") else specs

    def from_x(x: e.Tensor, dout: e.Tensor, **values: Any) -> e.Tensor:
        return back(dout, x.dims, **values)

    def from_shape(xshape: e.Tensor, dout: e.Tensor, **values: Any) -> e.Tensor:
        return back(dout, xshape.dims[1:], **values)

    view_alias, grad_alias = ("Out", "X") if view else None, ("X@GRAD", "Out@GRAD") if view else None
    options = (Inference(infer_pair), Aliasing(view=view_alias))
    common: dict[str, Any] = {"attrs": attrs, "dtypes": {"X": ALL}, "doc": doc}
    first = operator(type, *options, source=source, **common)(function)
    gradient(first, Aliasing(view=grad_alias), metadata=("X",), doc=grad_doc)(_with_attrs_of(back, from_x))
    second = operator(f"{type}2", *options, outputs=("Out", _X_SHAPE), source=source, **common)(with_x_shape)
    gradient(second, Inference(_infer_from_x_shape), Aliasing(view=grad_alias), metadata=("XShape",), doc=grad_doc)(
        _with_attrs_of(back, from_shape)
    )


def _with_attrs_of(like: Callable[..., e.Tensor], function: Any) -> Callable[..., e.Tensor]:
    """Give a function of two tensors the signature with the attributes of ``like``."""
    attrs = [p for p in inspect.signature(like).parameters.values() if p.kind is p.KEYWORD_ONLY]
    operands = list(inspect.signature(function).parameters.values())[:2]
    function.__signature__ = inspect.Signature([*operands, *attrs])
    return function  # type: ignore[no-any-return]


def with_other_dims(x: e.Tensor) -> e.Tensor:
    """Reshape X to the dims of Out."""
    return e.reshape(x, e.results("Out")[0])


def with_dims(x: Spec, dims: Sequence[int]) -> Spec:
    """Return X's spec with other dims; it keeps the LoD if the number of rows is, or may be, the same."""
    return spec_like(x, dims) if all_dims_compatible(dims[:1], x.dims[:1]) and dims else Spec.of(dims, x.dtype)


# reshape -----------------------------------------------------------------------------------------------------------


def reshape_dims(call: Call, x: Dims, shape: Sequence[OptionalInt]) -> Dims:
    """Return the dims that ``shape`` gives X."""
    for i, d in enumerate(shape):
        if d == 0 and i >= len(x):
            call.fail_attr("shape", f"0 only where X has a dim; X is {call.describe('X')}")
        if d is not None and d < -1:
            call.fail_attr("shape", "dims of -1 or more")
    if list(shape).count(-1) > 1:
        call.fail_attr("shape", "at most one -1")
    dims = [-1 if d is None else x[i] if d == 0 else d for i, d in enumerate(shape)]
    if None in shape:
        return tuple(dims)
    # Unknown dims of X that are copied (0) cancel out in the number of elements.
    # So do copied dims of size 0 beside a -1, so that an empty batch is reshaped like any other.
    copied = {i for i, d in enumerate(shape) if d == 0 and (x[i] < 0 or (x[i] == 0 and -1 in shape))}
    total = size([d for i, d in enumerate(x) if i not in copied])
    rest = prod(d for i, d in enumerate(dims) if i not in copied and shape[i] != -1)
    if -1 not in shape:
        if total >= 0 and total != rest:
            call.fail_attr("shape", f"{total} elements, as many as X ({call.describe('X')}) has")
        return tuple(dims)
    if total >= 0:
        if total % rest if rest else total:
            call.fail_attr("shape", f"a divisor of the size of X ({call.describe('X')}) beside the -1")
        dims[list(shape).index(-1)] = total // rest if rest else 0
    return tuple(dims)


def _reshape_dims(call: Call) -> Dims:
    """Return the dims of Out.

    The program is built with the positive dims of the attribute, so that a tensor with other values is refused. Beside
    a tensor -1 and 0 in the attribute mean unknown, as in Fluid's programs.
    """
    x, declared = call.dims("X"), call.attr("shape")
    requested, slot = numbers_of(call, "shape"), slot_of_attribute(call, "shape")
    if slot is None or not declared:
        if requested is None:
            call.fail("Shape", "known dims, [rank of Out]", do="give shape too, with -1 for what Shape says")
        return reshape_dims(call, x, requested)
    if requested is None:
        requested = (None,) * len(declared)
    do = "give shape as -1 where the tensor says the dim"
    if len(requested) != len(declared):
        call.fail(slot, f"{len(declared)} dims, as shape states ({list(declared)})", list(requested), do=do)
    dims = reshape_dims(call, x, [d if n is None and d > 0 else n for n, d in zip(requested, declared, strict=True)])
    for i, (n, d) in enumerate(zip(dims, declared, strict=True)):
        if n >= 0 and d > 0 and n != d:
            call.fail(slot, f"{d} for dim {i} of Out, as shape states ({list(declared)})", list(requested), do=do)
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
            doc="dims of Out; 0: as in X; one may be -1: the remainder. Beside a tensor of dims, "
            "0 and -1 mean unknown, and the other dims must be equal",
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
        e.fail_attr("axis", f"a permutation of {list(range(x.rank))}, the dims of X ({e.describe(x)})")
    return e.transpose(x, axis)


def _transpose_back(dout: e.Tensor, dims: Sequence[e.Number], *, axis: tuple[int, ...]) -> e.Tensor:
    return e.transpose(dout, [axis.index(i) for i in range(dout.rank)])


def _infer_transpose(call: Call) -> Spec:
    """Out has no LoD, since its first dim may be another one."""
    spec = infer(call)["Out"]
    assert isinstance(spec, Spec)
    return spec.with_(lod=())


register_pair(
    "transpose",
    _transpose,
    _transpose_back,
    _infer_transpose,
    view=False,
    attrs=(Attr("axis", "ints", doc="for each dim of Out, the dim of X"),),
    doc="Out = X with its dims in the order axis",
    grad_doc="X@GRAD = Out@GRAD with its dims in the inverse order",
    source="Fluid transpose_op.cc",
)
