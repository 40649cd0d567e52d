"""Tensors joined and divided along an axis: concat, split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from fluidlite.base.dtypes import ALL, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import (
    Inferred,
    agree,
    all_agree,
    like,
    merged,
    normal_axis,
)
from fluidlite.operators.math.numbers import Number, number_of, numbers_of
from fluidlite.operators.samples import EVERY, WIDE, bools, ints, rand, stated

# concat and split --------------------------------------------------------------------------------------------------

_AXIS_TENSOR = Slot("AxisTensor", dispensable=True, value=True, doc="the axis, as a tensor")
_CONCAT_ATTRS = (Attr("axis", "int", 0, doc="the axis along which X lie one behind the other"),)


def _axis(call: Call, rank: int) -> int | None:
    """Return the axis as 0..rank-1; None if a tensor will say it."""
    axis = number_of(call, "axis", "AxisTensor")
    if axis is not None and call.has("AxisTensor"):
        if not -rank <= axis < rank:
            call.fail("AxisTensor", f"an axis in [{-rank}, {rank}) of X", axis)
        return axis % rank
    return axis if axis is None else normal_axis(call, "axis", axis, rank)


def _reference_axis(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> int:
    return int(inputs["AxisTensor"].reshape(-1)[0]) if "AxisTensor" in inputs else int(attrs["axis"])


def _infer_concat(call: Call) -> Inferred:
    specs = call.specs("X")
    if not specs:
        call.fail("X", "one tensor or more")
    first = specs[0]
    for spec in specs:
        if spec.dtype != first.dtype:
            call.fail_dtype("X", f"{first.dtype} in all of them")
        call.need(spec.rank == first.rank, "X", "tensors of one rank")
    axis = _axis(call, first.rank)
    if axis is None:
        return {"Out": Spec.of((-1,) * first.rank, first.dtype)}
    known: list[int] = list(first.dims)
    known[axis] = 0
    for spec in specs:
        dims = [0 if i == axis else d for i, d in enumerate(spec.dims)]
        if not all_agree(known, dims):
            call.fail("X", f"tensors of equal dims, but for axis {axis}")
        known = list(merged(known, dims))
    sizes = [spec.dims[axis] for spec in specs]
    known[axis] = -1 if -1 in sizes else sum(sizes)
    # Along axis 0 the sequences of X[0] no longer cover the rows.
    return {"Out": like(first, known) if axis else Spec.of(known, first.dtype)}


register_op(
    "concat",
    inputs=(Slot("X", duplicable=True), _AXIS_TENSOR),
    outputs=("Out",),
    attrs=_CONCAT_ATTRS,
    infer=_infer_concat,
    grad=GradRule("concat_grad", ("X", "AxisTensor", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL, "AxisTensor": INTS},
    reference=lambda inputs, attrs: {"Out": np.concatenate(inputs["X"], axis=_reference_axis(inputs, attrs))},
    samples=lambda: [
        Sample({"X": [rand(2, 3), rand(4, 3, seed=1)]}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": [rand(3, 2), rand(3, 1, seed=1), rand(3, 4)]}, {"axis": 1}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": [rand(2, 3, 4), rand(2, 2, 4, seed=1)]}, {"axis": -2}, ("X",), name="middle"),
        Sample({"X": [rand(3)]}, {}, ("X",), name="single"),
        Sample({"X": [rand(2, 4500), rand(2, 5, seed=1)]}, {"axis": 1}, name="long_runs"),
        Sample({"X": [rand(0, 3), rand(2, 3)]}, {}, name="one_empty"),
        Sample(
            {"X": [rand(3, 2), rand(3, 1, seed=1)], "AxisTensor": np.asarray([1], "int32")}, {}, ("X",), name="tensor"
        ),
        Sample({"X": [ints(2), ints(3)]}, {}, name="int64", dtypes=("int64",)),
        Sample({"X": [bools(2), bools(3)]}, {}, name="bool", dtypes=("bool",)),
    ],
    doc="Out = the tensors X one behind the other along axis",
    source="Fluid concat_op.cc",
)

register_op(
    "concat_grad",
    inputs=(Slot("X", duplicable=True, metadata_only=True), _AXIS_TENSOR, Slot("Out@GRAD")),
    outputs=(Slot("X@GRAD", duplicable=True, dispensable=True),),
    attrs=_CONCAT_ATTRS,
    infer=lambda call: {"X@GRAD": [like(spec) for spec in call.specs("X")]},
    kernel_dtype="Out@GRAD",
    doc="X@GRAD[i] = the part of Out@GRAD that X[i] has become",
)


def _sections(call: Call, axis: int, whole: int) -> list[int]:
    """Return the size of each part; -1 where it is not known yet."""
    tensors = call.has("SectionsTensorList")
    found, stated = numbers_of(call, "sections", "SectionsTensorList") or (), call.attr("sections")

    def refuse(expected: str) -> NoReturn:
        if tensors:
            call.fail("SectionsTensorList", expected, list(found))
        call.fail_attr("sections", expected)

    if any(n is not None and n < -1 for n in found) or found.count(-1) > 1:
        refuse("sizes of 0 or more, at most one of them -1")
    sections: list[Number] = list(found)
    if None in sections:  # what the attribute says of a tensor, until its value is known
        hints = stated if len(stated) == len(found) else (-1,) * len(found)
        return [max(hint, -1) if n is None else n for n, hint in zip(sections, hints, strict=True)]
    sizes = [n for n in sections if n is not None]
    if -1 in sizes and whole >= 0:
        sizes[sizes.index(-1)] = whole - sum(n for n in sizes if n >= 0)
    if -1 not in sizes and (not agree(sum(sizes), whole) or min(sizes) < 0):
        refuse(f"sizes that sum to {whole}, dim {axis} of X ({call.shown('X')})")
    return sizes


def _infer_split(call: Call) -> Inferred:
    x = call.spec("X")
    axis = _axis(call, x.rank)
    num = call.attr("num")
    divided = not call.attr("sections") and not call.has("SectionsTensorList")
    if divided and num < 1:
        call.fail_attr("num", "1 or more, since sections is empty")
    if axis is None:
        count = num if divided else len(numbers_of(call, "sections", "SectionsTensorList") or ())
        return {"Out": [Spec.of((-1,) * x.rank, x.dtype)] * count}
    whole = x.dims[axis]
    if not divided:
        sections = _sections(call, axis, whole)
    else:
        if whole >= 0 and whole % num:
            call.fail_attr("num", f"a divisor of {whole}, dim {axis} of X ({call.shown('X')})")
        sections = [whole // num if whole >= 0 else -1] * num

    def part(n: int) -> Spec:
        dims = (*x.dims[:axis], n, *x.dims[axis + 1 :])
        return like(x, dims) if axis else Spec.of(dims, x.dtype)

    return {"Out": [part(n) for n in sections]}


def _grad_split(maker: Any) -> None:
    inputs = {"X": maker.output_grads("Out")}
    if maker.operator.input("AxisTensor"):
        inputs["AxisTensor"] = maker.input("AxisTensor")
    maker.op("concat", inputs, {"Out": maker.input_grad("X")}, {"axis": maker.attr("axis")})


def _reference_split(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, axis = inputs["X"], _reference_axis(inputs, attrs)
    given = stated(inputs, attrs, "sections", "SectionsTensorList")
    if not len(given):
        return {"Out": np.split(x, attrs["num"], axis)}
    sections = [s if s >= 0 else x.shape[axis] - sum(v for v in given if v >= 0) for s in given]
    return {"Out": np.split(x, np.cumsum(sections)[:-1], axis)}


register_op(
    "split",
    inputs=(
        "X",
        _AXIS_TENSOR,
        Slot("SectionsTensorList", duplicable=True, dispensable=True, value=True, doc="the sections, a tensor each"),
    ),
    outputs=(Slot("Out", duplicable=True),),
    attrs=(
        Attr("num", "int", 0, minimum=0, maximum=65536, doc="how many equal parts, if sections is empty"),
        Attr("sections", "ints", (), doc="the size of each part; one may be -1: what remains"),
        Attr("axis", "int", 0, doc="the axis that is divided"),
    ),
    infer=_infer_split,
    grad=_grad_split,
    dtypes={"X": ALL, "AxisTensor": INTS, "SectionsTensorList": INTS},
    reference=_reference_split,
    samples=lambda: [
        Sample({"X": rand(6, 6)}, {"num": 3}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(3, 6)}, {"num": 2, "axis": 1}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": rand(3, 6)}, {"sections": [1, 3, 2], "axis": -1}, ("X",), name="sections", dtypes=WIDE),
        Sample({"X": rand(2, 7, 3)}, {"sections": [2, -1, 1], "axis": 1}, ("X",), name="remainder"),
        Sample({"X": rand(4)}, {"num": 1}, ("X",), name="single"),
        Sample({"X": rand(2, 3)}, {"sections": [0, 2]}, name="empty_part"),
        Sample({"X": rand(3, 6), "AxisTensor": np.asarray([-1], "int32")}, {"num": 2}, ("X",), name="axis_tensor"),
        Sample(
            {"X": rand(3, 6), "SectionsTensorList": [np.asarray([n], "int32") for n in (1, -1, 2)]},
            {"axis": 1, "sections": [-1, 3, 2]}, ("X",), name="sections_tensors",
        ),
        Sample({"X": ints(4)}, {"num": 2}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(4)}, {"num": 2}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 4)}, {"num": 2, "axis": 1}, name="empty"),
    ],
    doc="Out = the parts of X along axis",
    source="Fluid split_op.cc",
)  # fmt: skip
