"""The program builder's layers, under Fluid's names; ``fluid.layers.fc`` and so on."""

from __future__ import annotations

from sys import modules as _modules
from typing import Any

from fluidlite.layers import ops
from fluidlite.layers.control_flow import Print
from fluidlite.layers.conv import conv2d, conv2d_transpose, conv3d, conv3d_transpose
from fluidlite.layers.creation import (
    diag,
    eye,
    gaussian_random,
    gaussian_random_batch_size_like,
    linspace,
    range,
    uniform_random,
    uniform_random_batch_size_like,
)
from fluidlite.layers.decoding import gather_tree
from fluidlite.layers.features import continuous_value_model, similarity_focus
from fluidlite.layers.index import (
    argmax,
    argmin,
    argsort,
    embedding,
    gather,
    gather_nd,
    hash,
    one_hot,
    random_crop,
    sampling_id,
    scatter,
    scatter_nd,
    scatter_nd_add,
    shard_index,
    topk,
    unique,
    unique_with_counts,
    where,
)
from fluidlite.layers.io import data
from fluidlite.layers.learning_rate_scheduler import (
    append_LARS,
    cosine_decay,
    exponential_decay,
    inverse_time_decay,
    linear_lr_warmup,
    natural_exp_decay,
    noam_decay,
    piecewise_decay,
    polynomial_decay,
)
from fluidlite.layers.loss import (
    bpr_loss,
    center_loss,
    crf_decoding,
    cross_entropy,
    label_smooth,
    linear_chain_crf,
    sigmoid_cross_entropy_with_logits,
    softmax_with_cross_entropy,
    teacher_student_sigmoid_loss,
)
from fluidlite.layers.loss_regression import (
    dice_loss,
    huber_loss,
    kldiv_loss,
    log_loss,
    margin_rank_loss,
    mse_loss,
    npair_loss,
    rank_loss,
    smooth_l1,
    square_error_cost,
)
from fluidlite.layers.metric_op import accuracy, auc, mean_iou
from fluidlite.layers.nn import (
    dropout,
    fc,
    matmul,
    maxout,
    mul,
    scale,
    softmax,
)
from fluidlite.layers.norm import (
    affine_channel,
    batch_norm,
    group_norm,
    instance_norm,
    l2_normalize,
    layer_norm,
    log_softmax,
    lrn,
)
from fluidlite.layers.norm_kept import data_norm, inplace_abn, spectral_norm
from fluidlite.layers.pool import adaptive_pool2d, adaptive_pool3d, pool2d, pool3d
from fluidlite.layers.products import bilinear_tensor_product, clip_by_norm, cos_sim, dot, pow, prelu
from fluidlite.layers.public import public
from fluidlite.layers.python import py_func
from fluidlite.layers.reduce import (
    has_inf,
    has_nan,
    isfinite,
    mean,
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
)
from fluidlite.layers.regions import (
    crop,
    crop_tensor,
    expand,
    expand_as,
    flip,
    meshgrid,
    multiplex,
    pad,
    pad2d,
    pad_constant_like,
    reverse,
    roll,
    slice,
    strided_slice,
    tril,
    triu,
)
from fluidlite.layers.shape import (
    flatten,
    is_empty,
    rank,
    reshape,
    shape,
    size,
    split,
    squeeze,
    stack,
    transpose,
    unbind,
    unsqueeze,
    unstack,
)
from fluidlite.layers.tensor import (
    assign,
    autoincreased_step_counter,
    cast,
    concat,
    create_global_var,
    create_parameter,
    create_tensor,
    fill_constant,
    fill_constant_batch_size_like,
    increment,
    ones,
    ones_like,
    sum,
    sums,
    zeros,
    zeros_like,
)
from fluidlite.layers.transforms import add_position_encoding, affine_grid, fsp_matrix, grid_sampler, unfold
from fluidlite.layers.vision import (
    im2sequence,
    image_resize,
    image_resize_short,
    pixel_shuffle,
    resize_bilinear,
    resize_linear,
    resize_nearest,
    resize_trilinear,
    row_conv,
    shuffle_channel,
    space_to_depth,
    temporal_shift,
)

__all__ = [
    "Print", "accuracy", "adaptive_pool2d", "adaptive_pool3d", "add_position_encoding", "affine_channel", "affine_grid",
    "append_LARS", "argmax", "argmin", "argsort", "assign", "auc", "autoincreased_step_counter", "batch_norm",
    "bilinear_tensor_product", "bpr_loss", "cast", "center_loss", "clip_by_norm", "concat", "continuous_value_model",
    "conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose", "cos_sim", "cosine_decay", "create_global_var",
    "create_parameter", "create_tensor", "crf_decoding", "crop", "crop_tensor", "cross_entropy", "data", "data_norm",
    "diag", "dice_loss", "dot", "dropout", "embedding", "expand", "expand_as", "exponential_decay", "eye", "fc",
    "fill_constant", "fill_constant_batch_size_like", "flatten", "flip", "fsp_matrix", "gather", "gather_nd",
    "gather_tree", "gaussian_random", "gaussian_random_batch_size_like", "grid_sampler", "group_norm", "has_inf",
    "has_nan", "hash", "huber_loss", "im2sequence", "image_resize", "image_resize_short", "increment", "inplace_abn",
    "instance_norm", "inverse_time_decay", "is_empty", "isfinite", "kldiv_loss", "l2_normalize", "label_smooth",
    "layer_norm", "linear_chain_crf", "linear_lr_warmup", "linspace", "log_loss", "log_softmax", "lrn",
    "margin_rank_loss", "matmul", "maxout", "mean", "mean_iou", "meshgrid", "mse_loss", "mul", "multiplex",
    "natural_exp_decay", "noam_decay", "npair_loss", "one_hot", "ones", "ones_like", "pad", "pad2d",
    "pad_constant_like", "piecewise_decay", "pixel_shuffle", "polynomial_decay", "pool2d", "pool3d", "pow", "prelu",
    "py_func", "random_crop", "range", "rank", "rank_loss", "reduce_all", "reduce_any", "reduce_max", "reduce_mean",
    "reduce_min", "reduce_prod", "reduce_sum", "reshape", "resize_bilinear", "resize_linear", "resize_nearest",
    "resize_trilinear", "reverse", "roll", "row_conv", "sampling_id", "scale", "scatter", "scatter_nd",
    "scatter_nd_add", "shape", "shard_index", "shuffle_channel", "sigmoid_cross_entropy_with_logits",
    "similarity_focus", "size", "slice", "smooth_l1", "softmax", "softmax_with_cross_entropy", "space_to_depth",
    "spectral_norm", "split", "square_error_cost", "squeeze", "stack", "strided_slice", "sum", "sums",
    "teacher_student_sigmoid_loss", "temporal_shift", "topk", "transpose", "tril", "triu", "unbind", "unfold",
    "uniform_random", "uniform_random_batch_size_like", "unique", "unique_with_counts", "unsqueeze", "unstack", "where",
    "zeros", "zeros_like",
]  # fmt: skip
for _name in __all__:
    _layer = globals()[_name]
    globals()[_name] = public(_layer)
    setattr(_modules[_layer.__module__], _name, globals()[_name])  # Fluid's paths: layers.nn.fc
__all__ += ops.__all__


def __getattr__(name: str) -> Any:
    if name in ops.__all__:  # made of the operator's definition when first asked for
        return ops.layer(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
