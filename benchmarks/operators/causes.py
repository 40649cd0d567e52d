"""Why operators are beyond the limits, where it was looked into: shown below the tables."""

from __future__ import annotations

_ERF = "erf is two polynomials in float32, each step a pass of NumPy over a block"
_INTEGERS = "the guards against 0 and -1 are passes over the whole tensor, with new memory each; plan: blocks"
_FIRSTS = "looks for each window's first greatest element again; PyTorch's forward has kept its place"
_NUMPY = "as slow as NumPy's own function"

CAUSES = {
    "cast to float16": "NumPy's astype to float16, element by element, and passes that look for what overflows",
    "erf": _ERF,
    "gelu": _ERF,
    "gelu_grad": _ERF,
    "transpose": _NUMPY + ", whose copy of a transposed matrix misses the cache; plan: tiles",
    "transpose2": _NUMPY + ", whose copy of a transposed matrix misses the cache; plan: tiles",
    "elementwise_sub_grad": "PyTorch hands on one of two results without a copy",
    "minus_grad": "PyTorch hands on one of two results without a copy",
    "elementwise_mod": _NUMPY,
    "elementwise_mod of int64": _INTEGERS,
    "elementwise_floordiv of int64": _INTEGERS,
    "spp_grad": "windows of unequal sizes are looked at one by one, in Python; plan: group them by size",
    "pool2d_grad max 2": _FIRSTS,
    "pool2d_grad max 3, overlapping": _FIRSTS,
    "pool3d_grad max": _FIRSTS,
    "reduce_prod": _NUMPY + "; plan: halve rows, and multiply the halves",
    "cumsum": _NUMPY,
    "index_select_grad": "add.at on a transposed copy; plan: sum columns in place",
    "maxout_grad": "argmax over an axis of stride; plan: compare channel by channel",
    "lookahead_update": "a choice by elements where one number decides for all; plan: decide once",
    "softmax": _NUMPY + ": five passes on one thread; plan: blocks of rows on all threads",
    "log_softmax": _NUMPY + ": five passes on one thread; plan: blocks of rows on all threads",
}
