"""State whose tensor is a strided view: whoever runs a program sees its values, and updates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import graph as ng
from fluidlite.compiler import interpreter
from fluidlite.platform.context_pool import get_context
from fluidlite.transformers import make_transformer

layers = fluid.layers
KINDS = ("cpu", "opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})
PROGRAMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "scale": (lambda w: layers.scale(w, 2.0), lambda w: w * 2),
    "matmul": (lambda w: layers.matmul(w, w, transpose_y=True), lambda w: w @ w.T),
    "reduce": (lambda w: layers.reduce_sum(w, 1), lambda w: w.sum(1)),
    "train": (lambda w: layers.assign(layers.scale(w, 1.0, 1.0), w), lambda w: w + 1),
}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return f"{request.param}:0"


def made(front: str, place: str, build: Callable[[Any], Any]) -> tuple[Callable[[], Any], fluid.Scope]:
    """What runs a program of one persistable variable, and the scope that it lies in."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        w = layers.create_global_var([4, 3], 0.0, "float32", persistable=True, name="w")
        result = build(w)
        if front == "computation":
            transformer = make_transformer(place)
            return transformer.computation(result), transformer.scope
    exe, scope = fluid.Executor(place, fallback="allow", mode=front), fluid.Scope()
    exe.run(startup, scope=scope)
    return lambda: exe.run(main, fetch_list=[result], scope=scope)[0], scope


def tensor_of(scope: fluid.Scope) -> fluid.Tensor:
    variable = scope.find_var("w")
    assert variable is not None
    return variable.get_tensor()


@pytest.mark.parametrize(
    ("front", "name"),
    [
        (front, name)
        for front in ("compiled", "interpreted", "computation")
        for name in PROGRAMS
        if (front, name) != ("computation", "train")  # an assignment there is an action of its own
    ],
)
def test_state_that_becomes_a_strided_view(place: str, front: str, name: str) -> None:
    build, right = PROGRAMS[name]
    run, scope = made(front, place, build)
    run()
    whole = np.arange(24, dtype="float32").reshape(4, 6)
    for first in (0, 1):
        tensor_of(scope).share_data_with(fluid.Tensor().set(whole, place)[:, first::2])
        expected = whole[:, first::2]
        for _ in range(3):
            before, expected = expected, right(expected) if name == "train" else expected
            np.testing.assert_array_equal(run(), right(before))
        np.testing.assert_array_equal(tensor_of(scope).numpy(), expected)


@pytest.mark.parametrize("front", ["interpreted", "computation"])
def test_state_that_becomes_one_between_plan_and_run(place: str, front: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another thread may do it: the run sees that at its turn, and is planned again."""
    run, scope = made(front, place, PROGRAMS["matmul"][0])
    run()
    whole = fluid.Tensor().set(np.arange(24, dtype="float32").reshape(4, 6), place)
    take, left = interpreter.take_state, [whole[:, ::2]]

    def taken(*args: Any) -> None:
        while left:
            tensor_of(scope).share_data_with(left.pop())
        take(*args)

    monkeypatch.setattr(interpreter, "take_state", taken)
    with fluid.debug(on_op=lambda *seen: None):  # who is observed runs operator by operator
        found = run()
    view = whole.numpy()[:, ::2]
    assert not left
    np.testing.assert_array_equal(found, view @ view.T)


def _in_loop(w: Any) -> None:
    step, end = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
    running = layers.less_than(step, end)
    loop = layers.While(running)
    with loop.block():
        layers.assign(layers.scale(w, 1.0, 1.0), w)
        layers.increment(step)
        layers.less_than(step, end, cond=running)


def _in_case(w: Any) -> None:
    with (
        layers.Switch() as switch,
        switch.case(layers.less_than(layers.reduce_sum(w), layers.fill_constant([1], "float32", 1e6))),
    ):
        layers.assign(layers.scale(w, 1.0, 1.0), w)


def _trained(optimizer: Any) -> Callable[[Any], None]:
    def build(w: Any) -> None:
        optimizer.minimize(layers.reduce_sum(w))

    return build


WRITERS: dict[str, Callable[[Any], Any]] = {
    "assign": lambda w: layers.assign(layers.scale(w, 1.0, 1.0), w),
    "twice": lambda w: [layers.assign(layers.exp(layers.scale(w, 0.1)), w), layers.assign(w + 1.0, w)],
    "constant": lambda w: layers.assign(layers.fill_constant([4, 3], "float32", 7.0), w),
    "loop": _in_loop,
    "case": _in_case,
    "sgd": _trained(fluid.optimizer.SGD(0.1)),
    "adam": _trained(fluid.optimizer.Adam(0.1)),
}


@pytest.mark.parametrize("front", ["compiled", "interpreted"])
@pytest.mark.parametrize("name", WRITERS)
def test_what_looks_at_state_sees_what_is_written(place: str, front: str, name: str) -> None:
    """Another variable over its memory, and an array, where the place's memory is the host's."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup):
        w = layers.create_parameter([4, 3], "float32", "w", default_initializer=fluid.initializer.Constant(0.5))
        other = layers.create_global_var([4, 3], 0.0, "float32", persistable=True, name="other")
        WRITERS[name](w)
        seen = layers.scale(other, 1.0)
    exe = fluid.Executor(place, fallback="allow", mode=front)
    exe.run(startup, scope=scope)
    exe.run(main, scope=scope)
    array = tensor_of(scope).numpy()
    for tied in (False, True, True):
        if tied:
            scope.find_var("other").get_tensor().share_data_with(tensor_of(scope))
        for _ in range(3):
            (found,) = exe.run(main, fetch_list=[seen], scope=scope)
            assert np.isfinite(found).all()
            held = np.array(tensor_of(scope))
            if tied:
                np.testing.assert_array_equal(found, held)
            if place == "cpu:0":
                np.testing.assert_array_equal(array, held)


def test_variables_over_one_memory_are_read_and_written_in_order(place: str) -> None:
    """Passes take each for itself, and would join a read of one with what follows a write of the other."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x = layers.data("x", [4, 4], append_batch_size=False)
        a, b = (layers.create_global_var([4, 4], 0.5, "float32", persistable=True, name=name) for name in "ab")
        before = layers.scale(b, 2.0)
        layers.assign(layers.scale(x, 0.5), a)
        result = layers.reduce_sum(layers.elementwise_mul(before, x), 1)
        layers.assign(layers.matmul(b, x), a)
    found = []
    for front in ("interpreted", "compiled"):
        exe, scope = fluid.Executor(place, fallback="allow", mode=front), fluid.Scope()
        exe.run(startup, scope=scope)
        feed = {"x": np.linspace(-1, 1, 16, dtype="float32").reshape(4, 4)}
        other = scope.find_var("b").get_tensor()
        results = []
        for tensor in (other, scope.find_var("a").get_tensor(), fluid.Tensor().set(feed["x"], place)):
            other.share_data_with(tensor)
            results += [exe.run(main, feed, [result, a, b], scope=scope) for _ in range(3)]
        found.append(results)
    for step, (one, two) in enumerate(zip(*found, strict=True)):
        for value, expected in zip(two, one, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6, err_msg=f"run {step}")


def test_state_that_nobody_else_holds_is_exchanged(place: str) -> None:
    """An interpreted run copies a result into its state only where a view of that is held."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup):
        x = layers.data("x", [4, 4], append_batch_size=False)
        w = layers.create_global_var([4, 4], 0.0, "float32", persistable=True, name="w")
        main.global_block().append_op("exp", {"X": [x]}, {"Out": [w]})
    exe = fluid.Executor(place, fallback="allow", mode="interpreted")
    exe.run(startup, scope=scope)
    counts = get_context(tensor_of(scope).place).counts
    view = None
    for scale in (0.0, 1.0, 2.0, 3.0):
        if scale == 2.0:
            view = tensor_of(scope)[1:]
        before = counts.copy_within
        value = np.full((4, 4), scale, "float32")
        exe.run(main, {"x": value}, scope=scope)
        assert counts.copy_within - before == (view is not None)
        np.testing.assert_allclose(tensor_of(scope).numpy(), np.exp(value), rtol=1e-6)
        if view is not None:
            np.testing.assert_allclose(view.numpy(), np.exp(value[1:]), rtol=1e-6)
    view = None
    address = tensor_of(scope).data() if get_context(tensor_of(scope).place).unit.info.host else None
    if address is not None:  # who had the memory once may look at it for good
        address = address.ctypes.data
        before = counts.copy_within
        exe.run(main, {"x": np.zeros((4, 4), "float32")}, scope=scope)
        assert counts.copy_within - before == 1
        assert tensor_of(scope).data().ctypes.data == address


def test_state_that_is_set_from_views_of_state() -> None:
    """Arguments and values of a state dict may be views of state that is set before they are read."""
    a, b = np.full(3, 1, "float32"), np.full(3, 2, "float32")
    transformer = make_transformer()
    first, second = ng.variable((3,), initial_value=a), ng.variable((3,), initial_value=b)
    x = ng.placeholder((3,))
    views = transformer.computation([first, second], copy=False)()
    transformer.computation(None, first, second)(views[1], views[0])
    now = transformer.computation([first, second])()
    np.testing.assert_array_equal(now, [b, a])
    view = transformer.computation(first, copy=False)()
    found = transformer.computation(first + x, first, x)(np.full(3, 5, "float32"), view)
    np.testing.assert_array_equal(found, np.full(3, 7))
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        for name, value in (("p", 1.0), ("q", 2.0)):
            layers.create_parameter([3], "float32", name=name, default_initializer=fluid.initializer.Constant(value))
    fluid.Executor("cpu").run(startup)
    p, q = (fluid.global_scope().find_var(name).get_tensor() for name in "pq")
    fluid.io.set_program_state(main, {"p": q.numpy(), "q": p.numpy()})
    np.testing.assert_array_equal([p.numpy(), q.numpy()], [b, a])
