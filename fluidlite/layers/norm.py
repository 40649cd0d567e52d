"""Normalisation layers: batch_norm, layer_norm, group_norm, instance_norm, lrn, l2_normalize; and log_softmax."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.base.dtypes import compute_dtype
from fluidlite.base.errors import ProgramError
from fluidlite.initializer import Constant
from fluidlite.layer_helper import refuse
from fluidlite.layers.declare import Bias, Unused, Weight, also, layer
from fluidlite.layers.tensor import cast
from fluidlite.param_attr import ParamAttr
from fluidlite.program.variable import Variable


def _channels(input: Variable, layout: str = "NCHW") -> int:
    if len(input.shape) < 2:
        refuse("input", input, "a rank of 2 or more: batch and channels")
    channels = input.shape[1 if layout == "NCHW" else -1]
    if channels < 1:
        refuse("input", input, "a known number of channels", "say it in layers.data, or reshape the input")
    return channels


def _scale_and_bias(input: Variable, size: int, needed: bool = False) -> tuple[Weight, Bias]:
    """The scale, initially 1, and the bias of a layer, in float32 for half types."""
    dtype = compute_dtype(input.dtype)
    return Weight([size], Constant(1.0), dtype), Bias([size], dtype, needed)


@layer(
    "batch_norm",
    {
        "momentum": "momentum|MomentumTensor",
        "in_place": Unused("memory is shared wherever that is safe"),
        **dict.fromkeys(("moving_mean_name", "moving_variance_name", "do_model_average_for_mean_and_var"), ""),
        "fuse_with_relu": Unused("Fluid's plain kernels do not heed it either; the activation is ``act``"),
    },
    returns="Y",
)
def batch_norm(
    input: Variable,
    act: Any = None,
    is_test: bool = False,
    momentum: float | Variable = 0.9,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
    fuse_with_relu: bool = False,
) -> Variable:
    """Normalise each channel by its mean and variance over the batch, then scale and shift it.

    In training two averages follow the batches' means and variances; at test they normalise.

    momentum: The decay rate of the averages; a Variable is [1], float32
    param_attr, bias_attr: Of the scale, ``batch_norm_0.w_0``, and of the bias, ``batch_norm_0.b_0``, [channels] both
    moving_mean_name, moving_variance_name: Of the averages; default ``batch_norm_0.w_1`` and ``batch_norm_0.w_2``
    do_model_average_for_mean_and_var: Whether ``ModelAverage`` includes the averages
    Returns: As ``input``
    Raises: If the channels are not known, or an argument is out of its range

    >>> batch_norm(data("input", [2, 3, 4])).shape
    (2, 3, 4)
    """
    weight, bias = _scale_and_bias(input, _channels(input, data_layout), True)
    is_averaged = do_model_average_for_mean_and_var

    def average(name: str | None, first: float) -> Weight:
        attr = ParamAttr(name=name, initializer=Constant(first), trainable=False, do_model_average=is_averaged)
        return Weight(bias.dims, dtype=bias.dtype, stop_gradient=True, attr=attr)

    return also(
        Scale=weight,
        Bias=bias,
        Mean=average(moving_mean_name, 0.0),
        Variance=average(moving_variance_name, 1.0),
        MeanOut="Mean",
        VarianceOut="Variance",
    )


@layer("layer_norm", {"scale": "", "shift": ""})
def layer_norm(
    input: Variable,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    name: str | None = None,
) -> Variable:
    """Normalise each row by its own mean and variance, then scale and shift each of its elements.

    scale, shift: Whether there is a scale, and a bias
    param_attr, bias_attr: Of the scale, ``layer_norm_0.w_0``, and of the bias, ``layer_norm_0.b_0``; as long as a row
    Returns: As ``input``
    Raises: If a row's length is not known, or an argument is out of its range

    >>> layer_norm(data("input", [2, 4, 4, 8, 8])).shape
    (2, 4, 4, 8, 8)
    """
    row_dims = input.shape[begin_norm_axis:]
    if (scale or shift) and any(d < 0 for d in row_dims):
        do = "say them in layers.data, or reshape the input"
        refuse("input", input, f"known dims from dim {begin_norm_axis} on", do)
    weight, bias = _scale_and_bias(input, prod(row_dims))
    return also(Scale=weight if scale else None, Bias=bias if shift else None)


@layer("group_norm")
def group_norm(
    input: Variable,
    groups: int,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    data_layout: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Normalise each group of channels of each sample, then scale and shift each channel.

    param_attr, bias_attr: Of the scale, ``group_norm_0.w_0``, and of the bias, ``group_norm_0.b_0``; False: none
    Returns: As ``input``
    Raises: If the channels are not known, or an argument is out of its range

    >>> group_norm(data("input", [2, 4, 4, 8, 8]), 4).shape
    (2, 4, 4, 8, 8)
    """
    weight, bias = _scale_and_bias(input, _channels(input, data_layout))
    return also(Scale=None if param_attr is False else weight, Bias=bias)


@layer("instance_norm")
def instance_norm(
    input: Variable, epsilon: float = 1e-05, param_attr: Any = None, bias_attr: Any = None, name: str | None = None
) -> Variable:
    """Normalise each channel of each sample, then scale and shift it.

    param_attr, bias_attr: Of the scale, ``instance_norm_0.w_0``, and of the bias, ``instance_norm_0.b_0``; False for
        both: neither
    Returns: As ``input``
    Raises: If the channels are not known, only one of the two is False, or an argument is out of its range

    >>> instance_norm(data("input", [2, 4])).shape
    (2, 4)
    """
    weight, bias = _scale_and_bias(input, _channels(input))
    if (param_attr is False) != (bias_attr is False):
        refuse("bias_attr", bias_attr, "False if, and only if, param_attr is False", error=ProgramError)
    return also(Scale=None if param_attr is False else weight, Bias=bias)


@layer("lrn")
def lrn(
    input: Variable,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Divide by (k + alpha * the sum of squares over ``n`` neighbouring channels) ** beta.

    k, alpha, beta: Above 0
    Returns: As ``input``

    >>> lrn(data("input", [2, 4, 8, 8])).shape
    (2, 4, 8, 8)
    """


@layer("affine_channel")
def affine_channel(
    x: Variable,
    scale: Variable | None = None,
    bias: Variable | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    act: Any = None,
) -> Variable:
    """Return scale * x + bias, with a scale and a bias for each channel.

    Returns: As ``x``

    >>> affine_channel(data("x", [2, 4, 8, 8]), data("scale", [4]), data("bias", [4])).shape
    (2, 4, 8, 8)
    """


@layer("norm")
def l2_normalize(x: Variable, axis: int | None, epsilon: float = 1e-12, name: str | None = None) -> Variable:
    """Return x / sqrt(sum(x^2) + epsilon), the sum being over ``axis``.

    As in Fluid, elements are squared without scaling: for float32 beyond 1.8e19, with infinite squares, it is 0.

    Returns: As ``x``

    >>> l2_normalize(data("x", [2, 4, 8, 8]), None).shape
    (2, 4, 8, 8)
    """
    return also(axis=0 if len(x.shape) == 1 else 1 if axis is None else axis)


@layer("log_softmax", {"dtype": ""})
def log_softmax(input: Variable, axis: int | None = None, dtype: Any = None, name: str | None = None) -> Variable:
    """Return the logarithm of softmax, exact where softmax itself would be rounded to 0.

    dtype: ``input`` is first cast to it
    Returns: As ``input``

    >>> log_softmax(data("input", [2, 4, 8, 8])).shape
    (2, 4, 8, 8)
    """
    return also(X=input if dtype is None else cast(input, dtype))
