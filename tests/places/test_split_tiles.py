"""Tiles whose elements come from different operands, or are zeros: each interval of a tile has a loop of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.platform.context_pool import get_context
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.render.loops.kernels import nest_codes
from fluidlite.tensor.tensor_spec import Spec

L = fluid.layers
PLACES = [str(place) for place in fluid.places()]
WIDTHS = (5, 16, 31, 255, 256, 257, 300, 1025)
"""Around the lengths of vectors and tiles."""


def text_of(op: str, shapes: dict[str, list[tuple[int, ...]]], out: tuple[int, ...], attrs: dict[str, Any]) -> str:
    """The text of a call's loops on the CPU; its output is Out."""
    pytest.importorskip("llvmlite")
    ins = {slot: tuple(Spec.of(shape, "float32") for shape in each) for slot, each in shapes.items()}
    output = "ParamOut" if op == "dpsgd_step" else "Out"
    codes = nest_codes(Call(ops.get(op), ins, {output: (Spec.of(out, "float32"),)}, attrs), get_context("cpu"))
    return "\n".join(code.text.body for code in codes)


def run(place: str, build: Callable[..., Any], *arrays: np.ndarray[Any, Any]) -> list[Any]:
    """The results of a program in both modes."""
    found = []
    for mode in ("compiled", "interpreted"):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            xs = [L.data(f"x{k}", list(a.shape), append_batch_size=False) for k, a in enumerate(arrays)]
            feed = {f"x{k}": a for k, a in enumerate(arrays)}
            fetches = build(*xs)
            fetches = list(fetches) if isinstance(fetches, Sequence) else [fetches]
            found.append(fluid.Executor(place, mode=mode, fallback="allow").run(feed=feed, fetch_list=fetches))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    return list(found[0])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("width", WIDTHS)
def test_rolled_rows(width: int, place: str) -> None:
    rng = np.random.default_rng(width)
    x = rng.normal(size=(7, width)).astype("float32")
    shifts = sorted({0, 1, width - 1, *(int(n) for n in rng.integers(-2 * width, 2 * width, 3))})

    def rolled(x: Any) -> list[Any]:
        outs = [L.create_tensor("float32") for _ in shifts]
        for shift, out in zip(shifts, outs, strict=True):
            x.block.append_op("roll", {"X": x}, {"Out": out}, {"shifts": [shift], "dims": [1]})
        return outs

    for shift, found in zip(shifts, run(place, rolled, x), strict=True):
        np.testing.assert_array_equal(found, np.roll(x, shift, 1))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("width", WIDTHS)
def test_padded_and_cut_rows(width: int, place: str) -> None:
    rng = np.random.default_rng(width)
    x = rng.normal(size=(5, width)).astype("float32")
    before, after = (int(n) for n in rng.integers(0, 300, 2))
    begin = int(rng.integers(0, width))
    end = int(rng.integers(begin + 1, width + 1))

    def build(x: Any) -> list[Any]:
        x.stop_gradient = False
        padded = L.pad(x, [0, 1, before, after])
        sliced = L.slice(x, [1], [begin], [end])
        (gradient,) = fluid.gradients([sliced * 3.0], [x])
        return [padded, L.concat([x, sliced, x], 1), gradient]

    padded, joined, gradient = run(place, build, x)
    np.testing.assert_array_equal(padded, np.pad(x, [(0, 1), (before, after)]))
    np.testing.assert_array_equal(joined, np.concatenate([x, x[:, begin:end], x], 1))
    expected = np.zeros_like(x)
    expected[:, begin:end] = 3
    np.testing.assert_array_equal(gradient, expected)


def test_loops_over_intervals_have_no_conditions() -> None:
    rolled = text_of("roll", {"X": [(7, 300)]}, (7, 300), {"shifts": [10], "dims": [1]})
    assert len(re.findall(r"for \(int v = ", rolled)) == 2  # nothing stores a number: an element comes from one side
    assert not re.search(r"\bv (<|>)=? \w+\)", rolled)
    assert "?" not in re.sub(r"const int \w+ = .*", "", rolled).partition("for (int v")[2]


def test_zeros_are_masked() -> None:
    """A loop of its own for a few zeros takes longer than a masked load."""
    text = text_of("pad", {"X": [(7, 300)]}, (7, 320), {"paddings": [0, 0, 10, 10], "pad_value": 0.0})
    assert len(re.findall(r"for \(int v = ", text)) == 1


def test_many_parts_are_selected_in_one_loop() -> None:
    parts = {"X": [(9, 10 + k) for k in range(9)]}
    text = text_of("concat", parts, (9, sum(shape[1] for shape in parts["X"])), {"axis": 1})
    assert len(re.findall(r"for \(int v = ", text)) == 1


def test_an_update_in_place_after_a_reduction_fills_vectors() -> None:
    """The compiler cannot know that the outputs, which alias operands, are written where they are read."""
    shapes = {"Param": [(900,)], "Grad": [(900,)], "LearningRate": [(1,)], "Noise": [(1,)]}
    text = text_of("dpsgd_step", shapes, (900,), {"clip": 10.0, "batch_size": 16.0})
    stores = [line for line in text.splitlines() if "for (" in line and "axis0 = 0" in line]
    assert stores, text
    assert all("independent" in line for line in stores[-1:]), text
