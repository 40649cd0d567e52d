"""data_norm: channels normalised by sums over all data so far, which are parameters.

The two operators that go over X, data_norm_apply and data_norm_sums, are used nowhere else. The "gradients" of the
three parameters are the batch's own sums, as in Fluid, whose servers add these to what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import FLOATS
from fluidlite.codegen.expr import logical_and, where
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, ScalarRule, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Dims
from fluidlite.operators.inference import Inferred, agree, all_agree, grad_outputs, like, same_dtype
from fluidlite.operators.samples import WIDE, rand
from fluidlite.operators.scalar_op import scalar_op

_ABSENT = 1e-7
"""A slot whose first number is nearer to 0 than this has not been shown."""
_SUMS = ("BatchSize", "BatchSum", "BatchSquareSum")

_ATTRS = (
    Attr("epsilon", "float", 1e-4, minimum=0.0, maximum=0.001, doc="is added to BatchSquareSum@GRAD for each sample"),
    Attr("slot_dim", "int", -1, doc="if above 0, channels are slots of so many, and a slot whose first number is 0 is "
         "left out: its Y is 0, and it counts in no sum"),
    Attr("summary_decay_rate", "float", 0.9999999, doc="of Fluid's servers; of no effect"),
    Attr("enable_scale_and_shift", "bool", False, doc="whether scale_w and bias are used"),
    Attr("data_layout", "str", "NCHW", choices=("NCHW", "NHWC"), doc="X is [batch, channels], so of no effect"),
    Attr("sync_stats", "bool", False, doc="of several devices; of no effect"),
)  # fmt: skip

# The two passes over X ---------------------------------------------------------------------------------------------


def _placed(call: Call) -> Mapping[str, Dims]:
    """Channels as slots, with Show a number a slot; without Show, one slot of all channels."""
    rows, channels = call.dims("X")
    slots = call.dims("Show")[1] if call.has("Show") else 1
    wide = (rows, slots, channels // max(slots, 1))
    one = (1, *wide[1:])
    found = dict.fromkeys(("X", "Y", "X@GRAD", "Y@GRAD"), wide)
    found |= dict.fromkeys(("Means", "Scales", "ScaleW", "Bias", "ScaleW@GRAD", "Bias@GRAD"), one)
    return found | dict.fromkeys(("Count", "Sum", "SquareSum"), one) | {"Show": (rows, slots, 1)}


def _unless_absent(show: Any, value: Any) -> Any:
    return value if show is None else where(logical_and(show > -_ABSENT, show < _ABSENT), 0, value)


def _apply(x: Any, means: Any, scales: Any, scale_w: Any, bias: Any, show: Any) -> Any:
    y = (x - means) * scales
    return _unless_absent(show, y if scale_w is None else y * scale_w + bias)


def _apply_grad(x: Any, means: Any, scales: Any, scale_w: Any, show: Any, dy: Any) -> Any:
    shown, slope = _unless_absent(show, dy), _unless_absent(show, dy * (x - means) * scales)
    if scale_w is None:  # as in Fluid: X of absent slots has a gradient, too
        return dy * scales, slope, shown
    return shown * scales * scale_w, slope, shown


def _check_parts(call: Call) -> None:
    call.need(len(call.dims("X")) == 2, "X", "a rank of 2: batch and channels")
    rows, channels = call.dims("X")
    for slot in ("Means", "Scales", "ScaleW", "Bias"):
        if slot in call.ins and not all_agree(call.dims(slot), (channels,)):
            call.fail(slot, f"[{channels}], the number of channels of X")
    if "Y@GRAD" in call.ins and not all_agree(call.dims("Y@GRAD"), (rows, channels)):
        call.fail("Y@GRAD", f"[{rows}, {channels}], the dims of X")
    if ("ScaleW" in call.ins) != ("Bias" in call.ins) and "Y@GRAD" not in call.ins:
        call.fail("ScaleW" if "ScaleW" in call.ins else "Bias", "ScaleW and Bias, or neither")
    if "Show" in call.ins:
        show = call.dims("Show")
        whole = len(show) == 2 and (show[1] < 0 or channels < 0 or (show[1] > 0 and channels % show[1] == 0))
        if not whole or not agree(show[0], rows):
            call.fail("Show", f"[{rows}, slots], slots dividing the {channels} channels of X")


def _infer_apply(call: Call) -> Inferred:
    _check_parts(call)
    return {"Y": like(call.spec("X"))}


def _present(inputs: Mapping[str, Any]) -> Any:
    """Whether each number of X counts."""
    x = inputs["X"]
    if "Show" not in inputs:
        return np.ones(x.shape, bool)
    return np.repeat(np.abs(inputs["Show"]) >= _ABSENT, x.shape[1] // max(inputs["Show"].shape[1], 1), axis=1)


def _reference_apply(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    y = (inputs["X"] - inputs["Means"]) * inputs["Scales"]
    if "ScaleW" in inputs:
        y = y * inputs["ScaleW"] + inputs["Bias"]
    return {"Y": np.where(_present(inputs), y, 0)}


def _shown(x: Any, width: int) -> Any:
    """X with some slots never shown, and what says so."""
    x = x.copy()
    x[::2, ::width] = 0
    return {"X": x, "Show": x[:, ::width].copy()}


def _line(seed: int) -> Any:
    return rand(6, low=0.5, high=2, seed=seed)


_STATISTICS = {"Means": rand(6, seed=1), "Scales": _line(2)}
_LEARNED = {"ScaleW": _line(3), "Bias": rand(6, seed=4)}

_OPTIONAL = {name: Slot(name, dispensable=True) for name in ("ScaleW", "Bias", "Show")}
_READ = ("X", "Means", "Scales", "ScaleW", "Show", "Y@GRAD")
_PARTS = ("X", "ScaleW", "Bias")

scalar_op(
    "data_norm_apply", _apply, outputs=("Y",), grad=GradRule("data_norm_apply_grad", _READ, _PARTS),
    infer=_infer_apply, placed=_placed, slots=_OPTIONAL, may_alias={"Y": "X"}, dtypes=FLOATS,
    reference=_reference_apply,
    samples=lambda: [
        Sample({"X": rand(5, 6), **_STATISTICS}, {}, ("X",), name="rows", dtypes=WIDE),
        Sample({"X": rand(5, 6), **_STATISTICS, **_LEARNED}, {}, ("X", "ScaleW", "Bias"), name="learned"),
        Sample({**_shown(rand(5, 6), 3), **_STATISTICS}, {}, name="slots", dtypes=WIDE),
        Sample({**_shown(rand(5, 6), 2), **_STATISTICS, **_LEARNED}, {}, ("ScaleW", "Bias"), name="learned_slots"),
        Sample({"X": rand(0, 6), **_STATISTICS}, {}, name="no_samples"),
    ],
    doc="Y = (X - Means) Scales ScaleW + Bias, and 0 in slots whose Show is 0: the last part of data_norm",
    source="Fluid data_norm_op.cc",
)  # fmt: skip


def _infer_apply_grad(call: Call) -> Inferred:
    _check_parts(call)
    line = like(call.spec("Scales"))
    return {"X@GRAD": like(call.spec("X")), "ScaleW@GRAD": line, "Bias@GRAD": line}


register_op(
    "data_norm_apply_grad",
    inputs=[_OPTIONAL.get(name, Slot(name)) for name in _READ],
    outputs=grad_outputs(*_PARTS),
    infer=_infer_apply_grad,
    scalar=ScalarRule(_apply_grad, tuple(f"{slot}@GRAD" for slot in _PARTS), placed=_placed),
    may_alias={"X@GRAD": "Y@GRAD"},
    doc="X@GRAD = Y@GRAD Scales ScaleW; ScaleW@GRAD = sum(Y@GRAD (X - Means) Scales) and Bias@GRAD = sum(Y@GRAD), over "
    "the samples whose Show is not 0",
    source="Fluid data_norm_op.cc",
)


def _sums(x: Any, means: Any, show: Any) -> Any:
    one = where(x > means, 1, 1)
    return tuple(_unless_absent(show, value) for value in (one, x, (x - means) * (x - means)))


def _infer_sums(call: Call) -> Inferred:
    _check_parts(call)
    return dict.fromkeys(("Count", "Sum", "SquareSum"), like(call.spec("X"), call.dims("Means")))


def _reference_sums(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    there, apart = _present(inputs), inputs["X"] - inputs["Means"]
    return {
        "Count": there.sum(axis=0, dtype="float64"), "Sum": np.where(there, inputs["X"], 0).sum(axis=0),
        "SquareSum": np.where(there, apart * apart, 0).sum(axis=0),
    }  # fmt: skip


scalar_op(
    "data_norm_sums", _sums, outputs=("Count", "Sum", "SquareSum"), infer=_infer_sums, placed=_placed,
    slots={"Show": _OPTIONAL["Show"]}, dtypes=FLOATS, may_alias={}, reference=_reference_sums,
    samples=lambda: [
        Sample({"X": rand(5, 6), "Means": rand(6, seed=1)}, {}, name="rows", dtypes=WIDE),
        Sample({**_shown(rand(5, 6), 3), "Means": rand(6, seed=1)}, {}, name="slots", dtypes=WIDE),
        Sample({"X": rand(700, 6), "Means": rand(6, seed=1)}, {}, name="many"),
        Sample({"X": rand(0, 6), "Means": rand(6, seed=1)}, {}, name="no_samples"),
    ],
    doc="over the batch: how many, the sum of X, and that of (X - Means)^2: a part of data_norm_grad",
    source="Fluid data_norm_op.cc",
)  # fmt: skip

# data_norm ---------------------------------------------------------------------------------------------------------


def _check(call: Call, slots: tuple[str, ...]) -> None:
    call.need(len(call.dims("X")) == 2, "X", "a rank of 2: batch and channels")
    channels, width = call.dims("X")[1], call.attr("slot_dim")
    for slot in slots:
        same_dtype(call, slot, "X")
        dims = call.dims(slot)
        if len(dims) != 1 or not agree(dims[0], channels):
            call.fail(slot, f"[{channels if channels >= 0 else 'n'}], the number of channels of X")
    if width > 0 and channels >= 0 and channels % width:
        call.fail_attr("slot_dim", f"a divisor of the number of channels of X ({call.shown('X')})")


def _learned(call: Call) -> tuple[str, ...]:
    return ("scale_w", "bias") if call.attr("enable_scale_and_shift") else ()


def _infer(call: Call) -> Inferred:
    for slot in _learned(call):
        if not call.has(slot):
            call.fail_attr("enable_scale_and_shift", f"False, or an input in slot {slot}")
    _check(call, (*_SUMS, *_learned(call)))
    line = like(call.spec("BatchSize"), (call.dims("X")[1],))
    return {"Y": like(call.spec("X")), "Means": line, "Scales": line}


def _given(call: Call, build: Any) -> dict[str, Any]:
    """The inputs of both passes: X, and the first number of each slot."""
    x, width = build.input("X"), call.attr("slot_dim")
    if width <= 0:
        return {"X": x}
    every = {"axes": [1], "starts": [0], "ends": [call.dims("X")[1]], "strides": [width]}
    return {"X": x, "Show": build("strided_slice", {"Input": x}, {"Out": None}, every)}


def _names(call: Call, build: Any) -> dict[str, Any]:
    return {name: build.input(slot) for name, slot in zip(("ScaleW", "Bias"), _learned(call), strict=False)}


def _decompose(call: Call, build: Any) -> None:
    size, total, squares = map(build.input, _SUMS)
    means, scales = (build.output(slot) if call.has(slot) else build.temp() for slot in ("Means", "Scales"))
    build("elementwise_div", {"X": total, "Y": size}, {"Out": means})
    build("sqrt", {"X": build("elementwise_div", {"X": size, "Y": squares}, {"Out": None})}, {"Out": scales})
    if call.has("Y"):
        inputs = {**_given(call, build), "Means": means, "Scales": scales, **_names(call, build)}
        build("data_norm_apply", inputs, {"Y": build.output("Y")})


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, width = inputs["X"], attrs["slot_dim"]
    means = inputs["BatchSum"] / inputs["BatchSize"]
    scales = np.sqrt(inputs["BatchSize"] / inputs["BatchSquareSum"])
    y = np.zeros(x.shape)
    for n, c in np.ndindex(*x.shape):
        if width <= 0 or abs(x[n, c - c % width]) >= 1e-7:
            y[n, c] = (x[n, c] - means[c]) * scales[c]
            if attrs["enable_scale_and_shift"]:
                y[n, c] = y[n, c] * inputs["scale_w"][c] + inputs["bias"][c]
    return {"Y": y, "Means": means, "Scales": scales}


_HELD = {
    "BatchSize": _line(5) * 16, "BatchSum": rand(6, low=-9, high=9, seed=6), "BatchSquareSum": _line(7) * 30,
}  # fmt: skip
_WEIGHTS = {"scale_w": _line(3), "bias": rand(6, seed=4)}
_SCALED: dict[str, Any] = {"enable_scale_and_shift": True}


_FOUND = {"Means": rand(6, seed=1), "Scales": _line(2), "Y@GRAD": rand(5, 6, seed=8)}


def _slots(width: int) -> dict[str, Any]:
    return {"X": _shown(rand(5, 6), width)["X"]}


register_op(
    "data_norm",
    inputs=("X", *_SUMS, Slot("scale_w", dispensable=True), Slot("bias", dispensable=True)),
    outputs=(
        "Y",
        Slot("Means", intermediate=True, content="BatchSum / BatchSize"),
        Slot("Scales", intermediate=True, content="sqrt(BatchSize / BatchSquareSum)"),
    ),
    attrs=_ATTRS,
    infer=_infer,
    grad=GradRule(
        "data_norm_grad", ("X", "scale_w", "bias", "Means", "Scales", "Y@GRAD"), ("X", *_SUMS, "scale_w", "bias")
    ),
    decompose=_decompose,
    dtypes={"X": FLOATS},
    reference=_reference,
    samples=lambda: [
        Sample({"X": rand(5, 6), **_HELD}, {}, ("X",), name="rows", dtypes=WIDE),
        Sample({"X": rand(5, 6), **_HELD}, {"data_layout": "NHWC"}, ("X",), name="last"),
        Sample({"X": rand(5, 6), **_HELD, **_WEIGHTS}, _SCALED, ("X", "scale_w", "bias"), name="scaled", dtypes=WIDE),
        Sample({"X": rand(5, 6), **_HELD, **_WEIGHTS}, {}, name="weights_unused"),
        Sample({**_slots(3), **_HELD}, {"slot_dim": 3}, name="slots", dtypes=WIDE),
        Sample({**_slots(2), **_HELD, **_WEIGHTS}, {"slot_dim": 2, **_SCALED}, ("scale_w", "bias"), name="both"),
        Sample({"X": rand(5, 6), **_HELD}, {"slot_dim": 0}, name="no_slots"),
        Sample({"X": rand(5, 6), **_HELD}, {"sync_stats": True, "summary_decay_rate": 0.5}, name="unused"),
        Sample({"X": rand(1, 6), **_HELD}, {}, ("X",), name="one_row"),
        Sample({"X": rand(0, 6), **_HELD}, {"slot_dim": 2}, name="no_samples"),
    ],
    doc="Means = BatchSum / BatchSize; Scales = sqrt(BatchSize / BatchSquareSum); Y = (X - Means) Scales, and then "
    "Y scale_w + bias if that is enabled",
    source="Fluid data_norm_op.cc",
)

# Its gradient ------------------------------------------------------------------------------------------------------


def _infer_grad(call: Call) -> Inferred:
    _check(call, ("Means", "Scales", *_learned(call)))
    same_dtype(call, "Y@GRAD", "X")
    if not all_agree(call.dims("Y@GRAD"), call.dims("X")):
        call.fail("Y@GRAD", f"{list(call.dims('X'))}, the dims of X")
    line = like(call.spec("Means"))
    return {"X@GRAD": like(call.spec("X")), **{f"{slot}@GRAD": line for slot in (*_SUMS, "scale_w", "bias")}}


def _decompose_grad(call: Call, build: Any) -> None:
    given, line = _given(call, build), {"Means": build.input("Means"), "Scales": build.input("Scales")}
    wanted = {"X@GRAD": "X@GRAD", "ScaleW@GRAD": "scale_w@GRAD", "Bias@GRAD": "bias@GRAD"}
    made = {name: build.output(slot) for name, slot in wanted.items() if call.has(slot)}
    if made:
        inputs = {**given, **line, **_names(call, build), "Y@GRAD": build.input("Y@GRAD")}
        build("data_norm_apply_grad", inputs, made)
    if not any(call.has(f"{slot}@GRAD") for slot in _SUMS):
        return
    sums = {name: None for name in ("Count", "Sum", "SquareSum")}
    count, total, squares = build("data_norm_sums", {**given, "Means": line["Means"]}, sums)
    if "Show" in given:  # of slots: means instead of sums, where there is anything to be averaged
        least = build("clip", {"X": count}, {"Out": None}, {"min": 1.0, "max": 3e38})
        total, squares = (build("elementwise_div", {"X": v, "Y": least}, {"Out": None}) for v in (total, squares))
    more = build("scale", {"X": count}, {"Out": None}, {"scale": call.attr("epsilon")})
    squares = build("elementwise_add", {"X": squares, "Y": more}, {"Out": None})
    if "Show" in given:
        count = build("clip", {"X": count}, {"Out": None}, {"min": 0.0, "max": 1.0})
    for slot, value in zip(_SUMS, (count, total, squares), strict=True):
        if call.has(f"{slot}@GRAD"):
            build("assign", {"X": value}, {"Out": build.output(f"{slot}@GRAD")})


def _reference_grad(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, dy, width, scaled = inputs["X"], inputs["Y@GRAD"], attrs["slot_dim"], attrs["enable_scale_and_shift"]
    apart = x - inputs["Means"]
    there = np.ones(x.shape)
    if width > 0:
        there = np.repeat(np.abs(x[:, ::width]) >= 1e-7, width, axis=1).astype("float64")
    count, total, squares = there.sum(axis=0), (there * x).sum(axis=0), (there * apart * apart).sum(axis=0)
    if width > 0:
        least = np.maximum(count, 1)
        total, squares = total / least, squares / least
    unit = inputs["scale_w"] * there if scaled else 1
    return {
        "X@GRAD": dy * inputs["Scales"] * unit,
        "BatchSize@GRAD": np.minimum(count, 1) if width > 0 else count,
        "BatchSum@GRAD": total,
        "BatchSquareSum@GRAD": squares + count * attrs["epsilon"],
        "scale_w@GRAD": (there * dy * apart * inputs["Scales"]).sum(axis=0),
        "bias@GRAD": (there * dy).sum(axis=0),
    }


register_op(
    "data_norm_grad",
    inputs=(
        "X", Slot("scale_w", dispensable=True), Slot("bias", dispensable=True, metadata_only=True), "Means", "Scales",
        "Y@GRAD",
    ),
    outputs=grad_outputs("X", *_SUMS, "scale_w", "bias"),
    attrs=_ATTRS,
    infer=_infer_grad,
    decompose=_decompose_grad,
    dtypes={"X": FLOATS},
    reference=_reference_grad,
    samples=lambda: [
        Sample({"X": rand(5, 6), **_FOUND}, {}, name="rows", dtypes=WIDE),
        Sample({"X": rand(5, 6), **_FOUND}, {"epsilon": 0.001}, name="epsilon"),
        Sample({"X": rand(5, 6), **_WEIGHTS, **_FOUND}, _SCALED, name="scaled"),
        Sample({**_slots(3), **_FOUND}, {"slot_dim": 3}, name="slots", dtypes=WIDE),
        Sample({**_slots(2), **_WEIGHTS, **_FOUND}, {"slot_dim": 2, **_SCALED}, name="both"),
    ],
    doc="X@GRAD = Y@GRAD Scales; scale_w@GRAD and bias@GRAD as those of a product and a sum. What is no gradient: "
    "BatchSize@GRAD is the number of samples, BatchSum@GRAD the sum of X, BatchSquareSum@GRAD that of (X - Means)^2 + "
    "epsilon; of slots these are 1 and means over the samples that show them",
    source="Fluid data_norm_op.cc",
)  # fmt: skip
