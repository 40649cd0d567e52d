"""Random numbers: seeds, runs and operators of their own; the bits are tested in tests/places."""

from __future__ import annotations

from typing import Any

import drawn
import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import nodes

layers = fluid.layers


def draw(seed: int, runs: int = 1, own: int = 0, scope: Any = None, before: int = 0, name: str = "out") -> list[Any]:
    program = fluid.Program()
    program.random_seed = seed
    block = program.global_block()
    for number in range(before):
        block.append_op(
            "uniform_random", {}, {"Out": block.create_var(f"before{number}", persistable=True)}, {"shape": [4]}
        )
    out = block.create_var(name)
    block.append_op("uniform_random", {}, {"Out": out}, {"shape": [64], "min": 0.0, "max": 1.0, "seed": own})
    exe = fluid.Executor("cpu")
    scope = scope or fluid.Scope()
    return [exe.run(program, fetch_list=[out], scope=scope)[0].tolist() for _ in range(runs)]


def test_a_seed_repeats_and_another_does_not() -> None:
    assert draw(7, 3) == draw(7, 3)
    assert draw(7) != draw(8)


def test_every_run_draws_anew() -> None:
    one, two, three = draw(7, 3)
    assert one != two
    assert two != three
    assert one != three


def test_a_fresh_scope_starts_again() -> None:
    scope = fluid.Scope()
    first = draw(7, 2, scope=scope)
    assert draw(7, 1, scope=scope)[0] not in first
    assert draw(7, 2) == first
    assert draw(7, 2, scope=scope.new_scope()) == first  # a child counts on its own


def test_without_a_seed_runs_of_a_process_differ_and_are_no_constant() -> None:
    first, second = draw(0, 2)
    assert first != second
    assert len(set(first)) > 60


def test_an_own_seed_fixes_the_numbers_of_every_run() -> None:
    first, second = draw(7, 2, own=3)
    assert first == second
    assert draw(8, own=3) == [first]  # whatever the program's seed
    assert draw(7, own=4) != [first]


def test_what_stands_before_an_operator_does_not_change_its_numbers() -> None:
    assert draw(7, 2) == draw(7, 2, before=3)
    assert draw(7) != draw(7, name="other")  # but two operators draw apart


def test_large_and_negative_seeds() -> None:
    found = [draw(seed)[0] for seed in (1, 2**32, 2**32 + 1, 2**63 - 1, -1)]
    assert len({tuple(values) for values in found}) == len(found)


def test_a_wrong_seed() -> None:
    program = fluid.Program()
    for wrong in ("7", 1.5, None, True):
        with pytest.raises(fluid.FluidError, match=r"random_seed is .*; expected an int"):
            program.random_seed = wrong  # type: ignore[assignment]


def test_a_clone_draws_the_same() -> None:
    program = fluid.Program()
    program.random_seed = 9
    with fluid.program_guard(program):
        x = layers.data("x", [100])
        y = layers.dropout(x, 0.4)
    exe = fluid.Executor("cpu")
    feed = {"x": np.ones((2, 100), "float32")}
    one = exe.run(program, feed, [y], scope=fluid.Scope())[0]
    two = exe.run(program.clone(), feed, [y.name], scope=fluid.Scope())[0]
    np.testing.assert_array_equal(one, two)
    assert 0.4 < one.mean() < 0.8


def test_the_gradient_of_dropout_takes_the_same_mask() -> None:
    program = fluid.Program()
    with fluid.program_guard(program):
        x = layers.data("x", [100], stop_gradient=False)
        y = layers.dropout(x, 0.5, dropout_implementation="upscale_in_train")
        (gradient,) = fluid.gradients([y], [x])
    out, dx = fluid.Executor("cpu").run(program, {"x": np.ones((3, 100), "float32")}, [y, gradient])
    np.testing.assert_array_equal(out, dx)
    assert set(np.unique(out)) == {0.0, 2.0}


def test_the_distributions() -> None:
    program = fluid.Program()
    program.random_seed = 4
    block = program.global_block()
    for type, attrs in (("uniform_random", {"min": -2.0, "max": 4.0}), ("gaussian_random", {"mean": 1.0, "std": 3.0})):
        block.append_op(type, {}, {"Out": block.create_var(type)}, {"shape": [300, 100], **attrs})
    uniform, gaussian = fluid.Executor("cpu").run(program, fetch_list=["uniform_random", "gaussian_random"])
    assert uniform.min() >= -2
    assert uniform.max() < 4
    assert abs(uniform.mean() - 1) < 0.05
    assert abs(uniform.std() - 6 / 12**0.5) < 0.05
    assert abs(gaussian.mean() - 1) < 0.08
    assert abs(gaussian.std() - 3) < 0.08
    inside = np.mean(np.abs(gaussian - 1) < 3)
    assert abs(inside - 0.6827) < 0.01


def test_tests_draw_the_same_in_each_run() -> None:
    program = fluid.Program()
    with fluid.program_guard(program):
        y = layers.uniform_random([10])
    found = []
    for name in ("one", "other", "one"):
        drawn.the_same(name)
        (mine,) = fluid.Executor("cpu").run(program, fetch_list=[y], scope=fluid.Scope())
        found.append([mine, np.random.rand(10), nodes.Tensor(nodes.cpu(), [10]).set_random().numpy()])
    np.testing.assert_array_equal(found[0], found[2])
    assert all((a != b).any() for a, b in zip(found[0], found[1], strict=True))
