"""Operators that run sub-blocks (while, conditional_block, recurrent: a body is a program of its own) or arrays."""

from fluidlite.control_flow import (
    array_to_tensor,
    loops_branches,
    rank_tables,
    recurrent,
    sequence_arrays,
    split_merge,
    tensor_arrays,
)

__all__ = [
    "array_to_tensor",
    "loops_branches",
    "rank_tables",
    "recurrent",
    "sequence_arrays",
    "split_merge",
    "tensor_arrays",
]
