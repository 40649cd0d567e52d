"""Rank tables, conversions between sequences and arrays of steps, and split_lod_tensor and merge_lod_tensor."""

from __future__ import annotations

from fluidlite.layer_helper import check_int, check_variable, refuse
from fluidlite.layers.common import append
from fluidlite.layers.declare import also, layer
from fluidlite.layers.tensor_array import check_array, check_index
from fluidlite.program.variable import Variable
from fluidlite.tensor.var_type import VarType


def _check_table(argument: str, value: Variable) -> Variable:
    if check_variable(argument, value).type != VarType.LOD_RANK_TABLE:
        refuse(argument, value, "a rank table, as layers.lod_rank_table makes it")
    return value


def lod_rank_table(x: Variable, level: int = 0) -> Variable:
    """Return the sequences of ``x`` sorted by length, the longest first.

    x: With more than ``level`` LoD levels
    level: The level of the sequences
    Returns: int64 [sequences, 2]: index and length of each. The sort is stable.
    Raises: ShapeError: If ``x`` has no such level
    """
    inputs = {"X": check_variable("x", x)}
    table = append("lod_rank_table", inputs, {"level": check_int("level", level, 0)}, stop_gradient=True)
    table.type = VarType.LOD_RANK_TABLE
    return table


@layer("max_sequence_len", stop_gradient=True)
def max_sequence_len(rank_table: Variable) -> Variable:
    """Return the length of the longest sequence of a rank table, int64 [1].

    >>> max_sequence_len(lod_rank_table(data("x", [-1, 4], lod_level=1))).shape
    (1,)
    """
    _check_table("rank_table", rank_table)
    return also()


@layer("lod_tensor_to_array", {"table": "RankTable"})
def lod_tensor_to_array(x: Variable, table: Variable) -> Variable:
    """Return the steps of sequences: element t has step t of each that has one, in the order of the table.

    Returns: A tensor array. An element has the LoD levels below those of the table.
    Raises: If ``x`` has too few LoD levels; at a run, if its sequences are not those of the table

    >>> x = data("x", [-1, 4], lod_level=1)
    >>> lod_tensor_to_array(x, lod_rank_table(x)).shape
    (-1, 4)
    """
    _check_table("table", table)
    return also()


@layer("array_to_lod_tensor", {"table": "RankTable"})
def array_to_lod_tensor(x: Variable, table: Variable) -> Variable:
    """Return the sequences of an array of steps, in their order before the table.

    Returns: With the LoD of the tensor of the table
    Raises: At a run, if the array has not as many steps as the longest sequence, or a step other rows than sequences

    >>> x = data("x", [-1, 4], lod_level=1)
    >>> table = lod_rank_table(x)
    >>> array_to_lod_tensor(lod_tensor_to_array(x, table), table).shape
    (-1, 4)
    """
    check_array("x", x)
    _check_table("table", table)
    return also()


@layer("reorder_lod_tensor_by_rank")
def reorder_lod_tensor_by_rank(x: Variable, rank_table: Variable) -> Variable:
    """Return sequences (or rows, without LoD) in the order of a rank table.

    Raises: At a run, if ``x`` has another number of sequences

    >>> x = data("x", [-1, 4], lod_level=1)
    >>> reorder_lod_tensor_by_rank(x, lod_rank_table(x)).shape
    (-1, 4)
    """
    _check_table("rank_table", rank_table)
    return also()


@layer("shrink_rnn_memory", {"table": "RankTable"})
def shrink_memory(x: Variable, i: Variable, table: Variable) -> Variable:
    """Return the first rows of ``x``, one for each sequence of a table that has a step ``i``.

    i: int64 [1]
    Raises: At a run, if ``x`` has fewer rows

    >>> table = lod_rank_table(data("x", [-1, 4], lod_level=1))
    >>> shrink_memory(data("state", [-1, 4]), data("step", [1], "int64"), table).shape
    (-1, 4)
    """
    check_index("i", i)
    _check_table("table", table)
    return also()


@layer("split_lod_tensor")
def split_lod_tensor(input: Variable, mask: Variable, level: int = 0) -> tuple[Variable, Variable]:
    """Return the rows (with LoD, the sequences) for which a mask holds, and the others.

    Raises: At a run, if the mask has not as many elements

    >>> [each.shape for each in split_lod_tensor(data("input", [2, 4]), data("mask", [2, 4], "bool"))]
    [(-1, 4), (-1, 4)]
    """


@layer("merge_lod_tensor")
def merge_lod_tensor(in_true: Variable, in_false: Variable, x: Variable, mask: Variable, level: int = 0) -> Variable:
    """Merge the two results of :func:`split_lod_tensor`, in the order of the mask.

    in_true, in_false: The rows or sequences for which the mask holds, and the others
    Raises: If the two are of different kinds; at a run, if they have not as many sequences as the mask says

    >>> in_true = data("in_true", [2, 4])
    >>> in_false = data("in_false", [2, 4])
    >>> x = data("x", [2, 4])
    >>> mask = data("mask", [2, 4], "bool")
    >>> merge_lod_tensor(in_true, in_false, x, mask).shape
    (-1, 4)
    """
