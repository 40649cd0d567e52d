"""Why operators are beyond the limits, where it was looked into: shown below the tables."""

from __future__ import annotations

_ERF = "erf is two polynomials in float32, each step a pass of NumPy over a block"
_FIRSTS = "looks for each window's first greatest element again; PyTorch's forward has kept its place"
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
    "spp_grad": "argmax of short rows, and a tensor for each level; plan: one kernel that adds the levels in blocks",
    "pool2d_grad max 2": _FIRSTS,
    "pool2d_grad max 3, overlapping": _FIRSTS,
    "pool3d_grad max": _FIRSTS,
    "reduce_prod": _NUMPY + "; plan: halve rows, and multiply the halves",
    "cumsum": _NUMPY,
    "maxout_grad": "argmax over an axis of stride; plan: compare channel by channel",
    "lookahead_update": "a choice by elements where one number decides for all; plan: decide once",
    "softmax": _NUMPY + ": five passes on one thread; plan: blocks of rows on all threads",
    "log_softmax": _NUMPY + ": five passes on one thread; plan: blocks of rows on all threads",
}
