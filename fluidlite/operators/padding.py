"""Tensors put into larger ones: pad, pad2d, pad_constant_like."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL, INTS, is_float
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, grad_inputs, grad_like, grad_outputs, like
from fluidlite.operators.math.numbers import numbers_of
from fluidlite.operators.samples import EVERY, WIDE, bools, ints, rand, stated

_VALUE = Attr("pad_value", "float", 0.0, doc="what stands around; it is converted to the dtype")


def _check_value(call: Call, dtype: str) -> None:
    value = call.attr("pad_value")
    if not is_float(dtype) and not (isfinite(value) and (dtype == "bool" or _holds(dtype, value))):
        call.fail_attr("pad_value", f"a finite number in the range of {dtype}, the dtype of Out")


def _holds(dtype: str, value: float) -> bool:
    return bool(np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max)


# pad ---------------------------------------------------------------------------------------------------------------

_PAD_ATTRS = (
    Attr("paddings", "ints", minimum=0, doc="how much is put in front of and behind each dim, in turn"),
    _VALUE,
)


def _infer_pad(call: Call) -> Inferred:
    x, paddings = call.spec("X"), call.attr("paddings")
    if len(paddings) != 2 * x.rank:
        call.fail_attr("paddings", f"{2 * x.rank} numbers, two for each dim of X ({call.shown('X')})")
    _check_value(call, x.dtype)
    dims = [d + a + b if d >= 0 else -1 for d, a, b in zip(x.dims, paddings[::2], paddings[1::2], strict=True)]
    return {"Out": Spec.of(dims, x.dtype) if any(paddings[:2]) else like(x, dims)}


def _reference_pad(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = inputs["X"]
    widths = np.reshape(attrs["paddings"], (-1, 2)).astype("int64")
    return {"Out": np.pad(x, widths, constant_values=np.asarray(attrs["pad_value"]).astype(x.dtype)) if x.ndim else x}


register_op(
    "pad",
    inputs=("X",),
    outputs=("Out",),
    attrs=_PAD_ATTRS,
    infer=_infer_pad,
    grad=GradRule("pad_grad", ("X", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL},
    reference=_reference_pad,
    samples=lambda: [
        Sample({"X": rand(2, 3)}, {"paddings": [0, 1, 1, 2]}, ("X",), name="matrix", dtypes=EVERY),
        Sample({"X": rand(2, 3)}, {"paddings": [1, 0, 2, 1], "pad_value": -1.5}, ("X",), name="value", dtypes=EVERY),
        Sample({"X": rand(2, 3, 2)}, {"paddings": [0, 0, 1, 2, 0, 1]}, ("X",), name="rank3", dtypes=WIDE),
        Sample({"X": rand(4)}, {"paddings": [2, 0], "pad_value": 3.0}, ("X",), name="front"),
        Sample({"X": rand(4)}, {"paddings": [0, 0], "pad_value": 3.0}, ("X",), name="nothing"),
        Sample({"X": rand()}, {"paddings": []}, ("X",), name="rank0"),
        Sample({"X": ints(2, 2)}, {"paddings": [1, 1, 0, 1], "pad_value": -7.9}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(5)}, {"paddings": [1, 1], "pad_value": 1.0}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 2)}, {"paddings": [1, 1, 0, 1], "pad_value": 2.0}, name="empty", dtypes=WIDE),
    ],
    doc="Out = X with pad_value around it",
    source="Fluid pad_op.cc",
)

register_op(
    "pad_grad",
    inputs=grad_inputs("X", "Out@GRAD", meta=("X",)),
    outputs=grad_outputs("X"),
    attrs=_PAD_ATTRS,
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = the part of Out@GRAD that X has become",
)

# pad_constant_like -------------------------------------------------------------------------------------------------


def _infer_pad_like(call: Call) -> Inferred:
    x, y = call.dims("X"), call.dims("Y")
    call.need(len(x) == len(y), "Y", f"rank {len(x)}, as X ({call.shown('X')})")
    for i, (n, d) in enumerate(zip(x, y, strict=True)):
        if 0 <= n < d:
            call.fail("Y", f"{n} elements or fewer in dim {i}, as X ({call.shown('X')}) has")
    _check_value(call, call.dtype("Y"))
    return {"Out": like(call.spec("X"), x, call.dtype("Y"))}


def _reference_pad_like(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    y = inputs["Y"]
    out = np.full(inputs["X"].shape, np.asarray(attrs["pad_value"]).astype(y.dtype))
    out[np.ix_(*map(range, y.shape))] = y
    return {"Out": out}


register_op(
    "pad_constant_like",
    inputs=(Slot("X", metadata_only=True, doc="Out gets its dims"), "Y"),
    outputs=("Out",),
    attrs=(_VALUE,),
    infer=_infer_pad_like,
    grad=GradRule("pad_constant_like_grad", ("Y", "Out@GRAD"), ("Y",)),
    kernel_dtype="Y",
    dtypes={"Y": ALL},
    reference=_reference_pad_like,
    samples=lambda: [
        Sample({"X": rand(4, 3), "Y": rand(2, 2)}, {}, ("Y",), name="matrix", dtypes=EVERY),
        Sample({"X": rand(4, 3), "Y": rand(2, 2)}, {"pad_value": -1.0}, ("Y",), name="value", dtypes=EVERY),
        Sample({"X": rand(2, 3, 2, 3), "Y": rand(1, 3, 1, 3)}, {"pad_value": 2.0}, ("Y",), name="rank4"),
        Sample({"X": rand(2, 3), "Y": rand(2, 3)}, {}, ("Y",), name="same"),
        Sample({"X": ints(2, 3), "Y": rand(1, 3)}, {"pad_value": 0.5}, ("Y",), name="other_dtype"),
        Sample({"X": ints(5), "Y": ints(3)}, {"pad_value": 4.0}, name="int64", dtypes=("int64",)),
        Sample({"X": rand(4, 3), "Y": rand(0, 2)}, {"pad_value": 2.0}, name="empty"),
    ],
    doc="Out = Y with pad_value behind it, up to the dims of X",
    source="Fluid pad_constant_like_op.cc",
)

register_op(
    "pad_constant_like_grad",
    inputs=grad_inputs("Y", "Out@GRAD", meta=("Y",)),
    outputs=grad_outputs("Y"),
    attrs=(_VALUE,),
    infer=grad_like("Y"),
    kernel_dtype="Out@GRAD",
    doc="Y@GRAD = the part of Out@GRAD that Y has become",
)

# pad2d -------------------------------------------------------------------------------------------------------------

_PAD2D_ATTRS = (
    Attr("paddings", "ints", minimum=0, doc="rows above, rows below, columns left, columns right; unless Paddings is"),
    Attr("mode", "str", "constant", choices=("constant", "reflect", "edge"),
         doc="what stands around: pad_value; the image, mirrored at its border; its border"),
    _VALUE,
    Attr("data_format", "str", "NCHW", choices=("NCHW", "NHWC"), doc="where the rows and columns of X are"),
)  # fmt: skip
_PADDINGS = Slot("Paddings", dispensable=True, value=True, doc="the paddings, as a tensor")


def _infer_pad2d(call: Call) -> Inferred:
    x, mode = call.spec("X"), call.attr("mode")
    call.need(x.rank == 4, "X", "rank 4, a batch of images")
    paddings = numbers_of(call, "paddings", "Paddings")
    if paddings is None:
        paddings = (None,) * 4
    if len(paddings) != 4:
        if call.has("Paddings"):
            call.fail("Paddings", "4 numbers: above, below, left, right")
        call.fail_attr("paddings", "4 numbers: above, below, left, right")
    _check_value(call, x.dtype)
    dims, first = list(x.dims), 2 if call.attr("data_format") == "NCHW" else 1
    for axis, pair in ((first, paddings[:2]), (first + 1, paddings[2:])):
        before, after = pair
        if before is None or after is None:
            dims[axis] = -1
            continue
        n, most = dims[axis], max(pair, key=lambda p: p or 0) or 0
        if min(before, after) < 0:
            call.fail("Paddings", "numbers of 0 or more", paddings)
        if n < 0:
            continue
        if mode == "reflect" and most >= n and most:
            call.fail("X", f"more than {most} elements in dim {axis}, to be mirrored in the padding")
        if mode == "edge" and most and not n:
            call.fail("X", f"1 element or more in dim {axis}, to be repeated in the padding")
        dims[axis] = n + before + after
    return {"Out": like(x, dims)}


def _reference_pad2d(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, (top, bottom, left, right) = inputs["X"], stated(inputs, attrs, "paddings", "Paddings")
    inner = [(top, bottom), (left, right)]
    widths = [(0, 0), (0, 0), *inner] if attrs["data_format"] == "NCHW" else [(0, 0), *inner, (0, 0)]
    if attrs["mode"] == "constant":
        return {"Out": np.pad(x, widths, constant_values=np.asarray(attrs["pad_value"]).astype(x.dtype))}
    return {"Out": np.pad(x, widths, attrs["mode"])}


def _pad2d(name: str, dims: tuple[int, ...], paddings: Any, check: bool = True, dtypes: tuple[str, ...] = ("float32",),
           tensor: Any = None, **attrs: Any) -> Sample:  # fmt: skip
    inputs = {"X": rand(*dims)} if tensor is None else {"X": rand(*dims), "Paddings": np.asarray(tensor, "int32")}
    return Sample(inputs, {"paddings": paddings, **attrs}, ("X",) if check else (), name=name, dtypes=dtypes)


def _pad2d_samples() -> list[Sample]:
    found = [
        _pad2d("value", (1, 2, 3, 2), [0, 2, 1, 0], pad_value=-2.5, dtypes=EVERY),
        _pad2d("nothing", (1, 2, 3, 2), [0, 0, 0, 0], mode="edge"),
        _pad2d("tensor", (1, 1, 3, 4), [], tensor=[1, 0, 2, 1]),
        _pad2d("tensor_reflect", (1, 1, 3, 4), [], tensor=[1, 2, 3, 1], mode="reflect"),
        _pad2d("most_reflected", (1, 1, 3, 4), [2, 2, 3, 3], mode="reflect"),
        _pad2d("row_reflected", (1, 1, 1, 4), [0, 0, 3, 3], mode="reflect"),
        _pad2d("pixel_repeated", (1, 2, 1, 1), [3, 4, 2, 1], mode="edge", dtypes=WIDE),
        _pad2d("empty", (0, 2, 3, 2), [1, 1, 1, 1], check=False, mode="reflect"),
        _pad2d("empty_image", (1, 2, 0, 2), [1, 1, 0, 1], check=False, pad_value=2.0),
        Sample({"X": ints(1, 1, 2, 2)}, {"paddings": [1, 0, 0, 1], "mode": "edge"}, name="int64", dtypes=("int64",)),
        Sample({"X": ints(1, 1, 2, 2)}, {"paddings": [1, 0, 0, 1], "pad_value": 3.0}, name="int64_value",
               dtypes=("int64",)),
    ]  # fmt: skip
    for mode in ("constant", "reflect", "edge"):
        found.append(_pad2d(mode, (2, 2, 3, 4), [1, 2, 2, 1], mode=mode, dtypes=EVERY))
        found.append(_pad2d(f"{mode}_nhwc", (2, 3, 4, 2), [2, 0, 1, 3], mode=mode, data_format="NHWC", dtypes=WIDE))
    return found


register_op(
    "pad2d",
    inputs=("X", _PADDINGS),
    outputs=("Out",),
    attrs=_PAD2D_ATTRS,
    infer=_infer_pad2d,
    grad=GradRule("pad2d_grad", ("X", "Paddings", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL, "Paddings": INTS},
    reference=_reference_pad2d,
    samples=_pad2d_samples,
    doc="Out = each image of X with a border around it",
    source="Fluid pad2d_op.cc",
)

register_op(
    "pad2d_grad",
    inputs=(Slot("X", metadata_only=True), _PADDINGS, Slot("Out@GRAD")),
    outputs=grad_outputs("X"),
    attrs=_PAD2D_ATTRS,
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = the sum of Out@GRAD over all that each element of X has become",
)
