"""Control flow around steps of a recipe, which changes no value: what the straight recipe gives, loops must give too.

Steps that follow one another with one label stand in a block: one that runs if a condition holds, which it does; the
body of a loop that computes the same in each of its iterations; or such a loop that puts what it makes into arrays, of
which the last element is read behind it. So references, bounds and differences need to know nothing of loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from fluidlite.program.program import Program, program_guard
from fluidlite.testing.fuzz.recipe import Step, append

KINDS = ("branch", "while", "array")
MAX_STEPS = 6
MAX_TRIPS = 3


def label(kind: str, trips: int, number: int) -> str:
    """What steps of one block are marked with."""
    return f"{kind} {trips} #{number}"


def append_all(program: Program, steps: Sequence[Step]) -> None:
    """Append steps; those with a label in blocks.

    Raises FluidError if a definition refuses one.
    """
    for block, inside in groupby(steps, key=lambda step: step.block):
        if block:
            _append_block(program, block, list(inside))
        else:
            for step in inside:
                append(program, step)


def _append_block(program: Program, block: str, steps: Sequence[Step]) -> None:
    from fluidlite import layers
    from fluidlite.layers.branches import ConditionalBlock
    from fluidlite.layers.loops import While

    kind, trips = block.split()[0], int(block.split()[1])
    home = program.global_block()
    made = [home.create_var(name) for step in steps for name in step.writes()]
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
                made = [variable for variable in made if variable.shape]  # an element has a dim
                for variable in made:
                    array = home.create_var(variable.name + ".array", dtype=variable.dtype, type="tensor_array")
                    arrays.append(layers.array_write(variable, i, array))
            layers.increment(i)
            layers.less_than(i, count, cond=more)
        last = layers.fill_constant([1], "int64", trips - 1)
        for variable, array in zip(made, arrays, strict=False):
            home.append_op("read_from_array", {"X": array, "I": last}, {"Out": variable})


def enclose(rng: Any, steps: Sequence[Step], state: Sequence[str]) -> list[Step]:
    """Put some of the steps into blocks."""
    made = list(steps)
    counts: dict[str, int] = {}
    for step in steps:
        for name in step.writes():
            counts[name] = counts.get(name, 0) + 1
    for number in range(int(rng.integers(1, 4))):
        start = int(rng.integers(len(made)))
        mark = label(KINDS[int(rng.integers(len(KINDS)))], int(rng.integers(1, MAX_TRIPS + 1)), number)
        for at in range(start, min(len(made), start + int(rng.integers(1, MAX_STEPS + 1)))):
            if made[at].block or not _repeatable(made[at], counts, state):
                break
            made[at] = replace(made[at], block=mark)
    return made


def _repeatable(step: Step, counts: dict[str, int], state: Sequence[str]) -> bool:
    """Whether a step may run several times and give the same: it writes what nobody else does, and draws nothing."""
    writes = set(step.writes())
    alone = all(counts[name] == 1 and name not in state for name in writes) and writes.isdisjoint(step.reads())
    op = step.op
    return alone and not (op.random or op.effect or op.marker or op.run is not None)
