"""Why operators are slower than the limits, where it was looked into: shown below the tables.

What an operator allocates is said by its definition (``register_op(memory=...)``), and shown from there.
"""

from __future__ import annotations

_FIRSTS = "reads X again, once a window, where PyTorch has kept places; plan: let the forward write them, too"
_TABLE = "cpu numbers integers of a small range by a table, opencl sorts; both keep where each value comes first"
_PICKED = "a number of each row waits for memory and the logarithm before it; plan: sixteen rows an item, read first"
_RUN = "one number: what is measured is a run of a program; plan: bound runs, which take a tenth of it"
_EXACT = "every element pays for the exact reduction of huge arguments; plan: take it only where a vector has one"
_LOGARITHMS = "PoCL makes no vectors of the four words of a Philox block; plan: sixteen blocks an item"
_VIEW = "PyTorch hands on one of two results without a copy"
_COLD = "reads 16 MB once, at memory's pace; a run's own code has left the caches, 0.2 ms more; plan: bound runs"
_BATCH = "as matmul of a batch"

CAUSES = {
    "unique": _TABLE,
    "unique_with_counts": _TABLE,
    "elementwise_sub_grad": _VIEW,
    "minus_grad": _VIEW,
    "elementwise_add_grad of a row": _VIEW,
    "reduce_sum of all": _COLD,
    "reduce_sum of rows": _COLD,
    "reduce_max of rows": _COLD,
    "reduce_max of all": _COLD,
    "reduce_min of rows": _COLD,
    "reduce_prod": _COLD,
    "pool2d global": _COLD,
    "increment": _RUN,
    "shape": _RUN,
    "is_empty": _RUN,
    "size": _RUN,
    "sin": _EXACT,
    "cos": _EXACT,
    "elementwise_mod": _EXACT,
    "gaussian_random": _LOGARITHMS,
    "truncated_gaussian_random": _LOGARITHMS,
    "gaussian_random_batch_size_like": _LOGARITHMS,
    "matmul of a batch": "NumPy takes one matrix after the other, each small for two threads; plan: one a thread",
    "matmul_grad of a batch": _BATCH,
    "bmm": _BATCH,
    "bmm_grad": _BATCH,
    "fsp": _BATCH,
    "fsp_grad": _BATCH,
    "matmul_grad by a vector": "cblas takes three times as long as a copy for an outer product; plan: loops",
    "conv2d_grad of few windows": "cpu reads the filter where it lies (im2col), opencl packs 9 MB; plan: im2col there",
    "reduce_min of columns": "two parts of the rows and a second pass over them, at the limit; plan: columns a thread",
    "reduce_max of columns": "two parts of the rows and a second pass over them, at the limit; plan: columns a thread",
    "linear_interp": "1.4 times on one thread, and gains little from the second; plan: rows of several lines an item",
    "cross_entropy": _PICKED,
    "cross_entropy2": _PICKED,
    "spectral_norm": "opencl's product of a row and a matrix fills one row of a tile; plan: a kernel of columns for it",
    "pool2d_grad max 3, overlapping": _FIRSTS,
    "pool3d_grad max": _FIRSTS,
    "pool2d_grad adaptive": "adds short windows one by one; plan: add windows of a whole row by columns, then spread",
}
