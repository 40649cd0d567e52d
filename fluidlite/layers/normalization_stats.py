"""Normalisation layers with stored statistics: data_norm, inplace_abn, spectral_norm."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite import unique_name
from fluidlite.base.dtypes import FLOATS
from fluidlite.base.errors import AttributeValueError, DtypeError
from fluidlite.initializer import Constant, Normal
from fluidlite.layer_helper import check_float, refuse
from fluidlite.layers.declare import Unused, Weight, also, layer
from fluidlite.layers.norm import batch_norm
from fluidlite.param_attr import ParamAttr
from fluidlite.program.variable import Variable

INITIAL = {"batch_size": 1e4, "batch_sum": 0.0, "batch_square": 1e4, "scale_w": 1.0, "bias": 0.0}
"""Initial values of data_norm's parameters, by their names in ``param_attr``."""


def _initial_stats(param_attr: Any) -> dict[str, float]:
    if not isinstance(param_attr, dict):
        return INITIAL
    for name in param_attr:
        if name not in INITIAL:
            refuse("param_attr", param_attr, f"a dict with some of {', '.join(INITIAL)}", error=AttributeValueError)
    return {name: check_float(f"param_attr[{name!r}]", param_attr.get(name, value)) for name, value in INITIAL.items()}


@layer(
    "data_norm",
    {
        "in_place": Unused("memory is shared wherever that is safe"),
        "moving_mean_name": Unused("Fluid does not use it either"),
        "moving_variance_name": Unused("Fluid does not use it either"),
        "do_model_average_for_mean_and_var": Unused("Fluid does not use it either"),
    },
)
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

    Three parameters store the number of samples, their sum, and the sum of their squared distances from the mean.
    Their gradients are the contributions of a batch, as in Fluid, whose servers add these; an optimiser here would
    subtract them.

    param_attr: Initial values of the parameters: ``batch_size`` (1e4), ``batch_sum`` (0), ``batch_square`` (1e4), and
        with ``enable_scale_and_shift`` ``scale_w`` (1) and ``bias`` (0). A ParamAttr is taken for Fluid's sake, and
        not used.
    Returns: As ``input``
    Raises: If ``input`` is no matrix, its channels are not known, or an argument is out of its range

    >>> data_norm(data("input", [4, 4])).shape
    (4, 4)
    """
    if len(input.shape) != 2 or input.shape[1] < 1:
        refuse("input", input, "[batch, channels], with a known number of channels")
    initial, prefix = _initial_stats(param_attr), "dn" if name is None else name

    def parameter(suffix: str, key: str) -> Weight:
        return Weight(input.shape[1:], attr=ParamAttr(name=f"{prefix}.{suffix}", initializer=Constant(initial[key])))

    trained = ("scale_w", "bias") if enable_scale_and_shift else ()
    return also(
        **{suffix: parameter(suffix, suffix) for suffix in trained},
        BatchSize=parameter("batch_size", "batch_size"),
        BatchSum=parameter("batch_sum", "batch_sum"),
        BatchSquareSum=parameter("batch_square_sum", "batch_square"),
    )


ALPHA_ATTRIBUTES = {"leaky_relu": "alpha", "elu": "alpha"}
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

    Fluid recomputes the input from the result to save memory; here the input is saved, and memory is shared wherever
    that is safe.

    input: As for ``batch_norm``
    act: ``"identity"``, ``"leaky_relu"`` or ``"elu"``; None: the identity
    param_attr, bias_attr: Of the scale, ``inplace_abn_0.w_0``, and of the bias, ``inplace_abn_0.b_0``
    moving_mean_name, moving_variance_name: Of the averages; default ``inplace_abn_0.w_1`` and ``inplace_abn_0.w_2``
    do_model_average_for_mean_and_var, use_global_stats: As for ``batch_norm``
    act_alpha: The slope of ``leaky_relu``, the scale of ``elu``
    Returns: As ``input``
    """
    if act not in (None, "identity", *ALPHA_ATTRIBUTES):
        refuse("act", act, "'identity', 'leaky_relu' or 'elu'", error=AttributeValueError)
    activation = None
    if act in ALPHA_ATTRIBUTES:
        activation = {"type": act, ALPHA_ATTRIBUTES[act]: check_float("act_alpha", act_alpha)}
    return batch_norm(
        input,
        activation,
        is_test,
        momentum,
        epsilon,
        param_attr,
        bias_attr,
        data_layout,
        name=unique_name.generate("inplace_abn") if name is None else name,
        moving_mean_name=moving_mean_name,
        moving_variance_name=moving_variance_name,
        do_model_average_for_mean_and_var=do_model_average_for_mean_and_var,
        use_global_stats=use_global_stats,
    )


@layer("spectral_norm")
def spectral_norm(
    weight: Variable, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, name: str | None = None
) -> Variable:
    """Divide a weight by an estimate of its largest singular value.

    Two persistent vectors, initially normal random numbers, approach the singular vectors by ``power_iters`` iterations
    in each run.

    Returns: As ``weight``
    Raises: If a dim of ``weight`` is not known, or an argument is out of its range

    >>> spectral_norm(data("weight", [2, 1])).shape
    (2, 1)
    """
    if not 2 <= len(weight.shape) <= 5 or any(d < 1 for d in weight.shape):
        refuse("weight", weight, "rank 2 to 5, with known dims of 1 or more")
    if weight.dtype not in FLOATS:
        refuse("weight", weight, "float32 or float64", error=DtypeError)
    rows, normal = weight.shape[dim], ParamAttr(initializer=Normal(0.0, 1.0))
    u, v = (Weight([count], stop_gradient=True, attr=normal) for count in (rows, prod(weight.shape) // rows))
    return also(U=u, V=v)
