"""Control flow around steps of a recipe that does not change its values.

Consecutive steps with the same label form a block: a conditional block whose condition is true; a loop whose iterations
all compute the same; or such a loop that writes its results into arrays, whose last element is read after it.
References, bounds and differences therefore ignore control flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from fluidlite.program.program import Program, program_guard
from fluidlite.testing.fuzz.recipe import OperatorStep, append

KINDS = ("branch", "while", "array")
MAX_STEPS = 6
MAX_TRIPS = 3


def label(kind: str, trips: int, number: int) -> str:
    """The label of the steps of one block."""
    return f"{kind} {trips} #{number}"


def append_all(program: Program, steps: Sequence[OperatorStep]) -> None:
    """Append steps; labelled ones are put into blocks.

    Raises FluidError if a definition refuses one.
    """
    for block, inside in groupby(steps, key=lambda step: step.block):
        if block:
            _append_block(program, block, list(inside))
        else:
            for step in inside:
                append(program, step)


def _append_block(program: Program, block: str, steps: Sequence[OperatorStep]) -> None:
    from fluidlite import layers
    from fluidlite.layers.branches import ConditionalBlock
    from fluidlite.layers.loops import While

    kind, trips = block.split()[0], int(block.split()[1])
    outer = program.global_block()
    variables = [outer.create_var(name) for step in steps for name in step.writes()]
    with program_guard(program, Program()):
        if kind == "branch":
            on = layers.fill_constant([1], "bool", True)
            with ConditionalBlock([on], is_scalar_condition=True).block():
                for step in steps:
                    append(program, step)
            return
        i, count = (layers.fill_constant([1], "int64", number) for number in (0, trips))
        arrays: list[Any] = []
        more = layers.less_than(i, count)
        with While(more).block():
            for step in steps:
                append(program, step)
            if kind == "array":
                variables = [variable for variable in variables if variable.shape]  # an element has a dim
                for variable in variables:
                    array = outer.create_var(variable.name + ".array", dtype=variable.dtype, type="tensor_array")
                    arrays.append(layers.array_write(variable, i, array))
            layers.increment(i)
            layers.less_than(i, count, cond=more)
        last = layers.fill_constant([1], "int64", trips - 1)
        for variable, array in zip(variables, arrays, strict=False):
            outer.append_op("read_from_array", {"X": array, "I": last}, {"Out": variable})


def enclose(rng: Any, steps: Sequence[OperatorStep], state: Sequence[str]) -> list[OperatorStep]:
    """Label some steps, so that they are put into blocks."""
    labelled = list(steps)
    counts: dict[str, int] = {}
    for step in steps:
        for name in step.writes():
            counts[name] = counts.get(name, 0) + 1
    for number in range(int(rng.integers(1, 4))):
        start = int(rng.integers(len(labelled)))
        block_label = label(KINDS[int(rng.integers(len(KINDS)))], int(rng.integers(1, MAX_TRIPS + 1)), number)
        for at in range(start, min(len(labelled), start + int(rng.integers(1, MAX_STEPS + 1)))):
            if labelled[at].block or not _repeatable(labelled[at], counts, state):
                break
            labelled[at] = replace(labelled[at], block=block_label)
    return labelled


def _repeatable(step: OperatorStep, counts: dict[str, int], state: Sequence[str]) -> bool:
    """Whether a step can be repeated with the same results: it is the only writer of its outputs, and deterministic."""
    writes = set(step.writes())
    is_only_writer = all(counts[name] == 1 and name not in state for name in writes) and writes.isdisjoint(step.reads())
    op = step.op
    return is_only_writer and not (op.random or op.effect or op.marker or op.run is not None)
