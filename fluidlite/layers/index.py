"""Layers that index or sort: gather, scatter, embedding, argsort, topk, unique, hash, random_crop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite import unique_name
from fluidlite.initializer import Constant
from fluidlite.layer_helper import LayerHelper, check_int, check_ints, check_variable, refuse
from fluidlite.layers.declare import Unused, Weight, also, layer
from fluidlite.layers.tensor import zeros
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable

# Gather and scatter --------------------------------------------------------------------------------------------------


@layer("gather")
def gather(input: Variable, index: Variable, overwrite: bool = True) -> Variable:
    """Return the rows of ``input`` at ``index``.

    Returns: [count, ...]

    >>> gather(data("input", [2, 4]), data("index", [1], "int64")).shape
    (1, 4)
    """


@layer("gather_nd")
def gather_nd(input: Variable, index: Variable, name: str | None = None) -> Variable:
    """Return the parts of ``input`` at ``index``.

    index: Integers, [..., depth]: an index for each of the first ``depth`` dims of ``input``
    Returns: [..., the other dims of input]

    >>> gather_nd(data("input", [2, 4, 8, 8]), data("index", [2], "int64")).shape
    (8, 8)
    """


@layer("scatter", {"index": "Ids"})
def scatter(
    input: Variable, index: Variable, updates: Variable, name: str | None = None, overwrite: bool = True
) -> Variable:
    """Return ``input`` with other rows.

    >>> scatter(data("input", [1]), data("index", [1], "int64"), data("updates", [1])).shape
    (1,)
    """


@layer("scatter_nd_add", {"ref": "X"})
def scatter_nd_add(ref: Variable, index: Variable, updates: Variable, name: str | None = None) -> Variable:
    """Return ``ref`` plus ``updates`` at ``index``.

    Returns: Dims of ``ref``
    Raises: If ``updates`` has another dtype than ``ref``

    >>> scatter_nd_add(data("ref", [2, 1]), data("index", [2, 1], "int64"), data("updates", [2, 1])).shape
    (2, 1)
    """


def scatter_nd(index: Variable, updates: Variable, shape: Sequence[int], name: str | None = None) -> Variable:
    """Return zeros of dims ``shape``, plus ``updates`` at ``index``. See :func:`scatter_nd_add`."""
    dtype = check_variable("updates", updates).dtype
    return scatter_nd_add(zeros(check_ints("shape", shape), dtype), index, updates, name)


@layer("shard_index", stop_gradient=True)
def shard_index(input: Variable, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1) -> Variable:
    """Convert indices to those of one shard, with ``ignore_value`` for indices of other shards.

    Returns: Dims of ``input``

    >>> shard_index(data("input", [2, 1], "int64"), 8, 2, 0).shape
    (2, 1)
    """


# Classes -----------------------------------------------------------------------------------------------------------


@layer("one_hot", stop_gradient=True)
def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """Return float32 [..., depth] with 1 at the class in ``input``.

    input: Integers, [..., 1]

    >>> one_hot(data("input", [2, 1], "int64"), 4).shape
    (2, 4)
    """
    if not isinstance(depth, Variable):
        check_int("depth", depth, minimum=1)
    return also()


@layer(
    "lookup_table",
    {
        "input": "Ids",
        "size": Attr("size", "ints", minimum=1, doc="dims of the table, [vocabulary, width]"),
        "padding_idx": Attr("padding_idx", "int"),
        "dtype": "",
    },
)
def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """Return the rows of a table at the ids in ``input``.

    input: Ids, [..., 1], integers
    padding_idx: Rows of this id are zeros and get no gradient; negative ones count from the end of the vocabulary
    param_attr: Of the table, ``embedding_0.w_0``
    Returns: [..., width]

    >>> embedding(data("input", [2, 1], "int64"), [2, 2]).shape
    (2, 2)
    """
    if len(size) != 2:
        refuse("size", size, "[vocabulary, width], both 1 or more")
    if padding_idx is not None and not -size[0] <= padding_idx < size[0]:
        refuse("padding_idx", padding_idx, f"an id in [{-size[0]}, {size[0]})")
    return also(W=Weight(size, dtype=dtype), padding_idx=-1 if padding_idx is None else padding_idx % size[0])


# Sorting -------------------------------------------------------------------------------------------------------------


@layer("argsort", stop_gradient=("Indices",))
def argsort(
    input: Variable, axis: int = -1, descending: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:
    """Sort along an axis; equal elements keep their order, NaN comes last.

    Returns: The sorted elements, and where each was (int64)

    >>> [each.shape for each in argsort(data("input", [2, 1]))]
    [(2, 1), (2, 1)]
    """


@layer("top_k", called="top_k", stop_gradient=("Indices",))
def topk(input: Variable, k: int | Variable, name: str | None = None) -> tuple[Variable, Variable]:
    """Find the ``k`` (an int, or a Variable that holds it) largest elements of each row, largest first.

    input: [..., width]
    Returns: The elements, and where they are (int64); of equal ones, the first

    >>> [each.shape for each in topk(data("input", [2, 4, 4, 8, 8]), 2)]
    [(2, 4, 4, 8, 2), (2, 4, 4, 8, 2)]
    """


@layer("arg_max", called="arg_max", stop_gradient=True)
def argmax(x: Variable, axis: int = 0) -> Variable:
    """Return where the largest elements are along an axis (int64), without that axis; of equal ones, the first.

    Returns: int64

    >>> argmax(data("x", [2, 1], "int64")).shape
    (1,)
    """


@layer("arg_min", called="arg_min", stop_gradient=True)
def argmin(x: Variable, axis: int = 0) -> Variable:
    """Return where the smallest elements are along an axis (int64), without that axis; of equal ones, the first.

    Returns: int64

    >>> argmin(data("x", [2, 3, 4])).shape
    (3, 4)
    """


# Results whose size depends on values --------------------------------------------------------------------------------


@layer("where_index", stop_gradient=True)
def where(condition: Variable) -> Variable:
    """Return the indices of the elements that are not 0, int64 [count, rank of condition].

    >>> where(data("condition", [2], "int64")).shape
    (-1, 1)
    """


@layer("unique", stop_gradient=True)
def unique(x: Variable, dtype: Any = "int32") -> tuple[Variable, Variable]:
    """Find the different values of ``x``, [size], in the order of their first elements.

    Returns: The values, and for each element of ``x`` the index of its value (``dtype``)

    >>> [each.shape for each in unique(data("x", [2], "int64"))]
    [(-1,), (2,)]
    """


@layer("unique_with_counts", stop_gradient=True)
def unique_with_counts(x: Variable, dtype: Any = "int32") -> tuple[Variable, Variable, Variable]:
    """As :func:`unique`, with a third result: the count of each value (``dtype``).

    Returns: Values, indices, counts

    >>> [each.shape for each in unique_with_counts(data("x", [2], "int64"))]
    [(-1,), (2,), (-1,)]
    """


# Hashes and random choices -----------------------------------------------------------------------------------------


@layer("hash", {"hash_size": "mod_by"}, stop_gradient=True)
def hash(input: Variable, hash_size: int, num_hash: int = 1, name: str | None = None) -> Variable:
    """Return hashes of each row's bytes (XXH64 under the seeds 0, 1, ...) modulo ``hash_size``.

    input: int32 or int64, [rows, width]
    Returns: [rows, num_hash, 1], in the dtype of ``input``

    >>> hash(data("input", [2, 1], "int64"), 2).shape
    (2, 1, 1)
    """


@layer("sampling_id", {"dtype": Unused("the result is int64, [rows]")}, stop_gradient=True)
def sampling_id(x: Variable, min: float = 0.0, max: float = 1.0, seed: int = 0, dtype: Any = "float32") -> Variable:
    """Return a class for each row of ``x``, [rows, classes], drawn with the row's probabilities.

    >>> sampling_id(data("x", [2, 4])).shape
    (2,)
    """


@layer("random_crop", {"seed": ""}, stop_gradient=True)
def random_crop(x: Variable, shape: Sequence[int], seed: int | Variable | None = None) -> Variable:
    """Return a block of each instance of ``x``, at random places.

    shape: Dims of a block: the last dims of the result. The dims before them are those of the instances.
    seed: The first seed (default: a random one), stored and advanced in a variable of the program; or an int64 Variable

    >>> random_crop(data("x", [2, 3, 4]), [2, 2]).shape
    (2, 2, 2)
    """
    if isinstance(seed, Variable):
        return also(Seed=seed, SeedOut="Seed")
    first_seed = int(np.random.randint(-65536, 65535)) if seed is None else check_int("seed", seed)
    helper = LayerHelper("random_crop", name=unique_name.generate("random_crop_seed"))
    seed_variable = helper.create_global_variable(True, name=helper.name, shape=[1], dtype="int64", stop_gradient=True)
    helper.set_variable_initializer(seed_variable, Constant(first_seed))
    return also(Seed=seed_variable, SeedOut="Seed", startup_seed=first_seed)
