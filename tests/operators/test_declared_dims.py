"""Dims that a program declares hold in every run: programs, and what rewrites them, are built on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import ShapeError

L = fluid.layers
MODES = ("interpreted", "compiled")
FOLLOWERS: dict[str, Callable[[Any], Any]] = {
    "zeros_like": L.zeros_like,
    "shape": L.shape,
    "flatten": L.flatten,
    "unsqueeze": lambda x: L.unsqueeze(x, [0]),
    "reshape": lambda x: L.reshape(x, [0, -1]),
    "transpose twice": lambda x: L.transpose(L.transpose(x, [1, 0]), [1, 0]),
    "derivative": lambda x: fluid.gradients(L.reduce_sum(L.square(x)), [x])[0],
    "batch": lambda x: L.fill_constant_batch_size_like(x, [-1, 2], "float32", 1.0),
}


def reshaped(shape: list[int], follow: Callable[[Any], Any]) -> tuple[fluid.Program, Any]:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = L.data("x", [2, 6], append_batch_size=False)
        x.stop_gradient = False
        actual = L.data("actual", [2], dtype="int32", append_batch_size=False)
        return main, follow(L.reshape(x, shape, actual_shape=actual))


def run(main: fluid.Program, result: Any, mode: str, actual: list[int]) -> Any:
    feed = {"x": np.arange(12, dtype="float32").reshape(2, 6), "actual": np.array(actual, "int32")}
    return fluid.Executor("cpu", mode=mode).run(main, feed, [result])[0]


@pytest.mark.parametrize("follow", FOLLOWERS)
@pytest.mark.parametrize("shape", [[-1, -1], [0, -1], [-1, 3], [4, -1], [4, 3]])
def test_a_tensor_says_what_shape_leaves_open(shape: list[int], follow: str) -> None:
    if follow == "reshape" and shape == [-1, -1]:
        return
    found = [run(*reshaped(shape, FOLLOWERS[follow]), mode, [4, 3]) for mode in MODES]
    plain = run(*reshaped([4, 3], FOLLOWERS[follow]), "interpreted", [4, 3])
    for array in found:
        np.testing.assert_array_equal(array, plain)


@pytest.mark.parametrize("follow", FOLLOWERS)
def test_a_tensor_against_shape_is_refused(follow: str) -> None:
    main, result = reshaped([3, 4], FOLLOWERS[follow])
    with pytest.raises(ShapeError, match="expected 3 for dim 0 of Out, as shape states"):
        run(main, result, "interpreted", [4, 3])
    try:
        found = run(main, result, "compiled", [4, 3])
    except ShapeError:
        return
    np.testing.assert_array_equal(found, run(main, result, "interpreted", [3, 4]))  # the tensor is not looked at


@pytest.mark.parametrize(("shape", "actual"), [([3, 4], [12]), ([3, 4], [-1, 3]), ([3, 4], [0, 6]), ([12, -1], [0, 6])])
def test_what_the_tensor_leaves_open_is_held_too(shape: list[int], actual: list[int]) -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = L.data("x", [2, 6], append_batch_size=False)
        tensor = L.data("actual", [-1], dtype="int32", append_batch_size=False)
        out = L.reshape(x, shape, actual_shape=tensor)
    for mode in MODES:
        with pytest.raises(ShapeError, match="as shape states"):
            run(main, out, mode, actual)


@pytest.mark.parametrize("mode", MODES)
def test_a_chain_that_cannot_be_is_told_by_its_operators(mode: str) -> None:
    """And not by a pass that makes one view of two."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = L.data("x", [2, 6], append_batch_size=False)
        shape = L.data("actual", [3], dtype="int32", append_batch_size=False)
        out = L.scale(L.reshape(L.reshape(x, [-1, 1, 5], actual_shape=shape), [1, 24]), 2.0)
    with pytest.raises(ShapeError, match=r"operator reshape2 \(test_declared_dims.py:\d+, layers.reshape\)"):
        run(main, out, mode, [3, 2, -1])


def test_dims_are_compared_with_dims_that_nobody_computes() -> None:
    """assign_like says that its operands' dims are equal; no pass may take that for the reason not to look."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = fluid.layers.data("x", [-1], append_batch_size=False)
        y = fluid.layers.data("y", [-1, 1], append_batch_size=False)
        like = fluid.layers.sin(fluid.layers.reshape(x, [-1, 1]))
        out = main.global_block().create_var("out")
        main.global_block().append_op("assign_like", {"X": y, "Like": like}, {"Out": out})
    for mode in ("interpreted", "compiled"):
        exe = fluid.Executor("cpu", mode=mode)
        feed = {"x": np.ones(2, "float32"), "y": np.ones((2, 1), "float32")}
        np.testing.assert_array_equal(exe.run(main, feed, [out])[0], feed["y"])
        with pytest.raises(fluid.errors.ShapeError, match="the dims of Like"):
            exe.run(main, {**feed, "x": np.ones(6, "float32")}, [out])
