"""Layers that index: rows and elements by number, orders, unique values, embeddings, hashes, random crops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite import unique_name
from fluidlite.framework.variable import Variable
from fluidlite.framework.vartype import dtype_of
from fluidlite.initializer import Constant
from fluidlite.layer_helper import LayerHelper, check_float, check_int, check_ints, check_variable, refuse
from fluidlite.layers.common import append
from fluidlite.layers.tensor import zeros

__all__ = [
    "argmax", "argmin", "argsort", "embedding", "gather", "gather_nd", "hash", "one_hot", "random_crop", "sampling_id",
    "scatter", "scatter_nd", "scatter_nd_add", "shard_index", "topk", "unique", "unique_with_counts", "where",
]  # fmt: skip

# By number ---------------------------------------------------------------------------------------------------------


def gather(input: Variable, index: Variable, overwrite: bool = True) -> Variable:
    """Return the rows of ``input`` that ``index`` names.

    Parameters
    ----------
    input : Variable
        [rows, ...].
    index : Variable
        Integers, [count] or [count, 1]; one out of range is an OutOfRangeError at run time.
    overwrite : bool
        Taken for Fluid's sake: the gradients of a row that is named twice add up.

    Returns
    -------
    Variable
        [count, ...].
    """
    inputs = {"X": check_variable("input", input), "Index": check_variable("index", index)}
    return append("gather", "gather", inputs, {"overwrite": overwrite})


def gather_nd(input: Variable, index: Variable, name: str | None = None) -> Variable:
    """Return the parts of ``input`` that ``index`` names.

    Parameters
    ----------
    input : Variable
    index : Variable
        Integers, [..., depth]: an index for each of the first ``depth`` dims of ``input``.
    name : str, optional

    Returns
    -------
    Variable
        [..., the other dims of input].
    """
    inputs = {"X": check_variable("input", input), "Index": check_variable("index", index)}
    return append("gather_nd", "gather_nd", inputs, name=name)


def scatter(
    input: Variable, index: Variable, updates: Variable, name: str | None = None, overwrite: bool = True
) -> Variable:
    """Return ``input`` with other rows.

    Parameters
    ----------
    input : Variable
        [rows, ...].
    index : Variable
        Integers, [count] or [count, 1].
    updates : Variable
        [count, ...]: the rows.
    name : str, optional
    overwrite : bool
        A row that is named twice is the last of its updates; False: a row is the sum of its updates.

    Returns
    -------
    Variable
    """
    inputs = {
        "X": check_variable("input", input), "Ids": check_variable("index", index),
        "Updates": check_variable("updates", updates),
    }  # fmt: skip
    return append("scatter", "scatter", inputs, {"overwrite": overwrite}, name=name)


def scatter_nd_add(ref: Variable, index: Variable, updates: Variable, name: str | None = None) -> Variable:
    """Return ``ref`` plus ``updates`` at ``index``.

    Parameters
    ----------
    ref : Variable
    index : Variable
        Integers, [..., depth] of rank 2 or more: an index for each of the first ``depth`` dims of ``ref``.
    updates : Variable
        [..., the other dims of ref]; what meets at one place adds up.
    name : str, optional

    Returns
    -------
    Variable
        Dims of ``ref``.

    Raises
    ------
    DtypeError
        If ``updates`` has another dtype than ``ref``.
    """
    inputs = {
        "X": check_variable("ref", ref), "Index": check_variable("index", index),
        "Updates": check_variable("updates", updates),
    }  # fmt: skip
    return append("scatter_nd_add", "scatter_nd_add", inputs, name=name)


def scatter_nd(index: Variable, updates: Variable, shape: Sequence[int], name: str | None = None) -> Variable:
    """Return zeros of dims ``shape``, plus ``updates`` at ``index``. See :func:`scatter_nd_add`.

    Parameters
    ----------
    index, updates : Variable
    shape : sequence of int
    name : str, optional

    Returns
    -------
    Variable
    """
    dtype = check_variable("updates", updates).dtype
    return scatter_nd_add(zeros(check_ints("shape", shape), dtype), index, updates, name)


def shard_index(input: Variable, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1) -> Variable:
    """Return indices as one of several shards counts them, ``ignore_value`` for those of other shards.

    Parameters
    ----------
    input : Variable
        Integers, [..., 1], from 0 to ``index_num`` - 1.
    index_num : int
        How many there are; each shard holds a block of ``ceil(index_num / nshards)``.
    nshards, shard_id : int
    ignore_value : int

    Returns
    -------
    Variable
        Dims of ``input``.
    """
    attrs = {
        "index_num": check_int("index_num", index_num), "nshards": check_int("nshards", nshards),
        "shard_id": check_int("shard_id", shard_id), "ignore_value": check_int("ignore_value", ignore_value),
    }  # fmt: skip
    inputs = {"X": check_variable("input", input)}
    return append("shard_index", "shard_index", inputs, attrs, stop_gradient=True)


# Classes -----------------------------------------------------------------------------------------------------------


def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """Return float32 [..., depth] with 1 at the class that ``input`` names.

    Parameters
    ----------
    input : Variable
        Integers, [..., 1].
    depth : int or Variable
        Number of classes.
    allow_out_of_range : bool
        A class out of range makes zeros; otherwise it is an OutOfRangeError.

    Returns
    -------
    Variable
    """
    return _one_hot("one_hot", input, depth, allow_out_of_range)


def _one_hot(type: str, input: Variable, depth: int | Variable, allow_out_of_range: bool) -> Variable:
    inputs = {"X": check_variable("input", input)}
    attrs: dict[str, Any] = {"dtype": dtype_of("float32"), "allow_out_of_range": allow_out_of_range}
    if isinstance(depth, Variable):
        inputs["depth_tensor"] = depth
    else:
        attrs["depth"] = check_int("depth", depth, minimum=1)
    return append("one_hot", type, inputs, attrs, stop_gradient=True)


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

    Returns
    -------
    Variable
        [..., width].
    """
    return _embedding("lookup_table", input, size, is_sparse, is_distributed, padding_idx, param_attr, dtype)


def _embedding(
    type: str, input: Variable, size: Sequence[int], is_sparse: bool, is_distributed: bool, padding_idx: int | None,
    param_attr: Any, dtype: Any,
) -> Variable:  # fmt: skip
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
    helper.append_op(type, {"W": table, "Ids": input}, {"Out": out}, attrs)
    return out


# Orders ------------------------------------------------------------------------------------------------------------


def argsort(
    input: Variable, axis: int = -1, descending: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:
    """Sort along an axis; equal elements keep their order, NaN comes last.

    Parameters
    ----------
    input : Variable
    axis : int
    descending : bool
        Largest first.
    name : str, optional

    Returns
    -------
    (Variable, Variable)
        The sorted elements, and where each was (int64).
    """
    attrs = {"axis": check_int("axis", axis), "descending": descending}
    return _ranked("argsort", {"X": check_variable("input", input)}, attrs, name)


def topk(input: Variable, k: int | Variable, name: str | None = None) -> tuple[Variable, Variable]:
    """Find the ``k`` (an int, or a Variable that holds it) largest elements of each row, largest first.

    Parameters
    ----------
    input : Variable
        [..., width].
    k : int or Variable
    name : str, optional

    Returns
    -------
    (Variable, Variable)
        The elements, and where they are (int64); of equal ones, the first.
    """
    inputs = {"X": check_variable("input", input)}
    if isinstance(k, Variable):
        return _ranked("top_k", {**inputs, "K": k}, {}, name)
    return _ranked("top_k", inputs, {"k": check_int("k", k, minimum=1)}, name)


def _ranked(
    type: str, inputs: dict[str, Variable], attrs: dict[str, Any], name: str | None
) -> tuple[Variable, Variable]:
    helper = LayerHelper(type, name=name)
    values = helper.create_variable_for_type_inference(inputs["X"].dtype)
    indices = helper.create_variable_for_type_inference("int64", stop_gradient=True)
    helper.append_op(type, inputs, {"Out": values, "Indices": indices}, attrs)
    return values, indices


def argmax(x: Variable, axis: int = 0) -> Variable:
    """Return where the largest elements are along an axis (int64), without that axis; of equal ones, the first.

    Parameters
    ----------
    x : Variable
    axis : int

    Returns
    -------
    Variable
        int64.
    """
    return append("arg_max", "arg_max", {"X": check_variable("x", x)}, {"axis": check_int("axis", axis)},
                  stop_gradient=True)  # fmt: skip


def argmin(x: Variable, axis: int = 0) -> Variable:
    """Return where the least elements are along an axis (int64), without that axis; of equal ones, the first.

    Parameters
    ----------
    x : Variable
    axis : int

    Returns
    -------
    Variable
        int64.
    """
    return append("arg_min", "arg_min", {"X": check_variable("x", x)}, {"axis": check_int("axis", axis)},
                  stop_gradient=True)  # fmt: skip


# Sizes that values decide ------------------------------------------------------------------------------------------


def where(condition: Variable) -> Variable:
    """Return the indices of the elements that are not 0, int64 [count, rank of condition].

    Parameters
    ----------
    condition : Variable

    Returns
    -------
    Variable
    """
    return append("where", "where_index", {"Condition": check_variable("condition", condition)}, stop_gradient=True)


def unique(x: Variable, dtype: Any = "int32") -> tuple[Variable, Variable]:
    """Find the different values of ``x``, [size], in the order in which they come first.

    Parameters
    ----------
    x : Variable
    dtype : str
        int32 or int64.

    Returns
    -------
    (Variable, Variable)
        The values, and for each element of ``x`` which of them it is (``dtype``).
    """
    out, index = _unique("unique", ("Out", "Index"), x, dtype)
    return out, index


def unique_with_counts(x: Variable, dtype: Any = "int32") -> tuple[Variable, Variable, Variable]:
    """As :func:`unique`, with a third result: how often each value comes (``dtype``).

    Parameters
    ----------
    x : Variable
    dtype : str
        int32 or int64.

    Returns
    -------
    (Variable, Variable, Variable)
        Values, places, counts.
    """
    out, index, count = _unique("unique_with_counts", ("Out", "Index", "Count"), x, dtype)
    return out, index, count


def _unique(type: str, slots: tuple[str, ...], x: Variable, dtype: Any) -> list[Variable]:
    helper = LayerHelper(type)
    outs = {slot: helper.create_variable_for_type_inference(stop_gradient=True) for slot in slots}
    helper.append_op(type, {"X": check_variable("x", x)}, outs, {"dtype": dtype_of(dtype)})
    return list(outs.values())


# Hashes and random choices -----------------------------------------------------------------------------------------


def hash(input: Variable, hash_size: int, num_hash: int = 1, name: str | None = None) -> Variable:
    """Return hashes of each row's bytes (XXH64 under the seeds 0, 1, ...) modulo ``hash_size``.

    Parameters
    ----------
    input : Variable
        int32 or int64, [rows, width].
    hash_size, num_hash : int
    name : str, optional

    Returns
    -------
    Variable
        [rows, num_hash, 1], in the dtype of ``input``.
    """
    attrs = {"num_hash": check_int("num_hash", num_hash), "mod_by": check_int("hash_size", hash_size)}
    return append("hash", "hash", {"X": check_variable("input", input)}, attrs, name=name, stop_gradient=True)


def sampling_id(x: Variable, min: float = 0.0, max: float = 1.0, seed: int = 0, dtype: Any = "float32") -> Variable:
    """Return a class for each row of ``x``, [rows, classes], drawn with the row's probabilities.

    Parameters
    ----------
    x : Variable
    min, max : float
        The random numbers are uniform in [min, max).
    seed : int
        0: the program's.
    dtype : str
        Taken for Fluid's sake: the result is int64, [rows].

    Returns
    -------
    Variable
    """
    attrs = {"min": check_float("min", min), "max": check_float("max", max), "seed": check_int("seed", seed)}
    return append("sampling_id", "sampling_id", {"X": check_variable("x", x)}, attrs, stop_gradient=True)


def random_crop(x: Variable, shape: Sequence[int], seed: int | Variable | None = None) -> Variable:
    """Return a block of each instance of ``x``, at random places.

    Parameters
    ----------
    x : Variable
    shape : sequence of int
        Dims of a block: the last ones of the result. What comes before them counts the instances.
    seed : int or Variable, optional
        The first seed (default: a random one), kept and moved on in a variable of the program; or an int64 Variable.

    Returns
    -------
    Variable
    """
    helper = LayerHelper("random_crop")
    attrs: dict[str, Any] = {"shape": check_ints("shape", shape)}
    if not isinstance(seed, Variable):
        first = int(np.random.randint(-65536, 65535)) if seed is None else check_int("seed", seed)
        attrs["startup_seed"] = first
        name = unique_name.generate("random_crop_seed")
        seed = helper.create_global_variable(True, name=name, shape=[1], dtype="int64", stop_gradient=True)
        helper.set_variable_initializer(seed, Constant(first))
    out = helper.create_variable_for_type_inference(stop_gradient=True)
    inputs = {"X": check_variable("x", x), "Seed": seed}
    helper.append_op("random_crop", inputs, {"Out": out, "SeedOut": seed}, attrs)
    return out
