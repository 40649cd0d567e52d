"""Layers that normalise: by the batch, by rows, groups or channels, by neighbours, to length 1; and log_softmax."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.base.dtypes import compute_dtype
from fluidlite.base.errors import AttributeValueError, ProgramError
from fluidlite.framework.variable import Parameter, Variable
from fluidlite.initializer import Constant
from fluidlite.layer_helper import LayerHelper, check_float, check_int, check_variable, refuse
from fluidlite.layers.common import append
from fluidlite.layers.tensor import cast
from fluidlite.param_attr import ParamAttr

__all__ = [
    "affine_channel", "batch_norm", "group_norm", "instance_norm", "l2_normalize", "layer_norm", "log_softmax", "lrn",
]  # fmt: skip

LAYOUTS = ("NCHW", "NHWC")


def _channels(argument: str, input: Variable, layout: str = "NCHW") -> int:
    """The number of channels of a layer's input."""
    if layout not in LAYOUTS:
        refuse("data_layout", layout, "'NCHW' or 'NHWC'", error=AttributeValueError)
    if len(input.shape) < 2:
        refuse(argument, input, "a rank of 2 or more: batch and channels")
    channels = input.shape[1 if layout == "NCHW" else -1]
    if channels < 1:
        refuse(argument, input, "a known number of channels", "say it in layers.data, or reshape the input")
    return channels


def _weight(helper: LayerHelper, size: int, dtype: str, is_bias: bool = False) -> Parameter:
    """The scale (1 at first) or the bias (0) of a layer."""
    attr = helper.bias_attr if is_bias else helper.param_attr
    if isinstance(attr, list):
        refuse("bias_attr" if is_bias else "param_attr", attr, "one ParamAttr: the layer has one of them")
    first = None if is_bias else Constant(1.0)
    return helper.create_parameter(attr, [size], dtype, is_bias=is_bias, default_initializer=first)


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

    Parameters
    ----------
    input : Variable
        [batch, channels, ...], or channels last if ``data_layout`` is ``"NHWC"``; of rank 2 to 5. Floating; of half
        types the parameters are float32.
    act : str or dict, optional
        An activation of the result.
    is_test : bool
        Use the averages; ``Program.clone(for_test=True)`` sets this.
    momentum : float or Variable
        What an average keeps of itself at each step; a Variable is [1], float32.
    epsilon : float
        Is added to the variance; 0 to 0.001.
    param_attr, bias_attr : ParamAttr, optional
        Of the scale, ``batch_norm_0.w_0``, and of the bias, ``batch_norm_0.b_0``, [channels] both.
    data_layout : str
    in_place : bool
        Taken for Fluid's sake: memory is shared wherever that is safe.
    name : str, optional
    moving_mean_name, moving_variance_name : str, optional
        Of the averages; default ``batch_norm_0.w_1`` and ``batch_norm_0.w_2``.
    do_model_average_for_mean_and_var : bool
        Whether ``ModelAverage`` takes the averages in.
    use_global_stats : bool
        Use the averages in training too, where they then stay as they are.
    fuse_with_relu : bool
        Taken for Fluid's sake, whose plain kernels do not heed it either: the activation is ``act``.

    Returns
    -------
    Variable
        As ``input``.

    Raises
    ------
    FluidError
        If the channels are not known, or an argument is out of its range.
    """
    helper = LayerHelper("batch_norm", name=name, param_attr=param_attr, bias_attr=bias_attr, act=act)
    channels = _channels("input", check_variable("input", input), data_layout)
    dtype = compute_dtype(input.dtype)
    scale, bias = _weight(helper, channels, dtype), _weight(helper, channels, dtype, is_bias=True)
    averages = []
    for known, first in ((moving_mean_name, 0.0), (moving_variance_name, 1.0)):
        attr = ParamAttr(
            name=known, initializer=Constant(first), trainable=False,
            do_model_average=do_model_average_for_mean_and_var,
        )  # fmt: skip
        average = helper.create_parameter(attr, [channels], dtype)
        average.stop_gradient = True
        averages.append(average)
    mean, variance = averages
    inputs: dict[str, Any] = {"X": input, "Scale": scale, "Bias": bias, "Mean": mean, "Variance": variance}
    attrs: dict[str, Any] = {
        "epsilon": check_float("epsilon", epsilon), "is_test": is_test, "data_layout": data_layout,
        "use_global_stats": use_global_stats,
    }  # fmt: skip
    if isinstance(momentum, Variable):
        inputs["MomentumTensor"] = momentum
    else:
        attrs["momentum"] = check_float("momentum", momentum)
    saved = [helper.create_variable_for_type_inference(dtype, stop_gradient=True) for _ in range(2)]
    out = helper.create_variable_for_type_inference(input.dtype)
    outputs = {
        "Y": out, "MeanOut": mean, "VarianceOut": variance, "SavedMean": saved[0], "SavedVariance": saved[1],
    }  # fmt: skip
    helper.append_op("batch_norm", inputs, outputs, attrs)
    return helper.append_activation(out)


def _normalise(
    helper: LayerHelper, input: Variable, size: int, parts: tuple[bool, bool], attrs: dict[str, Any],
    statistics: tuple[str, str] = ("Mean", "Variance"),
) -> Variable:  # fmt: skip
    """Append the layer's operator, with those of scale and bias that ``parts`` asks for, [size]."""
    dtype = compute_dtype(input.dtype)
    inputs: dict[str, Any] = {"X": input}
    if parts[0]:
        inputs["Scale"] = _weight(helper, size, dtype)
    if parts[1]:
        inputs["Bias"] = _weight(helper, size, dtype, is_bias=True)
    outputs = {slot: helper.create_variable_for_type_inference(dtype, stop_gradient=True) for slot in statistics}
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(helper.layer_type, inputs, {**outputs, "Y": out}, attrs)
    return helper.append_activation(out)


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

    Parameters
    ----------
    input : Variable
        Of rank 2 or more; the dims from ``begin_norm_axis`` on, which must be known, are a row.
    scale, shift : bool
        Whether there is a scale, and a bias.
    begin_norm_axis : int
    epsilon : float
        Is added to the variance; 0 to 0.001.
    param_attr, bias_attr : ParamAttr, optional
        Of the scale, ``layer_norm_0.w_0``, and of the bias, ``layer_norm_0.b_0``; as long as a row.
    act : str or dict, optional
        An activation of the result.
    name : str, optional

    Returns
    -------
    Variable
        As ``input``.

    Raises
    ------
    FluidError
        If a row's length is not known, or an argument is out of its range.
    """
    helper = LayerHelper("layer_norm", name=name, param_attr=param_attr, bias_attr=bias_attr, act=act)
    check_variable("input", input)
    begin = check_int("begin_norm_axis", begin_norm_axis, minimum=1)
    row = input.shape[begin:]
    if (scale or shift) and any(d < 0 for d in row):
        refuse("input", input, f"known dims from dim {begin} on", "say them in layers.data, or reshape the input")
    attrs = {"epsilon": check_float("epsilon", epsilon), "begin_norm_axis": begin}
    return _normalise(helper, input, prod(row), (bool(scale), bool(shift)), attrs)


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

    Parameters
    ----------
    input : Variable
        [batch, channels, ...], or channels last if ``data_layout`` is ``"NHWC"``.
    groups : int
        How many groups of neighbouring channels; it divides their number.
    epsilon : float
        Is added to the variance; 0 to 1.
    param_attr, bias_attr : ParamAttr or False, optional
        Of the scale, ``group_norm_0.w_0``, and of the bias, ``group_norm_0.b_0``; False: none.
    act : str or dict, optional
        An activation of the result.
    data_layout : str
    name : str, optional

    Returns
    -------
    Variable
        As ``input``.

    Raises
    ------
    FluidError
        If the channels are not known, or an argument is out of its range.
    """
    helper = LayerHelper("group_norm", name=name, param_attr=param_attr, bias_attr=bias_attr, act=act)
    channels = _channels("input", check_variable("input", input), data_layout)
    attrs = {
        "epsilon": check_float("epsilon", epsilon), "groups": check_int("groups", groups), "data_layout": data_layout,
    }  # fmt: skip
    parts = (helper.param_attr is not False, helper.bias_attr is not False)
    return _normalise(helper, input, channels, parts, attrs)


def instance_norm(
    input: Variable, epsilon: float = 1e-05, param_attr: Any = None, bias_attr: Any = None, name: str | None = None
) -> Variable:
    """Normalise each channel of each sample, then scale and shift it.

    Parameters
    ----------
    input : Variable
        [batch, channels, ...], of rank 2 to 5.
    epsilon : float
        Is added to the variance; 0 to 0.001.
    param_attr, bias_attr : ParamAttr or False, optional
        Of the scale, ``instance_norm_0.w_0``, and of the bias, ``instance_norm_0.b_0``; False for both: neither.
    name : str, optional

    Returns
    -------
    Variable
        As ``input``.

    Raises
    ------
    FluidError
        If the channels are not known, only one of the two is False, or an argument is out of its range.
    """
    helper = LayerHelper("instance_norm", name=name, param_attr=param_attr, bias_attr=bias_attr)
    channels = _channels("input", check_variable("input", input))
    given = helper.param_attr is not False
    if given != (helper.bias_attr is not False):
        refuse("bias_attr", bias_attr, "False if, and only if, param_attr is False", error=ProgramError)
    attrs = {"epsilon": check_float("epsilon", epsilon)}
    return _normalise(helper, input, channels, (given, given), attrs, ("SavedMean", "SavedVariance"))


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

    Parameters
    ----------
    input : Variable
        [batch, channels, height, width], or channels last if ``data_format`` is ``"NHWC"``.
    n : int
        An odd number.
    k, alpha, beta : float
        Above 0.
    name : str, optional
    data_format : str

    Returns
    -------
    Variable
        As ``input``.
    """
    attrs = {
        "n": check_int("n", n), "k": check_float("k", k), "alpha": check_float("alpha", alpha),
        "beta": check_float("beta", beta), "data_format": data_format,
    }  # fmt: skip
    return append("lrn", "lrn", {"X": check_variable("input", input)}, attrs, extra=("MidOut",), name=name)


def affine_channel(
    x: Variable,
    scale: Variable | None = None,
    bias: Variable | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    act: Any = None,
) -> Variable:
    """Return scale * x + bias, with a scale and a bias for each channel.

    Parameters
    ----------
    x : Variable
        [batch, channels, ...], or channels last if ``data_layout`` is ``"NHWC"``.
    scale, bias : Variable
        [channels], of the dtype of ``x``.
    data_layout : str
    name : str, optional
    act : str or dict, optional
        An activation of the result.

    Returns
    -------
    Variable
        As ``x``.
    """
    inputs = {
        "X": check_variable("x", x), "Scale": check_variable("scale", scale), "Bias": check_variable("bias", bias),
    }  # fmt: skip
    return append("affine_channel", "affine_channel", inputs, {"data_layout": data_layout}, name=name, act=act)


def l2_normalize(x: Variable, axis: int | None, epsilon: float = 1e-12, name: str | None = None) -> Variable:
    """Return x / sqrt(sum(x^2) + epsilon), the sum being over ``axis``.

    As in Fluid, elements are squared as they are: of float32 beyond 1.8e19, whose squares are infinite, 0 comes out.

    Parameters
    ----------
    x : Variable
    axis : int or None
        None: 1. Of a vector it is always 0.
    epsilon : float
    name : str, optional

    Returns
    -------
    Variable
        As ``x``.
    """
    x = check_variable("x", x)
    along = 1 if axis is None else check_int("axis", axis)
    attrs = {"axis": 0 if len(x.shape) == 1 else along, "epsilon": check_float("epsilon", epsilon)}
    return append("l2_normalize", "norm", {"X": x}, attrs, extra=("Norm",), name=name)


def log_softmax(input: Variable, axis: int | None = None, dtype: Any = None, name: str | None = None) -> Variable:
    """Return the logarithm of softmax, exact where softmax itself would be rounded to 0.

    Parameters
    ----------
    input : Variable
    axis : int, optional
        The axis over which the exponentials sum to 1; None: the last.
    dtype : str, optional
        What ``input`` is cast to first.
    name : str, optional

    Returns
    -------
    Variable
        As ``input``.
    """
    check_variable("input", input)
    if dtype is not None:
        input = cast(input, dtype)
    attrs = {"axis": -1 if axis is None else check_int("axis", axis)}
    return append("log_softmax", "log_softmax", {"X": input}, attrs, name=name)
