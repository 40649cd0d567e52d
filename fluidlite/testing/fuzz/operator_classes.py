"""Classes of operators for the propagation of error bounds."""

from __future__ import annotations

VIEWS = frozenset(
    {
        "assign",
        "assign_like",
        "concat",
        "crop",
        "crop_tensor",
        "device_transfer",
        "device_view",
        "diag",
        "expand",
        "expand_as",
        "flatten",
        "flatten2",
        "flip",
        "gather",
        "gather_nd",
        "im2sequence",
        "index_sample",
        "index_select",
        "lookup_table",
        "lookup_table_v2",
        "meshgrid",
        "multiplex",
        "pad",
        "pad2d",
        "pad_constant_like",
        "pixel_shuffle",
        "reshape",
        "reshape2",
        "reverse",
        "roll",
        "shuffle_channel",
        "slice",
        "space_to_depth",
        "split",
        "squeeze",
        "squeeze2",
        "stack",
        "strided_slice",
        "temporal_shift",
        "transpose",
        "transpose2",
        "tril_triu",
        "unbind",
        "unfold",
        "unsqueeze",
        "unsqueeze2",
        "unstack",
    }
)
"""Operators whose outputs are elements of their inputs or constants, independent of the values."""

SELECTIONS = frozenset(
    {
        "arg_max",
        "arg_min",
        "argsort",
        "assign_value",
        "eye",
        "fill",
        "fill_any_like",
        "fill_constant",
        "fill_constant_batch_size_like",
        "fill_zeros_like",
        "fill_zeros_like2",
        "gather_tree",
        "hash",
        "is_empty",
        "isfinite",
        "isinf",
        "isnan",
        "max_pool2d_with_index",
        "max_pool3d_with_index",
        "maxout",
        "one_hot",
        "one_hot_v2",
        "random_crop",
        "reduce_all",
        "reduce_any",
        "reduce_max",
        "reduce_min",
        "shape",
        "shard_index",
        "similarity_focus",
        "size",
        "top_k",
        "unique",
        "unique_with_counts",
        "unpool",
        "where",
        "where_index",
    }
)
"""Operators that select elements by value, or whose results are exact."""

SUMS = frozenset(
    {
        "addmm",
        "bilinear_tensor_product",
        "bmm",
        "conv2d",
        "conv2d_transpose",
        "conv3d",
        "conv3d_transpose",
        "conv_shift",
        "cumsum",
        "depthwise_conv2d",
        "depthwise_conv2d_transpose",
        "dot",
        "fsp",
        "kron",
        "matmul",
        "mean",
        "mul",
        "reduce_mean",
        "reduce_sum",
        "row_conv",
        "scatter",
        "scatter_nd_add",
        "sum",
        "sum_rows",
    }
)
"""Sums of products of float operands: each term is a product of at most one element of each operand."""

CANCELLING = frozenset({"linear_chain_crf"})
"""Differences of sums of operands: their error is that of the sums, however small the result is."""

CENTRED = {"batch_norm": 0, "group_norm": -1, "instance_norm": -1, "layer_norm": -1}
"""Operators that subtract a rounded mean from X and divide by a deviation along an axis, with that axis.

For few elements probing X does not show this error: of two elements the result is 1 and -1, whatever they are.
"""

FUSED = ("fuse_relu", "fuse_brelu", "fuse_activation")
"""Attributes that fuse an activation after the sums."""
