from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import COPIED, WIDE, Attrs, Inputs, Outputs, rand, stated
from fluidlite.conformance.samples import Sample, register_samples

_SHAPES = ("ShapeTensor", "Shape")


def _numbers(*values: int) -> list[Any]:
    return [np.asarray([value], "int32") for value in values]


@register_samples(
    "reshape",
    "reshape2",
    samples=lambda: [
        Sample({"X": rand(4, 6)}, {"shape": [3, 8]}, ("X",), name="plain", dtypes=COPIED),
        Sample({"X": rand(4, 6)}, {"shape": [0, 2, -1]}, ("X",), name="copied_and_inferred"),
        Sample({"X": rand(2, 3, 4)}, {"shape": [-1]}, ("X",), name="flat"),
        Sample({"X": rand(1)}, {"shape": []}, name="rank0"),
        Sample({"X": rand()}, {"shape": [1, -1]}, name="from_rank0"),
        Sample({"X": rand(0, 4)}, {"shape": [-1, 2]}, name="empty"),
        Sample({"X": rand(0, 4)}, {"shape": [0, 2, 2]}, name="empty_copied"),
        Sample({"X": rand(0, 7, 8)}, {"shape": [0, -1]}, name="empty_inferred"),
        Sample({"X": rand(3, 0, 8)}, {"shape": [-1, 0, 4]}, name="empty_inside"),
        Sample({"X": rand(4, 0)}, {"shape": [2, 0, 2]}, name="empty_columns"),
        Sample({"X": rand(4, 6), "Shape": np.asarray([2, -1, 3])}, {"shape": [-1, 4, 3]}, ("X",), name="shape"),
        Sample({"X": rand(4, 6), "Shape": np.asarray([0, 6], "int32")}, {"shape": [4, 6]}, ("X",), name="shape_alone"),
        Sample({"X": rand(4, 6), "ShapeTensor": _numbers(8, 3)}, {"shape": [-1, 3]}, ("X",), name="shapes"),
        Sample({"X": rand(4, 6), "ShapeTensor": _numbers(0, -1, 2)}, {}, ("X",), name="shapes_alone"),
    ],
)
def _reference_reshape(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["X"]
    stated_dims = stated(inputs, attrs, "shape", *_SHAPES)
    dims = [x.shape[i] if d == 0 else d for i, d in enumerate(stated_dims)]
    if not x.size and -1 in dims:  # NumPy cannot infer a dim beside a 0: divide by the copied dims
        copied = {i for i, d in enumerate(stated_dims) if d == 0}
        left = [d for i, d in enumerate(x.shape) if i not in copied]
        rest = [d for i, d in enumerate(dims) if i not in copied and d != -1]
        dims[dims.index(-1)] = int(np.prod(left)) // int(np.prod(rest)) if np.prod(rest) else 0
    return {"Out": x.reshape(dims)}


register_samples(
    "transpose",
    "transpose2",
    reference=lambda inputs, attrs: {"Out": np.moveaxis(inputs["X"], attrs["axis"], range(len(attrs["axis"])))},
    samples=lambda: [
        Sample({"X": rand(4, 6)}, {"axis": [1, 0]}, ("X",), name="matrix", dtypes=COPIED),
        Sample({"X": rand(2, 3, 4)}, {"axis": [2, 0, 1]}, ("X",), name="cycle", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4, 5)}, {"axis": [0, 2, 3, 1]}, ("X",), name="nhwc"),
        Sample({"X": rand(2, 3)}, {"axis": [0, 1]}, ("X",), name="identity"),
        Sample({"X": rand(33, 65)}, {"axis": [1, 0]}, name="tiles"),
        Sample({"X": rand(5)}, {"axis": [0]}, name="vector"),
        Sample({"X": rand()}, {"axis": []}, name="rank0"),
        Sample({"X": rand(0, 4)}, {"axis": [1, 0]}, name="empty"),
    ],
)
