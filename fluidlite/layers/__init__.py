"""The program builder's layers, under Fluid's names; ``fluid.layers.fc`` and so on."""

from __future__ import annotations

from typing import Any

from fluidlite.layers import ops
from fluidlite.layers.io import data
from fluidlite.layers.learning_rate_scheduler import (
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
    crf_decoding,
    cross_entropy,
    linear_chain_crf,
    softmax_with_cross_entropy,
    square_error_cost,
)
from fluidlite.layers.metric_op import accuracy
from fluidlite.layers.nn import (
    clip_by_norm,
    crop,
    dropout,
    embedding,
    fc,
    gather,
    l2_normalize,
    matmul,
    maxout,
    mean,
    mul,
    one_hot,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
    reshape,
    scale,
    slice,
    softmax,
    split,
    topk,
    transpose,
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
    gaussian_random,
    increment,
    ones,
    ones_like,
    sum,
    sums,
    uniform_random,
    zeros,
    zeros_like,
)

__all__ = [
    "accuracy", "assign", "autoincreased_step_counter", "cast", "clip_by_norm", "concat", "cosine_decay",
    "create_global_var", "create_parameter", "create_tensor", "crf_decoding", "crop", "cross_entropy", "data",
    "dropout", "embedding", "exponential_decay", "fc", "fill_constant", "fill_constant_batch_size_like", "gather",
    "gaussian_random", "increment", "inverse_time_decay", "l2_normalize", "linear_chain_crf", "linear_lr_warmup",
    "matmul", "maxout", "mean", "mul", "natural_exp_decay", "noam_decay", "one_hot", "ones", "ones_like",
    "piecewise_decay", "polynomial_decay", "reduce_max", "reduce_mean", "reduce_min", "reduce_sum", "reshape", "scale",
    "slice", "softmax", "softmax_with_cross_entropy", "split", "square_error_cost", "sum", "sums", "topk", "transpose",
    "uniform_random", "zeros", "zeros_like",
]  # fmt: skip
__all__ += ops.__all__


def __getattr__(name: str) -> Any:
    if name in ops.__all__:  # made of the operator's definition when first asked for
        return ops.layer(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
