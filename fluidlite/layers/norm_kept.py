"""Layers that normalise by what they keep: sums over all data, averages of batches, vectors near a weight's own."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite import unique_name
from fluidlite.base.errors import AttributeValueError, DtypeError
from fluidlite.framework.variable import Parameter, Variable
from fluidlite.initializer import Constant, Normal
from fluidlite.layer_helper import LayerHelper, check_float, check_int, check_variable, refuse
from fluidlite.layers.norm import batch_norm
from fluidlite.param_attr import ParamAttr

__all__ = ["data_norm", "inplace_abn", "spectral_norm"]

FIRST = {"batch_size": 1e4, "batch_sum": 0.0, "batch_square": 1e4, "scale_w": 1.0, "bias": 0.0}
"""What data_norm's parameters start with, by the names that ``param_attr`` has for them."""
FLOATS = ("float32", "float64")


def _first(param_attr: Any) -> dict[str, float]:
    """The first values of data_norm's parameters."""
    if not isinstance(param_attr, dict):
        return FIRST
    for name in param_attr:
        if name not in FIRST:
            refuse("param_attr", param_attr, f"a dict with some of {', '.join(FIRST)}", error=AttributeValueError)
    return {name: check_float(f"param_attr[{name!r}]", param_attr.get(name, value)) for name, value in FIRST.items()}


def data_norm(
    input: Variable,
    act: Any = None,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    slot_dim: int = -1,
    sync_stats: bool = False,
    summary_decay_rate: float = 0.9999999,
    enable_scale_and_shift: bool = False,
) -> Variable:
    """Normalise each channel by the mean and the deviation of all data so far.

    Three parameters hold these: how many samples, their sum, and the sum of their squared distances from the mean.
    Their gradients are what a batch adds to them, as in Fluid, whose servers add these up; an optimiser here would
    subtract them.

    Parameters
    ----------
    input : Variable
        [batch, channels], float32 or float64.
    act : str or dict, optional
        An activation of the result.
    epsilon : float
        Is added to the squares of each sample; 0 to 0.001.
    param_attr : dict, optional
        What the parameters start with: ``batch_size`` (1e4), ``batch_sum`` (0), ``batch_square`` (1e4), and with
        ``enable_scale_and_shift`` ``scale_w`` (1) and ``bias`` (0). A ParamAttr is taken for Fluid's sake, and not
        used.
    data_layout : str
        ``"NCHW"`` or ``"NHWC"``, which are the same for two dims.
    in_place : bool
        Taken for Fluid's sake: memory is shared wherever that is safe.
    name : str, optional
        The parameters are ``<name>.batch_size``, ``<name>.batch_sum``, ``<name>.batch_square_sum``, ``<name>.scale_w``
        and ``<name>.bias``; default ``dn``, so that a second layer without a name shares those of the first.
    moving_mean_name, moving_variance_name : str, optional
        Not used, in Fluid neither.
    do_model_average_for_mean_and_var : bool
        Not used, in Fluid neither.
    slot_dim : int
        If above 0, the channels are slots of so many, each with a first number that counts how often it was shown; a
        slot with 0 there gives 0.
    sync_stats : bool
        Taken for Fluid's sake.
    summary_decay_rate : float
        Taken for Fluid's sake.
    enable_scale_and_shift : bool
        Scale and shift the result, by parameters that are learned.

    Returns
    -------
    Variable
        As ``input``.

    Raises
    ------
    FluidError
        If ``input`` is no matrix, its channels are not known, or an argument is out of its range.
    """
    helper = LayerHelper("data_norm", name=name, act=act)
    check_variable("input", input)
    if data_layout not in ("NCHW", "NHWC"):
        refuse("data_layout", data_layout, "'NCHW' or 'NHWC'", error=AttributeValueError)
    if len(input.shape) != 2 or input.shape[1] < 1:
        refuse("input", input, "[batch, channels], with a known number of channels")
    if input.dtype not in FLOATS:
        refuse("input", input, "float32 or float64", error=DtypeError)
    first, start = _first(param_attr), "dn" if name is None else name

    def parameter(called: str, begin: str) -> Parameter:
        attr = ParamAttr(name=f"{start}.{called}", initializer=Constant(first[begin]))
        return helper.create_parameter(attr, [input.shape[1]], input.dtype)

    inputs: dict[str, Any] = {"X": input}
    if enable_scale_and_shift:
        inputs |= {called: parameter(called, called) for called in ("scale_w", "bias")}
    inputs["BatchSize"] = parameter("batch_size", "batch_size")
    inputs["BatchSum"] = parameter("batch_sum", "batch_sum")
    inputs["BatchSquareSum"] = parameter("batch_square_sum", "batch_square")
    outputs = {slot: helper.create_variable_for_type_inference(stop_gradient=True) for slot in ("Means", "Scales")}
    out = helper.create_variable_for_type_inference()
    attrs = {
        "epsilon": check_float("epsilon", epsilon), "slot_dim": check_int("slot_dim", slot_dim),
        "sync_stats": sync_stats, "summary_decay_rate": check_float("summary_decay_rate", summary_decay_rate),
        "enable_scale_and_shift": enable_scale_and_shift, "data_layout": data_layout,
    }  # fmt: skip
    helper.append_op("data_norm", inputs, {**outputs, "Y": out}, attrs)
    return helper.append_activation(out)


SLOPED = {"leaky_relu": "alpha", "elu": "alpha"}
"""Activations of inplace_abn, with the attribute that ``act_alpha`` sets."""


def inplace_abn(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float | Variable = 0.9,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
    act_alpha: float = 1.0,
) -> Variable:
    """Normalise as :func:`batch_norm`, and activate the result.

    Fluid computes the input again from the result to save its memory; here it is kept, and memory is shared wherever
    that is safe.

    Parameters
    ----------
    input : Variable
        As for ``batch_norm``.
    act : str, optional
        ``"identity"``, ``"leaky_relu"`` or ``"elu"``; None: the identity.
    is_test : bool
    momentum : float or Variable
    epsilon : float
    param_attr, bias_attr : ParamAttr, optional
        Of the scale, ``inplace_abn_0.w_0``, and of the bias, ``inplace_abn_0.b_0``.
    data_layout : str
    name : str, optional
    moving_mean_name, moving_variance_name : str, optional
        Of the averages; default ``inplace_abn_0.w_1`` and ``inplace_abn_0.w_2``.
    do_model_average_for_mean_and_var, use_global_stats : bool
        As for ``batch_norm``.
    act_alpha : float
        The slope of ``leaky_relu``, the scale of ``elu``.

    Returns
    -------
    Variable
        As ``input``.
    """
    if act not in (None, "identity", *SLOPED):
        refuse("act", act, "'identity', 'leaky_relu' or 'elu'", error=AttributeValueError)
    chosen = None
    if act in SLOPED:
        chosen = {"type": act, SLOPED[act]: check_float("act_alpha", act_alpha)}
    return batch_norm(
        input, chosen, is_test, momentum, epsilon, param_attr, bias_attr, data_layout,
        name=unique_name.generate("inplace_abn") if name is None else name, moving_mean_name=moving_mean_name,
        moving_variance_name=moving_variance_name,
        do_model_average_for_mean_and_var=do_model_average_for_mean_and_var, use_global_stats=use_global_stats,
    )  # fmt: skip


def spectral_norm(
    weight: Variable, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, name: str | None = None
) -> Variable:
    """Divide a weight by an estimate of its largest singular value.

    Two vectors, which start with normal numbers and stay, are brought nearer to the singular ones ``power_iters`` times
    in each run.

    Parameters
    ----------
    weight : Variable
        Of rank 2 to 5, all dims known; float32 or float64.
    dim : int
        0 or 1: the dim that is the rows of the matrix. 0 for ``fc``, 1 for convolutions.
    power_iters : int
        0 to 1000.
    eps : float
        Is added to the vectors' lengths before they divide.
    name : str, optional

    Returns
    -------
    Variable
        As ``weight``.

    Raises
    ------
    FluidError
        If a dim of ``weight`` is not known, or an argument is out of its range.
    """
    helper = LayerHelper("spectral_norm", name=name)
    check_variable("weight", weight)
    if not 2 <= len(weight.shape) <= 5 or any(d < 1 for d in weight.shape):
        refuse("weight", weight, "rank 2 to 5, with known dims of 1 or more")
    if weight.dtype not in FLOATS:
        refuse("weight", weight, "float32 or float64", error=DtypeError)
    if check_int("dim", dim) not in (0, 1):
        refuse("dim", dim, "0 or 1", error=AttributeValueError)
    rows = weight.shape[dim]
    inputs: dict[str, Any] = {"Weight": weight}
    for slot, count in (("U", rows), ("V", prod(weight.shape) // rows)):
        vector = helper.create_parameter(ParamAttr(initializer=Normal(0.0, 1.0)), [count], weight.dtype)
        vector.stop_gradient = True
        inputs[slot] = vector
    attrs = {
        "dim": dim, "power_iters": check_int("power_iters", power_iters, minimum=0), "eps": check_float("eps", eps),
    }  # fmt: skip
    out = helper.create_variable_for_type_inference()
    helper.append_op("spectral_norm", inputs, {"Out": out}, attrs)
    return out
