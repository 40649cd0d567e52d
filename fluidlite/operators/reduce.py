"""Reductions: mean, reduce_sum, _mean, _max, _min, _prod, _all, _any, and sum, which adds tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import (
    Inferred,
    all_agree,
    grad_inputs,
    grad_like,
    grad_outputs,
    like,
    merged,
    normal_axis,
)
from fluidlite.operators.samples import EVERY, WIDE, Array, bools, distinct, ints, rand

# mean --------------------------------------------------------------------------------------------------------------


def _infer_mean(call: Call) -> Inferred:
    return {"Out": Spec.of((1,), call.dtype("X"))}


def _decompose_mean(call: Call, build: Any) -> None:
    build("reduce_mean", {"X": build.input("X")}, {"Out": build.output("Out")}, {"reduce_all": True})


register_op(
    "mean",
    inputs=("X",),
    outputs=("Out",),
    infer=_infer_mean,
    grad=GradRule("mean_grad", ("X", "Out@GRAD"), ("X",)),
    decompose=_decompose_mean,
    dtypes={"X": ALL_FLOATS},
    reference=lambda inputs, attrs: {"Out": np.mean(inputs["X"]).reshape(1)},
    samples=lambda: [
        Sample({"X": rand(5, 7)}, {}, ("X",), name="matrix", dtypes=EVERY),
        Sample({"X": rand(1)}, {}, ("X",), name="one"),
        Sample({"X": rand(2)}, {}, ("X",), name="two"),
        Sample({"X": rand()}, {}, ("X",), name="rank0"),
        Sample({"X": rand(3, 1000, low=0.0)}, {}, name="long", dtypes=EVERY),
    ],
    doc="Out = the mean of all elements of X, as [1]",
    source="Fluid mean_op.cc",
)

register_op(
    "mean_grad",
    inputs=grad_inputs("X", "Out@GRAD", meta=("X",)),
    outputs=grad_outputs("X"),
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = Out@GRAD / size of X, everywhere",
)

# reduce_* ----------------------------------------------------------------------------------------------------------

_ATTRS = (
    Attr("dim", "ints", (0,), doc="the dims to reduce; negative ones count from the end"),
    Attr("keep_dim", "bool", False, doc="keep reduced dims as 1"),
    Attr("reduce_all", "bool", False, doc="reduce every dim, whatever dim says"),
)


def reduced_axes(call: Call, slot: str = "X") -> tuple[int, ...]:
    """Return the axes that a reduce operator reduces, sorted."""
    rank = len(call.dims(slot))
    if call.attr("reduce_all"):
        return tuple(range(rank))
    dim = call.attr("dim")
    axes = sorted({normal_axis(call, "dim", axis, rank, slot) for axis in dim} if isinstance(dim, tuple) else ())
    if len(axes) != len(dim) or not axes:
        call.fail_attr("dim", "one or more different dims")
    return tuple(axes)


def _infer_reduce(call: Call) -> Inferred:
    x = call.spec("X")
    axes = reduced_axes(call)
    if call.attr("keep_dim"):
        dims = [1 if i in axes else d for i, d in enumerate(x.dims)]
    else:
        dims = [d for i, d in enumerate(x.dims) if i not in axes] or [1]
    if axes and axes[0] == 0:  # rows are gone, and with them what LoD divides
        return {"Out": Spec.of(dims or (1,), x.dtype)}
    return {"Out": like(x, dims or (1,))}


def _infer_extreme(call: Call) -> Inferred:
    """What has no elements has no greatest one."""
    found, axes, dims = _infer_reduce(call), reduced_axes(call), call.dims("X")
    left = [d for i, d in enumerate(dims) if i not in axes]
    if 0 in [dims[axis] for axis in axes] and 0 not in left:
        call.fail("X", "1 element or more in the dims to reduce")
    return found


def _reference(function: Callable[..., Any]) -> Callable[..., Mapping[str, Any]]:
    def reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
        x = inputs["X"]
        axes = tuple(range(x.ndim)) if attrs["reduce_all"] else tuple(attrs["dim"])
        out = np.asarray(function(x, axis=axes, keepdims=attrs["keep_dim"]), x.dtype)
        return {"Out": out.reshape(out.shape or (1,))}

    return reference


def _samples(
    make: Callable[..., Any], dtypes: tuple[str, ...], empty: bool = True, check: bool = True, integers: bool = True
) -> Callable[[], list[Sample]]:
    def samples() -> list[Sample]:
        grads = ("X",) if check else ()
        found = [
            Sample({"X": make(5, 7)}, {}, grads, name="rows", dtypes=dtypes),
            Sample({"X": make(5, 7)}, {"dim": [1]}, grads, name="columns", dtypes=dtypes),
            Sample({"X": make(3, 4, 5)}, {"dim": [-2], "keep_dim": True}, grads, name="middle_kept", dtypes=WIDE),
            Sample({"X": make(3, 4, 5)}, {"dim": [0, -1]}, grads, name="outer", dtypes=WIDE),
            Sample({"X": make(3, 4, 5)}, {"dim": [2, 1]}, grads, name="inner"),
            Sample({"X": make(2, 3, 2, 4)}, {"dim": [1, 3], "keep_dim": True}, grads, name="alternate"),
            Sample({"X": make(3, 4)}, {"reduce_all": True}, grads, name="all", dtypes=dtypes),
            Sample({"X": make(3, 4)}, {"reduce_all": True, "keep_dim": True}, grads, name="all_kept"),
            Sample({"X": make(4)}, {}, grads, name="vector"),
            Sample({"X": make(2, 3)}, {}, grads, name="pairs"),
            Sample({"X": make()}, {"reduce_all": True}, grads, name="rank0"),
            Sample({"X": make(64, 33)}, {"dim": [0]}, name="long_rows", dtypes=dtypes),
            Sample({"X": make(0, 3)}, {"dim": [1]}, name="empty"),
        ]
        if empty:
            found.append(Sample({"X": make(0, 3)}, {"dim": [0]}, name="empty_axis", dtypes=WIDE))
            found.append(Sample({"X": make(2, 0)}, {"reduce_all": True}, name="empty_all"))
        if integers:
            found += [Sample({"X": ints(4, 3, low=-9, dtype=t)}, {"dim": [1]}, name=t, dtypes=(t,)) for t in INTS]
            lowest = np.array([[5, np.iinfo("int32").min, 1]], "int32")
            found.append(Sample({"X": lowest}, {"dim": [1]}, name="lowest", dtypes=("int32",)))
        return found

    return samples


def _register(
    name: str,
    function: Callable[..., Any],
    samples: Callable[[], list[Sample]],
    grad: GradRule | None,
    doc: str,
    types: tuple[str, ...] = (*ALL_FLOATS, *INTS),
    decompose: Callable[..., Any] | None = None,
) -> None:
    register_op(
        name,
        inputs=("X",),
        outputs=("Out",),
        attrs=_ATTRS,
        infer=_infer_extreme if function in (np.max, np.min) else _infer_reduce,
        grad=grad,
        decompose=decompose,
        dtypes={"X": types},
        reference=_reference(function),
        samples=samples,
        doc=doc,
        source="Fluid reduce_op.h",
    )


def _decompose_min(call: Call, build: Any) -> None:
    turned = {"scale": -1.0, "bias": 0.0 if call.dtype("X") in ALL_FLOATS else -1.0}  # -1 - X: no integer overflows
    negative, most = build.temp(), build.temp()
    build("scale", {"X": build.input("X")}, {"Out": negative}, turned)
    build("reduce_max", {"X": negative}, {"Out": most}, {name: call.attr(name) for name in _NAMES})
    build("scale", {"X": most}, {"Out": build.output("Out")}, turned)


def _decompose_min_grad(call: Call, build: Any) -> None:
    inputs = {name: build.input(name) for name in _VALUES}  # both compare X with Out for equality
    attrs = {name: call.attr(name) for name in _NAMES}
    build("reduce_max_grad", inputs, {"X@GRAD": build.output("X@GRAD")}, attrs)


_NAMES = tuple(attr.name for attr in _ATTRS)
_ONLY_DIMS = ("X", "Out@GRAD")
_VALUES = ("X", "Out", "Out@GRAD")

_register("reduce_sum", np.sum, _samples(rand, EVERY), GradRule("reduce_sum_grad", _ONLY_DIMS, ("X",)),
          "Out = the sum of X over the dims")  # fmt: skip
_register("reduce_mean", np.mean, _samples(rand, EVERY, empty=False, integers=False),
          GradRule("reduce_mean_grad", _ONLY_DIMS, ("X",)), "Out = the mean of X over the dims",
          types=ALL_FLOATS)  # fmt: skip
_register("reduce_max", np.max, _samples(distinct, EVERY, empty=False), GradRule("reduce_max_grad", _VALUES, ("X",)),
          "Out = the maximum of X over the dims; NaN if one is NaN")  # fmt: skip
_register("reduce_min", np.min, _samples(distinct, EVERY, empty=False), GradRule("reduce_min_grad", _VALUES, ("X",)),
          "Out = the minimum of X over the dims; NaN if one is NaN", decompose=_decompose_min)  # fmt: skip


def _prod_samples() -> list[Sample]:
    def make(*dims: int) -> Array:
        return rand(*dims, low=0.7, high=1.4)

    zeros = np.array([[0.5, 0.0, 2.0], [0.0, 0.0, 3.0], [1.5, -2.0, 1.25]], "float32")
    return [
        *_samples(make, EVERY)(),
        Sample({"X": zeros}, {"dim": [1]}, ("X",), name="zeros", dtypes=EVERY),
        Sample({"X": zeros}, {"dim": [0], "keep_dim": True}, ("X",), name="zeros_kept"),
        Sample({"X": zeros}, {"reduce_all": True}, ("X",), name="zeros_all"),
        Sample({"X": rand(3, 77, low=0.9, high=1.1)}, {"dim": [1]}, ("X",), name="long", dtypes=WIDE),
    ]


def _truth_samples() -> list[Sample]:
    def case(name: str, dims: tuple[int, ...], **attrs: Any) -> Sample:
        return Sample({"X": bools(*dims, seed=sum(dims))}, attrs, name=name, dtypes=("bool",))

    return [
        case("rows", (3, 17)), case("columns", (9, 3), dim=[1]), case("kept", (2, 3, 2), dim=[-2], keep_dim=True),
        case("outer", (2, 3, 2), dim=[0, 2]), case("all", (1, 2), reduce_all=True), case("rank0", (), reduce_all=True),
        case("long", (4, 3000), dim=[1]), case("empty_axis", (0, 3)), case("empty", (0, 3), dim=[1]),
        Sample({"X": np.ones((40, 1000), "bool")}, {"reduce_all": True}, name="true", dtypes=("bool",)),
        Sample({"X": np.zeros((40, 1000), "bool")}, {"reduce_all": True}, name="false", dtypes=("bool",)),
    ]  # fmt: skip


_register("reduce_prod", np.prod, _prod_samples, GradRule("reduce_prod_grad", _VALUES, ("X",)),
          "Out = the product of X over the dims")  # fmt: skip
_register("reduce_all", np.all, _truth_samples, None, "Out = whether all of X over the dims are true",
          types=("bool",))  # fmt: skip
_register("reduce_any", np.any, _truth_samples, None, "Out = whether one of X over the dims is true",
          types=("bool",))  # fmt: skip

_GRAD_DOCS = {
    "reduce_sum": "X@GRAD = Out@GRAD, expanded to X",
    "reduce_mean": "X@GRAD = Out@GRAD / the number of elements reduced to one, expanded to X",
    "reduce_max": "X@GRAD = Out@GRAD where X equals Out (every equal maximum), else 0",
    "reduce_min": "X@GRAD = Out@GRAD where X equals Out (every equal minimum), else 0",
    "reduce_prod": "X@GRAD = Out@GRAD times the product of the others, zeros among them or not",
}
for _name, _doc in _GRAD_DOCS.items():
    _reads = _VALUES if _name in ("reduce_max", "reduce_min", "reduce_prod") else _ONLY_DIMS
    register_op(
        _name + "_grad",
        inputs=grad_inputs(*_reads, meta=("X",) if _reads == _ONLY_DIMS else ()),
        outputs=grad_outputs("X"),
        attrs=_ATTRS,
        infer=grad_like("X"),
        decompose=_decompose_min_grad if _name == "reduce_min" else None,
        kernel_dtype="Out@GRAD",
        doc=_doc,
    )

# sum ---------------------------------------------------------------------------------------------------------------


def _infer_sum(call: Call) -> Inferred:
    specs = call.specs("X")
    if not specs:
        call.fail("X", "one tensor or more")
    dims, first = specs[0].dims, specs[0]
    for spec in specs[1:]:
        if spec.dtype != first.dtype:
            call.fail_dtype("X", f"{first.dtype} in all of them")
        if not all_agree(dims, spec.dims):
            call.fail("X", "tensors of equal dims")
        dims = merged(dims, spec.dims)
    with_lod = next((spec for spec in specs if spec.lod_level), first)
    return {"Out": like(with_lod, dims)}


def _grad_sum(maker: Any) -> None:
    """Give each input that wants a gradient a copy of Out@GRAD."""
    given = maker.output_grad("Out")
    for i in range(maker.count("X")):
        grad = maker.input_grad("X", i)
        if grad is not None:
            maker.op("scale", {"X": given}, {"Out": grad}, {"scale": 1.0})


register_op(
    "sum",
    inputs=(Slot("X", duplicable=True),),
    outputs=("Out",),
    infer=_infer_sum,
    grad=_grad_sum,
    dtypes={"X": (*ALL_FLOATS, *INTS)},
    reference=lambda inputs, attrs: {"Out": np.sum(np.stack(inputs["X"]), axis=0)},
    samples=lambda: [
        Sample({"X": [rand(3, 4), rand(3, 4, seed=1)]}, {}, ("X",), name="two", dtypes=EVERY),
        Sample({"X": [rand(5, seed=i) for i in range(5)]}, {}, ("X",), name="five", dtypes=EVERY),
        Sample({"X": [rand(3, 4)]}, {}, ("X",), name="single"),
        Sample({"X": [rand(), rand(seed=1)]}, {}, ("X",), name="rank0"),
        Sample({"X": [rand(0, 2), rand(0, 2)]}, {}, name="empty"),
        Sample({"X": [ints(4), ints(4, seed=1), ints(4, seed=2)]}, {}, name="int64", dtypes=("int64",)),
    ],
    doc="Out = X[0] + X[1] + ..., in this order; many half-type tensors add up in a float32 copy",
    source="Fluid sum_op.cc",
)
