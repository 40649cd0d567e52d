"""Names that are made up are new in their program, whichever generator numbers them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import graph as ng, layers
from fluidlite.transformers import make_transformer

X = np.float32([0.5, 1, -1])
FEED = {"x": X, "n": np.int64([3])}
EXPECTED = [8 * X**4 + 12 * X**3 + 6 * X**2 + 3 * X, 32 * X**3 + 36 * X**2 + 12 * X + 3, 2 * X, 3 * X]


def looped() -> tuple[fluid.Program, list[str]]:
    """A loop whose body reads temporaries from outside, with its gradient."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [3], append_batch_size=False)
        x.stop_gradient = False
        n = layers.data("n", [1], dtype="int64", append_batch_size=False)
        w, w1 = x * 2.0, x * 3.0
        i, acc = layers.fill_constant([1], "int64", 0), layers.assign(x)
        more = layers.less_than(i, n)
        with layers.While(more).block():
            layers.assign(acc * w + w1, output=acc)
            layers.increment(i)
            layers.less_than(i, n, cond=more)
        (g,) = fluid.gradients(layers.reduce_sum(acc), [x])
    return main, [v.name for v in (acc, g, w, w1)]


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize("place", [*map(str, fluid.places())])
def test_a_program_that_was_built_under_other_numbers(place: str, mode: str) -> None:
    """The step of a loop's gradient is made when it first runs: its temporaries were those that the body reads."""
    main, names = looped()
    with fluid.unique_name.guard():
        found = fluid.Executor(place, mode=mode).run(main, FEED, names)
    for mine, expected in zip(found, EXPECTED, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-6)


def test_a_program_that_another_process_has_saved(tmp_path: Path) -> None:
    main, names = looped()
    (tmp_path / "program.json").write_text(main.to_json())
    script = (
        "import json, sys, numpy as np, fluidlite as fluid\n"
        "main = fluid.Program.from_json(open(sys.argv[1]).read())\n"
        "feed = {'x': np.float32([0.5, 1, -1]), 'n': np.int64([3])}\n"
        f"found = fluid.Executor('cpu').run(main, feed, {names!r})\n"
        "print(json.dumps([each.tolist() for each in found]))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "program.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for mine, expected in zip(json.loads(done.stdout), EXPECTED, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-6)


def test_gradients_outside_of_the_guard_in_which_the_program_was_built() -> None:
    """Neither the zeros that they begin with nor a third gradient of a variable take names that are there."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        with fluid.unique_name.guard():
            x = layers.data("x", [3], append_batch_size=False)
            x.stop_gradient = False
            square = x * x
            sums = [layers.reduce_sum(y) for y in (square, x * x * x, layers.exp(x))]
            first, second = (fluid.gradients(each, [x])[0] for each in sums[:2])
        with fluid.unique_name.guard():
            (third,) = fluid.gradients(sums[2], [x])
            layers.fc(layers.reshape(x, [1, 3]), 2)
    assert len({first.name, second.name, third.name}) == 3
    found = fluid.Executor("cpu").run(main, {"x": X}, [square, first, second, third])
    for mine, expected in zip(found, [X * X, 2 * X, 3 * X * X, np.exp(X)], strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-6)


def test_values_of_a_graph() -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        with fluid.unique_name.guard():
            x = ng.placeholder((3,))
            y = ng.exp(x)
        with fluid.unique_name.guard():
            z = ng.exp(y)
        assert len({x.name, y.name, z.name}) == 3
        with make_transformer() as made:
            (mine, other) = made.computation([y, z], x)(X)
    np.testing.assert_allclose(mine, np.exp(X), rtol=1e-6)
    np.testing.assert_allclose(other, np.exp(np.exp(X)), rtol=1e-6)
