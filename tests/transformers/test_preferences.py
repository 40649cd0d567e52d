"""What an executor prefers is what passes see: they decide as if the whole process preferred it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.compiler import policy as policies
from fluidlite.transformers import make_transformer

Build = Callable[[], tuple[list[Any], dict[str, Any]]]
RNG = np.random.default_rng(5)


def _network(optimizer: Callable[[], Any]) -> Build:
    def build() -> tuple[list[Any], dict[str, Any]]:
        x = layers.data("x", [16, 12], append_batch_size=False)
        hidden = layers.fc(x, 8, act="relu", bias_attr="b")
        product = layers.matmul(hidden, hidden, transpose_y=True)
        loss = layers.mean(layers.square(layers.fc(layers.tanh(product), 4)))
        optimizer().minimize(loss)
        return [loss], {"x": RNG.standard_normal((16, 12), "float32")}

    return build


def _image() -> tuple[list[Any], dict[str, Any]]:
    x = layers.data("x", [2, 3, 8, 8], append_batch_size=False)
    y = layers.conv2d(x, 8, 3, padding=1, act="relu")
    y = layers.batch_norm(layers.conv2d(y, 8, 3, padding=1))
    loss = layers.mean(layers.pool2d(y, 2, "max", 2))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return [loss], {"x": RNG.standard_normal((2, 3, 8, 8), "float32")}


def _transposed() -> tuple[list[Any], dict[str, Any]]:
    x, y = (layers.data(name, [24, 24], append_batch_size=False) for name in "xy")
    out = layers.transpose(layers.matmul(layers.transpose(x, [1, 0]), y), [1, 0])
    feed = {name: RNG.standard_normal((24, 24), "float32") for name in "xy"}
    return [layers.relu(layers.elementwise_add(out, y))], feed


PROGRAMS: dict[str, Build] = {
    "momentum": _network(lambda: fluid.optimizer.Momentum(0.1, 0.9)),
    "sgd": _network(lambda: fluid.optimizer.SGD(0.1)),
    "image": _image, "transposed": _transposed,
}  # fmt: skip
PREFERENCES: tuple[Mapping[str, list[str]], ...] = (
    {"cpu": ["plain"]}, {"cpu": ["blas", "plain"]}, {"cpu": ["registers"]}, {"cpu": ["plain", "blas"]},
)  # fmt: skip


@pytest.fixture(autouse=True)
def _same_policy() -> Iterator[None]:
    before = policies._current
    yield
    policies._current = before


def _plan(program: Any, startup: Any, feed: Any, fetches: Any, **options: Any) -> tuple[list[str], Any, int]:
    """What runs, in order, what it gives, and the bytes of temporaries."""
    scope = fluid.Scope()
    exe = fluid.Executor("cpu", **options)
    exe.run(startup, scope=scope)
    found = [exe.run(program, feed=feed, fetch_list=fetches, scope=scope)[0] for _ in range(3)]
    names = [f"{row['op']} {row['how']} {row['library']}".split("(")[0] for row in exe.explain_last().data()]
    return names, found, sum(exe.memory_plan.arenas.values())


@pytest.mark.parametrize("libraries", PREFERENCES, ids=lambda each: "-".join(each["cpu"]))
@pytest.mark.parametrize("name", PROGRAMS)
def test_libraries_of_an_executor_are_those_of_its_passes(name: str, libraries: Mapping[str, list[str]]) -> None:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        fetches, feed = PROGRAMS[name]()
    own, values, nbytes = _plan(main, startup, feed, fetches, libraries=libraries)
    for kind, names in libraries.items():
        fluid.set_libraries(kind, names)
    everywhere, expected, whole = _plan(main, startup, feed, fetches)
    assert own == everywhere
    assert nbytes == whole
    np.testing.assert_array_equal(values, expected)


def test_nothing_is_joined_for_a_library_that_does_not_run() -> None:
    """A momentum step of the framework's own kernels: no product with an epilogue that only BLAS would take."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        fetches, feed = PROGRAMS["momentum"]()
    own, _, _ = _plan(main, startup, feed, fetches, libraries={"cpu": ["plain"]})
    assert not any("decomposed" in each for each in own), own
    assert not any("blas" in each for each in own), own
    usual, _, _ = _plan(main, startup, feed, fetches)
    assert any("accumulate" in each for each in usual)  # with BLAS the velocity takes the product


def test_preferences_that_change_are_seen_again() -> None:
    """The programs that passes made are kept by the preferences that they were made with."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        fetches, feed = PROGRAMS["momentum"]()
    scope, exe = fluid.Scope(), fluid.Executor("cpu")
    exe.run(startup, scope=scope)

    def ran() -> list[str]:
        exe.run(main, feed=feed, fetch_list=fetches, scope=scope)
        return [row["op"] for row in exe.explain_last().data()]

    first = ran()
    fluid.set_libraries("cpu", ["plain"])
    second = ran()
    fluid.set_libraries("cpu", [])
    assert any("accumulate" in name for name in first) and first == ran()
    assert not any("accumulate" in name for name in second)


def test_the_generator_of_a_transformer_is_that_of_its_passes() -> None:
    import fluidlite.graph as ng

    x = ng.placeholder((4, 3))
    with make_transformer(codegen="numpy") as transformer:
        computation = transformer.computation(ng.tanh(x * 2.0) + 1.0, x)
        computation(np.ones((4, 3), "float32"))
        names = list(computation.sources())
    assert "program.py" in names and not any(name.startswith("kernels/") for name in names)
