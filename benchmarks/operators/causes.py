"""Why operators are beyond the limits, where it was looked into: shown below the tables."""

from __future__ import annotations

_ERF = "erf is two polynomials in float32, each step a pass of NumPy over a block"
_TABLE = "cpu numbers integers of a small range by a table, opencl sorts; both keep where each value comes first"
_NUMPY = "as slow as NumPy's own function"

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
}
