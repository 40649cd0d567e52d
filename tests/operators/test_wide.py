"""Rows longer than what one item of a kernel makes, windows that do not divide them, and elements that are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.conformance.samples import reference_of
from fluidlite.program.backward import gradients
from fluidlite.program.registry import ops

PLACES = [place for place in map(str, fluid.places()) if not place.startswith("fpga")]
RANDOM = np.random.default_rng(7)

WINDOWS = [
    ((2, 3, 40, 150), [3, 3], [2, 2], [1, 1]),  # overlapping, beyond both sides, three runs of windows
    ((1, 1, 300, 33), [2, 2], [2, 2], [0, 0]),  # one plane, cut into bands
    ((1, 2, 90, 70), [5, 7], [3, 4], [2, 3]),
    ((2, 2, 20, 200), [4, 40], [4, 30], [0, 5]),  # a window alone, longer than what is compared at once
    ((1, 2, 6, 20, 40), [2, 3, 2], [2, 2, 2], [0, 1, 0]),
]


def flow(place: str, type: str, feed: dict[str, Any], attrs: dict[str, Any], out: str, of: str) -> tuple[Any, Any, Any]:
    """Run an operator and its gradient; return the result, what was fed as its gradient, and that of ``of``."""
    program = fluid.Program()
    block = program.global_block()
    inputs = {slot: block.create_var(slot, a.shape, str(a.dtype), is_data=True) for slot, a in feed.items()}
    inputs[of].stop_gradient = False
    result = block.create_var("result")
    block.append_op(type, inputs, {out: result}, attrs)
    executor = fluid.Executor(place)
    (made,) = executor.run(program.clone(), feed, [result.name])
    start = RANDOM.standard_normal(made.shape).astype(made.dtype)
    given = block.create_var("start", made.shape, str(made.dtype), is_data=True)
    (slope,) = gradients([result], [inputs[of]], [given])
    assert slope is not None
    _, found = executor.run(program, {**feed, "start": start}, [result.name, slope.name])
    return made, start, found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("dims", "kernel", "strides", "pads"), WINDOWS)
def test_the_first_greatest_gets_the_gradient(
    place: str, dims: tuple[int, ...], kernel: list[int], strides: list[int], pads: list[int]
) -> None:
    x = RANDOM.integers(0, 6, dims).astype("float32")
    attrs = {"pooling_type": "max", "ksize": kernel, "strides": strides, "paddings": pads}
    made, start, found = flow(place, f"pool{len(kernel)}d", {"X": x}, attrs, "Out", "X")
    expected = np.zeros(dims, "float64")
    for at in np.ndindex(*made.shape):
        begins = [o * s - p for o, s, p in zip(at[2:], strides, pads, strict=True)]
        box = tuple(slice(max(b, 0), b + k) for b, k in zip(begins, kernel, strict=True))
        window = x[at[:2]][box]
        first = np.unravel_index(window.argmax(), window.shape)
        expected[(*at[:2], *(f + s.start for f, s in zip(first, box, strict=True)))] += start[at]
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


LINEAR: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    ("pad2d", {"X": (1, 2, 9, 600)}, {"paddings": [2, 3, 4, 5], "mode": "reflect"}, "Out", "X"),
    ("pad2d", {"X": (1, 2, 9, 600)}, {"paddings": [2, 3, 4, 5], "mode": "edge"}, "Out", "X"),
    ("pad2d", {"X": (1, 9, 300, 3)}, {"paddings": [2, 3, 4, 5], "mode": "reflect", "data_format": "NHWC"}, "Out", "X"),
    ("unfold", {"X": (1, 2, 8, 600)}, {"kernel_sizes": [3, 3], "strides": [2, 3], "paddings": [1] * 4,
                                       "dilations": [1, 2]}, "Y", "X"),
    ("bilinear_interp", {"X": (1, 2, 20, 150)}, {"out_h": 31, "out_w": 333}, "Out", "X"),
    ("bilinear_interp", {"X": (1, 2, 20, 1500)}, {"out_h": 9, "out_w": 110}, "Out", "X"),
    ("linear_interp", {"X": (40, 7, 50)}, {"out_w": 90, "interp_method": "linear"}, "Out", "X"),
    ("transpose", {"X": (5, 700, 6, 8)}, {"axis": [0, 2, 1, 3]}, "Out", "X"),
    ("index_sample", {"X": (5, 3000), "Index": (5, 2500)}, {}, "Out", "X"),
    ("index_select", {"X": (3, 40, 700), "Index": (90,)}, {"dim": 1}, "Out", "X"),
    ("gather", {"X": (300, 1100), "Index": (200,)}, {}, "Out", "X"),
    ("spp", {"X": (3, 4, 37, 50)}, {"pyramid_height": 3, "pooling_type": "avg"}, "Out", "X"),
    ("spp", {"X": (3, 4, 37, 50)}, {"pyramid_height": 3, "pooling_type": "max"}, "Out", "X"),
    ("maxout", {"X": (2, 6, 30, 33)}, {"groups": 3}, "Out", "X"),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("type", "dims", "attrs", "out", "of"), LINEAR)
def test_values_are_the_references_and_gradients_their_transpose(
    place: str, type: str, dims: dict[str, Any], attrs: dict[str, Any], out: str, of: str
) -> None:
    """Of what is linear in X, and of maxima, whose slope is 0 or 1: <Out, start> = <X, gradient>."""
    feed: dict[str, Any] = {of: RANDOM.standard_normal(dims[of]).astype("float32")}
    if "Index" in dims:
        axis = {"index_sample": 1, "index_select": 1, "gather": 0}[type]
        feed["Index"] = RANDOM.integers(0, dims[of][axis], dims["Index"])
    made, start, found = flow(place, type, feed, attrs, out, of)
    reference = reference_of(type)
    assert reference is not None
    wide = {slot: array.astype("float64") if slot == of else array for slot, array in feed.items()}
    definition = ops.get(type)
    filled = {**{attr.name: attr.default for attr in definition.attrs}, **attrs}
    np.testing.assert_allclose(made, reference(wide, filled)[out], 1e-4, 1e-4)
    products = np.abs(made.astype("float64") * start).sum()
    assert abs((made.astype("float64") * start).sum() - (wide[of] * found).sum()) <= 1e-5 * products


@pytest.mark.parametrize("place", PLACES)
def test_a_later_index_that_is_out_of_range_is_found(place: str) -> None:
    index = np.zeros((5, 2500), "int64")
    index[4, 2400] = 3000
    with pytest.raises(fluid.FluidError, match="3000"):
        flow(place, "index_sample", {"X": np.zeros((5, 3000), "float32"), "Index": index}, {}, "Out", "X")
