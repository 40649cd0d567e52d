"""Random programs of layers: compiled, they give what the interpreter gives; errors too, and then state stays."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from random_layers import RandomProgram

import fluidlite as fluid
from fluidlite import layers
from fluidlite.errors import DeviceError, FluidError, OutOfRangeError

F32 = "float32"
MODES = ("interpreted", "compiled")
PLACES = ("cpu", pytest.param("opencl", marks=pytest.mark.opencl), "fpga")
PROGRAMS = 16
BATCHES = (4, 4, 4, 7, 1)


class Pair:
    """One program in both modes, each with a scope of its own."""

    def __init__(self, place: str, main: Any, startup: Any) -> None:
        self.main = main
        self.exes = {mode: fluid.Executor(place, mode=mode, fallback="allow") for mode in MODES}
        self.scopes = {mode: fluid.Scope() for mode in MODES}
        for mode in MODES:
            self.exes[mode].run(startup, scope=self.scopes[mode])
        self.compare()

    def state(self, mode: str) -> dict[str, Any]:
        """What is stored."""
        found = {}
        for variable in self.main.list_vars():
            kept = self.scopes[mode].find_var(variable.name) if variable.persistable else None
            if kept is not None:
                found[variable.name] = np.array(kept.get_tensor())
        return found

    def compare(self) -> None:
        """State is the same."""
        wanted, found = self.state(MODES[0]), self.state(MODES[1])
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            same(name, found[name], value)

    def run(self, program: Any, feed: dict[str, Any], fetches: list[str]) -> None:
        """Run it in both; results and state are the same."""
        wanted, found = (self.exes[mode].run(program, feed, fetches, scope=self.scopes[mode]) for mode in MODES)
        for name, mine, other in zip(fetches, found, wanted, strict=True):
            same(name, mine, other)
        self.compare()

    def fails(self, feed: dict[str, Any], fetches: list[str]) -> list[FluidError]:
        """Run it in both with a feed that may be wrong; no error, or the same one, and what comes after it stays."""
        errors = []
        before = self.state(MODES[0])
        for mode in MODES:
            try:
                self.exes[mode].run(self.main, feed, fetches, scope=self.scopes[mode])
            except FluidError as error:
                errors.append(error)
        assert len(errors) in (0, 2), errors
        if errors:
            wanted, found = errors
            assert isinstance(found, type(wanted)) or isinstance(wanted, type(found)), errors
            lines = [str(error).split("\n")[0] for error in errors]
            if isinstance(found, OutOfRangeError):
                assert lines[0] == lines[1]
            now, mine = (self.state(mode) for mode in MODES)
            for name, value in mine.items():  # the interpreter may have written what comes before
                assert np.array_equal(value, before[name]) or np.allclose(value, now[name], rtol=1e-4), name
        self.align()
        return errors

    def align(self) -> None:
        """Let both go on from the interpreter's state: small differences do not grow, and an error counts for both."""
        mine, other = (self.scopes[mode] for mode in MODES)
        for name, value in self.state(MODES[0]).items():
            other.find_var(name).get_tensor().set(value)
        other._runs = dict(mine._runs)


def same(name: str, found: Any, wanted: Any) -> None:
    """Equal to rounding, relative to the mean magnitude."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), name
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        return
    mine, other = found.astype("float64"), wanted.astype("float64")
    finite = np.isfinite(other)
    size = float(np.abs(other[finite]).mean()) if finite.any() else 0.0
    most = float(np.abs(other[finite]).max()) if finite.any() else 0.0
    tolerance = 2e-3 if wanted.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(mine, other, rtol=0, atol=tolerance * max(size, 0.3 * most) + 3e-6, err_msg=name)


def test_the_comparison_sees_differences() -> None:
    """``same`` is strict where it has to be."""
    value = np.float32([1, np.nan, np.inf, 2])
    same("v", value.copy(), value)
    for other in ([1, 0, np.inf, 2], [1, np.nan, -np.inf, 2], [1, np.nan, np.inf, 2.001], [1, np.nan, 3, 2]):
        with pytest.raises(AssertionError):
            same("v", np.float32(other), value)
    with pytest.raises(AssertionError):
        same("v", value.astype("float64"), value)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return str(request.param)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_compiled_is_interpreted(seed: int, place: str) -> None:
    made = RandomProgram(seed, "cpu" if place != "cpu" and seed % 4 == 0 else None)
    rng = np.random.default_rng(seed)
    pair = Pair(place, made.main, made.startup)
    for turn, batch in enumerate(BATCHES):
        feed = made.data(batch, rng)
        pair.run(made.main, feed, made.fetches)
        if seed % 2:
            pair.align()
        if turn == 2:
            for bad in made.bad_data(feed).values():
                pair.fails(bad, made.fetches)
            pair.run(made.main, feed, [])
            pair.run(made.main, feed, made.fetches[:1])
            if made.test is not None:
                known = [name for name in made.fetches if made.test.global_block().has_var(name)]
                pair.run(made.test, feed, known)


# What random programs found, as small as can be


def test_what_waits_for_a_group_keeps_state_behind_it(place: str) -> None:
    """A fused group ends after an increment; an operator that looks at indices, and needs the group, comes before."""
    x, label = layers.data("x", [16]), layers.data("label", [1], dtype="int64")
    kept = layers.create_global_var([1], 0.5, F32, persistable=True, name="kept")
    hidden = layers.tanh(x)
    loss = layers.cross_entropy(layers.softmax(hidden), label)
    layers.increment(kept, 1.0)
    other = layers.exp(hidden) * 2.0
    pair = Pair(place, fluid.default_main_program(), fluid.default_startup_program())
    good = {"x": np.ones((4, 16), F32), "label": np.ones((4, 1), "int64")}
    for turn in range(4):
        if turn % 2:
            errors = pair.fails({**good, "label": good["label"] + 40}, [loss.name, other.name])
            assert all(isinstance(error, OutOfRangeError) for error in errors) and len(errors) == 2
        else:
            pair.run(pair.main, good, [loss.name, other.name])
        assert pair.state("compiled")["kept"] == 1.5 + turn // 2


def test_what_runs_itself_keeps_state_behind_it(place: str) -> None:
    """As above, with a function of the user's that raises."""

    def check(value: Any) -> Any:
        if np.asarray(value).max() > 5:
            raise ValueError("too large")
        return np.asarray(value) * 2

    x = layers.data("x", [8])
    kept = layers.create_global_var([1], 0.5, F32, persistable=True, name="kept")
    hidden = layers.tanh(x) * 6.0
    out = fluid.default_main_program().global_block().create_var(name="out", shape=[-1, 8], dtype=F32)
    layers.py_func(check, hidden, out)
    layers.increment(kept, 1.0)
    shown = layers.tanh(out) * kept + layers.exp(hidden)
    pair = Pair(place, fluid.default_main_program(), fluid.default_startup_program())
    for turn in range(4):
        feed = {"x": np.full((4, 8), 9.0 * (turn % 2), F32)}
        if turn % 2:
            errors = pair.fails(feed, [shown.name])
            assert all(isinstance(error, DeviceError) for error in errors) and len(errors) == 2
        else:
            pair.run(pair.main, feed, [shown.name])
        assert pair.state("compiled")["kept"] == 1.5 + turn // 2


def optimizers() -> dict[str, Any]:
    """By name."""
    return {
        "sgd": fluid.optimizer.SGD(0.1), "momentum": fluid.optimizer.Momentum(0.1, 0.9),
        "nesterov": fluid.optimizer.Momentum(0.1, 0.9, use_nesterov=True), "adam": fluid.optimizer.Adam(0.1),
    }  # fmt: skip


@pytest.mark.parametrize("rows", [4, 64])
@pytest.mark.parametrize("optimizer", list(optimizers()))
def test_a_late_error_changes_no_state(optimizer: str, rows: int, place: str) -> None:
    """Small and large updates, by whatever kernels, behind small and large lookups; velocities too."""
    x, index = layers.data("x", [64]), layers.data("index", [1], dtype="int64")
    scale = layers.create_parameter([1], F32, "scale")
    hidden = layers.fc(layers.fc(x, 64, bias_attr=False, act="relu"), 64)
    loss = layers.mean(layers.square(hidden + layers.gather(x, index) * scale + layers.embedding(index, [64, 64])))
    optimizers()[optimizer].minimize(loss)
    pair = Pair(place, fluid.default_main_program(), fluid.default_startup_program())
    rng = np.random.default_rng(0)
    good = {"x": rng.normal(size=(rows, 64)).astype(F32), "index": rng.integers(rows, size=(rows, 1))}
    for turn in range(5):
        if turn in (0, 3):
            pair.align()
            before = [pair.state(mode) for mode in MODES]
            for fetches in ([loss.name], []):
                errors = pair.fails({**good, "index": good["index"] + 90}, fetches)
                assert all(isinstance(error, OutOfRangeError) for error in errors) and len(errors) == 2
            for mode, old in zip(MODES, before, strict=True):
                for name, value in pair.state(mode).items():
                    np.testing.assert_array_equal(value, old[name], f"{mode}: {name}")
        else:
            pair.run(pair.main, good, [loss.name])


@pytest.mark.parametrize("mode", MODES)
def test_programs_that_nobody_holds_are_freed(mode: str, place: str) -> None:
    """Also what was made of them, after the executor that ran them is gone."""

    def run(number: int) -> None:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup):
            x = layers.data("x", [4 + number])
            loss = layers.mean(layers.tanh(layers.fc(x, 3)))
            fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor(place, mode=mode)
        scope = fluid.Scope()
        exe.run(startup, scope=scope)
        for _ in range(3):
            exe.run(main, {"x": np.ones((2, 4 + number), F32)}, [loss], scope=scope)
        exe.close()

    def alive() -> int:
        gc.collect()
        return sum(type(thing) is fluid.Program for thing in gc.get_objects())

    run(0)
    before = alive()
    for number in range(5):
        run(number)
    assert alive() <= before
