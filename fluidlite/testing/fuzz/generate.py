"""Program number ``i`` of a seed: it depends on the two numbers alone."""

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
from fluidlite.testing.fuzz.from_samples import due, sample
from fluidlite.testing.fuzz.makers import MAKERS
from fluidlite.testing.fuzz.recipe import Recipe, build, on
from fluidlite.testing.fuzz.tolerance import Array

FEWEST, MOST = 10, 60
SAMPLED = 0.5
"""The part of steps that come from operators' samples."""
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
    """A recipe, and what generation left out."""

    recipe: Recipe
    refused: Counter[str]


def generate(seed: int, number: int, dtypes: Sequence[str], types: Sequence[str] = ()) -> Generated:
    """Make a program.

    ``dtypes``: what the place computes; floats that it lacks are left out.
    ``types``: operators that steps from samples are of; empty: any.
    """
    rng = np.random.default_rng((seed, number))
    mix = [dtype for dtype in MIXES[int(rng.integers(len(MIXES)))] if dtype in dtypes] or ["float32"]
    batches = [int(b) for b in rng.choice((1, 2, 3, 4, 5, 7, 9, 16), 2, replace=False)]
    if rng.random() < 0.04:
        batches[1] = 0
    elif rng.random() < 0.05:
        batches[0] = 1100
    builder = Builder(rng, batches, mix, dtypes, types)
    builder.due = [] if types else due(number)
    for _ in range(3):
        builder.pool.append(builder.pick())
    wanted = int(rng.integers(FEWEST, MOST + 1) * (0.5 if 1100 in batches else 1))
    for _ in range(3 * wanted):
        if len(builder.steps) >= wanted:
            break
        if rng.random() < SAMPLED:
            sample(builder)
        else:
            builder.any(MAKERS)(builder)
    while builder.due:
        sample(builder)
    return Generated(finish(builder), builder.refused)


DIFFERENCES = 0.4
"""How often gradients are held against differences: with those that are not smooth left out, of 1 program in 20."""


BLOCKS = 0.25
"""How often steps are put into branches, loops and arrays."""
DEVICES = 0.3
"""How often some steps run on the host, wherever the program runs."""
SECOND = 0.3
"""How often gradients are differentiated again, where every operator on the way has a second derivative."""


def finish(builder: Builder) -> Recipe:
    """Choose what is fetched, the runs, blocks around steps, steps on the host, and gradients."""
    rng = builder.rng
    (apart,) = rng.spawn(1)  # what else is chosen does not depend on it
    if builder.steps and apart.random() < BLOCKS:
        builder.steps = enclose(apart, builder.steps, [*builder.state, *builder.feeds[0]])
    if apart.random() < DEVICES and not any(step.op.unmoved for step in builder.steps):
        host = str(devices.host())
        builder.steps = [on(step, host) if apart.random() < 0.5 else step for step in builder.steps]
    made = builder.results or list(builder.feeds[0])
    read = {name for step in builder.steps for name in step.reads()}
    values = builder.at[0].values
    ends = [
        n for step in builder.steps for n in step.writes() if n not in read and n in values and n not in builder.state
    ]
    fetches = list(dict.fromkeys([*ends, *(str(n) for n in rng.choice(made, min(3, len(made)), replace=False))]))
    runs: list[dict[str, Array]] = [builder.feeds[0], builder.feeds[0], builder.feeds[1], builder.feeds[0]]
    targets: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    if rng.random() < 0.5:
        floats = [n for n in builder.pool[-20:] if builder.dtype(n) in ALL_FLOATS and n not in builder.feeds[0]]
        leaves = tuple(n for n, a in {**builder.feeds[0], **builder.state}.items() if str(a.dtype) in ALL_FLOATS)
        names = dict.fromkeys(str(n) for n in floats[-4:])  # some operators have no derivative, and say so
        targets = tuple([name for name in names if _has(builder, "gradient", (name,), leaves)][-2:])
        if targets and leaves:
            wanted = tuple(str(n) for n in rng.choice(leaves, min(3, len(leaves)), replace=False))
    order = 2 if wanted and rng.random() < SECOND and _has(builder, "second derivative", targets, wanted, 2) else 1
    fetches += [name for name in list(builder.state)[:2] if rng.random() < 0.5 or name in builder.feeds[0]]
    return Recipe(
        tuple(builder.steps),
        tuple(runs),
        builder.state,
        tuple(dict.fromkeys(fetches)),
        frozenset(builder.open),
        dict(builder.lods),
        targets if wanted else (),
        wanted,
        order,
        threads=4 if rng.random() < 0.05 else 1,
        broken=_broken(builder) if rng.random() < 0.15 else {},
        differences=bool(rng.random() < DIFFERENCES),
    ).live()


def _has(builder: Builder, what: str, targets: tuple[str, ...], wanted: tuple[str, ...], order: int = 1) -> bool:
    """Whether the targets have gradients of an order; where not, it is counted under its name."""
    recipe = Recipe(
        tuple(builder.steps),
        (builder.feeds[0],),
        builder.state,
        targets,
        lods=builder.lods,
        targets=targets,
        wanted=wanted,
        order=order,
    )
    try:
        build(recipe.live())
    except GradientError:
        builder.refused[f"no {what}"] += 1
        return False
    except FluidError:
        pass  # a fault, which the check of the program tells
    return True


def _broken(builder: Builder) -> dict[str, Array]:
    """A feed with a fault: a row too many, a last dim too large, or an index that is far out of range."""
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
