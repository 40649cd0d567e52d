"""fc, scale, dropout, softmax, maxout, mul and matmul; Fluid's path of most layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from fluidlite.base.arguments import as_int
from fluidlite.layer_helper import (
    LayerHelper,
    check_int,
    refuse,
)
from fluidlite.layers.common import layers_getattr
from fluidlite.layers.declare import also, layer
from fluidlite.program.variable import Variable

# With parameters -----------------------------------------------------------------------------------------------------


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

    input: Each has a separate weight
    size: Number of units: the width of the result
    num_flatten_dims: How many leading dims are kept, -1: all but the last; the others are flattened into the weight's
        rows
    param_attr: Of the weights, ``fc_0.w_0``; a list for several inputs
    bias_attr: Of the bias, ``fc_0.b_0``; False: no bias
    act: An activation
    is_test: Taken for Fluid's sake
    Returns: [*leading dims, size]
    """
    helper = LayerHelper("fc", name=name, input=input, param_attr=param_attr, bias_attr=bias_attr, act=act)
    size = check_int("size", size, minimum=1)
    if as_int(num_flatten_dims) == -1:
        num_flatten_dims = len(helper.multiple_input()[0].shape) - 1
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


# Elementwise ---------------------------------------------------------------------------------------------------------


@layer("scale", {"scale": "scale|ScaleTensor"})
def scale(
    x: Variable,
    scale: float | Variable = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: Any = None,
    name: str | None = None,
) -> Variable:
    """Return scale * x + bias, or scale * (x + bias).

    scale: A Variable holds one number, [1], of the dtype of ``x``, and gets no gradient

    >>> scale(data("x", [2, 1], "int64")).shape
    (2, 1)
    """


@layer("dropout", extra=("Mask",))
def dropout(
    x: Variable,
    dropout_prob: float,
    is_test: bool = False,
    seed: int | None = None,
    name: str | None = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Variable:
    """Set elements of ``x`` to 0 at random.

    is_test: Nothing is dropped; ``Program.clone(for_test=True)`` sets this
    dropout_implementation: ``"downgrade_in_infer"`` multiplies by 1 - dropout_prob at test; ``"upscale_in_train"``
        divides by it in training
    Returns: Dims and dtype of ``x``

    >>> dropout(data("x", [2, 4, 4, 8, 8]), 1).shape
    (2, 4, 4, 8, 8)
    """
    return also(fix_seed=seed is not None)


@layer("softmax")
def softmax(input: Variable, use_cudnn: bool = True, name: str | None = None, axis: int = -1) -> Variable:
    """Return exp(input), divided by its sum over ``axis``.

    >>> softmax(data("input", [2, 4])).shape
    (2, 4)
    """


@layer("maxout")
def maxout(x: Variable, groups: int, name: str | None = None, axis: int = 1) -> Variable:
    """Return the maximum over groups of neighbouring channels.

    Returns: As ``x``, but with channels / groups channels

    >>> maxout(data("x", [2, 4, 8, 8]), 1).shape
    (2, 4, 8, 8)
    """


# Products ------------------------------------------------------------------------------------------------------------


@layer("mul")
def mul(
    x: Variable, y: Variable, x_num_col_dims: int = 1, y_num_col_dims: int = 1, name: str | None = None
) -> Variable:
    """Return the product of two tensors, flattened to matrices after that many leading dims.

    Returns: [*rows of x, *columns of y]

    >>> mul(data("x", [4, 4]), data("y", [4, 4])).shape
    (4, 4)
    """


@layer("matmul")
def matmul(
    x: Variable,
    y: Variable,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Variable:
    """Return alpha op(x) . op(y), batch by batch over leading dims; a vector is a row on the left, else a column.

    >>> matmul(data("x", [2, 4, 4, 8, 8]), data("y", [2, 4, 4, 8, 8])).shape
    (2, 4, 4, 8, 8)
    """


__getattr__ = layers_getattr(__name__)  # Fluid's path of layers that other modules declare
