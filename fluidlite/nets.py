"""Nets: common combinations of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite import layers
from fluidlite.layer_helper import check_bool, check_float, check_int, check_variable, refuse
from fluidlite.program.variable import Variable

__all__ = ["glu", "img_conv_group", "scaled_dot_product_attention", "sequence_conv_pool", "simple_img_conv_pool"]


def simple_img_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: int | Sequence[int],
    pool_size: int | Sequence[int],
    pool_stride: int | Sequence[int],
    pool_padding: int | Sequence[int] = 0,
    pool_type: str = "max",
    global_pooling: bool = False,
    conv_stride: int | Sequence[int] = 1,
    conv_padding: int | Sequence[int] = 0,
    conv_dilation: int | Sequence[int] = 1,
    conv_groups: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    use_cudnn: bool = True,
) -> Variable:
    """Return ``pool2d`` of ``conv2d``.

    Parameters
    ----------
    input : Variable
        [N, C, H, W].
    num_filters, filter_size, conv_stride, conv_padding, conv_dilation, conv_groups, param_attr, bias_attr, act
        As in ``layers.conv2d``.
    pool_size, pool_stride, pool_padding, pool_type, global_pooling
        As in ``layers.pool2d``.
    use_cudnn : bool
        A hint of both operators.

    Returns
    -------
    Variable
        [N, num_filters, H', W'].
    """
    conv = layers.conv2d(
        input=input,
        num_filters=num_filters,
        filter_size=filter_size,
        stride=conv_stride,
        padding=conv_padding,
        dilation=conv_dilation,
        groups=conv_groups,
        param_attr=param_attr,
        bias_attr=bias_attr,
        act=act,
        use_cudnn=use_cudnn,
    )
    pooled: Variable = layers.pool2d(
        input=conv,
        pool_size=pool_size,
        pool_type=pool_type,
        pool_stride=pool_stride,
        pool_padding=pool_padding,
        global_pooling=global_pooling,
        use_cudnn=use_cudnn,
    )
    return pooled


def img_conv_group(
    input: Variable,
    conv_num_filter: Sequence[int],
    pool_size: int | Sequence[int],
    conv_padding: Any = 1,
    conv_filter_size: Any = 3,
    conv_act: str | None = None,
    param_attr: Any = None,
    conv_with_batchnorm: Any = False,
    conv_batchnorm_drop_rate: Any = 0.0,
    pool_stride: int | Sequence[int] = 1,
    pool_type: str = "max",
    use_cudnn: bool = True,
) -> Variable:
    """Return ``pool2d`` of several ``conv2d``, each optionally with batch normalisation and dropout.

    Parameters
    ----------
    input : Variable
        [N, C, H, W].
    conv_num_filter : list of int
        Filters of each convolution.
    pool_size, pool_stride, pool_type
        As in ``layers.pool2d``.
    conv_padding, conv_filter_size, conv_with_batchnorm, conv_batchnorm_drop_rate, param_attr
        One for all convolutions, or a list with one for each.
    conv_act : str, optional
        Activation of each convolution, or of its normalisation.
    use_cudnn : bool
        A hint of the operators.

    Returns
    -------
    Variable
        [N, conv_num_filter[-1], H', W'].
    """
    if not isinstance(conv_num_filter, (list, tuple)) or not conv_num_filter:
        refuse("conv_num_filter", conv_num_filter, "a list of ints, one for each convolution")
    count = len(conv_num_filter)

    def each(argument: str, value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            return [value] * count
        if len(value) != count:
            refuse(argument, value, f"one value, or a list of {count}, as conv_num_filter has")
        return list(value)

    paddings, sizes = each("conv_padding", conv_padding), each("conv_filter_size", conv_filter_size)
    name = "conv_with_batchnorm"
    normalised = [check_bool(name, value) for value in each(name, conv_with_batchnorm)]
    name = "conv_batchnorm_drop_rate"
    rates = [check_float(name, value) for value in each(name, conv_batchnorm_drop_rate)]
    attrs = each("param_attr", param_attr)
    for i, filters in enumerate(conv_num_filter):
        input = layers.conv2d(
            input=input,
            num_filters=filters,
            filter_size=sizes[i],
            padding=paddings[i],
            param_attr=attrs[i],
            act=None if normalised[i] else conv_act,
            use_cudnn=use_cudnn,
        )
        if normalised[i]:
            input = layers.batch_norm(input=input, act=conv_act)
            if abs(rates[i]) > 1e-5:
                input = layers.dropout(x=input, dropout_prob=rates[i])
    pooled: Variable = layers.pool2d(
        input=input, pool_size=pool_size, pool_type=pool_type, pool_stride=pool_stride, use_cudnn=use_cudnn
    )
    return pooled


def sequence_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: int,
    param_attr: Any = None,
    act: str | None = "sigmoid",
    pool_type: str = "max",
    bias_attr: Any = None,
) -> Variable:
    """Return ``sequence_pool`` of ``sequence_conv``: a row for each sequence.

    Parameters
    ----------
    input : Variable
        [rows, width], with LoD.
    num_filters, filter_size, param_attr, act, bias_attr
        As in ``layers.sequence_conv``.
    pool_type : str
        As in ``layers.sequence_pool``.

    Returns
    -------
    Variable
        [sequences, num_filters].
    """
    conv = layers.sequence_conv(
        input=input,
        num_filters=num_filters,
        filter_size=filter_size,
        param_attr=param_attr,
        bias_attr=bias_attr,
        act=act,
    )
    pooled: Variable = layers.sequence_pool(input=conv, pool_type=pool_type)
    return pooled


def glu(input: Variable, dim: int = -1) -> Variable:
    """Return a * sigmoid(b), a and b the two halves of ``input`` along ``dim`` (a gated linear unit).

    Parameters
    ----------
    input : Variable
        Its size along ``dim`` is even.
    dim : int
    """
    a, b = layers.split(check_variable("input", input), num_or_sections=2, dim=dim)
    gated: Variable = layers.elementwise_mul(x=a, y=layers.sigmoid(x=b))
    return gated


def scaled_dot_product_attention(
    queries: Variable, keys: Variable, values: Variable, num_heads: int = 1, dropout_rate: float = 0.0
) -> Variable:
    """Return softmax(Q K^T / sqrt(d)) V, for each head on its part of the last dim (Vaswani and others, 2017).

    Parameters
    ----------
    queries : Variable
        [batch, length of queries, d_k].
    keys, values : Variable
        [batch, length of keys, d_k] and [batch, length of keys, d_v].
    num_heads : int
        Divides d_k and d_v; with more than one, each of the three is multiplied by a weight first.
    dropout_rate : float
        Dropout probability of the attention weights.

    Returns
    -------
    Variable
        [batch, length of queries, d_v].

    Raises
    ------
    ProgramError
        If dims do not fit each other.
    """
    for argument, var in (("queries", queries), ("keys", keys), ("values", values)):
        if len(check_variable(argument, var).shape) != 3:
            refuse(argument, var, "3 dims: batch, length, width")
    if queries.shape[-1] != keys.shape[-1]:
        refuse("keys", keys, f"the width of queries, {queries.shape[-1]}")
    if -1 not in (keys.shape[-2], values.shape[-2]) and keys.shape[-2] != values.shape[-2]:
        refuse("values", values, f"the length of keys, {keys.shape[-2]}")
    num_heads = check_int("num_heads", num_heads, 1)
    for argument, var in (("keys", keys), ("values", values)):
        if var.shape[-1] % num_heads:
            refuse("num_heads", num_heads, f"a divisor of the width of {argument}, {var.shape[-1]}")
    if num_heads > 1:
        queries, keys, values = (
            _heads(layers.fc(input=var, size=var.shape[-1], num_flatten_dims=2), num_heads)
            for var in (queries, keys, values)
        )
    scaled = layers.scale(x=queries, scale=float(keys.shape[-1]) ** -0.5)
    weights = layers.softmax(layers.matmul(x=scaled, y=keys, transpose_y=True))
    if dropout_rate:
        weights = layers.dropout(weights, dropout_prob=dropout_rate, is_test=False)
    context = layers.matmul(weights, values)
    if num_heads == 1:
        return context
    context = layers.transpose(context, perm=[0, 2, 1, 3])
    return layers.reshape(x=context, shape=[0, 0, context.shape[2] * context.shape[3]])


def _heads(x: Variable, count: int) -> Variable:
    """Split heads: [batch, length, width] -> [batch, head, length, width of a head]."""
    parts = layers.reshape(x=x, shape=[0, 0, count, x.shape[-1] // count])
    return layers.transpose(parts, perm=[0, 2, 1, 3])
