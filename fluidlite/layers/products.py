"""Layers of products and norms of rows, and activations with a parameter or a tensor of their own."""

from __future__ import annotations

from typing import Any

from fluidlite.framework.variable import Variable
from fluidlite.initializer import Constant
from fluidlite.layer_helper import LayerHelper, check_float, check_int, check_variable, refuse
from fluidlite.layers.common import append

__all__ = ["bilinear_tensor_product", "clip_by_norm", "cos_sim", "dot", "pow", "prelu"]


def cos_sim(X: Variable, Y: Variable) -> Variable:
    """Return the cosine of the angle between the rows of two tensors.

    Parameters
    ----------
    X : Variable
        [rows, ...], floating-point numbers.
    Y : Variable
        As X, or one row, which is compared with each row of X.

    Returns
    -------
    Variable
        [rows, 1].

    Raises
    ------
    ShapeError
        If the rows differ in their dims, or Y has neither one row nor as many as X.
    """
    inputs = {"X": check_variable("X", X), "Y": check_variable("Y", Y)}
    return append("cos_sim", "cos_sim", inputs, extra=("XNorm", "YNorm"))


def dot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return the inner product of two vectors, as [1], or of the rows of two matrices, as [rows, 1].

    Parameters
    ----------
    x, y : Variable
        [width] or [rows, width], of equal dims.
    name : str, optional

    Returns
    -------
    Variable
    """
    return append("dot", "dot", {"X": check_variable("x", x), "Y": check_variable("y", y)}, name=name)


def bilinear_tensor_product(
    x: Variable,
    y: Variable,
    size: int,
    act: Any = None,
    name: str | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
) -> Variable:
    """Return act(x W[i] y^T + b[i]) of each row, for i = 0 .. size - 1.

    Parameters
    ----------
    x : Variable
        [rows, M].
    y : Variable
        [rows, N].
    size : int
        Width of the result.
    act : str, optional
        An activation.
    name : str, optional
    param_attr : ParamAttr, optional
        Of the weight, [size, M, N].
    bias_attr : ParamAttr, optional
        Of the bias, [1, size]; False: no bias.

    Returns
    -------
    Variable
        [rows, size].

    Raises
    ------
    ProgramError
        If x or y is no matrix of a known width.
    """
    helper = LayerHelper("bilinear_tensor_product", name=name, param_attr=param_attr, bias_attr=bias_attr, act=act)
    size = check_int("size", size, minimum=1)
    widths = []
    for argument, variable in (("x", x), ("y", y)):
        dims = check_variable(argument, variable).shape
        if len(dims) != 2 or dims[1] < 0:
            refuse(argument, variable, "[rows, width] with a known width: the weight's dims depend on it")
        widths.append(dims[1])
    attr, bias = helper.param_attr, helper.bias_attr
    if isinstance(attr, list) or isinstance(bias, list):
        refuse("param_attr", param_attr, "one ParamAttr: the layer has one weight and one bias")
    weight = helper.create_parameter(attr, [size, *widths], x.dtype)
    inputs = {"X": x, "Y": y, "Weight": weight}
    if bias is not False:
        inputs["Bias"] = helper.create_parameter(bias, [1, size], x.dtype, is_bias=True)
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op("bilinear_tensor_product", inputs, {"Out": out})
    return helper.append_activation(out)


def clip_by_norm(x: Variable, max_norm: float, name: str | None = None) -> Variable:
    """Return ``x``, scaled down to the L2 norm ``max_norm`` if its own is larger; it has no derivative.

    It is meant for gradients. Fluid leaves out paths through it; here backward raises on one.

    Parameters
    ----------
    x : Variable
    max_norm : float
        Above 0.
    name : str, optional

    Returns
    -------
    Variable
    """
    attrs = {"max_norm": check_float("max_norm", max_norm)}
    return append("clip_by_norm", "clip_by_norm", {"X": check_variable("x", x)}, attrs, name=name)


def pow(x: Variable, factor: Any = 1.0, name: str | None = None) -> Variable:
    """Return ``x`` to the power ``factor``, element by element.

    Parameters
    ----------
    x : Variable
        Floating-point numbers.
    factor : float or Variable
        The exponent; a Variable holds one number, [1], and gets no gradient.
    name : str, optional

    Returns
    -------
    Variable
    """
    inputs, attrs = {"X": check_variable("x", x)}, {}
    if isinstance(factor, Variable):
        factor.stop_gradient = True
        inputs["FactorTensor"] = factor
    else:
        attrs["factor"] = check_float("factor", factor)
    return append("pow", "pow", inputs, attrs, name=name)


def prelu(x: Variable, mode: str, param_attr: Any = None, name: str | None = None) -> Variable:
    """Return ``x`` where it is above 0, else ``alpha x`` with a parameter alpha.

    Parameters
    ----------
    x : Variable
        [rows, channels, ...].
    mode : str
        ``"all"``: one alpha; ``"channel"``: one for each channel, [1, channels, 1, ...]; ``"element"``: one for each
        element of a row, [1, channels, ...].
    param_attr : ParamAttr, optional
        Of alpha, which is 1 at first.
    name : str, optional

    Returns
    -------
    Variable

    Raises
    ------
    ProgramError
        If mode is another one, or dims that alpha needs are not known.
    """
    dims = check_variable("x", x).shape
    if mode not in ("all", "channel", "element"):
        refuse("mode", mode, "'all', 'channel' or 'element'")
    shape = [1]
    if mode != "all":
        if len(dims) < 2:
            refuse("x", x, "[rows, channels, ...]: with this mode alpha has those dims")
        shape = [1, dims[1], *(1,) * (len(dims) - 2)] if mode == "channel" else [1, *dims[1:]]
        if min(shape) < 0:
            refuse("x", x, f"known dims behind the first: alpha would be {shape}")
    helper = LayerHelper("prelu", name=name, param_attr=param_attr)
    attr = helper.param_attr
    if isinstance(attr, list):
        refuse("param_attr", param_attr, "one ParamAttr: the layer has one parameter")
    alpha = helper.create_parameter(attr, shape, x.dtype, default_initializer=Constant(1.0))
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op("prelu", {"X": x, "Alpha": alpha}, {"Out": out}, {"mode": mode})
    return out
