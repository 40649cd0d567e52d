"""Tensors repeated: expand, expand_as, meshgrid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, grad_inputs, grad_like, grad_outputs, like
from fluidlite.operators.math.numbers import numbers_of
from fluidlite.operators.samples import EVERY, WIDE, bools, ints, rand, stated

# expand ------------------------------------------------------------------------------------------------------------

_TIMES = ("ExpandTimes", "expand_times_tensor")
_EXPAND_ATTRS = (Attr("expand_times", "ints", (), minimum=-1, doc="how often each dim of X is repeated; -1: a tensor"),)


def _infer_expand(call: Call) -> Inferred:
    x, times = call.spec("X"), numbers_of(call, "expand_times", *_TIMES)
    given = next((slot for slot in _TIMES if call.has(slot)), None)
    if times is None:
        times = (None,) * x.rank
    expected = ""
    if len(times) != x.rank:
        expected = f"{x.rank} numbers, one for each dim of X ({call.shown('X')})"
    elif any(n is not None and n < 1 for n in times):
        expected = "numbers of 1 or more"
    if expected and given is None:
        call.fail_attr("expand_times", expected)
    if expected:
        call.fail(str(given), expected, list(times))
    hints = call.attr("expand_times") if len(call.attr("expand_times")) == x.rank else (-1,) * x.rank
    dims = []
    for d, n, hint in zip(x.dims, times, hints, strict=True):
        n = hint if n is None else n  # what the attribute says of a tensor, until its value is known
        dims.append(d * n if d >= 0 and n >= 1 else -1)
    return {"Out": like(x, dims) if dims[:1] == list(x.dims[:1]) else Spec.of(dims, x.dtype)}


def _reference_expand(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    out = inputs["X"]
    for axis, n in enumerate(stated(inputs, attrs, "expand_times", *_TIMES)):
        out = np.concatenate([out] * n, axis)
    return {"Out": out}


register_op(
    "expand",
    inputs=(
        "X",
        Slot("ExpandTimes", dispensable=True, value=True, doc="the times, as a tensor"),
        Slot("expand_times_tensor", duplicable=True, dispensable=True, value=True, doc="the times, a tensor each"),
    ),
    outputs=("Out",),
    attrs=_EXPAND_ATTRS,
    infer=_infer_expand,
    grad=GradRule("expand_grad", ("X", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL, **dict.fromkeys(_TIMES, INTS)},
    reference=_reference_expand,
    samples=lambda: [
        Sample({"X": rand(2, 3)}, {"expand_times": [2, 1]}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(2, 3, 1)}, {"expand_times": [1, 2, 2]}, ("X",), name="rank3", dtypes=EVERY),
        Sample({"X": rand(3, 1)}, {"expand_times": [1, 5]}, ("X",), name="columns", dtypes=WIDE),
        Sample({"X": rand(1, 4)}, {"expand_times": [3, 1]}, ("X",), name="one_row"),
        Sample({"X": rand(2, 3)}, {"expand_times": [1, 1]}, ("X",), name="once"),
        Sample({"X": rand(2, 1, 3, 1)}, {"expand_times": [2, 3, 1, 4]}, ("X",), name="rank4"),
        Sample({"X": rand(4)}, {"expand_times": [3]}, ("X",), name="vector"),
        Sample({"X": rand()}, {"expand_times": []}, ("X",), name="rank0"),
        Sample({"X": rand(70, 33)}, {"expand_times": [2, 3]}, name="long"),
        Sample({"X": rand(3, 2)}, {"expand_times": [1, 7]}, ("X",), name="short", dtypes=WIDE),
        Sample({"X": rand(2, 3, 2)}, {"expand_times": [2, 1, 9]}, ("X",), name="short_twice"),
        Sample({"X": rand(3)}, {"expand_times": [4]}, ("X",), name="short_row"),
        Sample({"X": rand(2, 3), "ExpandTimes": np.asarray([2, 3], "int32")}, {}, ("X",), name="by_tensor"),
        Sample(
            {"X": rand(2, 3), "expand_times_tensor": [np.asarray([2], "int32"), np.asarray([3], "int64")]},
            {"expand_times": [-1, 3]}, ("X",), name="by_list",
        ),
        Sample({"X": ints(3)}, {"expand_times": [2]}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(2, 3)}, {"expand_times": [1, 2]}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 3)}, {"expand_times": [2, 2]}, name="empty"),
    ],
    doc="Out = X, repeated along each dim",
    source="Fluid expand_op.cc",
)  # fmt: skip

register_op(
    "expand_grad",
    inputs=grad_inputs("X", "Out@GRAD", meta=("X",)),
    outputs=grad_outputs("X"),
    attrs=_EXPAND_ATTRS,
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = the sum of Out@GRAD over the repetitions; on dialects partial sums take temporary memory",
)

# expand_as ---------------------------------------------------------------------------------------------------------


def _infer_expand_as(call: Call) -> Inferred:
    x, target = call.spec("X"), call.dims("target_tensor")
    call.need(len(target) == x.rank, "target_tensor", f"rank {x.rank}, as X ({call.shown('X')})")
    for i, (d, n) in enumerate(zip(x.dims, target, strict=True)):
        if d >= 0 and n >= 0 and (n % d if d else n):
            call.fail("target_tensor", f"a multiple of {d} in dim {i}, for X is {call.shown('X')}")
    return {"Out": like(x, target) if target[:1] == x.dims[:1] else Spec.of(target, x.dtype)}


def _reference_expand_as(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, target = inputs["X"], inputs["target_tensor"].shape
    return {"Out": np.tile(x, [n // d if d else 1 for d, n in zip(x.shape, target, strict=True)]).reshape(target)}


register_op(
    "expand_as",
    inputs=("X", Slot("target_tensor", metadata_only=True, doc="Out gets its dims")),
    outputs=("Out",),
    infer=_infer_expand_as,
    grad=GradRule("expand_as_grad", ("X", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL},
    reference=_reference_expand_as,
    samples=lambda: [
        Sample({"X": rand(2, 3), "target_tensor": rand(4, 3)}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(2, 3, 1), "target_tensor": rand(2, 6, 2)}, {}, ("X",), name="rank3", dtypes=WIDE),
        Sample({"X": rand(2, 3), "target_tensor": ints(2, 3)}, {}, ("X",), name="once"),
        Sample({"X": ints(3), "target_tensor": rand(6)}, {}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(1, 3), "target_tensor": rand(2, 3)}, {}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 3), "target_tensor": rand(0, 6)}, {}, name="empty"),
    ],
    doc="Out = X, repeated up to the dims of target_tensor",
    source="Fluid expand_as_op.cc",
)

register_op(
    "expand_as_grad",
    inputs=grad_inputs("X", "Out@GRAD", meta=("X",)),
    outputs=grad_outputs("X"),
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = the sum of Out@GRAD over the repetitions; on dialects partial sums take temporary memory",
)

# meshgrid ----------------------------------------------------------------------------------------------------------


def _infer_meshgrid(call: Call) -> Inferred:
    specs = call.specs("X")
    if not specs:
        call.fail("X", "one tensor or more")
    for spec in specs:
        call.need(spec.rank <= 1, "X", "vectors, [n], or numbers")
        if spec.dtype != specs[0].dtype:
            call.fail_dtype("X", f"{specs[0].dtype} in all of them")
    dims = [spec.dims[0] if spec.rank else 1 for spec in specs]
    return {"Out": [Spec.of(dims, specs[0].dtype)] * len(specs)}


def _decompose_meshgrid(call: Call, build: Any) -> None:
    sizes = [spec.size for spec in call.specs("X")]
    for i, n in enumerate(sizes):
        if 0 in sizes:
            build("fill_constant", {}, {"Out": build.output("Out", i)}, {"shape": sizes, "dtype": call.dtype("X")})
            continue
        shape, times = [1] * len(sizes), list(sizes)
        shape[i], times[i] = n, 1
        placed = build("reshape", {"X": build.input("X", i)}, {"Out": None}, {"shape": shape})
        build("expand", {"X": placed}, {"Out": build.output("Out", i)}, {"expand_times": times})


def _decompose_meshgrid_grad(call: Call, build: Any) -> None:
    count = call.count("X")
    for i, spec in enumerate(call.specs("X")):
        given = build.input("Out@GRAD", i)
        others = [axis for axis in range(count) if axis != i]
        if others:
            given = build("reduce_sum", {"X": given}, {"Out": None}, {"dim": others})
        shape = {"shape": list(spec.dims) if spec.size else [-1]}
        build("reshape", {"X": given}, {"Out": build.output("X@GRAD", i)}, shape)


register_op(
    "meshgrid",
    inputs=(Slot("X", duplicable=True),),
    outputs=(Slot("Out", duplicable=True),),
    infer=_infer_meshgrid,
    grad=GradRule("meshgrid_grad", ("X", "Out@GRAD"), ("X",)),
    decompose=_decompose_meshgrid,
    dtypes={"X": ALL},
    reference=lambda inputs, attrs: {"Out": list(map(np.array, np.meshgrid(*inputs["X"], indexing="ij")))},
    samples=lambda: [
        Sample({"X": [rand(3), rand(4, seed=1)]}, {}, ("X",), name="two", dtypes=EVERY),
        Sample({"X": [rand(2), rand(3, seed=1), rand(4, seed=2)]}, {}, ("X",), name="three", dtypes=WIDE),
        Sample({"X": [rand(5)]}, {}, ("X",), name="single"),
        Sample({"X": [rand(3), rand(), rand(1)]}, {}, ("X",), name="rank0"),
        Sample({"X": [ints(2), ints(3)]}, {}, name="int64", dtypes=("int64",)),
        Sample({"X": [bools(2), bools(3)]}, {}, name="bool", dtypes=("bool",)),
        Sample({"X": [rand(2), rand(0)]}, {}, name="empty"),
    ],
    doc="Out[i] = X[i] along dim i, repeated along the others",
    source="Fluid meshgrid_op.cc",
)

register_op(
    "meshgrid_grad",
    inputs=(Slot("X", duplicable=True, metadata_only=True), Slot("Out@GRAD", duplicable=True)),
    outputs=(Slot("X@GRAD", duplicable=True, dispensable=True),),
    infer=lambda call: {"X@GRAD": [like(spec) for spec in call.specs("X")]},
    decompose=_decompose_meshgrid_grad,
    kernel_dtype="Out@GRAD",
    doc="X@GRAD[i] = the sum of Out@GRAD[i] over all dims but i",
)
