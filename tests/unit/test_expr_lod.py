"""The LoD of operands in expressions: offsets, and the longest sequence, on every place, of any number of sequences."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import expr as e, layers, plugin_loader
from fluidlite.base.errors import ProgramError, ShapeError
from fluidlite.expr.declare import operator
from fluidlite.plugin import Differentiation
from fluidlite.program.registry import ops

OUTPUTS = ("Fine", "Coarse", "Of", "Total", "Longest")
LODS = (
    ((0, 2, 3), (0, 2, 2, 6)),
    ((0, 1, 1, 4), (0, 3, 4, 4, 5)),
    ((0, 1), (0, 1)),
    ((0, 2), (0, 0, 0)),
    ((0,), (0,)),
)


@pytest.fixture(scope="module", autouse=True)
def declared() -> Iterator[None]:
    """An operator that says all of a LoD; places with a kernel language alone, and with arrays alone, beside ours."""
    fluid.places()

    @operator("case.sequences", Differentiation(reads=()), outputs=OUTPUTS, dtypes={"X": ("float32", "float64")})
    def sequences(x: e.Tensor) -> tuple[e.Tensor, ...]:
        fine = e.offsets(x)
        longest = e.full((1,), e.longest(x), "int64")
        return fine, e.offsets(x, 0), e.segment_of(fine, x.dims[0]), e.segment("sum", x, fine), longest

    @operator("case.steps", dtypes={"X": ("float32",)})
    def steps(x: e.Tensor) -> e.Tensor:
        return e.iota((e.longest(x),), 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent.parent / "plugins"))
        for name, module in (("llvm", "llvm_device"), ("strict", "strict_device")):
            assert plugin_loader.load(name, module).state == "loaded"
        yield
        for name in ("llvm", "strict"):
            plugin_loader.unload(name)
    ops.remove(ops.get("case.sequences_grad"))
    ops.remove(sequences)
    ops.remove(ops.get("case.steps"))


def program(lod_level: int) -> tuple[Any, list[Any]]:
    x = layers.data("x", [3], dtype="float64", lod_level=lod_level)
    x.stop_gradient = False
    block = fluid.default_main_program().global_block()
    outs = {name: block.create_var(name.lower()) for name in OUTPUTS}
    block.append_op("case.sequences", {"X": x}, outs)
    return x, list(outs.values())


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("place", ["cpu", "opencl:0", "llvm:0", "strict:0"])
def test_the_offsets_of_each_level(place: str, mode: str) -> None:
    x, outs = program(2)
    (slope,) = fluid.gradients([layers.reduce_sum(layers.square(outs[3]))], [x])
    assert [out.shape for out in outs[3:]] == [(-1, 3), (1,)]
    exe = fluid.Executor(place, mode=mode, fallback="allow")
    for lod in LODS * 2:
        coarse, fine = lod
        array = np.random.default_rng(0).standard_normal((fine[-1], 3))
        tensor = fluid.LoDTensor()
        tensor.set(array, fluid.CPUPlace())
        tensor.set_lod([list(level) for level in lod])
        found = exe.run(fluid.default_main_program(), {"x": tensor}, [*outs, slope], return_numpy=False)
        of = [k for k, (a, b) in enumerate(pairwise(fine)) for _ in range(a, b)]
        total = np.stack([array[a:b].sum(0) for a, b in pairwise(fine)]) if fine[1:] else np.zeros((0, 3))
        longest = max((b - a for a, b in pairwise(fine)), default=0)
        for wanted, one in zip((fine, coarse, of, total, [longest], 2 * total[of]), found, strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(wanted), rtol=1e-14)
        assert [one.lod() for one in found if one.lod()] == [[list(level) for level in lod]] * 2  # of rows of X


def test_a_level_that_there_is_not_is_refused_where_the_operator_is_appended() -> None:
    with pytest.raises(ProgramError, match=r"case.sequences.*level -1 of the LoD of X, which has 0"):
        program(0)


@pytest.mark.parametrize("place", ["cpu", "opencl:0"])
def test_positions_in_sequences_of_any_number(place: str) -> None:
    x = layers.data("x", [6], dtype="float64", lod_level=1)
    out = layers.add_position_encoding(x, alpha=0.5, beta=2.0)
    assert out.lod_level == 1
    exe = fluid.Executor(place, fallback="allow")
    for lengths in ([2, 3], [1], [4, 0, 1, 2], [3, 2], []):
        tensor = fluid.create_lod_tensor(np.ones((sum(lengths), 6)), [lengths], fluid.CPUPlace())
        (found,) = exe.run(fluid.default_main_program(), {"x": tensor}, [out], return_numpy=False)
        steps = np.array([step for length in lengths for step in range(length)]).reshape(-1, 1)
        angles = steps / 10000.0 ** (np.arange(3) / 2)
        wanted = 0.5 + 2 * np.concatenate([np.sin(angles), np.cos(angles)], 1)
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-12)
        assert found.recursive_sequence_lengths() == [lengths]


@pytest.mark.parametrize("place", ["cpu", "opencl:0", "llvm:0", "strict:0"])
def test_the_longest_is_not_known_while_a_program_is_built(place: str) -> None:
    x = layers.data("x", [6, 3], append_batch_size=False, lod_level=1)
    block = fluid.default_main_program().global_block()
    out = block.create_var("out")
    block.append_op("case.steps", {"X": x}, {"Out": out})
    assert out.shape == (-1,)
    for lengths in ([4, 2], [6], [1, 0, 5]):
        tensor = fluid.create_lod_tensor(np.ones((6, 3), "float32"), [lengths], fluid.CPUPlace())
        (found,) = fluid.Executor(place, fallback="allow").run(fluid.default_main_program(), {"x": tensor}, [out])
        np.testing.assert_array_equal(found, np.arange(max(lengths)))


def test_positions_need_sequences_or_a_batch() -> None:
    with pytest.raises(ShapeError, match=r"one level of LoD"):
        layers.add_position_encoding(layers.data("x", [6], lod_level=2), 1.0, 1.0)
