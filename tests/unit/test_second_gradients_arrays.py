"""Second gradients through arrays, steps of sequences and rows by a mask: against differences of the first ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers

pytestmark = pytest.mark.filterwarnings("ignore::fluidlite.errors.FallbackWarning")
STEP = 1e-5
LENGTHS = [2, 4, 1, 0]
MASK = np.array([[True], [False], [True], [False]])
OTHERS = [str(place) for place in fluid.places() if place.kind != "cpu"]
RUNS = [
    ("cpu", "compiled"),
    *((place, "compiled") for place in OTHERS),
    *((place, "interpreted") for place in OTHERS[1:]),
]


def number(value: int) -> Any:
    return layers.fill_constant([1], "int64", value)


def reads_and_writes(x: Any) -> Any:
    """Element 1 is written twice, element 2 is read twice, and element 3 by nobody."""
    array = layers.array_write(x * x, number(1))
    for i, factor in ((1, 2.0), (2, 3.0), (3, 5.0)):
        array = layers.array_write(x * x * factor, number(i), array=array)
    read = [layers.array_read(array, number(i)) for i in (1, 2, 2)]
    return read[0] * read[1] + layers.exp(read[2] * 0.1)


def joined(stack: bool) -> Callable[[Any], Any]:
    def build(x: Any) -> Any:
        array = layers.array_write(x, number(0))
        layers.array_write(x * x, number(1), array=array)
        whole, _ = layers.tensor_array_to_tensor(array, axis=0, use_stack=stack)
        # of one element the first derivative alone is a gradient array with an absent one
        return layers.reduce_sum(whole * whole, keep_dim=True) + layers.array_read(array, number(1)) * x

    return build


def only_written(x: Any) -> Any:
    """The gradient of the array before reaches nothing."""
    array = layers.array_write(layers.fill_constant([4, 3], "float64", 2.0), number(0))
    layers.array_write(x * x, number(1), array=array)
    return layers.array_read(array, number(1)) * layers.array_read(array, number(0))


def steps(x: Any) -> Any:
    """Steps 1 and 3 of sequences are read, and all are joined again."""
    table = layers.lod_rank_table(x)
    made = layers.lod_tensor_to_array(x * x, table)
    one = layers.array_read(made, number(1))
    back = layers.array_to_lod_tensor(made, table)
    return layers.elementwise_mul(back, layers.exp(x * 0.3)) + layers.reduce_sum(one * one)


def some_steps(x: Any) -> Any:
    """The gradient of what was joined has steps that nobody made."""
    table = layers.lod_rank_table(x)
    array = layers.lod_tensor_to_array(x, table)
    changed = layers.array_write(layers.array_read(array, number(0)) * 2.0, number(0), array=array)
    return layers.array_to_lod_tensor(changed, table) * x


def ranked(x: Any) -> Any:
    table = layers.lod_rank_table(x)
    first = layers.reorder_lod_tensor_by_rank(x, table)
    last = layers.sequence_pool(first * first, "sum")
    rest = layers.shrink_memory(last * last, number(2), table)
    return layers.reduce_sum(rest * rest) + layers.reduce_sum(last)


def split(x: Any) -> Any:
    mask = layers.assign(MASK)
    yes, no = layers.split_lod_tensor(x, mask)
    return layers.merge_lod_tensor(yes * yes, layers.exp(no), x, mask)


def one_side(x: Any) -> Any:
    mask = layers.assign(MASK)
    yes, no = layers.split_lod_tensor(x * x, mask)
    return yes * yes + layers.reduce_sum(layers.merge_lod_tensor(yes, no * 0.0 + 1.0, x, mask))


CASES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "reads_and_writes": (reads_and_writes, 0),
    "concat": (joined(False), 0),
    "stack": (joined(True), 0),
    "only_written": (only_written, 0),
    "steps": (steps, 1),
    "some_steps": (some_steps, 1),
    "ranked": (ranked, 1),
    "split_rows": (split, 0),
    "split_sequences": (split, 1),
    "one_side": (one_side, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_second_gradients_are_those_of_differences(name: str) -> None:
    build, lod_level = CASES[name]
    lengths = [LENGTHS] if lod_level else []
    rows = sum(LENGTHS) if lod_level else 4
    x = layers.data("x", [3], dtype="float64", lod_level=lod_level)
    d = layers.data("d", [3], dtype="float64", lod_level=lod_level)
    x.stop_gradient = False
    y = build(x)
    (first,) = fluid.gradients(layers.reduce_sum(y * y), x)
    along = layers.reduce_sum(first * first * d)
    (second,) = fluid.gradients(along, x)
    rng = np.random.default_rng(7)
    start, direction = rng.uniform(0.5, 1.0, (rows, 3)), rng.uniform(-1, 1, (rows, 3))

    cpu = fluid.Executor("cpu", mode="interpreted")

    def run(values: Any, fetch: Any, exe: fluid.Executor = cpu) -> Any:
        given = [fluid.create_lod_tensor(each, lengths, "cpu") if lengths else each for each in (values, direction)]
        return np.asarray(exe.run(feed=dict(zip("xd", given, strict=True)), fetch_list=[fetch], return_numpy=False)[0])

    expected = np.zeros_like(start)
    for at in np.ndindex(*start.shape):
        moved = np.zeros_like(start)
        moved[at] = STEP
        expected[at] = (run(start + moved, along).item() - run(start - moved, along).item()) / (2 * STEP)
    assert np.abs(expected).max() > 0.01
    fluid.set_fallback("allow")
    for place, mode in RUNS:
        np.testing.assert_allclose(
            run(start, second, fluid.Executor(place, mode=mode)),
            expected,
            rtol=1e-6,
            atol=1e-7 * np.abs(expected).max(),
        )
