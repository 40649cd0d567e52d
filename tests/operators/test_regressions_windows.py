"""Windows of sequences and of images: of any sizes, of one program, and of no other sequence or image."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.conformance.samples import reference_of

PLACES = [place for place in map(str, fluid.places()) if not place.startswith("fpga")]
LENGTHS = ([2, 0, 3, 1], [4], [], [0, 0, 5], [1, 1], [7, 2, 2, 0])


def _tensor(x: Any, lengths: list[int]) -> Any:
    return fluid.create_lod_tensor(x, [lengths], fluid.CPUPlace())


def _program(type: str, dims: dict[str, list[int]], attrs: dict[str, Any], lod_level: int = 0) -> tuple[Any, list[Any]]:
    """A program of one operator; what it is fed, and Out with the gradients of its sum times Weight."""
    block = fluid.default_main_program().global_block()
    given = {
        slot: block.create_var(slot, shape, "float64", is_data=True, lod_level=lod_level if slot == "X" else 0)
        for slot, shape in dims.items()
    }
    out = block.create_var("out")
    block.append_op(type, given, {"Out": out}, attrs)
    wanted = [given[slot] for slot in dims if slot != "Y"]
    weight = block.create_var("weight", [-1] * len(out.shape), "float64", is_data=True)
    loss = fluid.layers.reduce_sum(fluid.layers.elementwise_mul(out, weight))
    return out, [out, *fluid.gradients([loss], wanted)]


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("place", PLACES)
def test_rows_of_any_number_of_sequences(place: str, mode: str) -> None:
    """One program; a sequence of NaN beside others leaves them what they are."""
    _, fetched = _program("row_conv", {"X": [-1, 3], "Filter": [-1, 3]}, {}, lod_level=1)
    exe, rng = fluid.Executor(place, mode=mode, fallback="allow"), np.random.default_rng(0)
    reference = reference_of("row_conv")
    assert reference is not None
    for lengths in LENGTHS * 2:
        offsets = (0, *np.cumsum(lengths, dtype=int).tolist())
        x, weight = rng.standard_normal((2, offsets[-1], 3))
        for ahead in (1, 3):
            w = rng.standard_normal((ahead, 3))
            feed = {"X": _tensor(x, lengths), "Filter": w, "weight": weight}
            out, dx, dw = exe.run(fluid.default_main_program(), feed, fetched, return_numpy=False)
            assert out.recursive_sequence_lengths() == dx.recursive_sequence_lengths() == [lengths]
            expected = reference({"X": x, "Filter": w}, {}, {"X": (offsets,)})["Out"]
            np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-12, atol=1e-14)
            want_x, want_w = np.zeros_like(x), np.zeros_like(w)
            for a, b in pairwise(offsets):
                for t in range(a, b):
                    for k in range(min(ahead, b - t)):
                        want_x[t + k] += w[k] * weight[t]
                        want_w[k] += x[t + k] * weight[t]
            np.testing.assert_allclose(np.asarray(dx), want_x, rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(np.asarray(dw), want_w, rtol=1e-12, atol=1e-14)
            if len(lengths) < 2:
                continue
            some = slice(offsets[-3], offsets[-2])  # all sequences but this one
            wild, wild_weight = x.copy(), weight.copy()
            wild[some] = wild_weight[some] = np.nan
            feed = {"X": _tensor(wild, lengths), "Filter": w, "weight": wild_weight}
            out, dx, _ = exe.run(fluid.default_main_program(), feed, fetched, return_numpy=False)
            for found, want in ((out, expected), (dx, want_x)):
                kept = np.delete(np.asarray(found), some, axis=0)
                np.testing.assert_allclose(kept, np.delete(want, some, axis=0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("place", PLACES)
def test_images_of_any_sizes(place: str, mode: str) -> None:
    """One program, of images that are as large as others or not, smaller than X and larger."""
    attrs = {"kernels": [2, 3], "strides": [2, 1], "paddings": [1, 0, 0, 2], "out_stride": [1, 2]}
    _, fetched = _program("im2sequence", {"X": [-1, 2, -1, -1], "Y": [-1, 2]}, attrs)
    exe, rng = fluid.Executor(place, mode=mode, fallback="allow"), np.random.default_rng(1)
    reference = reference_of("im2sequence")
    assert reference is not None
    for turn in range(8):
        count = [3, 1, 2, 4, 0][turn % 5]
        x = rng.standard_normal((count, 2, 4, 5))
        y = rng.integers(2, 9, (count, 2)).astype("float64") + rng.choice([0.0, 0.5], (count, 2))
        if turn % 2 and count:
            y[1:] = y[:-1] if turn == 3 else y[:1]
        expected = reference({"X": x, "Y": y}, attrs)["Out"] if count else np.zeros((0, 12))
        weight = rng.standard_normal(expected.shape)
        out, dx = exe.run(fluid.default_main_program(), {"X": x, "Y": y, "weight": weight}, fetched, return_numpy=False)
        np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-15)
        lengths = out.recursive_sequence_lengths()[0]
        assert len(lengths) == count and sum(lengths) == len(expected)
        for k in np.ndindex(*x.shape):  # what is linear is its gradient
            unit = np.zeros_like(x)
            unit[k] = 1.0
            one = reference({"X": unit, "Y": y}, attrs)["Out"]
            np.testing.assert_allclose(np.asarray(dx)[k], (one * weight).sum(), rtol=1e-12, atol=1e-13)
