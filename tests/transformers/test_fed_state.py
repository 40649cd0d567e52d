"""State that is fed and written in the same run: compiled gives what the interpreter gives, and leaves it in the scope.

What is fed stands for the variable until something writes it; the write goes to the scope, and who reads after it reads
that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.conformance.samples import samples_of
from fluidlite.program.registry import ops

Array = Any
Build = Callable[[], tuple[list[Any], dict[str, Array]]]
STEPS = 3


def _state(name: str, dims: list[int]) -> Any:
    return layers.create_parameter(dims, "float32", name=name, default_initializer=fluid.initializer.Constant(0.5))


def _data(name: str, dims: list[int]) -> Any:
    return layers.data(name, dims, append_batch_size=False)


def _assigned() -> tuple[list[Any], dict[str, Array]]:
    w = _state("w", [3])
    before = layers.scale(w, 2.0)
    layers.assign(layers.scale(w, 1.0, 1.0), w)
    return [_data("x", [3]) * w, w, before], {"w": np.array([10, 20, 30], "float32"), "x": np.ones(3, "float32")}


def _assigned_twice() -> tuple[list[Any], dict[str, Array]]:
    w = _state("w", [3])
    layers.assign(w * w, w)
    middle = layers.scale(w, 3.0)
    layers.assign(middle - 1.0, w)
    return [middle, layers.exp(layers.scale(w, 0.01)), "w"], {"w": np.array([1, 2, 3], "float32")}


def _large() -> tuple[list[Any], dict[str, Array]]:
    """Too large to be copied before it is read."""
    w = _state("w", [300, 100])
    layers.assign(layers.relu(w), w)
    return [layers.reduce_sum(w), w], {"w": np.linspace(-1, 1, 30000, dtype="float32").reshape(300, 100)}


def _read_only() -> tuple[list[Any], dict[str, Array]]:
    w = _state("w", [3])
    return [layers.scale(w, 2.0), w], {"w": np.array([1, 2, 3], "float32")}


def _written_unread() -> tuple[list[Any], dict[str, Array]]:
    w = _state("w", [3])
    layers.assign(_data("x", [3]), w)
    return [w, layers.scale(w, 2.0)], {"w": np.zeros(3, "float32"), "x": np.arange(3, dtype="float32")}


def _incremented() -> tuple[list[Any], dict[str, Array]]:
    w = _state("w", [1])
    layers.increment(w)
    return [_data("x", [1]) * w, w], {"w": np.array([10], "float32"), "x": np.array([2], "float32")}


def _trained(make: Callable[[], Any]) -> Build:
    def build() -> tuple[list[Any], dict[str, Array]]:
        loss = layers.mean(layers.square(layers.fc(_data("x", [4, 3]), 2, param_attr="w", bias_attr="b")))
        make().minimize(loss)
        x = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
        return [loss, "w", "b"], {"w": np.arange(6, dtype="float32").reshape(3, 2), "x": x}

    return build


def _normalized() -> tuple[list[Any], dict[str, Array]]:
    y = layers.batch_norm(_data("x", [4, 3]), moving_mean_name="w", moving_variance_name="v")
    x = np.arange(12, dtype="float32").reshape(4, 3) / 5
    return [y, "w", "v"], {"w": np.arange(3, dtype="float32"), "x": x}


PROGRAMS: dict[str, Build] = {
    "assign": _assigned, "assign_twice": _assigned_twice, "large": _large, "read_only": _read_only,
    "written_unread": _written_unread, "increment": _incremented, "batch_norm": _normalized,
    "sgd": _trained(lambda: fluid.optimizer.SGD(0.1)),
    "momentum": _trained(lambda: fluid.optimizer.Momentum(0.1, 0.9)),
    "adam": _trained(lambda: fluid.optimizer.Adam(0.1)),
}  # fmt: skip


def _run(place: str, mode: str, program: Any, startup: Any, feed: dict[str, Array], fetches: list[Any],
         state: list[str], beside: dict[str, Array]) -> list[Array]:  # fmt: skip
    """What every step gives and leaves: with the feed, and at the end without it where the rest can run."""
    scope = fluid.Scope()
    executor = fluid.Executor(place, mode=mode)
    executor.run(startup, scope=scope)
    for name, array in beside.items():
        scope.var(name).get_tensor().set(array, fluid.Place(place))
    found = []
    unfed = {name: array for name, array in feed.items() if name not in state}
    for given in [*[feed] * STEPS, *[unfed] * 2, feed]:
        found += executor.run(program, feed=given, fetch_list=fetches, scope=scope)
        found += [np.array(scope.find_var(name).get_tensor()) for name in state]
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(any_place: str, name: str) -> None:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup):
        fetches, feed = PROGRAMS[name]()
    state = sorted(variable.name for variable in main.list_vars() if variable.persistable)
    runs = [_run(any_place, m, main, startup, feed, fetches, state, {}) for m in ("compiled", "interpreted")]
    for k, (a, b) in enumerate(zip(*runs, strict=True)):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6, err_msg=f"value {k}")


def test_what_is_read_and_left() -> None:
    """The numbers of the first program, by hand."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        fetches, feed = _assigned()
    found = _run("cpu", "compiled", main, startup, feed, fetches, ["w"], {})
    np.testing.assert_array_equal(found[:4], [[11, 21, 31], [11, 21, 31], [20, 40, 60], [11, 21, 31]])


FED: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda held: held,
    "array": lambda held: held.numpy(),
    "data": lambda held: held.data() if hasattr(held.data(), "shape") else held,
    "another tensor": lambda held: fluid.Tensor().share_data_with(held),
}
"""What shares the memory of a tensor, or copies it where the place has no such arrays."""


@pytest.mark.parametrize("way", FED)
@pytest.mark.parametrize("rows", [3, 300])
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_state_that_is_fed_to_another_variable_is_what_it_was(any_place: str, mode: str, rows: int, way: str) -> None:
    """The run writes the memory that it is fed, and reads what is fed before and after that."""
    if any_place == "strict" and way == "data":
        pytest.skip("its arrays are no NumPy arrays")
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup):
        x, w = _data("x", [rows, 100]), _state("w", [rows, 100])
        before = layers.reduce_sum(x)
        layers.assign(layers.scale(w, 2.0), w)
        after = layers.reduce_sum(layers.scale(x, 0.5))
    executor = fluid.Executor(any_place, mode=mode)
    executor.run(startup, scope=scope)
    held = scope.find_var("w").get_tensor()
    for k in range(4):
        fed = FED[way](held)
        array = fed.numpy().copy() if isinstance(fed, fluid.Tensor) else np.array(fed)
        found = executor.run(main, {"x": fed}, [x, before, after, w], scope=scope)
        for value, expected in zip(found, [array, array.sum(), array.sum() / 2, 2.0**k * np.ones_like(array)],
                                   strict=True):  # fmt: skip
            np.testing.assert_allclose(value, np.reshape(expected, value.shape), rtol=1e-6)


UPDATERS = sorted(
    op.type for op in ops if op.must_alias and samples_of(op.type) and not op.host_only and op.run is None
)


@pytest.mark.parametrize("type", UPDATERS)
def test_every_operator_that_updates_in_place(any_place: str, type: str) -> None:
    """Each on its samples, everything that it reads being state that is fed."""
    if any_place == "opencl" and UPDATERS.index(type) % 4:
        pytest.skip("the same on every kernel language, whose compiler takes a second")
    definition = ops.get(type)
    samples = samples_of(definition.type)
    fluid.set_fallback("allow")
    for sample in samples[:1] if any_place == "opencl" else samples:
        _update(any_place, type, definition, sample)


def _update(place: str, type: str, definition: Any, sample: Any) -> None:
    program = fluid.Program()
    program.random_seed = 3
    block = program.global_block()
    feed: dict[str, Array] = {}
    inputs: dict[str, list[Any]] = {}
    for slot, given in sample.inputs.items():
        inputs[slot] = []
        for k, array in enumerate(given if isinstance(given, list) else [given]):
            array = np.asarray(array)
            if sample.lod.get(slot) is not None or (place == "strict" and array.dtype.name in ("float16", "bfloat16")):
                return
            name = f"{slot}{k}"
            block.create_var(name=name, shape=list(array.shape), dtype=str(array.dtype), persistable=True)
            inputs[slot].append(block.var(name))
            feed[name] = array
    outputs: dict[str, list[Any]] = {}
    fetches = []
    for slot in definition.outputs:
        pair = definition.must_alias.get(slot.name)
        if pair in inputs:
            outputs[slot.name] = inputs[pair]
        elif not slot.dispensable and not slot.duplicable:
            outputs[slot.name] = [block.create_var(name=f"{slot.name}_out", persistable=False)]
        else:
            continue
        fetches += [variable.name for variable in outputs[slot.name]]
    with fluid.program_guard(program):  # who reads before the update
        updated = [variable for pair in sorted(set(definition.must_alias.values()) & set(inputs)) for variable in
                   inputs[pair]]  # fmt: skip
        fetches += [layers.cast(variable, "float32").name for variable in updated]
    block.append_op(type, inputs, outputs, dict(sample.attrs))
    state = sorted(feed)
    beside = {name: np.zeros_like(array) for name, array in feed.items()}
    runs = [
        _run(place, mode, program, fluid.Program(), feed, fetches, state, beside)
        for mode in ("compiled", "interpreted")
    ]
    scope = fluid.Scope()  # the same values, from the scope, which is updated in place
    for name, array in feed.items():
        scope.var(name).get_tensor().set(array, fluid.Place(place))
    executor = fluid.Executor(place, mode="interpreted")
    for a, b in zip(runs[0], executor.run(program, fetch_list=fetches, scope=scope), strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=f"{type} {sample.name}: not as in the scope")
    for k, (a, b) in enumerate(zip(*runs, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=f"{type} {sample.name} value {k}")
