"""Frequencies of operators in a program."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from fluidlite.base.errors import ProgramError
from fluidlite.program.program import Program

__all__ = ["op_freq_statistic"]


def op_freq_statistic(program: Program) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Count operators by type, and adjacent pairs where the second reads an output of the first; most frequent first.

    Parameters
    ----------
    program : Program

    Returns
    -------
    types, pairs
        Lists of ``(type, count)`` and of ``("first->second", count)``.
    """
    if not isinstance(program, Program):
        raise ProgramError(f"op_freq_statistic: program is {type(program).__name__}; expected a Program")
    ops = program.global_block().ops
    persistable = {variable.name for variable in program.list_vars() if variable.persistable}
    types = Counter(op.type for op in ops)
    pairs = Counter(
        f"{first.type}->{second.type}"
        for first, second in pairwise(ops)
        if (set(first.output_arg_names) - persistable) & set(second.input_arg_names)
    )
    return types.most_common(), pairs.most_common()
