"""Why operators are beyond the limits, where it was looked into: shown below the tables."""

from __future__ import annotations

_ERF = "erf is two polynomials in float32, each step a pass of NumPy over a block"
_FIRSTS = "reads X again, once a window, where PyTorch has kept places; plan: let the forward write them, too"
_TABLE = "cpu numbers integers of a small range by a table, opencl sorts; both keep where each value comes first"
_NUMPY = "as slow as NumPy's own function"
_PICKED = "a number of each row waits for memory and the logarithm before it; plan: sixteen rows an item, read first"

CAUSES = {
    "cast to float16": "NumPy's astype to float16, element by element, without the processor's instruction",
    "unique": _TABLE,
    "unique_with_counts": _TABLE,
    "erf": _ERF,
    "gelu": _ERF,
    "gelu_grad": _ERF,
    "transpose": _NUMPY + ", whose copy of a transposed matrix misses the cache; plan: tiles",
    "transpose2": _NUMPY + ", whose copy of a transposed matrix misses the cache; plan: tiles",
    "elementwise_sub_grad": "PyTorch hands on one of two results without a copy",
    "minus_grad": "PyTorch hands on one of two results without a copy",
    "elementwise_mod": _NUMPY,
    "elementwise_floordiv of int64": _NUMPY,
    "cross_entropy": _PICKED,
    "cross_entropy2": _PICKED,
    "spectral_norm": "opencl's product of a row and a matrix fills one row of a tile; plan: a kernel of columns for it",
    "pool2d_grad max 3, overlapping": _FIRSTS,
    "pool3d_grad max": _FIRSTS,
    "pool2d_grad adaptive": "adds short windows one by one; plan: add windows of a whole row by columns, then spread",
}
