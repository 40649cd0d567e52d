"""Layers of a network: those with parameters, products, reductions, indexing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import (
    LayerHelper,
    check_float,
    check_int,
    check_variable,
    refuse,
)
from fluidlite.layers.common import append

__all__ = [
    "dropout", "fc", "matmul", "maxout", "mul", "scale", "softmax",
]  # fmt: skip

# With parameters ---------------------------------------------------------------------------------------------------


def fc(
    input: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    is_test: bool = False,
    name: str | None = None,
) -> Variable:
    """Return act(sum of input . weight + bias): a fully connected layer.

    Parameters
    ----------
    input : Variable or list of Variables
        Each gets a weight of its own.
    size : int
        Number of units: the width of the result.
    num_flatten_dims : int
        How many leading dims are kept; the others are flattened into the weight's rows.
    param_attr : ParamAttr, optional
        Of the weights, ``fc_0.w_0``; a list for several inputs.
    bias_attr : ParamAttr, optional
        Of the bias, ``fc_0.b_0``; False: no bias.
    act : str, optional
        An activation.
    is_test : bool
        Taken for Fluid's sake.
    name : str, optional

    Returns
    -------
    Variable
        [*leading dims, size].
    """
    helper = LayerHelper("fc", name=name, input=input, param_attr=param_attr, bias_attr=bias_attr, act=act)
    size = check_int("size", size, minimum=1)
    num_flatten_dims = check_int("num_flatten_dims", num_flatten_dims, minimum=1)
    dtype = helper.input_dtype()
    products = []
    for variable, attr in helper.iter_inputs_and_params():
        inner = variable.shape[num_flatten_dims:]
        if not inner:
            refuse("input", variable, f"a rank above num_flatten_dims = {num_flatten_dims}")
        if any(d < 0 for d in inner):
            do = "say these dims in layers.data, or reshape the input"
            refuse("input", variable, f"known dims from dim {num_flatten_dims} on: they are the weight's rows", do)
        weight = helper.create_parameter(attr, [prod(inner), size], dtype)
        product = helper.create_variable_for_type_inference(dtype)
        attrs = {"x_num_col_dims": num_flatten_dims, "y_num_col_dims": 1}
        helper.append_op("mul", {"X": variable, "Y": weight}, {"Out": product}, attrs)
        products.append(product)
    total = products[0]
    if len(products) > 1:
        total = helper.create_variable_for_type_inference(dtype)
        helper.append_op("sum", {"X": products}, {"Out": total})
    return helper.append_activation(helper.append_bias_op(total, dim_start=num_flatten_dims))


# Elementwise, with attributes of their own -------------------------------------------------------------------------


def scale(
    x: Variable,
    scale: float | Variable = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: Any = None,
    name: str | None = None,
) -> Variable:
    """Return scale * x + bias, or scale * (x + bias).

    Parameters
    ----------
    x : Variable
    scale : float or Variable
        A Variable holds one number, [1], of the dtype of ``x``, and gets no gradient.
    bias : float
    bias_after_scale : bool
        False: the bias is added first.
    act : str, optional
        An activation.
    name : str, optional

    Returns
    -------
    Variable
    """
    inputs = {"X": check_variable("x", x)}
    attrs = {"bias": check_float("bias", bias), "bias_after_scale": bias_after_scale}
    if isinstance(scale, Variable):
        inputs["ScaleTensor"] = scale
    else:
        attrs["scale"] = check_float("scale", scale)
    return append("scale", "scale", inputs, attrs, name=name, act=act)


def dropout(
    x: Variable,
    dropout_prob: float,
    is_test: bool = False,
    seed: int | None = None,
    name: str | None = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Variable:
    """Set elements of ``x`` to 0 at random.

    Parameters
    ----------
    x : Variable
    dropout_prob : float
        Probability of it.
    is_test : bool
        Nothing is dropped; ``Program.clone(for_test=True)`` sets this.
    seed : int, optional
        None: the program's.
    name : str, optional
    dropout_implementation : str
        ``"downgrade_in_infer"`` multiplies by 1 - dropout_prob at test; ``"upscale_in_train"`` divides by it in
        training.

    Returns
    -------
    Variable
        Dims and dtype of ``x``.
    """
    attrs = {
        "dropout_prob": check_float("dropout_prob", dropout_prob), "is_test": is_test, "fix_seed": seed is not None,
        "seed": check_int("seed", seed) if seed is not None else 0, "dropout_implementation": dropout_implementation,
    }  # fmt: skip
    return append("dropout", "dropout", {"X": check_variable("x", x)}, attrs, extra=("Mask",), name=name)


def softmax(input: Variable, use_cudnn: bool = True, name: str | None = None, axis: int = -1) -> Variable:
    """Return exp(input), divided by its sum over ``axis``.

    Parameters
    ----------
    input : Variable
    use_cudnn : bool
        A hint.
    name : str, optional
    axis : int

    Returns
    -------
    Variable
    """
    inputs = {"X": check_variable("input", input)}
    return append("softmax", "softmax", inputs, {"axis": check_int("axis", axis)}, name=name)


def maxout(x: Variable, groups: int, name: str | None = None, axis: int = 1) -> Variable:
    """Return the maximum over groups of neighbouring channels.

    Parameters
    ----------
    x : Variable
        [batch, channels, height, width], or channels last if ``axis`` is -1 or 3.
    groups : int
        Channels of a group; it divides their number.
    name : str, optional
    axis : int
        Where the channels are: 1, -1 or 3.

    Returns
    -------
    Variable
        As ``x``, but with channels / groups channels.
    """
    attrs = {"groups": check_int("groups", groups), "axis": check_int("axis", axis)}
    return append("maxout", "maxout", {"X": check_variable("x", x)}, attrs, name=name)


# Products ----------------------------------------------------------------------------------------------------------


def mul(
    x: Variable, y: Variable, x_num_col_dims: int = 1, y_num_col_dims: int = 1, name: str | None = None
) -> Variable:
    """Return the product of two tensors, flattened to matrices after that many leading dims.

    Parameters
    ----------
    x, y : Variable
        Of one dtype; columns of the first are rows of the second.
    x_num_col_dims, y_num_col_dims : int
        How many leading dims are rows.
    name : str, optional

    Returns
    -------
    Variable
        [*rows of x, *columns of y].
    """
    inputs = {"X": check_variable("x", x), "Y": check_variable("y", y)}
    attrs = {
        "x_num_col_dims": check_int("x_num_col_dims", x_num_col_dims),
        "y_num_col_dims": check_int("y_num_col_dims", y_num_col_dims),
    }
    return append("mul", "mul", inputs, attrs, name=name)


def matmul(
    x: Variable,
    y: Variable,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Variable:
    """Return alpha op(x) . op(y), batch by batch over leading dims; a vector is a row on the left, else a column.

    Parameters
    ----------
    x, y : Variable
        Vectors, matrices or batches of them, of one dtype; leading dims are broadcast.
    transpose_x, transpose_y : bool
        op swaps the last two dims.
    alpha : float
    name : str, optional

    Returns
    -------
    Variable
    """
    inputs = {"X": check_variable("x", x), "Y": check_variable("y", y)}
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": check_float("alpha", alpha)}
    return append("matmul", "matmul", inputs, attrs, name=name)


def __getattr__(name: str) -> Any:
    """Layers that stand elsewhere here, under Fluid's path."""
    from fluidlite import layers

    if name in layers.__all__:
        return getattr(layers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
