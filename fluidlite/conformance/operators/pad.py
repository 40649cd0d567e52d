from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, NUMBERS, WIDE, Attrs, Inputs, Outputs, bools, ints, rand, stated
from fluidlite.conformance.samples import Sample, register_samples


@register_samples(
    "pad",
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
)
def _reference_pad(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["X"]
    widths = np.reshape(attrs["paddings"], (-1, 2)).astype("int64")
    return {"Out": np.pad(x, widths, constant_values=np.asarray(attrs["pad_value"]).astype(x.dtype)) if x.ndim else x}


@register_samples(
    "pad_constant_like",
    samples=lambda: [
        Sample({"X": rand(4, 3), "Y": rand(2, 2)}, {}, ("Y",), name="matrix", dtypes=NUMBERS),
        Sample({"X": rand(4, 3), "Y": rand(2, 2)}, {"pad_value": -1.0}, ("Y",), name="value", dtypes=EVERY),
        Sample({"X": rand(2, 3, 2, 3), "Y": rand(1, 3, 1, 3)}, {"pad_value": 2.0}, ("Y",), name="rank4"),
        Sample({"X": rand(2, 3), "Y": rand(2, 3)}, {}, ("Y",), name="same"),
        Sample({"X": ints(2, 3), "Y": rand(1, 3)}, {"pad_value": 0.5}, ("Y",), name="other_dtype"),
        Sample({"X": rand(4, 3), "Y": rand(0, 2)}, {"pad_value": 2.0}, name="empty"),
    ],
)
def _reference_pad_like(inputs: Inputs, attrs: Attrs) -> Outputs:
    y = inputs["Y"]
    out = np.full(inputs["X"].shape, np.asarray(attrs["pad_value"]).astype(y.dtype))
    out[np.ix_(*map(range, y.shape))] = y
    return {"Out": out}


def _pad2d(
    name: str,
    dims: tuple[int, ...],
    paddings: Any,
    check: bool = True,
    dtypes: tuple[str, ...] = ("float32",),
    tensor: Any = None,
    **attrs: Any,
) -> Sample:
    inputs = {"X": rand(*dims)} if tensor is None else {"X": rand(*dims), "Paddings": np.asarray(tensor, "int32")}
    return Sample(inputs, {"paddings": paddings, **attrs}, ("X",) if check else (), name=name, dtypes=dtypes)


def _pad2d_samples() -> list[Sample]:
    samples = [
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
        Sample(
            {"X": ints(1, 1, 2, 2)}, {"paddings": [1, 0, 0, 1], "pad_value": 3.0}, name="int64_value", dtypes=("int64",)
        ),
    ]
    for mode in ("constant", "reflect", "edge"):
        samples.append(_pad2d(mode, (2, 2, 3, 4), [1, 2, 2, 1], mode=mode, dtypes=EVERY))
        samples.append(_pad2d(f"{mode}_nhwc", (2, 3, 4, 2), [2, 0, 1, 3], mode=mode, data_format="NHWC", dtypes=WIDE))
    return samples


@register_samples("pad2d", samples=_pad2d_samples)
def _reference_pad2d(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, (top, bottom, left, right) = inputs["X"], stated(inputs, attrs, "paddings", "Paddings")
    inner = [(top, bottom), (left, right)]
    widths = [(0, 0), (0, 0), *inner] if attrs["data_format"] == "NCHW" else [(0, 0), *inner, (0, 0)]
    if attrs["mode"] == "constant":
        return {"Out": np.pad(x, widths, constant_values=np.asarray(attrs["pad_value"]).astype(x.dtype))}
    return {"Out": np.pad(x, widths, attrs["mode"])}
