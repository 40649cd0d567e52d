"""unpool, the reverse of a pooling with places, and spp, a pyramid of poolings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, all_agree, grad_like, grad_outputs
from fluidlite.operators.samples import EVERY, WIDE, distinct, rand
from fluidlite.operators.windows import per_dim

# unpool ------------------------------------------------------------------------------------------------------------

_UNPOOL_ATTRS = (
    Attr("ksize", "ints", doc="size of the pooling's windows"),
    Attr("strides", "ints", (1, 1), doc="distance between two of them"),
    Attr("paddings", "ints", (0, 0), doc="padding of the pooling, in height and in width"),
    Attr("unpooling_type", "str", choices=("max",), doc="of which pooling this is the reverse"),
)


def _infer_unpool(call: Call) -> Inferred:
    x = call.spec("X")
    call.need(x.rank == 4, "X", "[images, channels, height, width]")
    if not all_agree(call.dims("Indices"), x.dims):
        call.fail("Indices", f"{list(x.dims)}, the dims of X")
    kernel, strides, pads = (per_dim(call, name, 2, least) for name, least in _LEAST)
    space = [
        -1 if n < 0 else (n - 1) * step - 2 * pad + k
        for n, k, step, pad in zip(x.dims[2:], kernel, strides, pads, strict=True)
    ]
    if any(d < 1 for d, n in zip(space, x.dims[2:], strict=True) if n >= 0):
        call.fail_attr("paddings", f"paddings that leave something of Out, which would be {space}")
    return {"Out": Spec.of((*x.dims[:2], *space), x.dtype)}


_LEAST = (("ksize", 1), ("strides", 1), ("paddings", 0))


def _reference_unpool(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, indices = inputs["X"], inputs["Indices"]
    numbers = zip(x.shape[2:], attrs["ksize"], attrs["strides"], attrs["paddings"], strict=True)
    out = np.zeros((*x.shape[:2], *((n - 1) * step - 2 * pad + k for n, k, step, pad in numbers)))
    for n, c, h, w in np.ndindex(*x.shape):
        out[n, c].flat[indices[n, c, h, w]] = x[n, c, h, w]
    return {"Out": out}


def _unpooled(n: int, c: int, h: int, w: int, size: int, dtype: str = "int32") -> dict[str, Any]:
    """X and different places in a plane of ``size`` for its elements."""
    rng = np.random.default_rng(3)
    places = np.stack([rng.permutation(size)[: h * w] for _ in range(n * c)]).reshape(n, c, h, w)
    return {"X": rand(n, c, h, w), "Indices": places.astype(dtype)}


register_op(
    "unpool",
    inputs=("X", "Indices"),
    outputs=("Out",),
    attrs=_UNPOOL_ATTRS,
    infer=_infer_unpool,
    grad=GradRule("unpool_grad", ("X", "Indices", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL_FLOATS, "Indices": INTS},
    reference=_reference_unpool,
    samples=lambda: [
        Sample(_unpooled(2, 3, 3, 2, 24), {"ksize": [2, 2], "strides": [2, 2], "unpooling_type": "max"}, ("X",),
               name="windows", dtypes=EVERY),
        Sample(_unpooled(1, 2, 3, 3, 16), {"ksize": [2, 2], "unpooling_type": "max"}, ("X",), name="overlap"),
        Sample(_unpooled(1, 2, 3, 3, 25), {"ksize": [3, 3], "strides": [2, 2], "paddings": [1, 1],
               "unpooling_type": "max"}, ("X",), name="padded", dtypes=WIDE),
        Sample(_unpooled(1, 2, 2, 3, 24, "int64"), {"ksize": [2, 2], "strides": [2, 2], "unpooling_type": "max"},
               ("X",), name="int64"),
        Sample({"X": rand(0, 2, 2, 2), "Indices": np.zeros((0, 2, 2, 2), "int32")},
               {"ksize": [2, 2], "unpooling_type": "max"}, name="no_images"),
    ],
    doc="Out = 0; Out[n, c] at place Indices[n, c, h, w] of its plane = X[n, c, h, w], the last one if several",
    source="Fluid unpool_op.cc",
)  # fmt: skip

register_op(
    "unpool_grad",
    inputs=(Slot("X", metadata_only=True), "Indices", "Out@GRAD"),
    outputs=grad_outputs("X"),
    attrs=_UNPOOL_ATTRS,
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    dtypes={"Indices": INTS},
    doc="X@GRAD[n, c, h, w] = Out@GRAD[n, c] at place Indices[n, c, h, w] of its plane",
)

# spp ---------------------------------------------------------------------------------------------------------------

_SPP_ATTRS = (
    Attr("pyramid_height", "int", minimum=1, maximum=12, doc="how many levels; level p has 2^p by 2^p windows"),
    Attr("pooling_type", "str", choices=("max", "avg"), doc="which: the greatest or the mean of a window"),
)


def _spp_dims(call: Call) -> tuple[int, int]:
    x = call.dims("X")
    call.need(len(x) == 4, "X", "[images, channels, height, width]")
    call.need(0 not in x[2:], "X", "a height and a width of 1 or more")
    return x[0], -1 if x[1] < 0 else x[1] * (4 ** call.attr("pyramid_height") - 1) // 3


def _infer_spp_grad(call: Call) -> Inferred:
    dims = _spp_dims(call)
    for slot in ("Out", "Out@GRAD"):
        if not all_agree(call.dims(slot), dims):
            call.fail(slot, f"{list(dims)}, the dims of Out")
    return grad_like("X")(call)


def _levels(call: Call) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of windows in each direction of a level, and the attributes of its pooling."""
    space = call.dims("X")[2:]
    for level in range(call.attr("pyramid_height")):
        bins = 2**level
        kernel = [-(-n // bins) for n in space]
        before = [(k * bins - n + 1) // 2 for k, n in zip(kernel, space, strict=True)]
        after = [k * bins - n - p for k, n, p in zip(kernel, space, before, strict=True)]
        pads = [p for pair in zip(before, after, strict=True) for p in pair]
        yield bins, {"pooling_type": call.attr("pooling_type"), "ksize": kernel, "strides": kernel, "paddings": pads}


def _decompose_spp(call: Call, build: Any) -> str | None:
    if not call.known:
        return "dims of X are not known"
    x, parts = build.input("X"), []
    images, channels = x.dims[:2]
    single = call.attr("pyramid_height") == 1
    for bins, attrs in _levels(call):
        pooled = build("pool2d", {"X": x}, {"Out": None}, attrs)
        out = build.output("Out") if single else None
        parts.append(build("reshape2", {"X": pooled}, {"Out": out}, {"shape": (images, channels * bins * bins)}))
    if not single:
        build("concat", {"X": parts}, {"Out": build.output("Out")}, {"axis": 1})
    return None


def _decompose_spp_grad(call: Call, build: Any) -> str | None:
    if not call.known:
        return "dims of X are not known"
    x = build.input("X")
    images, channels = x.dims[:2]
    levels = list(_levels(call))
    sections = tuple(channels * bins * bins for bins, _ in levels)
    parts = [
        build("split", {"X": build.input(slot)}, {"Out": [None] * len(levels)}, {"axis": 1, "sections": sections})
        for slot in ("Out", "Out@GRAD")
    ]
    outs, grads = ([made] if len(levels) == 1 else made for made in parts)
    total = None
    for i, (bins, attrs) in enumerate(levels):
        shape = {"shape": (images, channels, bins, bins)}
        out = build("reshape2", {"X": outs[i]}, {"Out": None}, shape)
        dout = build("reshape2", {"X": grads[i]}, {"Out": None}, shape)
        last = i == len(levels) - 1
        direct = build.output("X@GRAD") if last and total is None else None
        pooled = build("pool2d_grad", {"X": x, "Out": out, "Out@GRAD": dout}, {"X@GRAD": direct}, attrs)
        if total is None:
            total = pooled
        else:
            target = build.output("X@GRAD") if last else None
            total = build("elementwise_add", {"X": total, "Y": pooled}, {"Out": target})
    return None


def _reference_spp(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, parts = inputs["X"], []
    images, channels, height, width = x.shape
    for level in range(attrs["pyramid_height"]):
        bins = 2**level
        kh, kw = int(np.ceil(height / bins)), int(np.ceil(width / bins))
        top, left = (kh * bins - height + 1) // 2, (kw * bins - width + 1) // 2
        padded = np.full((images, channels, kh * bins, kw * bins), np.nan)
        padded[:, :, top : top + height, left : left + width] = x
        windows = padded.reshape(images, channels, bins, kh, bins, kw)
        how = np.nanmax if attrs["pooling_type"] == "max" else np.nanmean
        parts.append(how(windows, axis=(3, 5)).reshape(images, channels * bins * bins))
    return {"Out": np.concatenate(parts, 1)}


register_op(
    "spp",
    inputs=("X",),
    outputs=("Out",),
    attrs=_SPP_ATTRS,
    infer=lambda call: {"Out": Spec.of(_spp_dims(call), call.dtype("X"))},
    grad=GradRule("spp_grad", ("X", "Out", "Out@GRAD"), ("X",)),
    decompose=_decompose_spp,
    dtypes={"X": ALL_FLOATS},
    reference=_reference_spp,
    samples=lambda: [
        Sample({"X": distinct(2, 3, 4, 4)}, {"pyramid_height": 3, "pooling_type": "max"}, ("X",), name="max",
               dtypes=EVERY),
        Sample({"X": distinct(2, 3, 4, 4)}, {"pyramid_height": 2, "pooling_type": "avg"}, ("X",), name="avg",
               dtypes=EVERY),
        Sample({"X": distinct(1, 2, 7, 5)}, {"pyramid_height": 2, "pooling_type": "max"}, ("X",), name="max_uneven"),
        Sample({"X": distinct(1, 2, 7, 5)}, {"pyramid_height": 2, "pooling_type": "avg"}, ("X",), name="avg_uneven"),
        Sample({"X": distinct(1, 2, 3, 3)}, {"pyramid_height": 1, "pooling_type": "avg"}, ("X",), name="one_level"),
    ],
    doc="Out = the poolings of X to 1, 4, 16, ... windows, side by side",
    source="Fluid spp_op.cc",
)  # fmt: skip

register_op(
    "spp_grad",
    inputs=("X", "Out", "Out@GRAD"),
    outputs=grad_outputs("X"),
    attrs=_SPP_ATTRS,
    infer=_infer_spp_grad,
    decompose=_decompose_spp_grad,
    doc="X@GRAD = the sum of the gradients of the poolings",
    memory="where it is decomposed, two gradients of levels that are added up: twice X",
)
