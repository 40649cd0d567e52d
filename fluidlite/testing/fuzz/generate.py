"""Generate program number ``i`` of a seed; it depends on these two numbers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.base.errors import FluidError, GradientError
from fluidlite.platform.device_registry import devices
from fluidlite.testing.fuzz.blocks import enclose
from fluidlite.testing.fuzz.builder import Builder
from fluidlite.testing.fuzz.from_samples import operators_due, sample
from fluidlite.testing.fuzz.makers import MAKERS
from fluidlite.testing.fuzz.recipe import Recipe, build, on
from fluidlite.testing.fuzz.tolerance import Array

MIN_STEPS, MAX_STEPS = 10, 60
SAMPLE_PROBABILITY = 0.5
"""Probability that a step comes from an operator's sample."""
MIXES = (
    ("float32",),
    ("float32",),
    ("float32", "float64"),
    ("float64",),
    ("float32", "float16"),
    ("float16", "float32"),
    ("float32", "bfloat16"),
    ("float32", "int64"),
)


@dataclass(frozen=True)
class Generated:
    """A recipe, and the number of refused steps by reason."""

    recipe: Recipe
    refused: Counter[str]


def generate(seed: int, number: int, dtypes: Sequence[str], types: Sequence[str] = ()) -> Generated:
    """Generate a program.

    ``dtypes``: the dtypes of the place; other floats are not used.
    ``types``: operator types of steps from samples; empty: any.
    """
    rng = np.random.default_rng((seed, number))
    mix = [dtype for dtype in MIXES[int(rng.integers(len(MIXES)))] if dtype in dtypes] or ["float32"]
    batches = [int(b) for b in rng.choice((1, 2, 3, 4, 5, 7, 9, 16), 2, replace=False)]
    if rng.random() < 0.04:
        batches[1] = 0
    elif rng.random() < 0.05:
        batches[0] = 1100
    builder = Builder(rng, batches, mix, dtypes, types)
    builder.due = [] if types else operators_due(number)
    for _ in range(3):
        builder.pool.append(builder.pick())
    count = int(rng.integers(MIN_STEPS, MAX_STEPS + 1) * (0.5 if 1100 in batches else 1))
    for _ in range(3 * count):
        if len(builder.steps) >= count:
            break
        if rng.random() < SAMPLE_PROBABILITY:
            sample(builder)
        else:
            builder.any(MAKERS)(builder)
    while builder.due:
        sample(builder)
    return Generated(finish(builder), builder.refused)


DIFFERENCES_PROBABILITY = 0.4
"""Probability that gradients are compared with differences; without functions that are not smooth, 1 program in 20."""


BLOCKS_PROBABILITY = 0.25
"""Probability that steps are put into branches, loops and arrays."""
HOST_PROBABILITY = 0.3
"""Probability that some steps run on the host, whatever the place."""
SECOND_ORDER_PROBABILITY = 0.3
"""Probability that gradients are differentiated again, if all operators have second derivatives."""


def finish(builder: Builder) -> Recipe:
    """Choose fetches, runs, blocks around steps, steps on the host, and gradients."""
    rng = builder.rng
    (block_rng,) = rng.spawn(1)  # a separate stream: the other choices do not depend on it
    if builder.steps and block_rng.random() < BLOCKS_PROBABILITY:
        builder.steps = enclose(block_rng, builder.steps, [*builder.state, *builder.feeds[0]])
    if block_rng.random() < HOST_PROBABILITY and not any(step.op.unmoved for step in builder.steps):
        host = str(devices.host())
        builder.steps = [on(step, host) if block_rng.random() < 0.5 else step for step in builder.steps]
    candidates = builder.results or list(builder.feeds[0])
    read = {name for step in builder.steps for name in step.reads()}
    values = builder.at[0].values
    unread = [
        n for step in builder.steps for n in step.writes() if n not in read and n in values and n not in builder.state
    ]
    fetches = list(
        dict.fromkeys([*unread, *(str(n) for n in rng.choice(candidates, min(3, len(candidates)), replace=False))])
    )
    runs: list[dict[str, Array]] = [builder.feeds[0], builder.feeds[0], builder.feeds[1], builder.feeds[0]]
    targets: tuple[str, ...] = ()
    wrt: tuple[str, ...] = ()
    if rng.random() < 0.5:
        floats = [n for n in builder.pool[-20:] if builder.dtype(n) in ALL_FLOATS and n not in builder.feeds[0]]
        leaves = tuple(n for n, a in {**builder.feeds[0], **builder.state}.items() if str(a.dtype) in ALL_FLOATS)
        names = dict.fromkeys(str(n) for n in floats[-4:])  # operators without a derivative raise GradientError
        targets = tuple([name for name in names if _has(builder, "gradient", (name,), leaves)][-2:])
        if targets and leaves:
            wrt = tuple(str(n) for n in rng.choice(leaves, min(3, len(leaves)), replace=False))
    order = (
        2
        if wrt and rng.random() < SECOND_ORDER_PROBABILITY and _has(builder, "second derivative", targets, wrt, 2)
        else 1
    )
    fetches += [name for name in list(builder.state)[:2] if rng.random() < 0.5 or name in builder.feeds[0]]
    return Recipe(
        tuple(builder.steps),
        tuple(runs),
        builder.state,
        tuple(dict.fromkeys(fetches)),
        frozenset(builder.open),
        dict(builder.lods),
        targets if wrt else (),
        wrt,
        order,
        threads=4 if rng.random() < 0.05 else 1,
        broken=_broken(builder) if rng.random() < 0.15 else {},
        differences=bool(rng.random() < DIFFERENCES_PROBABILITY),
    ).live()


def _has(builder: Builder, what: str, targets: tuple[str, ...], wrt: tuple[str, ...], order: int = 1) -> bool:
    """Whether the targets have gradients of an order; if not, count the refusal."""
    recipe = Recipe(
        tuple(builder.steps),
        (builder.feeds[0],),
        builder.state,
        targets,
        lods=builder.lods,
        targets=targets,
        wrt=wrt,
        order=order,
    )
    try:
        build(recipe.live())
    except GradientError:
        builder.refused[f"no {what}"] += 1
        return False
    except FluidError:
        pass  # an error that the check of the program reports
    return True


def _broken(builder: Builder) -> dict[str, Array]:
    """An invalid feed: an extra row, a last dim that is too large, or an index far out of range."""
    feeds = {n: a for n, a in builder.feeds[0].items() if a.ndim and a.size and n not in builder.lods}
    if not feeds:
        return {}
    name = str(builder.any(sorted(feeds)))
    array = feeds[name]
    if array.dtype.kind in "iu" and builder.chance(0.5):
        return {name: array + np.asarray(100, array.dtype)}
    if builder.chance(0.5):
        return {name: np.concatenate([array, array[:1]])}
    return {name: np.concatenate([array, array], axis=-1)}
