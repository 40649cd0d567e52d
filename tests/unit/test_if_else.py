"""IfElse on every place, compiled and interpreted, against rows that are chosen in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers

pytestmark = pytest.mark.filterwarnings("ignore::fluidlite.errors.FallbackWarning")


@pytest.mark.parametrize(
    ("kind", "mode"), [("cpu", "interpreted"), ("cpu", "compiled"), ("opencl", "compiled"), ("fpga", "interpreted")]
)
def test_rows_take_their_branch(kind: str, mode: str, require: Callable[..., None]) -> None:
    require(kind)
    x, y = layers.data("x", [3]), layers.data("y", [1])
    x.stop_gradient = False
    zero = layers.fill_constant_batch_size_like(y, [-1, 1], "float32", 0.0)
    branches = layers.IfElse(layers.less_than(y, zero))
    with branches.true_block():
        rows = branches.input(x)
        branches.output(layers.exp(rows), rows * 3.0)
    with branches.false_block():
        rows = branches.input(x)
        branches.output(rows * rows, rows + branches.input(y))
    first, second = branches()
    (dx,) = fluid.gradients(layers.reduce_sum(first) + layers.reduce_sum(second), x)
    exe = fluid.Executor(kind, mode=mode)
    fed = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    for signs in ([-1, 1, 1, -1, 1], [1, 1, 1, 1, 1], [-1, -1, -1, -1, -1]):
        column = np.array(signs, np.float32)[:, None]
        found = exe.run(feed={"x": fed, "y": column}, fetch_list=[first, second, dx])
        np.testing.assert_allclose(found[0], np.where(column < 0, np.exp(fed), fed * fed), rtol=1e-5)
        np.testing.assert_allclose(found[1], np.where(column < 0, 3 * fed, fed + column), rtol=1e-5)
        np.testing.assert_allclose(found[2], np.where(column < 0, np.exp(fed) + 3, 2 * fed + 1), rtol=1e-5)


def test_refuses() -> None:
    x, y = layers.data("x", [3]), layers.data("y", [1])
    zero = layers.fill_constant_batch_size_like(y, [-1, 1], "float32", 0.0)
    for wrong in (x, 3, layers.less_than(x, x)):
        with pytest.raises(fluid.errors.ProgramError, match="cond"):
            layers.IfElse(wrong)
    branches = layers.IfElse(layers.less_than(y, zero))
    calls: tuple[Callable[[], Any], ...] = (lambda: branches.input(x), lambda: branches.output(x))
    for call in calls:
        with pytest.raises(fluid.errors.ProgramError, match="inside of a branch"):
            call()
    with pytest.raises(fluid.errors.ProgramError, match="has no output"), branches.true_block():
        branches.input(x)
    with branches.true_block():
        branches.output(x)
    with pytest.raises(fluid.errors.ProgramError, match="1 outputs, its false_block 0"):
        branches()
    with pytest.raises(fluid.errors.ProgramError, match="opened in another"), branches.false_block():
        branches.true_block().__enter__()
    with branches.false_block():
        branches.output(layers.cast(x, "int64"))
    with pytest.raises(fluid.errors.ProgramError, match="of their rows"):
        branches()
