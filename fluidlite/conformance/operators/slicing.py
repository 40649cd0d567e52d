from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import COPIED, EVERY, WIDE, Attrs, Inputs, Outputs, rand, stated
from fluidlite.conformance.samples import Sample, register_samples


def _sample(
    name: str,
    dims: tuple[int, ...],
    axes: Any,
    starts: Any,
    ends: Any,
    strides: Any = None,
    drop: Any = (),
    flags: Any = (),
    check: bool = True,
    dtypes: tuple[str, ...] = ("float32",),
    **tensors: Any,
) -> Sample:
    """Return a sample with its non-empty attributes."""
    attrs = {"axes": axes, "starts": starts, "ends": ends, "strides": strides}
    attrs |= {"decrease_axis": drop, "infer_flags": flags}
    used_attrs = {attr: value for attr, value in attrs.items() if value not in ((), None)}
    return Sample({"Input": rand(*dims), **tensors}, used_attrs, ("Input",) if check else (), name=name, dtypes=dtypes)


def _vector(*numbers: int, dtype: str = "int32") -> Any:
    return np.asarray(numbers, dtype)


_LAST: dict[str, Any] = {"drop": [0], "flags": [-1]}
_LAST |= {"StartsTensorList": [_vector(-1)], "EndsTensorList": [_vector(0)]}
"""Attributes of a slice with bounds from tensors: the last row, without its dim."""


def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    out = inputs["Input"]
    starts = stated(inputs, attrs, "starts", "StartsTensorList", "StartsTensor")
    ends = stated(inputs, attrs, "ends", "EndsTensorList", "EndsTensor")
    strides: Any = [1] * len(starts)
    if "strides" in attrs:
        strides = stated(inputs, attrs, "strides", "StridesTensorList", "StridesTensor")
    for i, (axis, start, end, stride) in enumerate(zip(attrs["axes"], starts, ends, strides, strict=True)):
        if list(attrs["infer_flags"][i : i + 1]) == [-1] and (start, end) == (-1, 0) and axis in attrs["decrease_axis"]:
            indices = [out.shape[axis] - 1]
        else:
            indices = list(range(out.shape[axis]))[start : None if stride < 0 and end == -1 else end : stride]
        out = np.take(out, np.asarray(indices, "int64"), axis)
    if attrs["decrease_axis"]:
        out = np.squeeze(out, tuple(attrs["decrease_axis"]))
    return {"Out": out.reshape(out.shape or (1,)) if inputs["Input"].ndim else out}


register_samples(
    "slice",
    reference=_reference,
    samples=lambda: [
        _sample("rows", (5, 6), [0], [1], [4], dtypes=COPIED),
        _sample("both", (5, 6), [0, 1], [1, 2], [4, 5], dtypes=WIDE),
        _sample("negative", (5, 6, 3), [1, 0], [-4, -3], [-1, 9]),
        _sample("clamped", (5, 6), [1], [-99], [99]),
        _sample("decreased", (5, 6, 3), [1], [2], [3], drop=[1]),
        _sample("decreased_all", (5, 6), [0, 1], [2, -1], [3, 99], drop=[0, 1]),
        _sample("nothing", (5, 6), [1], [4], [2]),
        _sample("empty", (0, 6), [1], [2], [4], check=False),
        _sample("by_tensors", (5, 6), [0, 1], (), (), StartsTensor=_vector(1, -4), EndsTensor=_vector(4, 6)),
        _sample(
            "by_lists",
            (5, 6),
            [1, 0],
            [2, 1],
            [5, 9],
            StartsTensorList=[_vector(2), _vector(1)],
            EndsTensorList=[_vector(4, dtype="int64"), _vector(-1)],
            flags=[-1, -1],
        ),
        _sample("last_by_tensor", (5, 6), [0], [7], [8], **_LAST),
    ],
)


register_samples(
    "strided_slice",
    reference=_reference,
    samples=lambda: [
        _sample("every_second", (7, 3), [0], [1], [6], [2], dtypes=COPIED),
        _sample("both", (5, 9), [0, 1], [-4, 0], [99, 8], [1, 3], dtypes=WIDE),
        _sample("backwards", (8, 3), [0], [6], [1], [-2], dtypes=EVERY),
        _sample("backwards_columns", (2, 8), [1], [-1], [-6], [-1]),
        _sample("to_the_first", (3, 8), [1], [99], [-1], [-3]),
        _sample("three", (3, 4, 5), [2, 0, 1], [4, 1, 0], [0, 3, 4], [-2, 1, 3]),
        _sample("decreased", (5, 6), [0, 1], [2, 0], [3, 6], [1, 4], drop=[0]),
        _sample("decreased_all", (5, 6), [0, 1], [2, 3], [3, 2], [1, -1], drop=[0, 1]),
        _sample("last_by_tensor", (5, 6), [0], [7], [8], [1], **_LAST),
        _sample(
            "by_tensors",
            (5, 6),
            [0, 1],
            (),
            (),
            StartsTensor=_vector(1, -1),
            EndsTensor=_vector(4, 0),
            StridesTensor=_vector(2, -2),
        ),
        _sample(
            "by_lists", (5, 6), [1], (), [5], StartsTensorList=[_vector(1)], StridesTensorList=[_vector(2)], flags=[-1]
        ),
        _sample("rank1", (6,), [0], [0], [6], [4]),
        _sample("empty", (0, 6), [1], [1], [4], [2], check=False),
        _sample("empty_axis", (0, 6), [0], [1], [4], [2], check=False),
    ],
)
