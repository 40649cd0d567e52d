"""Random numbers have the same bits on every place; gaussians agree to 4 ulp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.codegen import philox

KINDS = ("opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return f"{request.param}:0"


def run(
    place: str, type: str, fetch: str, seed: int, own: int, dims: tuple[int, ...], **attrs: Any
) -> list[np.ndarray[Any, Any]]:
    program = fluid.Program()
    program.random_seed = seed
    block = program.global_block()
    feed: dict[str, Any] = {}
    inputs = {}
    outputs = {"Out": block.create_var("Out")}
    if type == "dropout":
        inputs["X"] = block.create_var("X", dims, "float32", is_data=True)
        outputs["Mask"] = block.create_var("Mask")
        feed["X"] = np.linspace(-1, 1, int(np.prod(dims)), dtype="float32").reshape(dims)
    else:
        attrs["shape"] = list(dims)
    block.append_op(type, inputs, outputs, {**attrs, "seed": own})
    exe = fluid.Executor(place, fallback="allow")
    scope = fluid.Scope()
    return [exe.run(program, feed, [fetch], scope=scope)[0] for _ in range(3)]


def ulps(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> int:
    """How many representable numbers lie between two arrays of floats, at most."""
    whole = [
        np.where(x.view(np.int32) < 0, np.int64(-(2**31)) - x.view(np.int32), x.view(np.int32).astype(np.int64))
        for x in (a, b)
    ]
    return int(np.abs(whole[0] - whole[1]).max(initial=0))


DIMS = ((1,), (3,), (4, 4), (37, 29), (5, 1, 1000), (70_001,))


@pytest.mark.parametrize(("seed", "own"), [(1, 0), (2**40 + 5, 0), (-3, 0), (1, 77), (0, 2**31 - 1)])
@pytest.mark.parametrize("dims", DIMS)
def test_uniforms_and_masks_have_the_same_bits(place: str, dims: tuple[int, ...], seed: int, own: int) -> None:
    for type, fetch, attrs in (
        ("uniform_random", "Out", {"min": 0.0, "max": 1.0}),
        ("dropout", "Mask", {"dropout_prob": 0.37, "fix_seed": own != 0}),
        ("dropout", "Out", {"dropout_prob": 0.37, "fix_seed": own != 0, "dropout_implementation": "upscale_in_train"}),
    ):
        wanted = run("cpu", type, fetch, seed, own, dims, **attrs)
        found = run(place, type, fetch, seed, own, dims, **attrs)
        for one, two in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(one.view(f"u{one.itemsize}"), two.view(f"u{two.itemsize}"))
        if wanted[0].size > 16:
            assert (wanted[0].tobytes() == wanted[1].tobytes()) == bool(own)  # a seed of its own: the same at every run


@pytest.mark.parametrize("dims", DIMS)
def test_scaled_uniforms_agree(place: str, dims: tuple[int, ...]) -> None:
    wanted = run("cpu", "uniform_random", "Out", 5, 0, dims, min=-0.3, max=0.7)
    found = run(place, "uniform_random", "Out", 5, 0, dims, min=-0.3, max=0.7)
    for one, two in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("seed", [1, 99])
def test_gaussians_agree_to_four_ulps(place: str, dims: tuple[int, ...], seed: int) -> None:
    wanted = run("cpu", "gaussian_random", "Out", seed, 0, dims, mean=0.0, std=1.0)
    found = run(place, "gaussian_random", "Out", seed, 0, dims, mean=0.0, std=1.0)
    for one, two in zip(wanted, found, strict=True):
        assert ulps(one, two) <= 4


@pytest.mark.parametrize("width", range(7, 18))
@pytest.mark.parametrize("place", ["cpu", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_rows_have_the_numbers_of_their_places(place: str, width: int) -> None:
    """Whatever the width: a loop over a whole row draws those of all its neighbours at once."""
    seed, dims = 1060716755953, (8, 45, width)
    main = fluid.Program()
    with fluid.program_guard(main):
        x = fluid.layers.data("x", list(dims), append_batch_size=False)
        dropped = fluid.layers.dropout(x, 0.3, seed=seed, dropout_implementation="upscale_in_train")
        most = fluid.layers.reduce_max(dropped, dim=1, keep_dim=True)
        both = fluid.layers.elementwise_add(dropped, most)
    given = np.ones(dims, "float32")
    drawn = philox.words(np, 0, given.size, (seed & philox.MASK, seed >> 32, 0, 0), 0).astype(np.int64) >> 8
    expected = np.where(drawn.reshape(dims) >= 0.3 * 2**24, np.float32(1 / 0.7), np.float32(0))
    (found,) = fluid.Executor(place).run(main, {"x": given}, [both])
    np.testing.assert_allclose(found, expected + expected.max(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("implementation", ["downgrade_in_infer", "upscale_in_train"])
def test_what_is_trained_does_not_depend_on_tests_between(mode: str, implementation: str) -> None:
    main = fluid.Program()
    main.random_seed = 7
    with fluid.program_guard(main):
        x = fluid.layers.data("x", [8])
        y = fluid.layers.scale(fluid.layers.dropout(x, 0.5, dropout_implementation=implementation), 2.0)
    test = main.clone(for_test=True)
    exe, given = fluid.Executor("cpu", mode=mode), {"x": np.ones((4, 8), "float32")}
    alone, between = fluid.Scope(), fluid.Scope()
    for _ in range(3):
        (wanted,) = exe.run(main, given, [y], scope=alone)
        (found,) = exe.run(main, given, [y], scope=between)
        np.testing.assert_array_equal(found, wanted)
        exe.run(test, given, [y.name], scope=between)


@pytest.mark.parametrize("place", ["cpu", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_batches_without_rows_count_in_both_modes(place: str) -> None:
    """Whether an operator that draws is alone, or is one with others that make numbers of nothing."""
    main = fluid.Program()
    main.random_seed = 7
    with fluid.program_guard(main):
        x = fluid.layers.data("x", [8])
        total = fluid.layers.reduce_sum(fluid.layers.dropout(x, 0.5), dim=0, keep_dim=True)
    found = {}
    for mode in ("interpreted", "compiled"):
        exe, scope = fluid.Executor(place, mode=mode), fluid.Scope()
        runs = [exe.run(main, {"x": np.ones((n, 8), "float32")}, [total], scope=scope)[0] for n in (600, 0, 600)]
        found[mode] = np.stack(runs)
    np.testing.assert_array_equal(found["compiled"], found["interpreted"])


def test_the_measure_of_ulps() -> None:
    one = np.asarray([1.0, -1.0, 1e-45, 0.0], np.float32)
    two = np.asarray([np.nextafter(np.float32(1), np.float32(2)), -1.0, -1e-45, 0.0], np.float32)
    assert ulps(one, two) == 2
    assert ulps(one, one) == 0
