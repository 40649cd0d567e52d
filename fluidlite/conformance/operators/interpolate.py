from __future__ import annotations

from collections.abc import Callable, Mapping
from math import floor
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, MIXED, WIDE, Attrs, Inputs, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def _line(n: int, m: int, attrs: Attrs) -> Any:
    """The interpolation matrix [m, n] of an axis."""
    method, corners = attrs["interp_method"], attrs["align_corners"]
    matrix = np.zeros((m, n))
    ratio = 0.0 if m == 1 else (n - 1) / (m - 1) if corners else n / m
    for o in range(m):
        if method == "nearest":
            where = float(np.float32(ratio) * np.float32(o))
            matrix[o, floor(where + 0.5) if corners else floor(where)] = 1
        elif method == "bicubic":
            where = ratio * o if corners else ratio * (o + 0.5) - 0.5
            for i in range(floor(where) - 1, floor(where) + 3):
                d = abs(where - i)
                inner = 1.25 * d**3 - 2.25 * d**2 + 1
                outer = -0.75 * d**3 + 3.75 * d**2 - 6 * d + 3
                matrix[o, min(max(i, 0), n - 1)] += inner if d <= 1 else outer
        else:
            where = max(ratio * (o + 0.5) - 0.5, 0) if attrs["align_mode"] == 0 and not corners else ratio * o
            below = min(floor(where), n - 1)
            matrix[o, below] += 1 - (where - below)
            matrix[o, min(below + 1, n - 1)] += where - below
    return matrix


def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    last = attrs["data_layout"] == "NHWC"
    x = np.moveaxis(inputs["X"], -1, 1) if last else inputs["X"]
    space = x.shape[2:]
    sizes = [attrs[name] for name in ("out_d", "out_h", "out_w")[-len(space) :]]
    scale = inputs["Scale"][0] if "Scale" in inputs else attrs["scale"]
    if scale > 0:
        sizes = [int(np.float32(n) * np.float32(scale)) for n in space]
    if "OutSize" in inputs:
        sizes = [int(v) for v in inputs["OutSize"]]
    if "SizeTensor" in inputs:
        sizes = [int(v[0]) for v in inputs["SizeTensor"]]
    out = x.astype("float64")
    for axis, (n, m) in enumerate(zip(space, sizes, strict=True)):
        out = np.moveaxis(np.tensordot(_line(n, m, attrs), out, (1, axis + 2)), 0, axis + 2)
    out = np.moveaxis(out, 1, -1) if last else out
    return {"Out": np.floor(out).astype("uint8") if x.dtype == "uint8" else out}


def _sample(
    name: str,
    x: Any,
    *,
    dtypes: tuple[str, ...] = ("float32",),
    grads: tuple[str, ...] = ("X",),
    tensors: Mapping[str, Any] | None = None,
    **attrs: Any,
) -> Sample:
    return Sample({"X": x, **(tensors or {})}, attrs, grads, name=name, dtypes=dtypes)


def _image_samples(method: str) -> list[Sample]:
    x = rand(2, 3, 4, 5)
    way: dict[str, Any] = {"interp_method": method}
    half: dict[str, Any] = {**way, "align_corners": False}
    sizes = {"OutSize": np.array([3, 8], "int32")}
    return [
        _sample("larger", x, out_h=7, out_w=9, **way, dtypes=EVERY),
        _sample("smaller", x, out_h=2, out_w=3, **way, dtypes=WIDE),
        _sample("edges", x, out_h=7, out_w=3, **half, dtypes=EVERY),
        _sample("centres", x, out_h=8, out_w=4, **half, align_mode=0, dtypes=WIDE),
        _sample("one", x, out_h=1, out_w=1, **way),
        _sample("same", x, out_h=4, out_w=5, **half),
        _sample("scale", x, scale=1.6, **half),
        _sample("scale_tensor", x, tensors={"Scale": np.array([2.0], "float32")}, scale=1.5, **half),
        _sample("sizes", x, tensors=sizes, out_h=2, out_w=2, **way),
        _sample("size_tensors", x, tensors={"SizeTensor": [np.array([n], "int32") for n in (6, 2)]}, scale=2.0, **way),
        _sample("nhwc", rand(2, 4, 5, 3), out_h=6, out_w=3, data_layout="NHWC", **half, dtypes=WIDE),
        _sample("nhwc_scale", rand(1, 3, 2, 70), scale=2.0, data_layout="NHWC", **way),
        _sample("pixel", rand(1, 2, 1, 1), out_h=3, out_w=2, **way),
        _sample("wide", rand(2, 2, 40, 75), out_h=90, out_w=150, **half, grads=()),
        _sample("uint8", ints(1, 2, 4, 4, high=255, dtype="uint8"), out_h=8, out_w=8, **half, dtypes=MIXED, grads=()),
        _sample("no_images", rand(0, 2, 3, 3), out_h=4, out_w=4, **way, grads=()),
    ]


def _nearest_samples() -> list[Sample]:
    x = rand(1, 2, 3, 4)
    return [*_image_samples("nearest"), _sample("default_method", x, out_h=4, out_w=6)]


def _cubic_samples() -> list[Sample]:
    return [sample for sample in _image_samples("bicubic") if sample.name != "uint8"]


def _linear_samples() -> list[Sample]:
    x = rand(2, 3, 5)
    way: dict[str, Any] = {"interp_method": "linear"}
    return [
        _sample("larger", x, out_w=9, **way, dtypes=EVERY),
        _sample("edges", x, out_w=3, **way, align_corners=False),
        _sample("centres", x, out_w=7, **way, align_corners=False, align_mode=0),
        _sample("scale", x, scale=2.0, **way),
        _sample("sizes", x, tensors={"OutSize": np.array([4], "int32")}, **way),
        _sample("last", rand(2, 5, 3), out_w=8, data_layout="NHWC", **way),
    ]


def _volume_samples() -> list[Sample]:
    x = rand(1, 2, 3, 2, 4)
    way: dict[str, Any] = {"interp_method": "trilinear"}
    return [
        _sample("larger", x, out_d=4, out_h=3, out_w=5, **way, dtypes=EVERY),
        _sample("edges", x, out_d=2, out_h=4, out_w=3, **way, align_corners=False),
        _sample("centres", x, out_d=5, out_h=3, out_w=2, **way, align_corners=False, align_mode=0),
        _sample("scale", x, scale=2.0, **way),
        _sample("sizes", x, tensors={"OutSize": np.array([2, 3, 4], "int32")}, **way),
        _sample("last", rand(1, 3, 2, 2, 3), out_d=2, out_h=3, out_w=4, data_layout="NHWC", **way),
    ]


def _by_method() -> Sample:
    """Samples in which interp_method differs from the operator's name."""
    return _sample(
        "by_method",
        rand(1, 2, 3, 2, 2),
        out_d=4,
        out_h=3,
        out_w=3,
        interp_method="trilinear",
        align_corners=False,
        align_mode=0,
    )


def _register(type: str, samples: Callable[[], list[Sample]]) -> None:
    register_samples(type, reference=_reference, samples=lambda: [*samples(), _by_method()])


_register("bilinear_interp", lambda: _image_samples("bilinear"))
_register("nearest_interp", _nearest_samples)
_register("bicubic_interp", _cubic_samples)
_register("linear_interp", _linear_samples)
_register("trilinear_interp", _volume_samples)
