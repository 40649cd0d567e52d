"""Dims of 1 taken out and put in, and dims made two: squeeze, unsqueeze, flatten."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample, Slot
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import agree, normal_axis, size
from fluidlite.operators.math.numbers import numbers_of
from fluidlite.operators.samples import EVERY, bools, ints, rand, stated
from fluidlite.operators.shape import register_pair, with_dims

# squeeze -----------------------------------------------------------------------------------------------------------


def _squeezed(call: Call) -> Spec:
    x, axes = call.spec("X"), {normal_axis(call, "axes", axis, call.spec("X").rank) for axis in call.attr("axes")}
    for axis in axes:
        if not agree(x.dims[axis], 1):
            call.fail_attr("axes", f"dims of 1; X is {call.shown('X')}")
    if not call.attr("axes"):
        axes = {i for i, d in enumerate(x.dims) if d == 1}
    return with_dims(x, [d for i, d in enumerate(x.dims) if i not in axes])


def _reference_squeeze(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"Out": np.squeeze(inputs["X"], tuple({axis % inputs["X"].ndim for axis in attrs["axes"]}) or None)}


register_pair(
    "squeeze",
    _squeezed,
    attrs=(Attr("axes", "ints", (), doc="dims of 1 that Out lacks; none: all that are known to be 1"),),
    reference=_reference_squeeze,
    samples=lambda: [
        Sample({"X": rand(1, 3, 1, 5)}, {"axes": [0]}, ("X",), name="first", dtypes=EVERY),
        Sample({"X": rand(1, 3, 1, 5)}, {"axes": [-2, 0]}, ("X",), name="negative"),
        Sample({"X": rand(3, 1, 2, 1)}, {"axes": [1, 1]}, ("X",), name="twice"),
        Sample({"X": rand(1, 3, 1, 5)}, {}, ("X",), name="all"),
        Sample({"X": rand(3, 2)}, {}, ("X",), name="none"),
        Sample({"X": rand(1, 1)}, {"axes": [0, 1]}, ("X",), name="rank0"),
        Sample({"X": ints(1, 6)}, {"axes": [0]}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(6, 1)}, {"axes": [1]}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 1, 4)}, {"axes": [1]}, name="empty"),
    ],
    doc="Out = X without dims of 1",
    grad_doc="X@GRAD = Out@GRAD with the dims of X",
    source="Fluid squeeze_op.cc",
)

# unsqueeze ---------------------------------------------------------------------------------------------------------


_AXES = ("AxesTensorList", "AxesTensor")


def _unsqueezed(call: Call) -> Spec:
    x, axes = call.spec("X"), numbers_of(call, "axes", *_AXES)
    if axes is None:
        call.fail("AxesTensor", "known dims, [how many axes]")
    given = next((slot for slot in _AXES if call.has(slot)), "")
    if not axes:
        if given:
            call.fail(given, "one axis or more")
        call.fail_attr("axes", "one axis or more")
    if None in axes:
        return Spec.of((-1,) * (x.rank + len(axes)), x.dtype)
    dims = list(x.dims)
    for axis in axes:
        assert axis is not None
        rank = len(dims)
        if not -rank - 1 <= axis <= rank:
            expected = f"places in [{-rank - 1}, {rank + 1}) of the {rank} dims there are by then"
            if given:
                call.fail(given, expected, axes)
            call.fail_attr("axes", expected)
        dims.insert(axis + rank + 1 if axis < 0 else axis, 1)
    return with_dims(x, dims)


def _reference_unsqueeze(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    out = inputs["X"]
    for axis in stated(inputs, attrs, "axes", *_AXES):
        out = np.expand_dims(out, axis)
    return {"Out": out}


register_pair(
    "unsqueeze",
    _unsqueezed,
    slots=(
        Slot("AxesTensor", dispensable=True, value=True, doc="the axes, as a tensor"),
        Slot("AxesTensorList", duplicable=True, dispensable=True, value=True, doc="the axes, a tensor each"),
    ),
    attrs=(Attr("axes", "ints", (), doc="where dims of 1 are put in, one after the other; negative: from the end"),),
    reference=_reference_unsqueeze,
    samples=lambda: [
        Sample({"X": rand(3, 5)}, {"axes": [0]}, ("X",), name="first", dtypes=EVERY),
        Sample({"X": rand(3, 4, 5)}, {"axes": [0, 4]}, ("X",), name="both_ends"),
        Sample({"X": rand(3, 4)}, {"axes": [-1, 1]}, ("X",), name="negative"),
        Sample({"X": rand(3, 4)}, {"axes": [1, 1]}, ("X",), name="twice"),
        Sample({"X": rand()}, {"axes": [0, -1]}, ("X",), name="rank0"),
        Sample({"X": rand(3, 4), "AxesTensor": np.asarray([2, 0], "int32")}, {}, ("X",), name="by_tensor"),
        Sample(
            {"X": rand(3, 4), "AxesTensorList": [np.asarray([1], "int32"), np.asarray([-1], "int64")]},
            {}, ("X",), name="by_list",
        ),
        Sample({"X": ints(6)}, {"axes": [1]}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(6)}, {"axes": [0]}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 4)}, {"axes": [1]}, name="empty"),
    ],
    doc="Out = X with dims of 1 put in",
    grad_doc="X@GRAD = Out@GRAD with the dims of X",
    source="Fluid unsqueeze_op.cc",
)  # fmt: skip

# flatten -----------------------------------------------------------------------------------------------------------


def _flattened(call: Call) -> Spec:
    x, axis = call.spec("X"), call.attr("axis")
    if axis > x.rank:
        call.fail_attr("axis", f"0 to {x.rank}, the rank of X ({call.shown('X')})")
    return with_dims(x, (size(x.dims[:axis]), size(x.dims[axis:])))


register_pair(
    "flatten",
    _flattened,
    attrs=(Attr("axis", "int", 1, minimum=0, doc="how many dims of X become the first dim of Out"),),
    reference=lambda inputs, attrs: {"Out": inputs["X"].reshape(
        prod(inputs["X"].shape[: attrs["axis"]]), prod(inputs["X"].shape[attrs["axis"] :])
    )},
    samples=lambda: [
        Sample({"X": rand(2, 3, 4)}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4)}, {"axis": 2}, ("X",), name="two"),
        Sample({"X": rand(2, 3)}, {"axis": 0}, ("X",), name="row"),
        Sample({"X": rand(2, 3)}, {"axis": 2}, ("X",), name="column"),
        Sample({"X": rand(4)}, {}, ("X",), name="vector"),
        Sample({"X": rand()}, {"axis": 0}, ("X",), name="rank0"),
        Sample({"X": ints(2, 3, 2)}, {}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(2, 3, 2)}, {}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 2, 3)}, {}, name="empty"),
        Sample({"X": rand(2, 0, 3)}, {"axis": 1}, name="empty_rows"),
    ],
    doc="Out = X as a matrix: its first dims are the rows, the others the columns",
    grad_doc="X@GRAD = Out@GRAD with the dims of X",
    source="Fluid flatten_op.cc",
)  # fmt: skip
