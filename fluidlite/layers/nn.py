"""Layers of a network: those with parameters, products, reductions, shapes, indexing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from fluidlite.framework.variable import Variable
from fluidlite.framework.vartype import dtype_of
from fluidlite.layer_helper import (
    LayerHelper,
    check_float,
    check_int,
    check_ints,
    check_variable,
    refuse,
)
from fluidlite.layers.common import append

__all__ = [
    "clip_by_norm", "crop", "dropout", "embedding", "fc", "gather", "l2_normalize", "matmul", "maxout", "mean", "mul",
    "one_hot", "reduce_max", "reduce_mean", "reduce_min", "reduce_sum", "reshape", "scale", "slice", "softmax",
    "split", "topk", "transpose",
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


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """Return the rows of a table that the ids in ``input`` name.

    Parameters
    ----------
    input : Variable
        Ids, [..., 1], integers.
    size : (vocabulary, width)
        Dims of the table.
    is_sparse : bool
        Asks for a sparse gradient of the table.
    is_distributed : bool
        Taken for Fluid's sake.
    padding_idx : int, optional
        Rows of this id are zeros and get no gradient; negative ones count from the end of the vocabulary.
    param_attr : ParamAttr, optional
        Of the table, ``embedding_0.w_0``.
    dtype : str
    """
    check_variable("input", input)
    size = check_ints("size", size)
    if len(size) != 2 or min(size) < 1:
        refuse("size", size, "[vocabulary, width], both 1 or more")
    helper = LayerHelper("embedding", param_attr=param_attr)
    padding = -1
    if padding_idx is not None:
        padding = check_int("padding_idx", padding_idx)
        if not -size[0] <= padding < size[0]:
            refuse("padding_idx", padding_idx, f"an id in [{-size[0]}, {size[0]})")
        padding %= size[0]
    attr = helper.param_attr
    if isinstance(attr, list):
        refuse("param_attr", param_attr, "one ParamAttr: an embedding has one table")
    table = helper.create_parameter(attr, size, dtype)
    out = helper.create_variable_for_type_inference(dtype)
    attrs = {"is_sparse": is_sparse, "is_distributed": is_distributed, "padding_idx": padding}
    helper.append_op("lookup_table", {"W": table, "Ids": input}, {"Out": out}, attrs)
    return out


# Elementwise, with attributes of their own -------------------------------------------------------------------------


def scale(
    x: Variable,
    scale: float = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: Any = None,
    name: str | None = None,
) -> Variable:
    """Return scale * x + bias, or scale * (x + bias)."""
    attrs = {
        "scale": check_float("scale", scale), "bias": check_float("bias", bias), "bias_after_scale": bias_after_scale,
    }  # fmt: skip
    return append("scale", "scale", {"X": check_variable("x", x)}, attrs, name=name, act=act)


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
    """
    attrs = {
        "dropout_prob": check_float("dropout_prob", dropout_prob), "is_test": is_test, "fix_seed": seed is not None,
        "seed": check_int("seed", seed) if seed is not None else 0, "dropout_implementation": dropout_implementation,
    }  # fmt: skip
    return append("dropout", "dropout", {"X": check_variable("x", x)}, attrs, extra=("Mask",), name=name)


def softmax(input: Variable, use_cudnn: bool = True, name: str | None = None, axis: int = -1) -> Variable:
    """Return exp(input), divided by its sum over the last axis."""
    inputs = {"X": check_variable("input", input)}
    return append("softmax", "softmax", inputs, {"axis": check_int("axis", axis)}, name=name)


def maxout(x: Variable, groups: int, name: str | None = None) -> Variable:
    """Return the maximum over groups of neighbouring channels of ``x``, [batch, channels, height, width]."""
    return append("maxout", "maxout", {"X": check_variable("x", x)}, {"groups": check_int("groups", groups)}, name=name)


# Products ----------------------------------------------------------------------------------------------------------


def mul(
    x: Variable, y: Variable, x_num_col_dims: int = 1, y_num_col_dims: int = 1, name: str | None = None
) -> Variable:
    """Return the product of two tensors, flattened to matrices after that many leading dims."""
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
    """Return alpha op(x) . op(y), batch by batch over leading dims; a vector is a row on the left, else a column."""
    inputs = {"X": check_variable("x", x), "Y": check_variable("y", y)}
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": check_float("alpha", alpha)}
    return append("matmul", "matmul", inputs, attrs, name=name)


# Reductions --------------------------------------------------------------------------------------------------------


def mean(x: Variable, name: str | None = None) -> Variable:
    """Return the mean of all elements, as [1]."""
    return append("mean", "mean", {"X": check_variable("x", x)}, name=name)


def _reduce(type: str, input: Variable, dim: int | Sequence[int] | None, keep_dim: bool, name: str | None) -> Variable:
    attrs = {
        "dim": [0] if dim is None else check_ints("dim", dim), "keep_dim": keep_dim, "reduce_all": dim is None,
    }  # fmt: skip
    return append(type, type, {"X": check_variable("input", input)}, attrs, name=name)


def reduce_sum(
    input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
) -> Variable:
    """Return the sum over the dims (None: all, as [1])."""
    return _reduce("reduce_sum", input, dim, keep_dim, name)


def reduce_mean(
    input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
) -> Variable:
    """Return the mean over the dims (None: all, as [1])."""
    return _reduce("reduce_mean", input, dim, keep_dim, name)


def reduce_max(
    input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
) -> Variable:
    """Return the maximum over the dims (None: all, as [1])."""
    return _reduce("reduce_max", input, dim, keep_dim, name)


def reduce_min(
    input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
) -> Variable:
    """Return the minimum over the dims (None: all, as [1])."""
    return _reduce("reduce_min", input, dim, keep_dim, name)


def l2_normalize(x: Variable, axis: int, epsilon: float = 1e-12, name: str | None = None) -> Variable:
    """Return x / sqrt(sum(x^2) + epsilon), the sum being over ``axis``."""
    x = check_variable("x", x)
    helper = LayerHelper("l2_normalize", name=name)
    tmp = [helper.create_variable_for_type_inference(x.dtype) for _ in range(4)]
    helper.append_op("square", {"X": x}, {"Out": tmp[0]})
    attrs = {"dim": [check_int("axis", axis)], "keep_dim": True}
    helper.append_op("reduce_sum", {"X": tmp[0]}, {"Out": tmp[1]}, attrs)
    helper.append_op("scale", {"X": tmp[1]}, {"Out": tmp[2]}, {"bias": check_float("epsilon", epsilon)})
    helper.append_op("sqrt", {"X": tmp[2]}, {"Out": tmp[3]})
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op("elementwise_div", {"X": x, "Y": tmp[3]}, {"Out": out})
    return out


def clip_by_norm(x: Variable, max_norm: float, name: str | None = None) -> Variable:
    """Return ``x``, scaled down to the L2 norm ``max_norm`` if its own is larger."""
    x = check_variable("x", x)
    max_norm = check_float("max_norm", max_norm)
    helper = LayerHelper("clip_by_norm", name=name)
    tmp = [helper.create_variable_for_type_inference(x.dtype) for _ in range(6)]
    helper.append_op("square", {"X": x}, {"Out": tmp[0]})
    helper.append_op("reduce_sum", {"X": tmp[0]}, {"Out": tmp[1]}, {"reduce_all": True})
    helper.append_op("sqrt", {"X": tmp[1]}, {"Out": tmp[2]})
    helper.append_op("fill_constant", {}, {"Out": tmp[3]}, {"shape": [1], "value": max_norm, "dtype": x.dtype})
    tmp[3].stop_gradient = True
    helper.append_op("elementwise_max", {"X": tmp[2], "Y": tmp[3]}, {"Out": tmp[4]})
    helper.append_op("elementwise_div", {"X": tmp[3], "Y": tmp[4]}, {"Out": tmp[5]})
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op("elementwise_mul", {"X": x, "Y": tmp[5]}, {"Out": out})
    return out


# Shapes ------------------------------------------------------------------------------------------------------------


def reshape(
    x: Variable,
    shape: Sequence[int],
    actual_shape: Variable | None = None,
    act: Any = None,
    inplace: bool = False,
    name: str | None = None,
) -> Variable:
    """Return ``x`` in other dims.

    Parameters
    ----------
    x : Variable
    shape : sequence of int
        One may be -1: what remains; 0 means as in ``x``.
    actual_shape : None
        Dims read from a tensor are not possible here.
    act : str, optional
    inplace : bool
        Taken for Fluid's sake: the bytes are shared wherever that is safe.
    name : str, optional
    """
    if actual_shape is not None:
        do = "say them in shape, with -1 and 0"
        refuse("actual_shape", actual_shape, "None: dims cannot be read from a tensor", do)
    attrs = {"shape": check_ints("shape", shape)}
    return append("reshape2", "reshape2", {"X": check_variable("x", x)}, attrs, extra=("XShape",), name=name, act=act)


def transpose(x: Variable, perm: Sequence[int], name: str | None = None) -> Variable:
    """Return ``x`` with dim ``perm[i]`` as its ``i``-th."""
    attrs = {"axis": check_ints("perm", perm)}
    return append("transpose", "transpose2", {"X": check_variable("x", x)}, attrs, extra=("XShape",), name=name)


def split(
    input: Variable, num_or_sections: int | Sequence[int], dim: int = -1, name: str | None = None
) -> list[Variable]:
    """Divide ``input`` along a dim.

    Parameters
    ----------
    input : Variable
    num_or_sections : int or list of int
        How many equal parts, or the size of each; one may be -1: what remains.
    dim : int
    name : str, optional

    Returns
    -------
    list of Variable
    """
    check_variable("input", input)
    helper = LayerHelper("split", name=name)
    attrs: dict[str, Any] = {"axis": check_int("dim", dim)}
    if isinstance(num_or_sections, (list, tuple)):
        attrs["sections"] = check_ints("num_or_sections", num_or_sections)
        count = len(attrs["sections"])
    else:
        count = attrs["num"] = check_int("num_or_sections", num_or_sections, minimum=1)
    if not count:
        refuse("num_or_sections", num_or_sections, "one section or more")
    outs = [helper.create_variable_for_type_inference(input.dtype) for _ in range(count)]
    helper.append_op("split", {"X": input}, {"Out": outs}, attrs)
    return outs


def slice(input: Variable, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Variable:
    """Return ``input[start:end]`` along each of the axes; negative bounds count from the end."""
    attrs = {"axes": check_ints("axes", axes), "starts": check_ints("starts", starts), "ends": check_ints("ends", ends)}
    return append("slice", "slice", {"Input": check_variable("input", input)}, attrs)


def crop(x: Variable, shape: Any = None, offsets: Any = None, name: str | None = None) -> Variable:
    """Cut a block out of ``x``.

    Parameters
    ----------
    x : Variable
    shape : Variable or sequence of int
        Dims of the block, or a Variable that has them.
    offsets : Variable or sequence of int, optional
        Where it begins; default: 0 everywhere.
    name : str, optional
    """
    inputs = {"X": check_variable("x", x)}
    attrs: dict[str, Any] = {}
    if isinstance(shape, Variable):
        inputs["Y"] = shape
    elif shape is None:
        refuse("shape", None, "dims, or a Variable that has them")
    else:
        attrs["shape"] = check_ints("shape", shape)
    if isinstance(offsets, Variable):
        inputs["Offsets"] = offsets
    else:
        attrs["offsets"] = [0] * len(x.shape) if offsets is None else check_ints("offsets", offsets)
    return append("crop", "crop", inputs, attrs, name=name)


# Indexing ----------------------------------------------------------------------------------------------------------


def gather(input: Variable, index: Variable) -> Variable:
    """Return the rows of ``input`` that ``index`` names."""
    return append("gather", "gather", {"X": check_variable("input", input), "Index": check_variable("index", index)})


def one_hot(input: Variable, depth: int) -> Variable:
    """Return float32 [..., depth] with 1 at the class that ``input``, [..., 1], names."""
    attrs = {"depth": check_int("depth", depth, minimum=1), "dtype": dtype_of("float32")}
    return append("one_hot", "one_hot", {"X": check_variable("input", input)}, attrs, stop_gradient=True)


def topk(input: Variable, k: int, name: str | None = None) -> tuple[Variable, Variable]:
    """Return the ``k`` largest elements of each row, largest first, and where they are (int64)."""
    check_variable("input", input)
    helper = LayerHelper("top_k", name=name)
    values = helper.create_variable_for_type_inference(input.dtype, stop_gradient=True)
    indices = helper.create_variable_for_type_inference("int64", stop_gradient=True)
    helper.append_op("top_k", {"X": input}, {"Out": values, "Indices": indices}, {"k": check_int("k", k, minimum=1)})
    return values, indices
