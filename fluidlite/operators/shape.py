"""Other dims for the same elements: reshape, transpose, and the helper that declares such operators in pairs.

Fluid has each of them twice: under the name of 1.0, whose gradient reads the dims of X, and with a 2 behind it,
whose gradient reads XShape, so that X can be freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, NoReturn

import numpy as np

from fluidlite.base.dtypes import ALL, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Reference, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Dims, Spec
from fluidlite.operators.inference import Inferred, grad_inputs, grad_like, grad_outputs, like, size
from fluidlite.operators.math.numbers import Number, numbers_of
from fluidlite.operators.samples import EVERY, WIDE, bools, ints, rand, stated

_X_SHAPE = Slot("XShape", intermediate=True, dispensable=True, content="dims (0, *dims of X) and X's LoD; no bytes")


def _infer_from_x_shape(call: Call) -> Inferred:
    """X@GRAD is as XShape says that X was."""
    return {"X@GRAD": like(call.spec("XShape"), call.dims("XShape")[1:])}


def register_pair(
    type: str,
    out: Callable[[Call], Spec],
    *,
    attrs: tuple[Attr, ...],
    reference: Reference,
    samples: Callable[[], Iterable[Sample]],
    doc: str,
    grad_doc: str,
    source: str,
    slots: tuple[Slot, ...] = (),
    view: bool = True,
) -> None:
    """Declare ``type`` and ``type`` + "2", with their gradient operators.

    Parameters
    ----------
    type : str
    out : callable
        ``out(call)``: the spec of Out.
    slots : tuple of Slot
        Inputs beside X, of integers.
    view : bool
        Whether Out has the bytes of X.
    attrs, reference, samples, doc, grad_doc, source
        Of both operators.
    """
    for name, kept in ((type, "X"), (type + "2", "XShape")):
        outputs: tuple[Slot | str, ...] = ("Out", _X_SHAPE) if kept == "XShape" else ("Out",)

        def infer(call: Call, shaped: bool = kept == "XShape") -> Inferred:
            x, found = call.spec("X"), {"Out": out(call)}
            return {**found, "XShape": like(x, (0, *x.dims))} if shaped else found

        register_op(
            name,
            inputs=("X", *slots),
            outputs=outputs,
            attrs=attrs,
            infer=infer,
            grad=GradRule(f"{name}_grad", (kept, "Out@GRAD"), ("X",)),
            view=("Out", "X") if view else None,
            dtypes={"X": ALL, **dict.fromkeys((slot.name for slot in slots), INTS)},
            reference=reference,
            samples=samples,
            doc=doc,
            source=source,
        )
        register_op(
            f"{name}_grad",
            inputs=grad_inputs(kept, "Out@GRAD", meta=(kept,)),
            outputs=grad_outputs("X"),
            attrs=attrs,
            infer=grad_like("X") if kept == "X" else _infer_from_x_shape,
            kernel_dtype="Out@GRAD",
            view=("X@GRAD", "Out@GRAD") if view else None,
            doc=grad_doc,
        )


def with_dims(x: Spec, dims: Sequence[int]) -> Spec:
    """Return X's spec with other dims; sequences stay where the rows do."""
    keeps_rows = bool(dims) and bool(x.dims) and dims[0] == x.dims[0]
    return like(x, dims) if keeps_rows else Spec.of(dims, x.dtype)


# reshape -----------------------------------------------------------------------------------------------------------

_SHAPES = ("ShapeTensor", "Shape")


def _wanted(call: Call) -> tuple[Number, ...]:
    """Return the dims asked for; of those that a tensor will say, what the attribute says of them."""
    found, stated = numbers_of(call, "shape", *_SHAPES), call.attr("shape")
    if found is None:
        if not stated:
            call.fail("Shape", "known dims, [rank of Out]", do="give shape too, with -1 for what Shape says")
        found = (None,) * len(stated)
    if len(found) != len(stated):
        return found
    return tuple(d if n is None and d >= 0 else n for n, d in zip(found, stated, strict=True))


def reshaped(call: Call, x: Dims, shape: Sequence[Number]) -> Dims:
    """Return the dims that ``shape`` gives X."""

    def refuse(expected: str) -> NoReturn:
        for slot in _SHAPES:
            if call.has(slot):
                call.fail(slot, expected, list(shape))
        call.fail_attr("shape", expected)

    for i, d in enumerate(shape):
        if d == 0 and i >= len(x):
            refuse(f"0 only where X has a dim; X is {call.shown('X')}")
        if d is not None and d < -1:
            refuse("dims of -1 or more")
    if list(shape).count(-1) > 1:
        refuse("at most one -1")
    dims = [-1 if d is None else x[i] if d == 0 else d for i, d in enumerate(shape)]
    if None in shape:
        return tuple(dims)
    # Dims of X that are unknown and copied stand on both sides, so what remains is known without them.
    copied = {i for i, d in enumerate(shape) if d == 0 and x[i] < 0}
    total = size([d for i, d in enumerate(x) if i not in copied])
    rest = prod(d for i, d in enumerate(dims) if i not in copied and shape[i] != -1)
    if -1 not in shape:
        if total >= 0 and total != rest:
            refuse(f"{total} elements, as many as X ({call.shown('X')}) has")
        return tuple(dims)
    if total >= 0:
        if total % rest if rest else total:
            refuse(f"a divisor of the size of X ({call.shown('X')}) beside the -1")
        dims[list(shape).index(-1)] = total // rest if rest else 0
    return tuple(dims)


def _reference_reshape(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = inputs["X"]
    dims = [x.shape[i] if d == 0 else d for i, d in enumerate(stated(inputs, attrs, "shape", *_SHAPES))]
    return {"Out": x.reshape(dims) if x.size else np.zeros([max(d, 0) for d in dims], x.dtype)}


def _numbers(*values: int) -> list[Any]:
    return [np.asarray([value], "int32") for value in values]


register_pair(
    "reshape",
    lambda call: with_dims(call.spec("X"), reshaped(call, call.dims("X"), _wanted(call))),
    slots=(
        Slot("Shape", dispensable=True, value=True, doc="the dims of Out, as a tensor; they go before shape"),
        Slot("ShapeTensor", duplicable=True, dispensable=True, value=True, doc="the dims of Out, a tensor each"),
    ),
    attrs=(Attr("shape", "ints", (), minimum=-1, doc="dims of Out; 0: as in X; one may be -1: what remains"),),
    reference=_reference_reshape,
    samples=lambda: [
        Sample({"X": rand(4, 6)}, {"shape": [3, 8]}, ("X",), name="plain", dtypes=EVERY),
        Sample({"X": rand(4, 6)}, {"shape": [0, 2, -1]}, ("X",), name="copied_and_inferred"),
        Sample({"X": rand(2, 3, 4)}, {"shape": [-1]}, ("X",), name="flat"),
        Sample({"X": ints(6)}, {"shape": [2, 3]}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(6)}, {"shape": [6, 1]}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(1)}, {"shape": []}, name="rank0"),
        Sample({"X": rand()}, {"shape": [1, -1]}, name="from_rank0"),
        Sample({"X": rand(0, 4)}, {"shape": [-1, 2]}, name="empty"),
        Sample({"X": rand(0, 4)}, {"shape": [0, 2, 2]}, name="empty_copied"),
        Sample({"X": rand(4, 0)}, {"shape": [2, 0, 2]}, name="empty_columns"),
        Sample({"X": rand(4, 6), "Shape": np.asarray([2, -1, 3])}, {"shape": [-1, 4, 3]}, ("X",), name="shape"),
        Sample({"X": rand(4, 6), "Shape": np.asarray([0, 6], "int32")}, {"shape": [4, 6]}, ("X",), name="shape_alone"),
        Sample({"X": rand(4, 6), "ShapeTensor": _numbers(8, 3)}, {"shape": [-1, 3]}, ("X",), name="shapes"),
        Sample({"X": rand(4, 6), "ShapeTensor": _numbers(0, -1, 2)}, {}, ("X",), name="shapes_alone"),
    ],
    doc="Out = X with other dims; the bytes are the same",
    grad_doc="X@GRAD = Out@GRAD with the dims of X",
    source="Fluid reshape_op.cc",
)  # fmt: skip

# transpose ---------------------------------------------------------------------------------------------------------


def _transposed(call: Call) -> Spec:
    x, axis = call.spec("X"), call.attr("axis")
    if sorted(axis) != list(range(x.rank)):
        call.fail_attr("axis", f"a permutation of {list(range(x.rank))}, the dims of X ({call.shown('X')})")
    return Spec.of([x.dims[i] for i in axis], x.dtype)


register_pair(
    "transpose",
    _transposed,
    view=False,
    attrs=(Attr("axis", "ints", doc="which dim of X each dim of Out is"),),
    reference=lambda inputs, attrs: {"Out": np.moveaxis(inputs["X"], attrs["axis"], range(len(attrs["axis"])))},
    samples=lambda: [
        Sample({"X": rand(4, 6)}, {"axis": [1, 0]}, ("X",), name="matrix", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4)}, {"axis": [2, 0, 1]}, ("X",), name="cycle", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4, 5)}, {"axis": [0, 2, 3, 1]}, ("X",), name="nhwc"),
        Sample({"X": rand(2, 3)}, {"axis": [0, 1]}, ("X",), name="identity"),
        Sample({"X": rand(33, 65)}, {"axis": [1, 0]}, name="tiles"),
        Sample({"X": rand(5)}, {"axis": [0]}, name="vector"),
        Sample({"X": rand()}, {"axis": []}, name="rank0"),
        Sample({"X": ints(2, 3)}, {"axis": [1, 0]}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(2, 3)}, {"axis": [1, 0]}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 4)}, {"axis": [1, 0]}, name="empty"),
    ],
    doc="Out = X with its dims in the order axis",
    grad_doc="X@GRAD = Out@GRAD with its dims in the inverse order",
    source="Fluid transpose_op.cc",
)
